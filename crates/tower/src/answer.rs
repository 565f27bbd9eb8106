//! Step 10: the answer, from the attempt, from the record, or from the boundary itself.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use oncegate_core::classify::Failure;
use oncegate_core::fingerprint::Difference;
use oncegate_core::identity::RecordId;
use oncegate_core::key::Key;
use oncegate_core::policy::{AfterDoubt, Policy};
use oncegate_core::problem::{self, Code, Problem};
use oncegate_core::record::{Execution, Record, State, StateKind};
use oncegate_core::response::Answer;
use oncegate_core::scope::{Address, Scope};
use oncegate_core::time::Timestamp;
use oncegate_engine::{Arrived, Unavailable};
use oncegate_store::Store;
use oncegate_store::history::RESTORED;

use crate::body::ResponseBody;
use crate::execute::{Ended, Read};
use crate::headers;
use crate::refusals::Refusal;
use crate::reuse;

/// Which operation an answer is about, and by which policy.
pub(crate) struct About<'a> {
    pub(crate) policy: &'a Policy,
    /// Where callers look at their operations, if anywhere.
    pub(crate) operations: Option<&'a str>,
    pub(crate) operation: Which<'a>,
    /// Whether the client prefers to be told later.
    pub(crate) respond_async: bool,
}

/// An operation, by its id, or by what that is made of: it is needed only for problems.
#[derive(Clone, Copy)]
pub(crate) enum Which<'a> {
    Id(RecordId),
    Of { scope: &'a Scope, key: &'a Key },
}

impl<'a> About<'a> {
    /// Of a service whose callers have nowhere to look at their operations.
    pub(crate) const fn alone(policy: &'a Policy, operation: Which<'a>) -> Self {
        Self { policy, operations: None, operation, respond_async: false }
    }

    pub(crate) fn id(&self) -> RecordId {
        match self.operation {
            Which::Id(id) => id,
            Which::Of { scope, key } => RecordId::of(&Address { scope: scope.clone(), key: key.clone() }),
        }
    }

    /// Where the operation is, if anywhere.
    fn location(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&format!("{}{}", self.operations?, self.id())).ok()
    }

    /// A problem that a client may have to come back for says where to.
    pub(crate) fn refusal<B>(&self, problem: Problem) -> Response<ResponseBody<B>> {
        let Some(path) = self.operations else { return refusal(&problem) };
        let id = self.id();
        let problem = problem.with("instance", format!("{path}{id}").into());
        refusal(&problem.with("operation", id.to_string().into()))
    }
}

/// Where the operation stands after an answer that is not kept. Its status does not tell: the upstream's own account may stand against it.
pub(crate) const STATE: HeaderName = HeaderName::from_static("idempotency-state");

/// The attempt's own answer.
pub(crate) fn own<B>(ended: Ended<B>, row: &Record, about: &About<'_>) -> Response<ResponseBody<B>> {
    match ended {
        Ended::Answered { head, body } => {
            let mut response = plain(head, body);
            match &row.state {
                State::Completed(answer) if matches!(**answer, Answer::Kept(_)) => {
                    add_expiry(&mut response, row.expires_at);
                }
                State::FailedRetryable | State::Unknown(_) => {
                    let name = HeaderValue::from_static(row.state.kind().name());
                    response.headers_mut().insert(STATE, name);
                }
                State::Completed(_) | State::Pending { .. } | State::InProgress | State::Expired => {}
            }
            response
        }
        Ended::Failed(failure) if failure.proves_nothing_sent() => {
            let code = match failure {
                Failure::QueueFull => Code::Overloaded,
                _ => Code::UpstreamUnreachable,
            };
            let words =
                format!("{failure}. Nothing was executed. Send the same request with the same key again.");
            refusal(&Problem::new(code, words).retry_after(about.policy.retry_in_progress))
        }
        Ended::Failed(_) => unknown_first(about),
    }
}

/// What the handler has said.
pub(crate) fn plain<B>(head: http::response::Parts, body: Read<B>) -> Response<ResponseBody<B>> {
    let body = match body {
        Read::Whole(bytes) => ResponseBody::whole(bytes),
        Read::TooLarge { first, rest } => ResponseBody::prefixed(first, rest),
    };
    Response::from_parts(head, body)
}

/// The row says otherwise than the attempt: the row stands.
pub(crate) fn from_row<B>(row: Option<&Record>, about: &About<'_>) -> Response<ResponseBody<B>> {
    match row.map(|row| (&row.state, row)) {
        Some((State::Completed(answer), row)) => replay(answer, row.expires_at, about.policy),
        // 202 is a promise that a worker runs it, so only of what is deferred.
        Some((state @ (State::InProgress | State::Pending { .. }), row))
            if about.policy.may_defer() && row.execution == Execution::Deferred =>
        {
            accepted(state.kind(), about)
        }
        Some((State::InProgress | State::Pending { .. }, _)) => {
            about.refusal(Problem::in_progress(about.policy.retry_in_progress))
        }
        _ => unknown_first(about),
    }
}

/// The row's answer, for whoever is the first to hear it.
pub(crate) fn first_from_row<B>(row: &Record, about: &About<'_>) -> Response<ResponseBody<B>> {
    let mut response = from_row(Some(row), about);
    response.headers_mut().remove(about.policy.replayed_header);
    response
}

/// Not recorded, or not known: what is not recorded is never sent.
pub(crate) fn unknown_first<B>(about: &About<'_>) -> Response<ResponseBody<B>> {
    about.refusal(Problem::outcome_unknown_first(about.policy.retry_unknown))
}

/// Nobody knows, and an operator has it.
pub(crate) fn unsettled<B>(about: &About<'_>) -> Response<ResponseBody<B>> {
    about.refusal(Problem::outcome_unknown(about.policy.retry_unknown))
}

/// What a request is told that may not run.
pub(crate) fn told<S: Store, B>(arrived: Arrived<S>, about: &About<'_>) -> Response<ResponseBody<B>> {
    let policy = about.policy;
    let problem = match arrived {
        Arrived::Replay { answer, expires_at } => return replay(&answer, expires_at, policy),
        Arrived::Accepted { state, .. } if policy.may_defer() => return accepted(state, about),
        // 202 is a promise that a worker runs it, so only of what is deferred.
        Arrived::Unsettled { execution: Execution::Deferred, .. }
            if policy.after_doubt == AfterDoubt::Accept =>
        {
            return accepted(StateKind::Unknown, about);
        }
        Arrived::Busy { .. } | Arrived::Accepted { .. } | Arrived::Execute(_) => {
            Problem::in_progress(policy.retry_in_progress)
        }
        Arrived::Unsettled { .. } => Problem::outcome_unknown(policy.retry_unknown),
        Arrived::Mismatch { .. } => Problem::key_reused(reuse::status(policy), &Difference::default()),
        Arrived::Gone { status } => Problem::key_expired(status),
    };
    about.refusal(problem)
}

/// Fail closed. What may have been accepted may be executed, and is not told otherwise.
pub(crate) fn unavailable<B>(unavailable: &Unavailable, about: &About<'_>) -> Response<ResponseBody<B>> {
    let retry_after = about.policy.retry_unknown;
    let (code, words) = match unavailable {
        Unavailable::PerhapsAccepted { .. } => {
            return about.refusal(Problem::acceptance_unknown(retry_after));
        }
        Unavailable::BreakerOpen { .. } => {
            let words = "The store failed several times in a row and is not asked for a moment. Nothing was executed. Send the \
                         same request with the same key again later.";
            let problem = Problem::new(Code::StoreUnavailable, words).counted_as("breaker");
            return refusal(&problem.retry_after(retry_after));
        }
        Unavailable::Overloaded => {
            (Code::Overloaded, "More requests are waiting than can be recorded in time.")
        }
        Unavailable::Restored => {
            let words = format!("This request was not executed: {RESTORED}.");
            return refusal(&Problem::new(Code::StoreUnavailable, words).retry_after(retry_after));
        }
        Unavailable::Store { .. } | Unavailable::NoRandomness => {
            (Code::StoreUnavailable, "This request could not be recorded, so it was not executed.")
        }
    };
    let words = format!("{words} Nothing was executed. Send the same request with the same key again later.");
    refusal(&Problem::new(code, words).retry_after(retry_after))
}

/// 202: not over yet, and here is where to ask. Nothing of it is kept, so nothing says until when. The place is what tells it from a 202 of
/// the API's own, which is a success: where there is none, it is a problem instead.
pub(crate) fn accepted<B>(state: StateKind, about: &About<'_>) -> Response<ResponseBody<B>> {
    let Some(location) = about.location() else {
        return about.refusal(match state {
            StateKind::Unknown => Problem::outcome_unknown(about.policy.retry_unknown),
            _ => Problem::in_progress(about.policy.retry_in_progress),
        });
    };
    let retry_after = match state {
        StateKind::Unknown => about.policy.retry_unknown,
        _ => about.policy.retry_in_progress,
    };
    let id = about.id();
    let seconds = problem::whole_seconds(retry_after);
    let body = serde_json::json!({ "id": id.to_string(), "state": state.name(), "retry_after_s": seconds });
    let mut response = Response::new(ResponseBody::whole(Bytes::from(body.to_string())));
    *response.status_mut() = StatusCode::ACCEPTED;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::LOCATION, location);
    if about.respond_async {
        headers.insert(headers::PREFERENCE_APPLIED, HeaderValue::from_static("respond-async"));
    }
    response
}

/// A stored answer, byte for byte.
pub(crate) fn replay<B>(
    answer: &Arc<Answer>,
    expires_at: Option<Timestamp>,
    policy: &Policy,
) -> Response<ResponseBody<B>> {
    let (Answer::Kept(kept), Ok(status)) = (&**answer, StatusCode::from_u16(answer.status())) else {
        let location = match &**answer {
            Answer::NotKept { location, .. } => location.as_deref(),
            Answer::Kept(_) => None,
        };
        let mut response = refusal(&Problem::answer_not_kept(answer.status(), location));
        if let Some(location) = location.and_then(|location| HeaderValue::from_bytes(location).ok()) {
            response.headers_mut().insert(header::LOCATION, location);
        }
        return response;
    };
    let mut response = Response::new(());
    *response.status_mut() = status;
    response.headers_mut().reserve(kept.headers.len() + 2);
    for (name, value) in &kept.headers {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value))
        {
            response.headers_mut().append(name, value);
        }
    }
    let mut response = response.map(|()| ResponseBody::of_answer(Arc::clone(answer)));
    if let Ok(name) = HeaderName::from_bytes(policy.replayed_header.as_bytes()) {
        response.headers_mut().insert(name, HeaderValue::from_static("true"));
    }
    add_expiry(&mut response, expires_at);
    response
}

/// The last second of the year 9999: an HTTP date has four digits for the year, and `httpdate` panics at more.
const LAST_DATE: Duration = Duration::from_secs(253_402_300_799);

fn add_expiry<B>(response: &mut Response<B>, expires_at: Option<Timestamp>) {
    let date = expires_at.and_then(|end| {
        let since_epoch = Duration::from_micros(u64::try_from(end.as_micros()).ok()?).min(LAST_DATE);
        let date = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH.checked_add(since_epoch)?);
        HeaderValue::from_str(&date).ok()
    });
    if let Some(date) = date {
        response.headers_mut().insert(headers::EXPIRES, date);
    }
}

/// An answer of the boundary's own: a problem document.
#[must_use]
pub fn refusal<B>(problem: &Problem) -> Response<ResponseBody<B>> {
    let mut response = Response::new(ResponseBody::whole(Bytes::from(problem.to_json())));
    *response.status_mut() =
        StatusCode::from_u16(problem.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.extensions_mut().insert(Refusal { reason: problem.reason() });
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(problem::CONTENT_TYPE));
    if let Some(seconds) = problem.retry_after_s() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if response.status() == StatusCode::UNAUTHORIZED {
        // RFC 9110 wants a challenge with every 401; what is behind may take another scheme.
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `httpdate` panics from the year 10000 on: a record that was kept longer could never be answered from.
    #[test]
    fn a_record_that_outlives_the_year_9999_has_the_last_date_there_is() {
        for end in [Timestamp::from_micros(253_402_300_800_000_000), Timestamp::NEVER] {
            let mut response = Response::new(());
            add_expiry(&mut response, Some(end));
            assert_eq!(response.headers()[headers::EXPIRES], "Fri, 31 Dec 9999 23:59:59 GMT");
        }
    }
}
