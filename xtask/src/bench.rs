//! Measurements: built in release, run by the `bench` crate.

use crate::{Result, cargo, must};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which measurement, and its options; without any, the store-level table
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    must(cargo().args(["run", "--release", "--quiet", "--package", "oncegate-bench", "--"]).args(&args.rest))
}
