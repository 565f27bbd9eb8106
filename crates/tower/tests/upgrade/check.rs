//! Takes over what another release left behind, record by record.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::decide::Decision;
use oncegate_core::policy::Credentials;
use oncegate_core::record::StateKind;
use oncegate_core::response::{Answer, Response};
use oncegate_engine::{
    Act, Asking, Delivering, Delivery, Effect, Effects, Found, NoProbe, Operator, OutboxOptions, Patience,
    Probe, Sent, Worker, WorkerOptions,
};
use oncegate_store::drive::read_one;
use oncegate_store::{Filter, Store as _};
use oncegate_test_servers::until;

use crate::base::Base;
use crate::client::Call;
use crate::service::{Role, Service};
use crate::stage::id_of;
use crate::write::call;

/// Says that there is no effect.
struct FindsNothing;

impl Probe for FindsNothing {
    fn ask<'a>(&'a self, _record: &'a oncegate_core::record::Record) -> Asking<'a> {
        Box::pin(std::future::ready(Found::DidNotHappen))
    }

    fn patience(&self, _record: &oncegate_core::record::Record) -> Patience {
        Patience {
            backoff: Duration::from_millis(1),
            backoff_max: Duration::from_millis(1),
            ..Patience::default()
        }
    }
}

/// Delivers what was promised.
struct Provider;

impl Effect for Provider {
    fn deliver<'a>(&'a self, delivery: &'a Delivery<'a>) -> Delivering<'a> {
        let body = [b"delivered ", delivery.payload].concat();
        let answer = Answer::Kept(Response { status: 201, headers: Vec::new(), body });
        Box::pin(async { Sent::Delivered { reference: None, answer: Some(Box::new(answer)) } })
    }
}

pub(crate) async fn every_record_is_usable<B: Base>(base: &B) {
    let service = Service::start(base, Role::Reader).await;
    replays(&service).await;
    runs_again_what_was_released(&service).await;
    settles_lapsed_leases(&service).await;
    settles_doubts(&service).await;
    resumes_phases(&service, base).await;
    finishes_accepted_work(&service, base).await;
    keeps_promises(&service, base).await;
    reaps(&service).await;
}

async fn state<B: Base>(service: &Service<B>, key: &str) -> Option<StateKind> {
    let row = read_one(service.engine.store(), id_of(key)).await.unwrap();
    row.map(|row| row.state.kind())
}

async fn until_state<B: Base>(service: &Service<B>, key: &str, wanted: StateKind) {
    until(key, async || state(service, key).await == Some(wanted)).await;
}

async fn pass<B: Base>(service: &Service<B>, worker: Worker, probe: &dyn Probe) {
    service.engine.work(worker, &WorkerOptions::default(), probe).await.unwrap();
}

async fn replays<B: Base>(service: &Service<B>) {
    for (path, key) in [
        ("/payments", "completed-payment"),
        ("/orders/17", "completed-order"),
        ("/uploads/17", "completed-upload"),
    ] {
        let reply = call(path, key).send(service.plain).await;
        reply.expect_replay(201, &format!("{path} by the Writer"));
        assert_eq!(reply.header("x-by"), Some("handler"), "headers are replayed too");
    }
    let declined = call("/payments", "declined-payment").send(service.plain).await;
    declined.expect_replay(402, "/payments by the Writer");
    let other = Call::post("/payments").key("completed-payment").json(r#"{"amount": 101}"#);
    other.send(service.plain).await.expect_problem(422, "key_reused");
    let upload = Call::post("/uploads/17").key("completed-upload").json(r#"{"amount": 101}"#);
    upload.send(service.plain).await.expect_replay(201, "/uploads/17 by the Writer");
    assert_eq!(call("/gone", "completed-and-gone").send(service.plain).await.status, 410);
}

async fn runs_again_what_was_released<B: Base>(service: &Service<B>) {
    let retry = call("/payments", "refused-payment");
    retry.send(service.plain).await.expect_first(201, "/payments by the Reader");
    retry.send(service.plain).await.expect_replay(201, "/payments by the Reader");
}

async fn settles_lapsed_leases<B: Base>(service: &Service<B>) {
    let hanging = call("/payments", "hanging-payment").send_until_settled(service.plain).await;
    hanging.expect_problem(409, "outcome_unknown");
    assert_eq!(state(service, "hanging-payment").await, Some(StateKind::Unknown));
    let restarted = call("/restarts", "hanging-restart").send_until_settled(service.plain).await;
    restarted.expect_first(201, "/restarts by the Reader");
    until("the lapsed lease is swept", async || {
        pass(service, Worker::Sweeper, &NoProbe).await;
        state(service, "hanging-and-swept").await == Some(StateKind::Unknown)
    })
    .await;
}

async fn settles_doubts<B: Base>(service: &Service<B>) {
    let resolved = call("/money", "broken-and-resolved");
    resolved.send(service.plain).await.expect_problem(409, "outcome_unknown");
    let row = read_one(service.engine.store(), id_of("broken-and-resolved")).await.unwrap().unwrap();
    assert!(!service.engine.story(row.id, 10).await.unwrap().is_empty(), "its story came along");
    let response = Response { status: 201, headers: Vec::new(), body: b"resolved".to_vec() };
    let act = Act::Happened(Arc::new(Answer::Kept(response)));
    let operator = Operator { name: "ann".into(), reason: "the provider shows it".into() };
    let decided = service.engine.operate(row.id, row.version, act, &operator).await.unwrap();
    assert!(matches!(decided, Decision::Done), "{decided:?}");
    resolved.send(service.plain).await.expect_replay(201, "resolved");

    // Its horizon is a millisecond, so "not found" is the truth.
    for key in ["broken-and-found", "hanging-and-swept"] {
        until(key, async || {
            pass(service, Worker::Reconciler, &FindsNothing).await;
            state(service, key).await == Some(StateKind::FailedRetryable)
        })
        .await;
        call("/money", key).send(service.plain).await.expect_first(201, "/money by the Reader");
    }

    // The message came before the record.
    let announced = call("/money", "always_broken-announced-before");
    announced.send(service.plain).await;
    pass(service, Worker::Apart, &NoProbe).await;
    announced.send(service.plain).await.expect_replay(201, "announced");
}

async fn finishes_accepted_work<B: Base>(service: &Service<B>, base: &B) {
    let report = call("/reports/17", "accepted-report");
    let row = async || {
        let of_key = Filter { key: Some("accepted-report".to_owned()), ..Filter::default() };
        service.engine.store().browse(&of_key, None, 1).await.unwrap().records.remove(0)
    };
    let stored_by_earlier_release = row().await.request.unwrap().credentials.is_none();
    let completer = service.start_completer();
    let dropping;
    let _completer = if stored_by_earlier_release {
        // Without its caller's credentials it is not run, until its route says that none are
        // needed.
        until("the report is parked", async || row().await.state.kind() == StateKind::Unknown).await;
        drop(completer);
        let row = row().await;
        assert_eq!((row.attempts, row.last_error.unwrap().code()), (0, "no_credentials"));
        let operator = Operator { name: "ada".into(), reason: "needs no caller".into() };
        let decided = service.engine.operate(row.id, row.version, Act::DidNotHappen, &operator).await;
        assert!(matches!(decided, Ok(Decision::Done)), "{decided:?}");
        dropping = Service::start_with(base, Role::Reader, Credentials::Dropped).await;
        dropping.start_completer()
    } else {
        completer
    };
    until("the report is written", async || report.send(service.plain).await.is_replay()).await;
    report.send(service.plain).await.expect_replay(201, "/reports/17 by the Reader");
}

async fn keeps_promises<B: Base>(service: &Service<B>, base: &B) {
    call("/charges", "atomic-plain-charge")
        .send(service.atomic)
        .await
        .expect_replay(201, "charged by the Writer");
    let effects = Effects::new().with("charge", Provider);
    let _outbox = service.engine.start_outbox(&effects, &OutboxOptions::default());
    until_state(service, "promised-call-charge", StateKind::Completed).await;
    let promised = call("/charges", "promised-call-charge").send(service.atomic).await;
    promised.expect_replay(201, "delivered \"promised-call-charge\"");
    let charges = base.charges().await;
    assert_eq!(charges.iter().filter(|key| key.ends_with("-charge")).count(), 2, "{charges:?}");
}

async fn resumes_phases<B: Base>(service: &Service<B>, base: &B) {
    let ride = call("/rides", "hanging-ride-to-the-station").send_until_settled(service.plain).await;
    ride.expect_first(200, "created by the Writer");
    let charges = base.charges().await;
    let rows: Vec<_> = charges.iter().filter(|key| key.contains("ride")).collect();
    assert_eq!(rows, ["hanging-ride-to-the-station: created", "hanging-ride-to-the-station: receipt"]);
}

async fn reaps<B: Base>(service: &Service<B>) {
    let options = WorkerOptions { reap_grace: Duration::ZERO, ..WorkerOptions::default() };
    until("the stale record is gone", async || {
        service.engine.work(Worker::Reaper, &options, &NoProbe).await.unwrap();
        state(service, "completed-and-stale").await.is_none()
    })
    .await;
    assert_eq!(state(service, "completed-payment").await, Some(StateKind::Completed), "it is kept");
    assert_eq!(state(service, "completed-and-gone").await, Some(StateKind::Expired), "a tombstone");
    call("/short", "completed-and-stale").send(service.plain).await.expect_first(201, "/short by the Reader");
}
