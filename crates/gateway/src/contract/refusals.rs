//! What the boundary may answer a route's clients in its own voice, by the route's policy.

use oncegate_core::fingerprint::{Difference, Mode};
use oncegate_core::policy::{AfterDoubt, Mismatch, Policy, WhileInProgress};
use oncegate_core::problem::{Code, Problem};
use oncegate_core::record::{AfterRetention, Execution};

use super::span;
use crate::config::{From, ScopeRule, Size};

/// One answer of the boundary's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) status: u16,
    pub(crate) retry_after_s: Option<u64>,
    pub(crate) when: String,
    pub(crate) then: &'static str,
}

impl Refusal {
    fn of(problem: &Problem, when: impl Into<String>, then: &'static str) -> Self {
        Self {
            code: problem.code(),
            status: problem.status(),
            retry_after_s: problem.retry_after_s(),
            when: when.into(),
            then,
        }
    }
}

const SAME_AGAIN: &str = "Send the same request with the same key again.";

/// All that this policy allows, by status.
pub(crate) fn refusals(policy: &Policy, scope: &ScopeRule, is_preauthorized: bool) -> Vec<Refusal> {
    let mut all: Vec<_> = Code::ALL.into_iter().flat_map(|code| of_code(code, policy, scope)).collect();
    if is_preauthorized {
        all.extend(of_preauthorization(policy));
    }
    all.sort_by_key(|refusal| refusal.status);
    all
}

/// A new code has to be thought about here: that is why there is no `_`.
fn of_code(code: Code, policy: &Policy, scope: &ScopeRule) -> Vec<Refusal> {
    let usual = Problem::new(code, "");
    let one = |when: &str, then| vec![Refusal::of(&usual, when, then)];
    // Nobody waits for the API itself then.
    let is_deferred = policy.execution == Execution::Deferred;
    match code {
        Code::ScopeMissing => one(scope_missing(scope), "Send the credentials that the API asks for."),
        Code::KeyMissing if policy.key.required => {
            one("There is no key.", "Make one, and send it with every try.")
        }
        Code::KeyInvalid => one(
            "The key cannot be read, or is not what this endpoint takes.",
            "Correct it; the `detail` says what is wrong.",
        ),
        Code::RequestInvalid => {
            one(request_invalid(&policy.fingerprint), "Correct the body. The key is still unused.")
        }
        Code::KeyReused => key_reused(policy),
        // 202 instead. What runs while its client waits is never answered so.
        Code::InProgress if is_deferred => Vec::new(),
        Code::InProgress => {
            let when = match policy.in_progress {
                WhileInProgress::Wait => {
                    format!(
                        "The first request with this key is being executed, and was not over after waiting for {}.",
                        span(policy.wait_limit)
                    )
                }
                WhileInProgress::Reject | WhileInProgress::Accept => {
                    "The first request with this key is being executed.".to_owned()
                }
            };
            vec![Refusal::of(&Problem::in_progress(policy.retry_in_progress), when, SAME_AGAIN)]
        }
        Code::OutcomeUnknown => outcome_unknown(policy),
        Code::KeyExpired => match policy.after_retention {
            AfterRetention::Fresh => Vec::new(),
            AfterRetention::Gone { status, .. } => vec![Refusal::of(
                &Problem::key_expired(status),
                "The key was used before, and its answer is no longer kept. Nothing was executed.",
                "Look the result up by other means before you send it again with a new key.",
            )],
        },
        Code::AnswerNotKept => vec![Refusal::of(
            &Problem::answer_not_kept(200, None),
            format!(
                "The operation was completed, and its answer was larger than the {} that are kept.",
                Size(policy.answer_bytes_max)
            ),
            "Fetch the result from `answer_location`; `answer_status` is the status that it had.",
        )],
        Code::TooLarge => one(
            &format!("The body is larger than {}.", Size(policy.body_bytes_max)),
            "Send less. The key is still unused.",
        ),
        Code::BodyTooSlow => one("The body came too slowly. Nothing was executed.", SAME_AGAIN),
        Code::UpstreamUnreachable if !is_deferred => {
            let problem = usual.retry_after(policy.retry_in_progress);
            vec![Refusal::of(&problem, "The API could not be reached. Nothing was executed.", SAME_AGAIN)]
        }
        Code::StoreUnavailable => {
            let problem = usual.retry_after(policy.retry_unknown);
            vec![Refusal::of(
                &problem,
                "The request could not be recorded, so it was not executed.",
                SAME_AGAIN,
            )]
        }
        // Its `Retry-After` differs by where the queue is.
        Code::Overloaded => one(
            "Too many requests at once. Nothing was executed.",
            "Wait for `Retry-After`. Send the same request with the same key again.",
        ),
        Code::NotStarted if policy.may_defer() => one(
            "It was accepted, and could not be done in time. No attempt is known to have had an effect; where `attempted` is not there, there was none.",
            "Send it again with a new key if it is still wanted.",
        ),
        Code::Cancelled if policy.may_defer() => one(
            "It was accepted, and you cancelled it while it waited. No attempt is known to have had an effect; where `attempted` is not there, there was none.",
            "Send it again with a new key if it is wanted after all.",
        ),
        Code::RequestMalformed => one(
            "Two readers of HTTP could understand the request differently. Nothing was executed.",
            "Send it as HTTP says; every common library does.",
        ),
        Code::UpstreamFailed if !policy.key.required => {
            let when =
                "A request *without a key* got no proper answer from the API; it may have been executed.";
            let then = "Look the result up. With a key this would not be left to you.";
            vec![Refusal::of(&usual, when, then), Refusal::of(&usual.clone().with_status(504), when, then)]
        }
        // Keys that are not required; deferred work, or work that is not, and requests without a key, only; limits by scope are not this
        // gateway's; lookups and cancelling are another endpoint; a check of callers is not the
        // policy's.
        Code::KeyMissing
        | Code::NotStarted
        | Code::Cancelled
        | Code::NotCancellable
        | Code::UpstreamUnreachable
        | Code::UpstreamFailed
        | Code::RateLimited
        | Code::TooManyKeys
        | Code::OperationNotFound
        | Code::NotAuthorized
        | Code::AuthorizationUnavailable => Vec::new(),
    }
}

/// What callers are told where a service is asked about them first.
fn of_preauthorization(policy: &Policy) -> [Refusal; 3] {
    let refused = Problem::new(Code::NotAuthorized, "");
    let when =
        "The credentials are not, or no longer, allowed to use this endpoint. This request was not executed.";
    let then = "Get valid credentials. What became of an earlier try is said to an authorized caller only.";
    let unavailable = Problem::new(Code::AuthorizationUnavailable, "").retry_after(policy.retry_unknown);
    let unknown = "Whether the caller may use this endpoint could not be found out. Nothing was executed.";
    [
        Refusal::of(&refused, when, then),
        Refusal::of(&refused.clone().with_status(403), when, then),
        Refusal::of(&unavailable, unknown, SAME_AGAIN),
    ]
}

fn scope_missing(scope: &ScopeRule) -> &'static str {
    match (&scope.from, scope.shares_anonymous) {
        (From::Authorization, false) => "There is a key, but not exactly one `Authorization` header.",
        (From::Authorization, true) => "There is a key, but more than one `Authorization` header.",
        (From::Header { .. }, _) => "There is a key, but nothing that is believed says whose it is.",
    }
}

fn request_invalid(mode: &Mode) -> &'static str {
    match mode {
        Mode::Json | Mode::Fields(_) => {
            "The body is declared as JSON and is not, names a member twice, or broke off. Nothing was executed."
        }
        Mode::Raw | Mode::None => "The body broke off. Nothing was executed.",
    }
}

fn key_reused(policy: &Policy) -> Vec<Refusal> {
    match policy.mismatch {
        Mismatch::Replay => Vec::new(),
        Mismatch::Refuse(status) => vec![Refusal::of(
            &Problem::key_reused(status, &Difference::default()),
            "The key was used for another request. This one was not executed.",
            "Use a new key for a new operation. If it is a retry, send exactly what you sent first.",
        )],
    }
}

fn outcome_unknown(policy: &Policy) -> Vec<Refusal> {
    let then = "Send the same request with the same key again, for as long as you need the answer. **Do not make a new key**: it could be executed twice.";
    let later = match policy.after_doubt {
        AfterDoubt::WaitThenReject => format!(
            "An earlier try may have taken effect; this is being found out, and was not known after waiting for {}.",
            span(policy.wait_limit)
        ),
        AfterDoubt::Reject | AfterDoubt::Accept => {
            "An earlier try may have taken effect, and this is being found out.".to_owned()
        }
    };
    let first = match (policy.execution, policy.respond_async) {
        (Execution::Inline, false) => {
            "This try may have taken effect: the API did not answer, or its answer could not be recorded in time."
        }
        (Execution::Inline, true) => {
            "This try may have taken effect: the API did not answer, or its answer could not be recorded in time; or it is not known \
             whether it was accepted, and it may be executed."
        }
        (Execution::Deferred, _) => "It is not known whether the request was accepted. It may be executed.",
    };
    let first = Refusal::of(&Problem::outcome_unknown_first(policy.retry_unknown), first, then);
    let later = Refusal::of(&Problem::outcome_unknown(policy.retry_unknown), later, then);
    let mut all = vec![first];
    if policy.after_doubt != AfterDoubt::Accept || policy.execution == Execution::Inline {
        all.push(later);
    }
    all
}
