//! `oncegate forget`: drops a stored answer.

use std::process::ExitCode;

use oncegate_gateway::operate::Verb;

use crate::act::{self, Acting, Seen};
use crate::output;

/// Drop a stored answer: the key is shut until no node can replay it, and then runs again.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    seen: Seen,
    #[command(flatten)]
    acting: Acting,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    let question = "Drop its answer, so that the same key runs again after a while? What has happened happens again then.";
    let done = crate::source::block_on(act::on_one(
        &args.acting,
        &args.seen,
        Verb::Forget,
        act::nothing_more(),
        question,
    ));
    done.unwrap_or_else(|trouble| output::trouble(&trouble))
}
