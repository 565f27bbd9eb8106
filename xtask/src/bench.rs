//! Measurements: built in release, run by the `bench` crate.

use crate::{Result, cargo, must, programs};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which measurement, and its options; without any, the store-level table
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let first = args.rest.first().map_or("", String::as_str);
    // These start a server of their own; all others need nothing but Rust.
    if first.starts_with("postgres") || ["atomic", "outbox", "sweeper", "reaper"].contains(&first) {
        programs::provide_for_measurements()?;
    }
    // A web framework and a database library, which no other needs.
    let features: &[&str] = if first == "atomic" { &["--features", "atomic"] } else { &[] };
    let mut run = cargo();
    run.args(["run", "--release", "--quiet", "--package", "oncegate-bench"]).args(features);
    must(run.arg("--").args(&args.rest))
}
