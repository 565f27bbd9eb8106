//! Measurements: built as what is shipped, run by the `bench` crate.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Result, cargo, must, programs, root};

/// The profile of what is shipped.
const PROFILE: &str = "dist";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which measurement, and its options; without any, the whole matrix, into bench/results and docs/performance.md
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let first = args.rest.first().map_or("", String::as_str);
    let is_all = first.is_empty() || first.starts_with("--");
    if is_all {
        // The gateway that is measured is the product's own program, beside the one that measures.
        must(cargo().args([
            "build",
            "--profile",
            PROFILE,
            "--package",
            "oncegate-cli",
            "--package",
            "oncegate-bench",
        ]))?;
    }
    // These start a server of their own; all others need nothing but Rust.
    if is_all || first.starts_with("postgres") || ["atomic", "outbox", "sweeper", "reaper"].contains(&first) {
        programs::provide_for_measurements()?;
    }
    // A web framework and a database library, which no other needs.
    let features: &[&str] = if first == "atomic" { &["--features", "atomic"] } else { &[] };
    let mut run = if is_all {
        Command::new(built("oncegate-bench")?)
    } else {
        let mut run = cargo();
        run.args(["run", "--profile", PROFILE, "--quiet", "--package", "oncegate-bench"])
            .args(features)
            .arg("--");
        run
    };
    must(run.args(&args.rest).current_dir(root()))
}

/// A program that was built to be measured: beside our own folder, wherever that is.
fn built(name: &str) -> Result<PathBuf> {
    let ours = std::env::current_exe().map_err(|error| format!("we do not know where we are: {error}"))?;
    let target = ours.parent().and_then(Path::parent).ok_or("we are in no folder of cargo's")?;
    Ok(target.join(PROFILE).join(name))
}
