//! The command `oncegate`: one file a command.
//!
//! stdout is data, stderr is talk. Exit code 0: done; 1: it failed; 2: the input or the command line is wrong; 3: there is no such
//! record; 4: `compare` found differences.

mod check;
mod compare;
mod completions;
mod dev;
mod fingerprint;
mod keys;
mod migrate;
mod output;
mod serve;
mod source;
mod stats;
mod streams;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Makes a POST take effect once.
#[derive(Parser)]
#[command(
    name = "oncegate",
    version,
    after_help = "Exit codes: 0 done; 1 it failed; 2 the input or the command line is wrong; 3 there is no such record; 4 compare found differences."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Check(check::Args),
    Compare(Box<compare::Args>),
    Completions(completions::Args),
    Dev(dev::Args),
    Fingerprint(fingerprint::Args),
    Keys(keys::Args),
    Migrate(migrate::Args),
    Serve(serve::Args),
    Stats(stats::Args),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Check(args) => check::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Dev(args) => dev::run(&args),
        Command::Fingerprint(args) => fingerprint::run(&args),
        Command::Keys(args) => keys::run(&args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Stats(args) => stats::run(&args),
    }
}
