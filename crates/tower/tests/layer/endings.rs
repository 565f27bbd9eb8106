//! What the ways in which a handler can end mean for its client, and for the next one.

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::Response;
use futures_util::{StreamExt as _, stream};
use oncegate_core::policy::Profile;
use oncegate_core::record::StateKind;
use oncegate_store::memory::MemoryStore;

use crate::client::Call;
use crate::reply::Reply;
use crate::stage::Stage;

/// Long enough for every profile.
const KEY: &str = "key-of-sixteen-or-more";

/// What becomes of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Replays,
    RunsAgain,
    IsUnknown,
}

/// Answers with the status in the path, and, where it is asked for, its own account of it.
async fn answer(request: Request) -> Response {
    let mut response = Response::builder().status(&request.uri().path()[1..]);
    if let Some(outcome) = request.headers().get("x-outcome") {
        response = response.header("idempotency-outcome", outcome);
    }
    response.body(Body::from("said")).unwrap()
}

/// The first client sees the handler's answer whatever it means; the second is told by the record.
async fn check(profile: Profile, status: u16, outcome: Option<&str>, expected: Next) {
    let stage = Stage::new(MemoryStore::new(), profile, answer).await;
    let call = Call::post(&format!("/{status}")).key(KEY);
    let call = outcome.into_iter().fold(call, |call, outcome| call.header("x-outcome", outcome.as_bytes()));
    let first = call.send(stage.addr).await;
    let case = format!("{profile} {status} {outcome:?}");
    assert_eq!((first.status, &*first.body), (status, &b"said"[..]), "{case}");
    assert_eq!(first.header("idempotency-outcome"), None, "{case}");
    assert_eq!(first.header("idempotency-expires").is_some(), expected == Next::Replays, "{case}");
    // Its status does not tell the first client what the second finds.
    let mark = match expected {
        Next::Replays => None,
        Next::RunsAgain => Some("failed_retryable"),
        Next::IsUnknown => Some("unknown"),
    };
    assert_eq!(first.header("idempotency-state"), mark, "{case}");
    let second = call.send(stage.addr).await;
    assert_eq!(second.header("idempotency-outcome"), None, "{case}");
    let is_marked = second.headers.iter().any(|(name, _)| name.ends_with("-replayed"));
    let found = match (stage.runs(), second.code().as_deref(), is_marked) {
        (1, None, true) if second.in_common() == first.in_common() => Next::Replays,
        (2, None, false) => Next::RunsAgain,
        (1, Some("outcome_unknown"), false) if second.status == 409 => Next::IsUnknown,
        other => unreachable!("{case}: {other:?} {second:?}"),
    };
    assert_eq!(found, expected, "{case}");
}

#[tokio::test]
async fn statuses_mean_what_the_profile_says() {
    use Next::{IsUnknown, Replays, RunsAgain};
    let cases = [
        (Profile::Ietf, 402, Replays),
        (Profile::Ietf, 404, Replays),
        (Profile::Ietf, 401, RunsAgain),
        (Profile::Ietf, 429, RunsAgain),
        (Profile::Ietf, 500, RunsAgain),
        (Profile::Ietf, 503, RunsAgain),
        (Profile::Ietf, 502, IsUnknown),
        (Profile::Ietf, 504, IsUnknown),
        (Profile::Payments, 402, Replays),
        (Profile::Payments, 429, RunsAgain),
        (Profile::Payments, 500, IsUnknown),
        (Profile::Payments, 503, IsUnknown),
        (Profile::Stripe, 402, Replays),
        (Profile::Stripe, 500, Replays),
        (Profile::Stripe, 429, RunsAgain),
        (Profile::Lenient, 201, Replays),
        (Profile::Lenient, 402, RunsAgain),
    ];
    for (profile, status, expected) in cases {
        check(profile, status, None, expected).await;
    }
}

#[tokio::test]
async fn a_handler_may_say_what_its_answer_means() {
    use Next::{IsUnknown, Replays, RunsAgain};
    let cases = [
        (Profile::Ietf, 500, "completed", Replays),
        (Profile::Payments, 500, "completed", Replays),
        (Profile::Ietf, 429, "completed", Replays),
        (Profile::Ietf, 200, "not-executed", RunsAgain),
        (Profile::Payments, 500, "not-executed", RunsAgain),
        (Profile::Ietf, 200, "unknown", IsUnknown),
        (Profile::Ietf, 500, "unknown", IsUnknown),
        (Profile::Ietf, 200, "perhaps", Replays),
    ];
    for (profile, status, outcome, expected) in cases {
        check(profile, status, Some(outcome), expected).await;
    }
}

#[expect(clippy::panic, reason = "a handler that panics, at the place that the path names")]
async fn panicking(request: Request) -> Response {
    let place = request.uri().path().to_owned();
    assert_ne!(place, "/at-once", "a panic in a handler");
    tokio::task::yield_now().await;
    assert_ne!(place, "/later", "a panic in a handler");
    let pieces = stream::iter([true, false]).map(|is_well| {
        if is_well { Ok::<_, std::io::Error>(Bytes::from("half ")) } else { panic!("a panic in a body") }
    });
    Response::new(Body::from_stream(pieces))
}

#[tokio::test]
async fn a_panic_is_a_doubt() {
    for place in ["/at-once", "/later", "/in-the-body"] {
        for profile in [Profile::Ietf, Profile::Payments, Profile::Stripe] {
            let store = MemoryStore::new();
            let stage = Stage::new(store.clone(), profile, panicking).await;
            let call = Call::post(place).key(KEY);
            let first = call.send(stage.addr).await;
            first.expect_problem(504, "outcome_unknown");
            assert_eq!(first.header("retry-after"), Some("5"));
            assert_eq!(stage.state(&store, KEY).await, Some(StateKind::Unknown), "{place}");
            for _ in 0..2 {
                let retry: Reply = call.send(stage.addr).await;
                retry.expect_problem(409, "outcome_unknown");
                assert_eq!(retry.header("retry-after"), Some("5"));
            }
            assert_eq!(stage.runs(), 1, "{place}");
        }
    }
}
