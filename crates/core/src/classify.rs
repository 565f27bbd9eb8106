//! Judges the end of an attempt: complete, release or doubt.
//!
//! **Invariant:** a release needs proof that nothing was executed, or an upstream whose word the policy takes; then the
//! reason says so. Whatever is neither is doubt: a timeout is not a failure.

use std::fmt;

use crate::policy::{ForwardKey, OnServerError, OnUnavailable, Policy, StoredStatuses};
use crate::record::Reason;

/// How an attempt is to be settled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Class {
    /// The unit of work is over; keep its answer.
    Complete,
    /// Nothing was executed.
    Release(Reason),
    /// Something may have been.
    Doubt(Reason),
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With an answer.
    Answered {
        /// Its status.
        status: u16,
        /// What the upstream said about it in `Idempotency-Outcome`.
        outcome: Option<Outcome>,
    },
    /// Without one.
    Failed(Failure),
}

/// The upstream's or handler's own account, in the response header `Idempotency-Outcome`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The unit of work is over.
    Completed,
    /// Nothing was executed.
    NotExecuted,
    /// Something may have been.
    Unknown,
}

impl Outcome {
    /// Reads the header's value. `None`: it says nothing that we understand, and the status decides.
    #[must_use]
    pub fn read(value: &[u8]) -> Option<Self> {
        match value.trim_ascii() {
            b"completed" => Some(Self::Completed),
            b"not-executed" => Some(Self::NotExecuted),
            b"unknown" => Some(Self::Unknown),
            _ => None,
        }
    }
}

/// An end without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The connection was refused.
    ConnectionRefused,
    /// The connection could not be made in time.
    ConnectTimeout,
    /// No connection could be made, for another reason.
    ConnectFailed,
    /// The upstream's name has no address.
    NameNotFound,
    /// The TLS handshake failed, so no request was sent.
    TlsHandshake,
    /// The queue before the upstream is full.
    QueueFull,
    /// The connection was closed before it took the request, which came back whole.
    Unsent,
    /// The upstream refused the stream (HTTP/2), which by its standard says that it has not processed it.
    StreamRefused,
    /// The lease ended before the first byte left.
    LeaseEnded,
    /// The client's body broke off or was malformed while it was being sent on.
    RequestBody,
    /// No answer in time.
    Timeout,
    /// The connection broke after bytes had left.
    Reset,
    /// The answer broke off.
    Truncated,
    /// The answer is not HTTP.
    Protocol,
    /// The handler panicked.
    Panic,
    /// The attempt was abandoned by a shutdown.
    Abandoned,
    /// The service behind failed without an answer, and did not say how.
    Service,
}

impl Failure {
    /// It is proved that nothing was sent.
    #[must_use]
    pub const fn proves_nothing_sent(self) -> bool {
        match self {
            Self::ConnectionRefused
            | Self::ConnectTimeout
            | Self::ConnectFailed
            | Self::NameNotFound
            | Self::TlsHandshake
            | Self::QueueFull
            | Self::Unsent
            | Self::StreamRefused
            | Self::LeaseEnded => true,
            Self::RequestBody
            | Self::Timeout
            | Self::Reset
            | Self::Truncated
            | Self::Protocol
            | Self::Panic
            | Self::Abandoned
            | Self::Service => false,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConnectionRefused => "the upstream refused the connection",
            Self::ConnectTimeout => "the upstream could not be reached in time",
            Self::ConnectFailed => "no connection to the upstream could be made",
            Self::NameNotFound => "the upstream's name has no address",
            Self::TlsHandshake => "the TLS handshake with the upstream failed",
            Self::QueueFull => "the queue before the upstream is full",
            Self::Unsent => "the connection to the upstream was closed before the request was sent",
            Self::StreamRefused => "the upstream refused the request before it processed it",
            Self::LeaseEnded => "the lease ended before the first byte was sent",
            Self::RequestBody => "the request's body broke off or was malformed",
            Self::Timeout => "the upstream did not answer in time",
            Self::Reset => "the connection to the upstream broke after the request was sent",
            Self::Truncated => "the upstream's answer broke off",
            Self::Protocol => "the upstream's answer was not valid HTTP",
            Self::Panic => "the handler panicked",
            Self::Abandoned => "the attempt was abandoned by a shutdown",
            Self::Service => "the service behind failed without an answer",
        })
    }
}

/// Judges an ending by the route's policy.
pub fn classify(policy: &Policy, ending: &Ending) -> Class {
    match *ending {
        Ending::Failed(failure) if failure.proves_nothing_sent() => {
            Class::Release(Reason::new("not_sent", failure.to_string()))
        }
        Ending::Failed(failure) => Class::Doubt(Reason::new("failed", failure.to_string())),
        Ending::Answered { outcome: Some(Outcome::Completed), .. } => Class::Complete,
        Ending::Answered { outcome: Some(Outcome::NotExecuted), status } => {
            released(policy, status, "with Idempotency-Outcome: not-executed")
        }
        Ending::Answered { outcome: Some(Outcome::Unknown), status } => {
            Class::Doubt(Reason::new("answered", format!("{status} with Idempotency-Outcome: unknown")))
        }
        Ending::Answered { outcome: None, status } => by_status(policy, status),
    }
}

fn by_status(policy: &Policy, status: u16) -> Class {
    match status {
        200..=399 => Class::Complete,
        // A server that waits for a request in vain; but many frameworks say it when a handler took too long.
        408 if policy.unavailable == OnUnavailable::Doubt => {
            Class::Doubt(Reason::new("answered", "408: the handler may have been cut off"))
        }
        _ if refuses_before_acting(status) => released(policy, status, "refused before acting"),
        400..=499 if policy.stored == StoredStatuses::Successes => {
            released(policy, status, "is not kept by this route")
        }
        400..=499 => Class::Complete,
        501 | 505 => released(policy, status, "refused before acting"),
        502 | 504 if policy.stored == StoredStatuses::All => Class::Complete,
        502 | 504 => {
            Class::Doubt(Reason::new("answered", format!("{status}: somebody behind may have acted")))
        }
        503 => match policy.unavailable {
            OnUnavailable::Release => released(policy, status, "says that nothing was done"),
            OnUnavailable::Doubt => Class::Doubt(Reason::new("answered", "503: the work may be going on")),
        },
        500..=599 => match policy.server_error {
            OnServerError::Release => released(policy, status, "says that nothing was done"),
            OnServerError::Store => Class::Complete,
            OnServerError::Doubt => {
                Class::Doubt(Reason::new("answered", format!("{status}: it may have acted")))
            }
        },
        // Interim or beyond the standard: not an account of anything.
        _ => Class::Doubt(Reason::new("answered", format!("{status} is no final status"))),
    }
}

/// Statuses by which a server refuses before it acts.
const fn refuses_before_acting(status: u16) -> bool {
    matches!(status, 401 | 403 | 405 | 407 | 408 | 411 | 413..=415 | 421 | 425 | 426 | 428 | 429 | 431)
}

/// Statuses by which a server refuses the caller, and not what was asked for.
const fn refuses_caller(status: u16) -> bool {
    matches!(status, 401 | 403 | 407)
}

/// The code of a release because of an answer: that nothing was executed is the upstream's word.
pub const UPSTREAMS_WORD: &str = "upstreams_word";
/// The same, where the upstream refused the caller (401, 403, 407). Such a record lives for
/// seconds,
/// and deferred work is not tried a third time.
pub const CALLER_REFUSED: &str = "caller_refused";
/// The same on a route where an effect of the attempt, against the upstream's word, may still be
/// found out: the record keeps its retention. Records do not have this code.
pub const CALLER_REFUSED_KEPT: &str = "caller_refused_kept";

fn released(policy: &Policy, status: u16, what: &str) -> Class {
    let code = match refuses_caller(status) {
        true if keeps_refused_callers(policy) => CALLER_REFUSED_KEPT,
        true => CALLER_REFUSED,
        false => UPSTREAMS_WORD,
    };
    Class::Release(Reason::new(code, format!("{status} {what}")))
}

/// Whether evidence of a life may come after it, or a new life would send another key.
fn keeps_refused_callers(policy: &Policy) -> bool {
    policy.expects_evidence || policy.horizon.is_some() || policy.forward_key == ForwardKey::Derived
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Profile;

    fn letter(class: &Class) -> char {
        match class {
            Class::Complete => 'c',
            Class::Release(_) => 'r',
            Class::Doubt(_) => 'd',
        }
    }

    /// One row a status, one column a profile: ietf, stripe, payments, accepted, lenient.
    #[test]
    fn statuses_by_profile() {
        let profiles =
            [Profile::Ietf, Profile::Stripe, Profile::Payments, Profile::Accepted, Profile::Lenient];
        let refusals = [401, 403, 405, 407, 408, 411, 413, 414, 415, 421, 425, 426, 428, 429, 431];
        let mut rows = vec![
            (100, "ddddd"),
            (101, "ddddd"),
            (200, "ccccc"),
            (204, "ccccc"),
            (303, "ccccc"),
            (400, "ccccr"),
            (402, "ccccr"),
            (404, "ccccr"),
            (409, "ccccr"),
            (412, "ccccr"),
            (422, "ccccr"),
            (500, "rcdrr"),
            (501, "rrrrr"),
            (502, "dcddd"),
            (503, "rrdrr"),
            (504, "dcddd"),
            (505, "rrrrr"),
            (507, "rcdrr"),
            (599, "rcdrr"),
            (600, "ddddd"),
        ];
        rows.extend(refusals.map(|status| (status, if status == 408 { "rrdrr" } else { "rrrrr" })));
        for (status, expected) in rows {
            let ending = Ending::Answered { status, outcome: None };
            let got: String = profiles.map(|p| letter(&classify(&p.policy(), &ending))).iter().collect();
            assert_eq!(got, expected, "{status}");
        }
    }

    /// Whatever releases it, the record says that the caller was refused: it lives for seconds.
    #[test]
    fn a_refused_caller_is_told_apart_from_other_releases() {
        let code_by = |policy: &Policy, status, outcome| match classify(
            policy,
            &Ending::Answered { status, outcome },
        ) {
            Class::Release(reason) => reason.code().to_owned(),
            other => panic!("{status}: {other:?}"),
        };
        let code = |status, outcome| code_by(&Profile::Ietf.policy(), status, outcome);
        // Where an effect may be found out afterwards, or a new life would send another key.
        let ietf = || Profile::Ietf.policy();
        for policy in [
            Profile::Payments.policy(),
            Policy { expects_evidence: true, ..ietf() },
            Policy { horizon: Some(std::time::Duration::from_mins(1)), ..ietf() },
            Policy { forward_key: ForwardKey::Derived, ..ietf() },
        ] {
            assert_eq!(code_by(&policy, 401, None), CALLER_REFUSED_KEPT);
            assert_eq!(code_by(&policy, 405, None), UPSTREAMS_WORD);
        }
        for status in [401, 403, 407] {
            assert_eq!(code(status, None), CALLER_REFUSED, "{status}");
            assert_eq!(code(status, Some(Outcome::NotExecuted)), CALLER_REFUSED, "{status}");
        }
        for status in [405, 408, 413, 429, 501] {
            assert_eq!(code(status, Some(Outcome::NotExecuted)), UPSTREAMS_WORD, "{status}");
        }
    }

    #[test]
    fn the_outcome_header_overrides_every_status() {
        for profile in Profile::ALL {
            for status in [200, 402, 429, 500, 502, 503] {
                for (value, expected) in [("completed", 'c'), ("not-executed", 'r'), (" unknown ", 'd')] {
                    let ending = Ending::Answered { status, outcome: Outcome::read(value.as_bytes()) };
                    assert_eq!(
                        letter(&classify(&profile.policy(), &ending)),
                        expected,
                        "{profile} {status} {value}"
                    );
                }
            }
        }
        assert_eq!(Outcome::read(b"maybe"), None);
    }

    /// A timeout is not a failure: only what never left is released.
    #[test]
    fn errors_release_only_what_never_left() {
        let table = [
            (Failure::ConnectionRefused, 'r'),
            (Failure::ConnectTimeout, 'r'),
            (Failure::ConnectFailed, 'r'),
            (Failure::NameNotFound, 'r'),
            (Failure::TlsHandshake, 'r'),
            (Failure::QueueFull, 'r'),
            (Failure::Unsent, 'r'),
            (Failure::StreamRefused, 'r'),
            (Failure::LeaseEnded, 'r'),
            (Failure::RequestBody, 'd'),
            (Failure::Timeout, 'd'),
            (Failure::Reset, 'd'),
            (Failure::Truncated, 'd'),
            (Failure::Protocol, 'd'),
            (Failure::Panic, 'd'),
            (Failure::Abandoned, 'd'),
            (Failure::Service, 'd'),
        ];
        for profile in Profile::ALL {
            for (failure, expected) in table {
                assert_eq!(
                    letter(&classify(&profile.policy(), &Ending::Failed(failure))),
                    expected,
                    "{failure}"
                );
            }
        }
    }

    /// Attack 17: a 500 after the effect, released and run again. It is on the record as the upstream's word, and under
    /// `payments` it is doubt.
    #[test]
    fn attack_17_a_500_is_released_only_on_the_upstreams_word() {
        let ending = Ending::Answered { status: 500, outcome: None };
        let Class::Release(reason) = classify(&Profile::Ietf.policy(), &ending) else {
            panic!("ietf releases")
        };
        assert_eq!(reason.code(), UPSTREAMS_WORD);
        for status in [500, 503] {
            let ending = Ending::Answered { status, outcome: None };
            assert_eq!(letter(&classify(&Profile::Payments.policy(), &ending)), 'd');
        }
    }
}
