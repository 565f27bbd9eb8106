//! A service with the layer around it, on a port of its own, and what a test holds in its hands.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use oncegate_core::identity::RecordId;
use oncegate_core::key::Key;
use oncegate_core::policy::{Policy, Profile};
use oncegate_core::record::{Record, StateKind};
use oncegate_core::scope::{Address, Scope};
use oncegate_core::time::{Now, Timestamp};
use oncegate_engine::{BackgroundWorkers, Engine, Options};
use oncegate_store::Store;
use oncegate_store::clock::Clock;
use oncegate_store::drive::read_one;
use oncegate_test_servers::until;
use oncegate_tower::{Idempotency, Named, Routes, scope};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::client::within;

/// A running service.
pub(crate) struct Stage<S: Store> {
    pub(crate) addr: SocketAddr,
    pub(crate) engine: Engine<S>,
    runs: Arc<AtomicUsize>,
    ended: watch::Receiver<usize>,
    server: JoinHandle<()>,
}

impl<S: Store> Stage<S> {
    /// Every POST is protected by `policy`; tenants say who they are in `x-tenant`. GET and the like pass.
    pub(crate) async fn new<H, F>(store: S, policy: impl Into<Named>, handler: H) -> Self
    where
        H: Fn(Request) -> F + Clone + Send + Sync + 'static,
        F: Future<Output: IntoResponse> + Send + 'static,
    {
        let routes = Routes::none().otherwise(policy).unwrap();
        Self::with(store, Options::default(), routes, handler).await
    }

    pub(crate) async fn with<H, F>(store: S, options: Options, routes: Routes, handler: H) -> Self
    where
        H: Fn(Request) -> F + Clone + Send + Sync + 'static,
        F: Future<Output: IntoResponse> + Send + 'static,
    {
        let options = Options { workers: BackgroundWorkers::None, ..options };
        let engine = Engine::start(store, options).await.unwrap();
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = {
            let runs = Arc::clone(&runs);
            move |request: Request| {
                runs.fetch_add(1, Ordering::SeqCst);
                handler(request)
            }
        };
        let (sender, ended) = watch::channel(0);
        let noticed = move |request: Request, next: Next| {
            let end = End(sender.clone());
            async move {
                let _end = end;
                next.run(request).await
            }
        };
        let layer = Idempotency::new(engine.clone(), scope::header("x-tenant"), routes);
        let app = Router::new()
            .fallback(counted)
            .layer(layer.serve_operations_at("/operations/"))
            .layer(middleware::from_fn(noticed));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { addr, engine, runs, ended, server }
    }

    /// How often the handler was called.
    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    /// Waits until so many requests have ended at the server: answered, or dropped because the client is gone.
    pub(crate) async fn ended(&self, count: usize) {
        within(self.ended.clone().wait_for(|ended| *ended >= count)).await.unwrap();
    }

    /// Waits until so many batches were brought to the store.
    pub(crate) async fn commits(&self, count: u64) {
        until("the batches were brought to the store", async || self.engine.stats().commits >= count).await;
    }

    /// The record of a key of `acme`, read past all faults.
    pub(crate) async fn record(&self, store: &impl Store, key: &str) -> Option<Record> {
        read_one(store, id_of(key)).await.unwrap()
    }

    pub(crate) async fn state(&self, store: &impl Store, key: &str) -> Option<StateKind> {
        self.record(store, key).await.map(|record| record.state.kind())
    }
}

impl<S: Store> Drop for Stage<S> {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Counts a request out when it is dropped; what it held is dropped before.
struct End(watch::Sender<usize>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.send_modify(|ended| *ended += 1);
    }
}

/// The record's name of a key of `acme`, where the policy does not tell operations apart.
pub(crate) fn id_of(key: &str) -> RecordId {
    let scope = Scope::tenant("acme").unwrap();
    RecordId::of(&Address { scope, key: Key::from_text(key).unwrap() })
}

/// A profile with some of it changed.
pub(crate) fn policy(profile: Profile, change: impl FnOnce(&mut Policy)) -> Policy {
    let mut policy = profile.policy();
    change(&mut policy);
    policy
}

/// Where handlers stop until a test lets them go on.
#[derive(Clone, Debug)]
pub(crate) struct Gate(Arc<[Semaphore; 2]>);

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Arc::new([Semaphore::new(0), Semaphore::new(0)]))
    }

    /// The handler's side. Who came first passes first: it stands in the queue before it says that it has entered.
    pub(crate) async fn pass(&self) {
        let [entered, open] = &*self.0;
        let mut opened = std::pin::pin!(open.acquire());
        let at_once = opened.as_mut().now_or_never();
        entered.add_permits(1);
        match at_once {
            Some(permit) => permit.unwrap().forget(),
            None => opened.await.unwrap().forget(),
        }
    }

    /// Waits until a handler stands here.
    pub(crate) async fn entered(&self) {
        within(self.0[0].acquire()).await.unwrap().forget();
    }

    /// Lets one pass.
    pub(crate) fn open(&self) {
        self.0[1].add_permits(1);
    }
}

/// A clock that a test turns.
#[derive(Clone, Debug)]
pub(crate) struct HandClock(Arc<AtomicI64>);

impl HandClock {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicI64::new(1_700_000_000_000_000)))
    }

    pub(crate) fn clock(&self) -> Clock {
        let clock = self.clone();
        Clock::from_fn(move || clock.now().at)
    }

    pub(crate) fn now(&self) -> Now {
        Now::exact(Timestamp::from_micros(self.0.load(Ordering::SeqCst)))
    }

    pub(crate) fn turn(&self, span: Duration) {
        self.0.fetch_add(i64::try_from(span.as_micros()).unwrap(), Ordering::SeqCst);
    }
}

/// An answer that says which run it came from.
pub(crate) fn numbered() -> impl Fn() -> Response + Clone + Send + Sync {
    let count = Arc::new(AtomicUsize::new(0));
    move || format!("run {}", count.fetch_add(1, Ordering::SeqCst) + 1).into_response()
}

/// A service whose handler stops at a gate, then says which run it was.
pub(crate) async fn gated<S: Store>(store: S, policy: impl Into<Named>) -> (Gate, Stage<S>) {
    let gate = Gate::new();
    let (at_gate, answer) = (gate.clone(), numbered());
    let handler = move |_: Request| {
        let (gate, answer) = (at_gate.clone(), answer.clone());
        async move {
            gate.pass().await;
            answer()
        }
    };
    (gate, Stage::new(store, policy, handler).await)
}

/// A service whose handler says which run it was.
pub(crate) async fn simple<S: Store>(store: S, policy: impl Into<Named>) -> Stage<S> {
    let answer = numbered();
    Stage::new(store, policy, move |_: Request| std::future::ready(answer())).await
}
