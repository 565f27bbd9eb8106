//! Alerts about promises: what the outbox has to deliver.

use std::time::Duration;

use oncegate_core::identity::Token;
use oncegate_engine::{
    Delivering, Delivery, Effect, Effects, Engine, Options, Outbox, OutboxOptions, Patience, Sent,
};
use oncegate_store::jobs::{Job, JobId, Jobs as _};
use oncegate_store::memory::MemoryStore;

use crate::watched::Counting;
use crate::world::{Hand, id, ietf, start};

/// A provider that says the same to everybody.
pub(crate) struct Says(pub(crate) Sent);

impl Effect for Says {
    fn deliver<'a>(&'a self, _: &'a Delivery<'a>) -> Delivering<'a> {
        Box::pin(std::future::ready(self.0.clone()))
    }

    fn patience(&self) -> Patience {
        let soon = Duration::from_millis(50);
        Patience { backoff: soon, backoff_max: soon, park_after: u32::MAX, ..Patience::default() }
    }
}

pub(crate) const DONE: Sent = Sent::Delivered { reference: None, answer: None };

fn down() -> Sent {
    Sent::Later { after: None, why: "it is down".into() }
}

/// Promises so many jobs more.
pub(crate) async fn promise(engine: &Engine<MemoryStore>, numbers: std::ops::Range<u32>) {
    let life = Token::from_bytes([9; 16]);
    let whose = (id(&ietf(), "order"), life);
    let now = engine.now().at;
    let jobs: Vec<_> =
        numbers.map(|n| Job::promised(JobId::of(life, n), "charge", b"{}".to_vec(), whose, now)).collect();
    engine.store().promise(&jobs).await.unwrap();
    engine.wake_outbox();
}

/// Works off what is promised, several times a scrape.
pub(crate) fn outbox(engine: &Engine<MemoryStore>, provider: Says) -> Outbox {
    let often = Duration::from_millis(50);
    let options = OutboxOptions { every: often, keep_every: often, ..OutboxOptions::default() };
    engine.start_outbox(&Effects::new().with("charge", provider), &options)
}

async fn engine() -> (Engine<MemoryStore>, Hand) {
    let hand = Hand::new();
    (start(MemoryStore::with_clock(hand.clock()), Options::default()).await, hand)
}

/// A provider refuses, and a person must look.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_given_up() {
    let counting = Counting::start().await;
    let (engine, _hand) = engine().await;
    promise(&engine, 0..1).await;
    let _outbox = outbox(&engine, Says(Sent::Refused("no such account".into())));
    counting.watched().await.until_firing("OncegateOutboxDeadLetters", async || ()).await;
}

/// Nobody delivers what was promised twenty minutes ago: no node knows its effect any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_promise_grows_old() {
    let counting = Counting::start().await;
    let (engine, hand) = engine().await;
    promise(&engine, 0..1).await;
    hand.turn(Duration::from_mins(20));
    let effects = Effects::new().with("another", Says(DONE));
    let often = Duration::from_millis(50);
    let options = OutboxOptions { keep_every: often, ..OutboxOptions::default() };
    let _outbox = engine.start_outbox(&effects, &options);
    counting.watched().await.until_firing("OncegateOutboxOld", async || ()).await;
}

/// A provider is down, and the promises pile up.
#[tokio::test(flavor = "multi_thread")]
async fn promises_pile_up() {
    let counting = Counting::start().await;
    let (engine, _hand) = engine().await;
    let _outbox = outbox(&engine, Says(down()));
    let mut watched = counting.watched().await;
    watched.until_found("oncegate_outbox_waiting").await;
    let mut first = 0;
    watched
        .until_firing("OncegateOutboxGrowing", async || {
            promise(&engine, first..first + 20).await;
            first += 20;
        })
        .await;
}

/// A provider is down, and says so every time.
#[tokio::test(flavor = "multi_thread")]
async fn deliveries_fail() {
    let counting = Counting::start().await;
    let (engine, hand) = engine().await;
    promise(&engine, 0..20).await;
    let _outbox = outbox(&engine, Says(down()));
    counting
        .watched()
        .await
        .until_firing("OncegateOutboxFailing", async || hand.turn(Duration::from_millis(100)))
        .await;
}
