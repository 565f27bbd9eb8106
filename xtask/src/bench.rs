//! Measurements: built in release, run by the `bench` crate.

use crate::{Result, cargo, must, programs};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which measurement, and its options; without any, the store-level table
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    // Those that are named after a server start one of their own; all others need nothing but Rust.
    if args.rest.first().is_some_and(|first| first.starts_with("postgres")) {
        programs::provide_for_measurements()?;
    }
    must(cargo().args(["run", "--release", "--quiet", "--package", "oncegate-bench", "--"]).args(&args.rest))
}
