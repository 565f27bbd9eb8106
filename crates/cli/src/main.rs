//! The command `oncegate`: one file a command.
//!
//! stdout is data, stderr is talk. Exit code 0: done; 1: it failed; 2: the input or the command line is wrong.

mod check;
mod dev;
mod fingerprint;
mod serve;
mod streams;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Makes a POST take effect once.
#[derive(Parser)]
#[command(name = "oncegate", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Check(check::Args),
    Dev(dev::Args),
    Fingerprint(fingerprint::Args),
    Serve(serve::Args),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Check(args) => check::run(&args),
        Command::Dev(args) => dev::run(&args),
        Command::Fingerprint(args) => fingerprint::run(&args),
        Command::Serve(args) => serve::run(&args),
    }
}
