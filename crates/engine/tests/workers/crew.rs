//! What the tests of the workers have in common: a probe that is told what to find, passes, and the story of a record.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate_core::audit::{Act, Entry};
use oncegate_core::identity::RecordId;
use oncegate_core::record::{Doubt, Record, State};
use oncegate_core::response::{Answer, Response};
use oncegate_engine::{
    Asking, Engine, Found, NoProbe, Options, Pass, Patience, Probe, Route, Worker, WorkerOptions,
};
use oncegate_store::Store;
use tokio::sync::{Semaphore, watch};

use crate::world::{Hand, Shaky, done, doubt, held, id, row, shaky_on, start};

/// How long a question of a [`Script`] may take; its claim lasts ten seconds longer.
pub(crate) const TIMEOUT: Duration = Duration::from_mins(1);
/// Longer than a claim.
pub(crate) const CLAIM: Duration = Duration::from_mins(2);

/// One node over a store whose clock is turned by hand.
pub(crate) async fn node() -> (Engine<Shaky>, Shaky, Hand) {
    let hand = Hand::new();
    let store = shaky_on(&hand);
    (start(store.clone(), named("a")).await, store, hand)
}

/// Two nodes over it.
pub(crate) async fn nodes() -> (Engine<Shaky>, Engine<Shaky>, Shaky, Hand) {
    let (a, store, hand) = node().await;
    (a, start(store.clone(), named("b")).await, store, hand)
}

pub(crate) fn named(node: &str) -> Options {
    Options { node: node.into(), ..Options::default() }
}

/// One pass of one worker that asks nobody.
pub(crate) async fn pass<S: Store>(engine: &Engine<S>, worker: Worker) -> Pass {
    engine.work(worker, &WorkerOptions::default(), &NoProbe).await.unwrap()
}

/// One pass of the reconciler.
pub(crate) async fn reconcile<S: Store>(engine: &Engine<S>, probe: &dyn Probe) -> Pass {
    engine.work(Worker::Reconciler, &WorkerOptions::default(), probe).await.unwrap()
}

/// An attempt that was sent, and whose end nobody knows.
pub(crate) async fn doubted<S: Store>(engine: &Engine<S>, route: &Route, key: &str) -> RecordId {
    let mut held = held(engine, route, key).await;
    held.begin().unwrap();
    done(held, doubt()).await;
    id(route, key)
}

pub(crate) async fn doubt_of<S: Store>(engine: &Engine<S>, id: RecordId) -> Doubt {
    match row(engine, id).await.state {
        State::Unknown(doubt) => doubt,
        other => panic!("not unknown but {other:?}"),
    }
}

pub(crate) async fn story<S: Store>(engine: &Engine<S>, id: RecordId) -> Vec<Entry> {
    engine.story(id, 1_000).await.unwrap()
}

pub(crate) async fn acts<S: Store>(engine: &Engine<S>, id: RecordId) -> Vec<Act> {
    story(engine, id).await.iter().map(|entry| entry.act).collect()
}

pub(crate) fn with_status(status: u16) -> Arc<Answer> {
    Arc::new(Answer::Kept(Response { status, headers: vec![], body: status.to_string().into_bytes() }))
}

pub(crate) fn found(status: u16) -> Found {
    Found::Happened { answer: with_status(status), reference: Some("ch_1".into()) }
}

pub(crate) fn not_known() -> Found {
    Found::NotKnown("the provider is down".into())
}

/// What a probe does when it is asked.
pub(crate) enum Reply {
    /// Finds this at once.
    Finds(Found),
    /// Finds this once it is let go.
    Waits(Found),
    /// Never ends.
    Hangs,
    /// Panics.
    Panics,
}

/// A probe that does what it is told, question by question, and then knows nothing.
pub(crate) struct Script {
    replies: Mutex<VecDeque<Reply>>,
    asked: watch::Sender<Vec<Record>>,
    gate: Semaphore,
    patience: Patience,
}

impl Script {
    pub(crate) fn new(replies: impl IntoIterator<Item = Reply>) -> Self {
        Self {
            replies: Mutex::new(replies.into_iter().collect()),
            asked: watch::Sender::default(),
            gate: Semaphore::new(0),
            patience: Patience { timeout: TIMEOUT, ..Patience::default() },
        }
    }

    /// Finds these, one after the other.
    pub(crate) fn finding(found: impl IntoIterator<Item = Found>) -> Self {
        Self::new(found.into_iter().map(Reply::Finds))
    }

    pub(crate) fn with(self, patience: Patience) -> Self {
        Self { patience, ..self }
    }

    pub(crate) fn parking_after(self, park_after: u32) -> Self {
        Self { patience: Patience { park_after, ..self.patience }, ..self }
    }

    /// How often it was asked.
    pub(crate) fn questions(&self) -> usize {
        self.asked.borrow().len()
    }

    /// The rows that it was shown.
    pub(crate) fn rows(&self) -> Vec<Record> {
        self.asked.borrow().clone()
    }

    pub(crate) async fn until_asked(&self, times: usize) {
        let _ = self.asked.subscribe().wait_for(|asked| asked.len() >= times).await;
    }

    pub(crate) fn let_go(&self) {
        self.gate.add_permits(1);
    }
}

impl Probe for Script {
    fn ask<'a>(&'a self, record: &'a Record) -> Asking<'a> {
        let reply = self.replies.lock().unwrap().pop_front();
        self.asked.send_modify(|asked| asked.push(record.clone()));
        Box::pin(async move {
            match reply {
                Some(Reply::Finds(found)) => found,
                Some(Reply::Waits(found)) => {
                    self.gate.acquire().await.unwrap().forget();
                    found
                }
                Some(Reply::Hangs) => std::future::pending().await,
                Some(Reply::Panics) => panic!("as the test asked for"),
                None => Found::NotKnown("the script is over".into()),
            }
        })
    }

    fn patience(&self, _record: &Record) -> Patience {
        self.patience
    }
}
