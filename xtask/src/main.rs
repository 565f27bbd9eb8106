//! What people and CI run: `cargo xtask test`, `cargo xtask bench`, `cargo xtask mutants`, `cargo
//! xtask deny`.
//!
//! Logic lives here and nowhere else, so that a person and CI do the same thing.

mod bench;
mod deny;
mod mutants;
mod programs;
mod servers;
mod test;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks of the Oncegate workspace")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Installs or starts whatever the tests need, and runs all of them
    Test(test::Args),
    /// Builds in release and measures, side by side; prints tables of ratios
    Bench(bench::Args),
    /// Takes each rule back, one at a time, and checks that the tests notice
    Mutants(mutants::Args),
    /// Checks licences, banned crates, sources and known vulnerabilities of the dependencies
    Deny,
}

fn main() -> ExitCode {
    let done = match Cli::parse().task {
        Task::Test(args) => test::run(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Mutants(args) => mutants::run(&args),
        Task::Deny => deny::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// What went wrong, in words for the person who ran the task.
type Result<T> = std::result::Result<T, String>;

/// The root of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// `cargo`, at the root.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs a command, showing it, and fails if it does.
fn must(command: &mut Command) -> Result<()> {
    let shown = shown(command);
    eprintln!("$ {shown}");
    let status = command.status().map_err(|error| format!("could not start `{shown}`: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{shown}` failed ({status})")) }
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
