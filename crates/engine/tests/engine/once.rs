//! Jobs: run this once for this key.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncegate_core::policy::{Policy, Profile};
use oncegate_engine::{Engine, JobError, Once, OnceError, Options};
use oncegate_store::Store;
use oncegate_store::faulty::Fault;
use oncegate_store::memory::MemoryStore;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::world::{shaky, soon, start};

type Outcome = Result<Once<String>, OnceError>;

async fn memory() -> Engine<MemoryStore> {
    start(MemoryStore::new(), Options::default()).await
}

/// A job that says how it ends, and must not run where it is not allowed to.
async fn says<S: Store>(engine: &Engine<S>, key: &str, end: Result<&str, JobError>) -> Outcome {
    let end = end.map(str::to_owned);
    engine.once("billing", key, &json!({ "order": 17 }), move || async move { end }).await
}

async fn must_not_run<S: Store>(engine: &Engine<S>, key: &str, payload: &Value) -> Outcome {
    engine.once("billing", key, payload, || async { panic!("it ran again") }).await
}

/// The first value is everybody's value.
#[tokio::test]
async fn the_first_value_is_replayed() {
    let engine = memory().await;
    let first = says(&engine, "k", Ok("2026-0042")).await;
    assert_eq!(first, Ok(Once { value: "2026-0042".to_owned(), replayed: false }));
    let again = must_not_run(&engine, "k", &json!({ "order": 17 })).await;
    assert_eq!(again, Ok(Once { value: "2026-0042".to_owned(), replayed: true }));
}

/// A job that is sure to have done nothing may run again.
#[tokio::test]
async fn a_job_that_was_not_executed_may_run_again() {
    let engine = memory().await;
    let failed = says(&engine, "k", Err(JobError::not_executed("connection refused"))).await;
    assert_eq!(failed, Err(OnceError::NotExecuted("connection refused".into())));
    assert_eq!(says(&engine, "k", Ok("at last")).await.unwrap().value, "at last");
}

/// Any other error may have had an effect, so the key stays shut until somebody finds out.
#[tokio::test]
async fn a_job_that_failed_otherwise_stays_shut() {
    let engine = memory().await;
    let failed = engine
        .once("billing", "k", &json!({ "order": 17 }), || async {
            Err::<String, _>(std::io::Error::other("connection reset").into())
        })
        .await;
    assert_eq!(failed, Err(OnceError::Unknown("connection reset".into())));
    for _ in 0..3 {
        let again = must_not_run(&engine, "k", &json!({ "order": 17 })).await;
        assert!(matches!(again, Err(OnceError::Unknown(_))), "{again:?}");
    }
}

/// So does one that panics, in its future or before it has one.
#[tokio::test]
async fn a_job_that_panics_stays_shut() {
    let engine = memory().await;
    let payload = json!({ "order": 17 });
    let late: Outcome = engine.once("billing", "late", &payload, || async { panic!("bug") }).await;
    assert!(matches!(late, Err(OnceError::Unknown(_))), "{late:?}");
    let early: Outcome = engine.once("billing", "early", &payload, || -> Running { panic!("bug") }).await;
    assert!(matches!(early, Err(OnceError::Unknown(_))), "{early:?}");
    for key in ["late", "early"] {
        let again = must_not_run(&engine, key, &payload).await;
        assert!(matches!(again, Err(OnceError::Unknown(_))), "{again:?}");
    }
}

type Running = std::future::Ready<Result<String, JobError>>;

/// Whoever waits for the job goes away. The job goes on, and the retry gets its value.
#[tokio::test]
async fn dropping_the_call_does_not_cancel_the_job() {
    let engine = memory().await;
    let (started, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let payload = json!({ "order": 17 });
    let (told, waits) = (Arc::clone(&started), Arc::clone(&go_on));
    let job = move || async move {
        told.notify_one();
        waits.notified().await;
        Ok("2026-0042".to_owned())
    };
    let mut call = Box::pin(engine.once("billing", "k", &payload, job));
    tokio::select! {
        outcome = &mut call => panic!("{outcome:?}"),
        () = started.notified() => (),
    }
    drop(call);
    assert_eq!(must_not_run(&engine, "k", &payload).await, Err(OnceError::Busy));
    go_on.notify_one();
    let value = soon(async {
        loop {
            match must_not_run(&engine, "k", &payload).await {
                Err(OnceError::Busy) => tokio::task::yield_now().await,
                outcome => break outcome,
            }
        }
    });
    assert_eq!(value.await, Ok(Once { value: "2026-0042".to_owned(), replayed: true }));
}

/// The same key for another payload is told; the order of a payload's members is not a difference.
#[tokio::test]
async fn another_payload_is_refused_and_another_spelling_is_not() {
    let engine = memory().await;
    let (first, second) = (Ordered { order: 17, amount: 100 }, Reordered { amount: 100, order: 17 });
    let done = engine.once("billing", "k", &first, || async { Ok("sent".to_owned()) }).await;
    assert!(done.is_ok());
    let again: Outcome = engine.once("billing", "k", &second, || async { panic!("it ran again") }).await;
    assert!(again.unwrap().replayed);
    let other = must_not_run(&engine, "k", &json!({ "order": 18, "amount": 100 })).await;
    assert_eq!(other, Err(OnceError::Mismatch));
}

#[derive(serde::Serialize)]
struct Ordered {
    order: u32,
    amount: u32,
}

#[derive(serde::Serialize)]
struct Reordered {
    amount: u32,
    order: u32,
}

/// A newer release of the job expects another type: it is told, and nothing runs.
#[tokio::test]
async fn a_value_of_another_type_is_not_guessed() {
    let engine = memory().await;
    says(&engine, "k", Ok("2026-0042")).await.unwrap();
    let payload = json!({ "order": 17 });
    let number: Result<Once<u64>, _> =
        engine.once("billing", "k", &payload, || async { panic!("it ran again") }).await;
    assert!(matches!(number, Err(OnceError::Invalid(_))), "{number:?}");
}

/// What cannot be a scope, a key or an operation is refused before anything runs.
#[tokio::test]
async fn what_cannot_be_used_is_refused() {
    let engine = memory().await;
    let payload = json!({});
    let no_scope: Outcome = engine.once("", "k", &payload, || async { panic!("it ran") }).await;
    let no_key: Outcome = engine.once("billing", "", &payload, || async { panic!("it ran") }).await;
    let runner = engine.job("bad\u{1f}name", Profile::Ietf.policy());
    let no_name: Outcome = runner.once("billing", "k", &payload, || async { panic!("it ran") }).await;
    for outcome in [no_scope, no_key, no_name] {
        assert!(matches!(outcome, Err(OnceError::Invalid(_))), "{outcome:?}");
    }
}

/// A queue delivers one message to fifty consumers at once: it runs once, and those who wait get its value.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_fifty_at_once_one_runs() {
    let engine = memory().await;
    for (key, policy) in [("refused", Profile::Ietf.policy()), ("waits", Profile::Lenient.policy())] {
        let runs = Arc::new(AtomicUsize::new(0));
        let runner = engine.job("job", policy);
        let tasks: Vec<_> = (0..50)
            .map(|_| {
                let (runner, runs) = (runner.clone(), Arc::clone(&runs));
                tokio::spawn(async move {
                    let job = move || async move {
                        runs.fetch_add(1, Ordering::SeqCst);
                        Ok("sent".to_owned())
                    };
                    runner.once("billing", key, &json!({ "order": 17 }), job).await
                })
            })
            .collect();
        for task in tasks {
            match soon(task).await.unwrap() {
                Ok(once) => assert_eq!(once.value, "sent"),
                Err(error) => assert_eq!((error, key), (OnceError::Busy, "refused")),
            }
        }
        assert_eq!(runs.load(Ordering::SeqCst), 1, "{key}");
    }
}

/// The store is away when the job ends. Its caller is told that the outcome is unknown, and the retry gets the value.
#[tokio::test]
async fn a_value_that_is_not_recorded_yet_is_not_told() {
    let store = shaky();
    let engine = start(store.clone(), Options::default()).await;
    let mut policy = Profile::Ietf.policy();
    policy.patience = Duration::from_millis(50);
    let runner = engine.job("job", policy);
    let dying = store.clone();
    let job = move || async move {
        dying.queue(Fault::CrashBefore);
        Ok("sent".to_owned())
    };
    let payload = json!({ "order": 17 });
    let told = soon(runner.once("billing", "k", &payload, job)).await;
    assert!(matches!(told, Err(OnceError::Unknown(_))), "{told:?}");
    store.revive();
    soon(engine.quiet()).await;
    let again: Outcome = runner.once("billing", "k", &payload, || async { panic!("it ran again") }).await;
    assert_eq!(again, Ok(Once { value: "sent".to_owned(), replayed: true }));
}

/// The store cannot say yes: the job does not run.
#[tokio::test]
async fn without_a_reserve_no_job_runs() {
    let store = shaky();
    let engine = start(store.clone(), Options::default()).await;
    store.queue(Fault::BeforeWrite);
    let refused = must_not_run(&engine, "k", &json!({ "order": 17 })).await;
    assert!(matches!(refused, Err(OnceError::Unavailable(_))), "{refused:?}");
    assert!(says(&engine, "k", Ok("sent")).await.is_ok());
}

/// Nobody would run it later, and there is nothing to resume from: better refused than stuck.
#[tokio::test]
async fn a_policy_that_no_job_can_keep_is_refused() {
    let engine = start(MemoryStore::new(), Options::default()).await;
    for profile in [Profile::Accepted, Profile::Resume] {
        let runner = engine.job("charge", profile.policy());
        let refused = runner.once("acme", "key-of-sixteen-or-more", &1, || async { Ok(1_u32) }).await;
        assert!(matches!(refused, Err(OnceError::Invalid(_))), "{profile}: {refused:?}");
    }
}

/// The first caller has its value; who asks again is told that it was too large, and nothing runs.
#[tokio::test]
async fn a_value_that_is_too_large_is_not_kept_and_not_run_again() {
    let engine = start(MemoryStore::new(), Options::default()).await;
    let policy = Policy { answer_bytes_max: 10, ..Profile::Ietf.policy() };
    let runner = engine.job("report", policy);
    let report = || async { Ok("a report of many words".to_owned()) };
    assert_eq!(runner.once("acme", "k", &1, report).await.unwrap().value, "a report of many words");
    let again = runner.once("acme", "k", &1, || async { Ok(String::new()) }).await;
    assert!(matches!(&again, Err(OnceError::Invalid(words)) if words.contains("too large")), "{again:?}");
}

/// `once` took keys of any length. A key of a megabyte was stored, and read back with every
/// duplicate. Its keys have the limits of HTTP keys.
#[tokio::test]
async fn once_refuses_keys_beyond_the_limits_of_http_keys() {
    let engine = memory().await;
    let longest = "k".repeat(255);
    assert!(says(&engine, &longest, Ok("fits")).await.is_ok());
    let refused = must_not_run(&engine, &"k".repeat(256), &json!({ "order": 17 })).await;
    let Err(OnceError::Invalid(words)) = refused else { panic!("{refused:?}") };
    assert!(words.contains("256 characters") && words.contains("at most 255"), "{words}");
    let refused = must_not_run(&engine, "", &json!({ "order": 17 })).await;
    assert!(matches!(refused, Err(OnceError::Invalid(_))), "{refused:?}");
    // A policy of one's own says otherwise, as it does for HTTP.
    let mut policy = Profile::Ietf.policy();
    policy.key.chars_max = 8;
    let job = engine.job("invoices", policy);
    let refused = job.once("billing", "too-long-for-it", &json!(1), || async { Ok(1) }).await;
    assert!(matches!(refused, Err(OnceError::Invalid(_))), "{refused:?}");
}
