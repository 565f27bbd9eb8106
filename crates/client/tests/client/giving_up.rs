//! Waiting, giving up, and futures that are dropped.

use std::future::{pending, ready};
use std::time::{Duration, Instant, SystemTime};

use oncegate_client::{Client, FileKeep, Limits, Outcome, Pace, Waiting};
use serde_json::json;
use tokio::sync::{oneshot, watch};

use crate::scripted::Scripted;
use crate::{FOREVER, answer, attempts, hurried, replay};

#[tokio::test]
async fn given_up_while_a_try_is_under_way_it_may_have_happened_before_the_first_it_did_not() {
    let mut server = Scripted::start(&json!([{ "do": "hang", "forever": true }])).await;
    let limits = Limits { try_timeout: FOREVER, deadline: FOREVER, ..attempts(8) };
    let client = hurried().limits(limits).build().unwrap();
    let (give_up, enough) = oneshot::channel();
    let url = server.url.clone();
    let running = tokio::spawn({
        let client = client.clone();
        async move { client.post(&url).run_until(async { enough.await.unwrap() }).await }
    });
    server.has_been_asked(1).await;
    give_up.send(()).unwrap();
    let outcome = running.await.unwrap().unwrap();
    let Outcome::MayHaveHappened(open) = outcome else { panic!("{outcome:?}") };
    assert_eq!((open.why.as_str(), open.asked.attempts), ("cancelled", 1));
    let never = client.post(&server.url).run_until(ready(())).await.unwrap();
    let Outcome::DidNotHappen(no) = never else { panic!("{never:?}") };
    assert_eq!((no.why.as_str(), no.asked.attempts), ("cancelled", 0));
    assert_eq!(server.requests().len(), 1);
}

/// Waits for ever, and tells what it was asked to wait.
#[derive(Clone, Default)]
struct Stopped(watch::Sender<Vec<Duration>>);

impl Pace for Stopped {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn date(&self) -> SystemTime {
        SystemTime::now()
    }

    fn dice(&self) -> f64 {
        0.5
    }

    fn wait(&self, span: Duration) -> Waiting<'_> {
        self.0.send_modify(|waits| waits.push(span));
        if span.is_zero() { Box::pin(ready(())) } else { Box::pin(pending()) }
    }
}

#[tokio::test]
async fn given_up_while_it_waits_it_ends_at_once_and_retry_after_is_what_it_waits_for() {
    let step = json!({ "status": 503, "problem": "overloaded", "headers": { "retry-after": "20" } });
    let server = Scripted::start(&json!([step])).await;
    let pace = Stopped::default();
    let limits =
        Limits { retry_after_max: Duration::from_secs(25), backoff: Duration::from_secs(2), ..attempts(8) };
    let limits = Limits { backoff_max: Duration::from_secs(2), deadline: FOREVER, ..limits };
    let client = Client::builder().pace(pace.clone()).limits(limits).build().unwrap();
    let mut waits = pace.0.subscribe();
    let it_waits = async move { drop(waits.wait_for(|waits| waits.len() == 2).await.unwrap()) };
    let outcome = client.post(&server.url).run_until(it_waits).await.unwrap();
    assert_eq!((outcome.as_str(), outcome.why().unwrap().as_str()), ("did_not_happen", "cancelled"));
    assert_eq!(*pace.0.borrow(), [Duration::ZERO, Duration::from_secs(21)]);
}

#[tokio::test]
async fn a_future_that_is_dropped_loses_nothing_that_has_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Scripted::start(&json!([{ "do": "hang" }, replay()])).await;
    let client = hurried().keep(FileKeep::new(folder.path())).build().unwrap();
    let url = server.url.clone();
    tokio::select! {
        outcome = client.post(&url).named("order 17").run() => panic!("{outcome:?}"),
        () = server.has_been_asked(1) => {}
    }
    let outcome = client.post(&server.url).named("order 17").run().await.unwrap();
    let Outcome::Happened(happened) = outcome else { panic!("{outcome:?}") };
    assert!(happened.replayed);
    let requests = server.requests();
    assert_eq!(requests[0].key(), requests[1].key());
}

/// The client's own time: it waits, for as long as the server asks, within the bound.
#[tokio::test]
async fn by_the_client_s_own_time_retry_after_is_waited_for() {
    let step = json!({ "status": 409, "problem": "in_progress", "headers": { "retry-after": "1" } });
    let server = Scripted::start(&json!([step, answer()])).await;
    let limits = Limits { retry_after_max: Duration::from_millis(300), ..attempts(8) };
    let client = Client::builder().limits(limits).build().unwrap();
    let since = Instant::now();
    let outcome = client.post(&server.url).run().await.unwrap();
    assert_eq!(outcome.as_str(), "happened");
    assert!(since.elapsed() >= Duration::from_millis(300));
}

#[test]
fn what_runs_an_operation_may_be_spawned() {
    fn is_send<T: Send>(_: T) {}
    let client = Client::builder().keep(FileKeep::new("keys")).build().unwrap();
    is_send(client.post("http://host/").named("a").run());
    is_send(client.post("http://host/").run_until(pending()));
}
