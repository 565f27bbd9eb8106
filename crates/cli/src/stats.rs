//! `oncegate stats`: how many records are in each state, and the steps of its clock that a gateway
//! noticed.

use std::process::ExitCode;

use serde_json::Value;

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
    Ok(print(shown(&counts).as_bytes()))
}

fn shown(counts: &Value) -> String {
    let rows = STATES.map(|(state, meaning)| {
        let count = counts[state].as_u64().unwrap_or_default();
        vec![state.to_owned(), count.to_string(), meaning.to_owned()]
    });
    let table = output::table(&["STATE", "RECORDS", "WHICH ARE"], &rows);
    // Only a running gateway watches the clock; a store by itself does not.
    let steps = |direction: &str| counts["clock_steps"][direction].as_u64().unwrap_or_default();
    match (steps("forward"), steps("back")) {
        (0, 0) => table,
        (forward, back) => format!(
            "{table}\nClock steps since this gateway started: {forward} forward, {back} back. \
             See docs/alerts.md#oncegateclockstep\n"
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::shown;

    #[test]
    fn clock_steps_that_a_gateway_noticed_are_shown() {
        let counts = |forward, back| json!({ "clock_steps": { "forward": forward, "back": back } });
        assert!(shown(&counts(2, 1)).contains("2 forward, 1 back"));
        assert_eq!(shown(&counts(0, 0)), shown(&json!({ "clock_steps": null })));
    }
}
