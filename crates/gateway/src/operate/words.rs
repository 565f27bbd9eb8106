//! What is said of an act: what was done, what the record is now, and what comes next.

use oncegate_core::identity::{RecordId, Version};
use oncegate_core::record::{Record, State};
use oncegate_engine::Act;

use crate::record::moment;

pub(super) fn no_record(id: RecordId) -> String {
    format!(
        "There is no record {id}: it was never made, or it is past its retention and was removed. Its story may still be there."
    )
}

/// What was done, and what comes next.
pub(super) fn done(act: &Act, version: Version, row: Option<&Record>) -> (String, String) {
    let Some(row) = row else {
        return ("Done; the record has been removed since.".to_owned(), "Nothing is left to do.".to_owned());
    };
    let (done, next) = match (act, &row.state) {
        (Act::Happened(answer), State::Completed(_)) => (
            format!("It happened: the record is completed with a {}.", answer.status()),
            "Retries get that answer.".to_owned(),
        ),
        (Act::Happened(_), State::InProgress) if row.version == version => (
            "Nothing was changed: that it happened is on record already.".to_owned(),
            "Wait for the end of the attempt that is still running.".to_owned(),
        ),
        (Act::Happened(_), State::InProgress) => (
            "Kept as evidence: an attempt is still running.".to_owned(),
            "If the attempt ends in doubt, retries get your answer; if it ends with an answer of its own, they get that.".to_owned(),
        ),
        (Act::DidNotHappen, State::FailedRetryable) => (
            "It did not happen: the record is failed_retryable.".to_owned(),
            "The same key may run again: the client's next retry does.".to_owned(),
        ),
        (Act::DidNotHappen, State::Pending { .. }) => (
            "It did not happen: the record is pending again.".to_owned(),
            "A worker runs it again.".to_owned(),
        ),
        (Act::AskAgain, State::Unknown(_)) => (
            "The record is before the machine again, as if nobody had asked.".to_owned(),
            "A gateway asks within seconds. Where its route has no probe, it is parked again.".to_owned(),
        ),
        (Act::Forget, State::Expired) => ("The stored answer is dropped.".to_owned(), forgotten(row)),
        // Somebody else has gone on since.
        (_, state) => (
            format!("Done; the record is {} now.", state.kind()),
            "Look at its story for what has happened since.".to_owned(),
        ),
    };
    (done, next)
}

/// The bound, and what a node does until then.
fn forgotten(row: &Record) -> String {
    let until = row.expires_at.map(moment);
    let until = until.as_ref().and_then(|until| until.as_str()).unwrap_or("then");
    format!(
        "Nodes that hear the store's signals have let go of it within milliseconds; one that is cut off may replay it from its \
         cache, but not after {until}. Until then the key is shut: nodes that reach the store refuse it as expired. After that \
         the same key is a new request and runs again."
    )
}

pub(super) fn changed(seen: Version, row: &Record, state: &str) -> String {
    format!(
        "The record has changed: you looked at version {}, and it is {state} at version {} now. Nothing was changed by this. \
         Look at it again, and decide by what you see.",
        seen.as_raw(),
        row.version.as_raw()
    )
}

pub(super) fn not_allowed(act: &Act, row: &Record, state: &str) -> String {
    let why = match act {
        Act::Happened(_) => "it cannot be settled as happened",
        Act::DidNotHappen => "it cannot be settled as not happened",
        Act::AskAgain => "there is nothing to ask",
        Act::Forget => "there is no answer to forget",
    };
    format!("The record is {state}, so {why}. Nothing was changed. {}", possible(row, state))
}

fn possible(row: &Record, state: &str) -> &'static str {
    match (&row.state, state) {
        (State::InProgress, "lapsed") => {
            "Its holder is gone, and within seconds the sweeper writes down what that makes of it: look again then."
        }
        (State::InProgress, _) => {
            "It is being executed: wait for its end. If you know that it happened, resolve it so: that is kept as evidence."
        }
        (State::Pending { .. }, _) => {
            "Nobody runs it yet: wait for a worker. Past its time it is answered with 408."
        }
        (State::Unknown(_), _) => {
            "Resolve it, if you know what happened; or have it asked about again with retry."
        }
        (State::Completed(_), _) => {
            "It is over and its answer stands. If that is wrong, it can only be forgotten: then the same key runs again."
        }
        (State::FailedRetryable, _) => {
            "It had no effect and may run again by itself. If you know that it did happen, resolve it so; or forget it."
        }
        (State::Expired, _) => "It is a tombstone: nothing more can be done to it, and it ends by itself.",
    }
}
