//! Problem documents: RFC 9457, and words that help.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use oncegate_core::fingerprint::Difference;
use oncegate_core::policy::MismatchStatus;
use oncegate_core::problem::{Code, Problem, TYPE_BASE, Tried, cancelled, is_cancelled, not_started};
use oncegate_core::record::GoneStatus;
use oncegate_core::response::Answer;
use serde_json::Value;

fn document(problem: &Problem) -> Value {
    serde_json::from_slice(&problem.to_json()).unwrap()
}

#[test]
fn every_problem_is_a_valid_document() {
    for code in Code::ALL {
        let problem = Problem::new(code, "What happened. What state things are in. What to do.");
        let document = document(&problem);
        assert_eq!(document["type"], format!("{TYPE_BASE}{}", code.name()));
        assert_eq!(document["status"], problem.status(), "equal to the HTTP status");
        assert_eq!(document["title"], code.title());
        assert_eq!(document["code"], code.name());
        for name in document.as_object().unwrap().keys() {
            let mut letters = name.bytes();
            assert!(letters.next().unwrap().is_ascii_alphabetic() && name.len() >= 3, "{name}");
            assert!(letters.all(|b| b.is_ascii_alphanumeric() || b == b'_'), "{name}");
        }
    }
}

/// The statuses of DESIGN.md's "Answers the boundary makes itself".
#[test]
fn statuses() {
    let second = Duration::from_secs(1);
    let table = [
        (Problem::new(Code::ScopeMissing, ""), 401),
        (Problem::new(Code::KeyMissing, ""), 400),
        (Problem::new(Code::KeyInvalid, ""), 400),
        (Problem::new(Code::RequestInvalid, ""), 400),
        (Problem::key_reused(MismatchStatus::Unprocessable, &Difference::default()), 422),
        (Problem::key_reused(MismatchStatus::BadRequest, &Difference::default()), 400),
        (Problem::key_reused(MismatchStatus::Conflict, &Difference::default()), 409),
        (Problem::in_progress(second), 409),
        (Problem::outcome_unknown_first(second), 504),
        (Problem::outcome_unknown(second), 409),
        (Problem::acceptance_unknown(second), 504),
        (Problem::key_expired(GoneStatus::Gone), 410),
        (Problem::key_expired(GoneStatus::NotFound), 404),
        (Problem::answer_not_kept(200, None), 409),
        (Problem::new(Code::TooLarge, ""), 413),
        (Problem::new(Code::RateLimited, ""), 429),
        (Problem::new(Code::TooManyKeys, ""), 429),
        (Problem::new(Code::UpstreamUnreachable, ""), 502),
        (Problem::new(Code::StoreUnavailable, ""), 503),
        (Problem::new(Code::Overloaded, ""), 503),
    ];
    for (problem, status) in table {
        assert_eq!(problem.status(), status, "{problem:?}");
        assert_eq!(document(&problem)["status"], status);
    }
}

#[test]
fn waiting_times_are_whole_seconds_and_never_zero() {
    for (millis, seconds) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (5_000, 5)] {
        let problem = Problem::in_progress(Duration::from_millis(millis));
        assert_eq!(problem.retry_after_s(), Some(seconds));
        assert_eq!(document(&problem)["retry_after_s"], seconds);
    }
    assert_eq!(Problem::new(Code::KeyMissing, "").retry_after_s(), None);
}

#[test]
fn an_answer_not_kept_carries_status_and_location() {
    let document = document(&Problem::answer_not_kept(201, Some(b"/payments/7")));
    assert_eq!(document["answer_status"], 201);
    assert_eq!(document["answer_location"], "/payments/7");
}

/// That nothing was executed is said only of what nobody has begun. An attempt that was answered 500, and released on that word, was sent.
#[test]
fn what_was_tried_is_not_said_to_have_done_nothing() {
    type Of = fn(Tried) -> Answer;
    let both: [(Of, u16); 2] = [(not_started, 408), (cancelled, 410)];
    for (of, status) in both {
        for tried in [Tried::Never, Tried::Released] {
            let Answer::Kept(response) = of(tried) else { unreachable!("it is kept") };
            assert_eq!(response.status, status);
            let document: Value = serde_json::from_slice(&response.body).unwrap();
            let detail = document["detail"].as_str().unwrap();
            let is_released = tried == Tried::Released;
            assert_eq!(detail.contains("Nothing was executed"), !is_released, "{detail}");
            assert_eq!(detail.contains("No attempt is known to have had an effect"), is_released, "{detail}");
            assert_eq!(document["attempted"] == true, is_released, "{document}");
            assert!(!document["title"].as_str().unwrap().contains("began"), "{document}");
            assert_eq!(is_cancelled(&of(tried)), status == 410);
        }
    }
}
