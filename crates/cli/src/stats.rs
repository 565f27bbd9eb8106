//! `oncegate stats`: how many records are in each state.

use std::process::ExitCode;

use crate::output;
use crate::source::{Trouble, Where};
use crate::streams::print;

/// Show how many records are in each state.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Where,
    /// For programs
    #[arg(long)]
    json: bool,
}

const STATES: [(&str, &str); 7] = [
    ("pending", "accepted; nobody runs them yet"),
    ("in_progress", "being executed, or their holder is gone"),
    ("completed", "over; retries get the stored answer"),
    ("failed_retryable", "had no effect; the same key may run again"),
    ("unknown", "may or may not have happened"),
    ("parked", "of these: before an operator"),
    ("expired", "tombstones"),
];

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    match crate::source::block_on(show(args)) {
        Ok(code) => code,
        Err(trouble) => output::trouble(&trouble),
    }
}

async fn show(args: &Args) -> Result<ExitCode, Trouble> {
    let counts = args.source.open().await?.counts().await?;
    if args.json {
        return Ok(print(format!("{counts:#}\n").as_bytes()));
    }
    let rows = STATES.map(|(state, meaning)| {
        let count = counts[state].as_u64().unwrap_or_default();
        vec![state.to_owned(), count.to_string(), meaning.to_owned()]
    });
    Ok(print(output::table(&["STATE", "RECORDS", "WHICH ARE"], &rows).as_bytes()))
}
