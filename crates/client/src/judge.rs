//! What one answer says about an operation: the contract's table, as a function.
//!
//! Pure: no clock, no I/O. What earlier tries left behind is for `course`; a verdict is about this answer alone.
//!
//! **Invariant:** an answer that anybody but the record could have given never settles what an earlier try may have done.

use http::StatusCode;

use crate::answer::{Answer, Problem, Settled};
use crate::outcome::Why;

/// What an answer means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The operation took effect, once.
    Happened,
    /// The record says that it did not, whatever earlier tries looked like.
    DidNotHappen(Why),
    /// This try did nothing, and others like it will not either. Of earlier tries it says nothing.
    Refused(Why),
    /// It is over, and this answer does not say how.
    Unclear(Why),
    /// Ask again, with the same key.
    Again(Trace, Then),
}

/// What a try may have left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trace {
    /// It is proved that it did nothing.
    Nothing,
    /// It may have had its effect, or may still have it.
    Doubt,
}

/// What to do after a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Send the request.
    Send,
    /// Send the request, without a wait.
    SendAtOnce,
    /// Ask about accepted work here.
    AskAt(String),
    /// Ask where this was asked.
    AskThere,
}

const NOTHING_DONE: Verdict = Verdict::Again(Trace::Nothing, Then::Send);
const IN_DOUBT: Verdict = Verdict::Again(Trace::Doubt, Then::Send);

/// Judges an answer to the request itself.
pub(crate) fn judge(answer: &Answer) -> Verdict {
    let problem = answer.problem();
    if let Some(problem) = problem.as_ref().filter(|problem| problem.is_of_another_answer()) {
        return by_record(problem.answer_status());
    }
    match problem.and_then(|problem| of_problem(&problem)) {
        Some(verdict) => at(verdict, answer),
        None if answer.is_kept() => by_record(Some(answer.status)),
        None => by_status(answer),
    }
}

/// Judges an answer to a question about accepted work. Unless it is the record's own, the request itself is the authority.
pub(crate) fn judge_place(answer: &Answer) -> Verdict {
    let state = answer.operation_state().filter(|_| answer.status == StatusCode::OK);
    if state.is_none() && answer.is_kept() {
        return judge(answer);
    }
    let is_under_way = state.is_some_and(|state| is_under_way(&state));
    let is_later = matches!(answer.status.as_u16(), 202 | 429 | 500..);
    let then = if is_under_way || is_later { Then::AskThere } else { Then::SendAtOnce };
    Verdict::Again(Trace::Doubt, then)
}

/// In these states an operation has no answer yet.
fn is_under_way(state: &str) -> bool {
    matches!(state, "pending" | "in_progress" | "unknown")
}

/// What the gateway says in its own voice, by its problems' names; `None` of one that is not known here. A test has all of today's.
fn of_problem(problem: &Problem) -> Option<Verdict> {
    Some(match problem.code.as_str() {
        // Who could not cancel it is told that it goes on.
        "in_progress" | "outcome_unknown" | "not_cancellable" => IN_DOUBT,
        "upstream_unreachable"
        | "store_unavailable"
        | "authorization_unavailable"
        | "overloaded"
        | "rate_limited"
        | "too_many_keys"
        | "body_too_slow" => NOTHING_DONE,
        "not_started" => given_up(problem, Why::NotStarted),
        "cancelled" => given_up(problem, Why::Cancelled),
        // The route is not protected: to send it again could do it twice.
        "upstream_failed" => Verdict::Unclear(Why::UpstreamFailed),
        "key_reused" => Verdict::Refused(Why::KeyReused),
        "key_expired" => Verdict::Refused(Why::KeyExpired),
        "key_missing" => Verdict::Refused(Why::KeyMissing),
        "key_invalid" => Verdict::Refused(Why::KeyInvalid),
        "request_invalid" => Verdict::Refused(Why::RequestInvalid),
        "request_malformed" => Verdict::Refused(Why::RequestMalformed),
        "scope_missing" => Verdict::Refused(Why::ScopeMissing),
        "not_authorized" => Verdict::Refused(Why::NotAuthorized),
        "too_large" => Verdict::Refused(Why::TooLarge),
        "operation_not_found" => Verdict::Refused(Why::OperationNotFound),
        _ => return None,
    })
}

/// Of accepted work that is over without an answer of the API's. If it was attempted, that it did nothing may be no more than the API's word on a
/// 500, which this client does not take for any other 500 either.
fn given_up(problem: &Problem, why: Why) -> Verdict {
    if problem.was_attempted() { Verdict::Unclear(why) } else { Verdict::DidNotHappen(why) }
}

/// Of the operation's one answer.
fn by_record(status: Option<StatusCode>) -> Verdict {
    match status.map_or(0, |status| status.as_u16()) {
        200..=399 => Verdict::Happened,
        400..=499 => Verdict::DidNotHappen(Why::Refused),
        _ => Verdict::Unclear(Why::Failed),
    }
}

/// Of an answer that no record vouches for: from the API, or from anybody on the way.
fn by_status(answer: &Answer) -> Verdict {
    match (answer.settled(), answer.status.as_u16()) {
        // The API's own account, which may differ from what its status looks like.
        (Some(Settled::Undecided), _) => IN_DOUBT,
        (Some(Settled::Released), 200..=399) => NOTHING_DONE,
        (_, status) => by_status_alone(answer, status),
    }
}

fn by_status_alone(answer: &Answer, status: u16) -> Verdict {
    match status {
        202 if answer.operation_state().is_some_and(|state| is_under_way(&state)) => at(IN_DOUBT, answer),
        200..=299 => Verdict::Happened,
        300..=399 => Verdict::Unclear(Why::Redirected),
        425 | 429 => NOTHING_DONE,
        // Meant for a request that did not come in time; but many frameworks say it when a handler took too long.
        408 => IN_DOUBT,
        400..=499 | 501 | 505 => Verdict::Refused(Why::Refused),
        _ => IN_DOUBT,
    }
}

/// Work that was accepted says where to ask for it; where that was lost on the way, the request itself asks.
fn at(verdict: Verdict, answer: &Answer) -> Verdict {
    match (verdict, answer.location()) {
        (Verdict::Again(trace, _), Some(location)) if answer.status == StatusCode::ACCEPTED => {
            Verdict::Again(trace, Then::AskAt(location.to_owned()))
        }
        (verdict, _) => verdict,
    }
}

#[cfg(test)]
mod tests {
    use oncegate_core::problem::Code;

    use super::*;

    /// A new problem has to be thought about: until then its status would speak for it.
    #[test]
    fn every_problem_of_the_gateway_has_its_verdict() {
        for code in Code::ALL {
            // It speaks of another answer, and is judged by that one's status.
            let problem = Problem::named(code.name());
            let is_known = of_problem(&problem).is_some() || code == Code::AnswerNotKept;
            assert!(
                is_known,
                "{}: add it here, to clients/README.md and to clients/contract.json",
                code.name()
            );
        }
    }
}
