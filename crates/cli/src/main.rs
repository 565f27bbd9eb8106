//! The command `oncegate`: one file a command.
//!
//! stdout is data, stderr is talk. Exit code 0: done; 1: it failed; 2: the input or the command line is wrong; 3: there is no such
//! record; 4: the record has changed, or its state does not allow it, and nothing was done; 5: `compare` found differences.

mod act;
mod admin_client;
mod audit;
mod check;
mod compare;
mod completions;
mod dead;
mod dev;
mod fingerprint;
mod forget;
mod keys;
mod migrate;
mod output;
mod progress;
mod quarantine;
mod report_output;
mod resolve;
mod serve;
mod shown;
mod source;
mod stats;
mod store;
mod streams;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The gateway asks for memory some sixty times a request, from all its threads: see docs/decisions/0016-hot-path.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Makes a POST take effect once.
#[derive(Parser)]
#[command(
    name = "oncegate",
    version,
    after_help = "Exit codes: 0 done; 1 it failed; 2 the input or the command line is wrong; 3 there is no such record; \
                  4 the record has changed, or its state does not allow it; 5 compare found differences."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Audit(audit::Args),
    Check(check::Args),
    Compare(Box<compare::Args>),
    Completions(completions::Args),
    Dead(dead::Args),
    Dev(dev::Args),
    Fingerprint(fingerprint::Args),
    Forget(forget::Args),
    Keys(keys::Args),
    Migrate(migrate::Args),
    Quarantine(Box<quarantine::Args>),
    Resolve(resolve::Args),
    Serve(serve::Args),
    Stats(stats::Args),
    #[command(subcommand)]
    Store(store::Command),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Audit(args) => audit::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Dead(args) => dead::run(&args),
        Command::Dev(args) => dev::run(&args),
        Command::Fingerprint(args) => fingerprint::run(&args),
        Command::Forget(args) => forget::run(&args),
        Command::Keys(args) => keys::run(&args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Quarantine(args) => quarantine::run(&args),
        Command::Resolve(args) => resolve::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Store(command) => store::run(&command),
    }
}
