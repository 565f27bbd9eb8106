//! The service as a process, its provider with every fault, and the ledger, which is the judge.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod service;

use std::collections::BTreeMap;
use std::sync::Arc;

use example_payments::post::Reply;
use example_payments::provider::{Fault, Faults};
use oncegate_test_servers::Database;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use service::Town;

/// Each test once for each database.
macro_rules! on_both {
    ($($name:ident),+ $(,)?) => {
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(super::Database::sqlite()).await;
            })+
        }
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(super::Database::postgres()).await;
            })+
        }
    };
}

on_both!(
    twenty_at_once_are_one_payment_and_one_charge,
    a_declined_charge_is_an_answer,
    a_provider_that_is_down_is_waited_for,
    a_payment_that_did_not_happen_and_is_asked_for_again_is_the_same_payment,
    nobody_is_charged_twice_whatever_the_provider_does_and_however_often_the_service_dies,
);

async fn twenty_at_once_are_one_payment_and_one_charge(database: Database) {
    let town = Town::new(database, Faults::default()).await;
    let service = town.service();
    let mut clients = JoinSet::new();
    for _ in 0..20 {
        let address = service.address.clone();
        clients.spawn(async move { service::pay(&address, "race-0000000000000").await.unwrap() });
    }
    let replies = clients.join_all().await;
    let answers: Vec<&Reply> = replies.iter().filter(|reply| reply.status == 201).collect();
    assert!(!answers.is_empty());
    assert!(answers.iter().all(|reply| reply.body == answers[0].body), "one answer for all who got one");
    assert!(replies.iter().all(|reply| [201, 409].contains(&reply.status.as_u16())), "{replies:?}");
    assert_eq!(town.ledger().await["charges"], 1);
    let again = service::pay(&service.address, "race-0000000000000").await.unwrap();
    assert_eq!((again.status.as_u16(), &again.body), (201, &answers[0].body));
    assert_eq!(again.headers["idempotency-replayed"], "true");
}

async fn a_declined_charge_is_an_answer(database: Database) {
    let town = Town::new(database, Faults([(Fault::Decline, 1.0)].into())).await;
    let service = town.service();
    let first = service::pay(&service.address, "decline-0000000000").await.unwrap();
    assert_eq!((first.status.as_u16(), first.json()["status"].as_str()), (402, Some("declined")));
    town.behave(&Faults::default()).await;
    let again = service::pay(&service.address, "decline-0000000000").await.unwrap();
    assert_eq!(
        (again.status.as_u16(), again.body),
        (402, first.body),
        "also when the provider would charge by now"
    );
    assert_eq!(town.ledger().await["charges"], 0);
}

async fn a_provider_that_is_down_is_waited_for(database: Database) {
    let down = Faults([(Fault::ErrorBeforeCharge, 1.0)].into());
    let town = Town::new(database, down).await;
    let service = town.service();
    let key = "down-0000000000000";
    let waiting = {
        let address = service.address.clone();
        tokio::spawn(async move { service::pay(&address, key).await.unwrap() })
    };
    oncegate_test_servers::until("the payment is promised", async || town.payments().await.0 == 1).await;
    let meanwhile = service::pay(&service.address, key).await.unwrap();
    assert_eq!(meanwhile.status, 409, "it is under way: {meanwhile:?}");
    town.behave(&Faults::default()).await;
    let first = waiting.await.unwrap();
    assert_eq!(first.status, 201, "{first:?}");
    assert_eq!(town.ledger().await["charges"], 1);
}

/// The handler drew a new name for each run: whoever asked again, after it was settled that nothing had happened, had two payments.
async fn a_payment_that_did_not_happen_and_is_asked_for_again_is_the_same_payment(database: Database) {
    let town = Town::new(database, Faults([(Fault::ErrorBeforeCharge, 1.0)].into())).await;
    let service = town.service();
    let key = "again-000000000000";
    let address = service.address.clone();
    let waiting = tokio::spawn(async move { service::pay(&address, key).await });
    oncegate_test_servers::until("the payment is promised", async || town.payments().await.0 == 1).await;
    Box::pin(town.release(key)).await;
    town.behave(&Faults::default()).await;
    let reply = service::until_told(&service.address, key).await;
    assert_eq!(reply.status, 201, "{reply:?}");
    assert_eq!(town.payments().await, (1, 1, 0), "one payment, and it succeeded");
    assert_eq!(town.ledger().await["charges"], 1);
    drop(service);
    drop(waiting.await);
}

async fn nobody_is_charged_twice_whatever_the_provider_does_and_however_often_the_service_dies(
    database: Database,
) {
    const KILLS: usize = 12;
    const CLIENTS: usize = 6;
    let faults = Fault::ALL.into_iter().filter(|fault| !fault.is_of_webhook()).map(|fault| (fault, 0.06));
    let town = Town::new(database, Faults(faults.collect())).await;
    let mut answers: BTreeMap<String, Option<bytes::Bytes>> = BTreeMap::new();
    for round in 0..KILLS {
        let service = town.service();
        let begun = Arc::new(Semaphore::new(0));
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let (address, begun) = (service.address.clone(), Arc::clone(&begun));
            clients.spawn(async move {
                let mut told = Vec::new();
                for n in 0.. {
                    let key = format!("key-{round:04}-{client:04}-{n:04}");
                    begun.add_permits(1);
                    let Ok(reply) = service::pay(&address, &key).await else {
                        told.push((key, None));
                        break;
                    };
                    told.push((key, service::outcome(&reply).then_some(reply.body)));
                }
                told
            });
        }
        // With so many requests begun: one of them just now, the others anywhere.
        let requests = u32::try_from(CLIENTS).unwrap() + fastrand::u32(0..24);
        drop(begun.acquire_many(requests).await.unwrap());
        drop(service);
        answers.extend(clients.join_all().await.into_iter().flatten());
    }
    town.behave(&Faults::default()).await;
    let service = town.service();
    for (key, first) in &answers {
        let reply = service::until_told(&service.address, key).await;
        if let Some(first) = first {
            assert_eq!(*first, reply.body, "{key}: another answer than the first");
        }
    }
    town.judge(answers.len()).await;
}
