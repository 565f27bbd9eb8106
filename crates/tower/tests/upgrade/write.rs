//! Writes every kind of record that a killed service leaves behind.

use std::sync::Arc;

use oncegate_core::response::{Answer, Response};
use oncegate_engine::{About, Act, Heard, Life, Message, NoProbe, Operator, Says};
use oncegate_store::drive::read_one;

use crate::base::Base;
use crate::client::{Call, within};
use crate::service::{Role, Service, YEARS};
use crate::stage::id_of;

/// The body of every request.
pub(crate) const BODY: &str = r#"{"amount": 100}"#;

pub(crate) fn call(path: &str, key: &str) -> Call {
    Call::post(path).key(key).json(BODY)
}

/// The message about a record that does not exist yet.
fn announcement() -> Message {
    let response = Response { status: 201, headers: Vec::new(), body: b"announced".to_vec() };
    Message {
        name: "event-1".into(),
        about: About::Record(id_of("always_broken-announced-before")),
        life: Life::Any,
        source: "webhook".into(),
        reference: None,
        says: Says::Happened(Arc::new(Answer::Kept(response))),
    }
}

/// Leaves the records, and handlers that never end. The caller ends the runtime, as a kill would.
pub(crate) async fn every_kind_of_record<B: Base>(base: &B) {
    let mut service = Service::start(base, Role::Writer).await;
    let (plain, atomic) = (service.plain, service.atomic);

    // Completed, also with a refusal, and under routes with rules of their own.
    for (path, key) in [
        ("/payments", "completed-payment"),
        ("/orders/17", "completed-order"),
        ("/uploads/17", "completed-upload"),
        ("/gone", "completed-and-gone"),
        ("/short", "completed-and-stale"),
        ("/payments", "completed-and-forgotten"),
    ] {
        call(path, key).send(plain).await.expect_first(201, &format!("{path} by the Writer"));
    }
    call("/payments", "declined-payment").send(plain).await.expect_first(402, "/payments by the Writer");
    let forgotten =
        read_one(service.engine.store(), id_of("completed-and-forgotten")).await.unwrap().unwrap();
    let operator = Operator { name: "ann".into(), reason: "asked to".into() };
    let told = service.engine.operate(forgotten.id, forgotten.version, Act::Forget, &operator).await;
    assert!(told.is_ok(), "{told:?}");

    // Released, and in doubt.
    call("/payments", "refused-payment").send(plain).await.expect_first(503, "/payments by the Writer");
    for key in ["broken-and-found", "broken-and-resolved"] {
        call("/money", key).send(plain).await;
    }

    // Accepted; no worker runs it.
    let accepted = call("/reports/17", "accepted-report").send(plain).await;
    assert_eq!(accepted.status, 202, "{accepted:?}");

    // A message that came before its record.
    let heard = service.engine.hear(&announcement(), YEARS, &NoProbe).await.unwrap();
    assert_eq!(heard, Heard::KeptApart);

    // Atomic, with and without a promised call. The promise answers, so this client is left.
    call("/charges", "atomic-plain-charge").send(atomic).await.expect_first(201, "charged by the Writer");
    let promised = call("/charges", "promised-call-charge").open(atomic).await;

    // In progress when the process dies.
    let hanging = [
        ("/payments", "hanging-payment"),
        ("/money", "hanging-and-swept"),
        ("/restarts", "hanging-restart"),
        ("/rides", "hanging-ride-to-the-station"),
    ];
    let mut clients = vec![promised];
    for (path, key) in hanging {
        clients.push(call(path, key).open(plain).await);
        assert_eq!(within(service.hanging.recv()).await.as_deref(), Some(key));
    }
    let id = id_of("promised-call-charge");
    within(async { while read_one(service.engine.store(), id).await.unwrap().is_none() {} }).await;
}
