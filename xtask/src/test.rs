//! All tests, on a machine with only Rust and a C compiler.

use crate::servers::Servers;
use crate::{Result, cargo, programs};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Passed on to the test runner: a filter, say
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    programs::provide_for_tests()?;
    // Dropped, it stops what was started: also after a failure.
    let servers = Servers::start()?;
    // The examples in the documentation come first, so that the runner's summary is the last word.
    servers.must(cargo().args(["test", "--workspace", "--locked", "--doc", "--quiet"]))?;
    let has_nextest = cargo().args(["nextest", "--version"]).output().is_ok_and(|out| out.status.success());
    if has_nextest {
        return servers.must(
            cargo().args(["nextest", "run", "--workspace", "--locked", "--no-fail-fast"]).args(&args.rest),
        );
    }
    eprintln!("cargo-nextest is not installed; using `cargo test`, which takes longer");
    servers.must(
        cargo().args(["test", "--workspace", "--locked", "--no-fail-fast", "--all-targets"]).args(&args.rest),
    )
}
