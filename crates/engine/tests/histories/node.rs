//! A node: an engine with its workers, on a runtime that can be killed.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::decide::{Arrival, QUARANTINED};
use oncegate_core::fingerprint::{self, Content, Mode};
use oncegate_core::identity::RecordId;
use oncegate_core::key::Key;
use oncegate_core::policy::Profile;
use oncegate_core::record::{Reason, Record};
use oncegate_core::scope::{Address, Operation};
use oncegate_core::time::Timestamp;
use oncegate_engine::{
    Act, Arrived, Engine, Operator, Options, Probe, Route, Settled, Settlement, WorkerOptions, Workers,
};
use oncegate_store::drive::read_one;
use oncegate_store::faulty::Faulty;
use oncegate_store::{Filter, Store};
use oncegate_test_servers::wait_until;
use tokio::runtime::{Builder, Runtime};

use crate::history::KEYS;
use crate::places::Place;
use crate::provider::{Called, HORIZON, Provider, answer, charge_of};

/// Longer than a busy machine stands still; a killed node delays its keys by so much.
const LEASE: Duration = Duration::from_secs(1);

pub(crate) fn route() -> Route {
    let mut policy = Profile::Payments.policy();
    policy.lease = LEASE;
    policy.horizon = Some(HORIZON);
    Route::new("payments", policy, Operation::new("POST /payments").unwrap())
}

fn arrival(route: &Route, key: &str) -> Arrival {
    let content =
        Content { method: "POST", path: "/payments", query: None, content_type: None, body: key.as_bytes() };
    let fingerprint = fingerprint::of(&Mode::Raw, &content).unwrap();
    route.arrival(route.scope("acme").unwrap(), Key::from_text(key).unwrap(), fingerprint, None)
}

pub(crate) struct Node<S: Store> {
    engine: Engine<Faulty<S>>,
    provider: Provider,
    runtime: Runtime,
    _workers: Workers,
}

impl<S: Store> Node<S> {
    pub(crate) fn start<P: Place<Store = S>>(place: &P, provider: &Provider, clock_off_s: i64) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (engine, workers) = runtime.block_on(async {
            let store = Faulty::new(place.open().await);
            store.set_clock_off(clock_off_s);
            let engine = Engine::start(store, Options::default()).await.unwrap();
            let options = WorkerOptions {
                sweep_every: Duration::from_millis(100),
                reconcile_every: Duration::from_millis(50),
                ..WorkerOptions::default()
            };
            let probe: Arc<dyn Probe> = Arc::new(provider.clone());
            let workers = engine.start_workers(&options, &probe);
            (engine, workers)
        });
        Self { engine, provider: provider.clone(), runtime, _workers: workers }
    }

    pub(crate) fn store(&self) -> &Faulty<S> {
        self.engine.store()
    }

    /// One request. `Some` is the outcome that its client is told.
    pub(crate) fn request(
        &self,
        key: &str,
        dice: usize,
    ) -> impl Future<Output = Option<String>> + Send + use<S> {
        let (engine, provider, key) = (self.engine.clone(), self.provider.clone(), key.to_owned());
        let task = self.runtime.spawn(async move { request(&engine, &provider, &key, dice).await });
        // An error: the node was killed, and the connection with it.
        async { task.await.unwrap_or(None) }
    }

    /// For the report about a history that has failed.
    pub(crate) fn describe(&self) -> String {
        format!(
            "restored: {}, now: {:?}, {:?}",
            self.engine.is_restored(),
            self.engine.now(),
            self.engine.stats()
        )
    }

    /// Writes that a fault held back land now.
    pub(crate) fn land_late_writes(&self) {
        self.runtime.block_on(async { while let Ok(true) = self.store().land().await {} });
    }

    /// Rewrites its watermark now, as it does by itself every few seconds.
    pub(crate) fn beat(&self) {
        wait_until("the watermark is written", || self.runtime.block_on(self.engine.check_history()).is_ok());
    }

    /// An operator declares that keys may have been lost.
    pub(crate) fn declare_loss(&self) {
        let declared = self.runtime.block_on(self.engine.declare_quarantine(
            Timestamp::FIRST,
            Timestamp::NEVER,
            &operator(),
        ));
        assert!(declared.is_ok(), "{declared:?}");
    }

    /// An operator settles what is held back and no client asks for any more.
    pub(crate) fn settle_held_back(&self) {
        let filter = Filter { parked: Some(true), ..Filter::default() };
        self.runtime.block_on(async {
            let Ok(page) = self.store().browse(&filter, None, KEYS).await else { return };
            for row in &page.records {
                settle_by_ledger(&self.engine, &self.provider, row).await;
            }
        });
    }

    /// `kill -9`: nothing is settled, cleaned up or said.
    pub(crate) fn kill(self) {
        self.runtime.shutdown_background();
    }
}

async fn request<S: Store>(
    engine: &Engine<Faulty<S>>,
    provider: &Provider,
    key: &str,
    dice: usize,
) -> Option<String> {
    let route = route();
    let arrived = engine.arrive(&route, arrival(&route, key)).await;
    provider.note(format!("{key}: {arrived:?}"));
    let mut held = match arrived {
        Ok(Arrived::Execute(held)) => held,
        Ok(Arrived::Replay { answer, .. }) => return Some(charge_of(&answer)),
        Ok(Arrived::Unsettled { .. }) => {
            settle_if_held_back(engine, provider, &route, key).await;
            return None;
        }
        Ok(Arrived::Busy { .. }) | Err(_) => return None,
        Ok(other) => panic!("{key}: {other:?}"),
    };
    let settlement = match held.begin() {
        Err(_) => release("the lease had ended"),
        Ok(()) => match held.run(provider.call(key, dice)).await {
            Called::Charged(answer) => Settlement::Complete(Arc::new(answer)),
            Called::Silent => Settlement::Doubt(Reason::new("timeout", "no answer")),
            Called::Refused => release("connection refused"),
        },
    };
    let told = match &settlement {
        Settlement::Complete(answer) => Some(charge_of(answer)),
        _ => None,
    };
    provider.note(format!("{key}: ended with {settlement:?}"));
    match held.settle(settlement).await {
        Settled::Done(_) => told,
        // Answered from the row, by the next try.
        Settled::Fenced(_) => None,
    }
}

fn operator() -> Operator {
    Operator { name: "ann".into(), reason: "looked into the ledger".into() }
}

/// The client of a key that a quarantine holds back calls an operator, who looks into the provider's ledger.
async fn settle_if_held_back<S: Store>(
    engine: &Engine<Faulty<S>>,
    provider: &Provider,
    route: &Route,
    key: &str,
) {
    let address = Address { scope: route.scope("acme").unwrap(), key: Key::from_text(key).unwrap() };
    if let Ok(Some(row)) = read_one(engine.store(), RecordId::of(&address)).await {
        settle_by_ledger(engine, provider, &row).await;
    }
}

/// If a quarantine holds the record back. What fails by a fault of the store is tried again by the caller.
async fn settle_by_ledger<S: Store>(engine: &Engine<Faulty<S>>, provider: &Provider, row: &Record) {
    if row.last_error.as_ref().is_none_or(|reason| reason.code() != QUARANTINED) {
        return;
    }
    let act = match provider.charges(row.address.key.as_str()).first() {
        Some(charge) => Act::Happened(Arc::new(answer(charge))),
        None => Act::DidNotHappen,
    };
    let decided = engine.operate(row.id, row.version, act, &operator()).await;
    provider.note(format!("{}: the operator's word: {decided:?}", row.address.key.as_str()));
}

fn release(why: &str) -> Settlement {
    Settlement::Release { reason: Reason::new("not_executed", why), backoff: Duration::ZERO }
}
