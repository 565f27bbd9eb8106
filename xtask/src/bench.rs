//! Measurements: built in release, run by the `bench` crate.

use crate::{Result, cargo, must, programs};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which measurement, and its options; without any, the store-level table
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    // These start servers of their own; all others need nothing but Rust.
    let needs_servers =
        |name: &String| name.starts_with("postgres") || ["sweeper", "reaper"].contains(&name.as_str());
    if args.rest.first().is_some_and(needs_servers) {
        programs::provide_for_measurements()?;
    }
    must(cargo().args(["run", "--release", "--quiet", "--package", "oncegate-bench", "--"]).args(&args.rest))
}
