//! A service with atomic handlers, on a port of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::IntoResponse;
use oncegate_core::record::{Record, StateKind};
use oncegate_engine::{BackgroundWorkers, Engine, Options};
use oncegate_store::drive::read_one;
use oncegate_store::join::Transactions;
use oncegate_tower::{Atomic, AtomicIdempotency, Named, Routes, scope};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::base::{Base, Inner};
use crate::stage::{Gate, id_of};

/// A running service.
pub(crate) struct Node<B: Base> {
    pub(crate) addr: SocketAddr,
    pub(crate) engine: Engine<B::Store>,
    runs: Arc<AtomicUsize>,
    server: JoinHandle<()>,
}

/// What a handler has in its hands.
pub(crate) struct Work<B: Base, T: Transactions = <B as Base>::Pool> {
    base: B,
    pub(crate) tx: Atomic<T>,
    key: String,
    /// Which run it is of its node, from 1.
    pub(crate) run: usize,
}

impl<B: Base, T: Transactions> Work<B, T> {
    pub(crate) fn key(&self) -> &str {
        &self.key
    }
}

impl<B: Base, T> Work<B, T>
where
    T: Transactions<Transaction: oncegate_store::join::Transaction<Inner = Inner<B>>>,
{
    /// The effect, in the transaction.
    pub(crate) async fn charge(&mut self) -> sqlx::Result<()> {
        self.base.charge(&mut self.tx, &self.key).await
    }

    /// The effect, and an answer that says which run it was.
    pub(crate) async fn done(mut self) -> String {
        self.charge().await.unwrap();
        format!("run {}", self.run)
    }
}

impl<B: Base> Node<B> {
    /// Every POST is protected by `policy`; tenants say who they are in `x-tenant`.
    pub(crate) async fn new<H, F>(base: &B, policy: impl Into<Named>, handler: H) -> Self
    where
        H: Fn(Work<B>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output: IntoResponse> + Send + 'static,
    {
        Self::with(base, base.pool(), policy, LONG, handler).await
    }

    pub(crate) async fn with<T, H, F>(
        base: &B,
        pool: T,
        policy: impl Into<Named>,
        within: Duration,
        handler: H,
    ) -> Self
    where
        T: Transactions,
        H: Fn(Work<B, T>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output: IntoResponse> + Send + 'static,
    {
        let options = Options { workers: BackgroundWorkers::None, ..Options::default() };
        let engine = Engine::start(base.store().await, options).await.unwrap();
        let runs = Arc::new(AtomicUsize::new(0));
        let (base, counted) = (base.clone(), Arc::clone(&runs));
        let handler = move |tx: Atomic<T>, request: Request| {
            let run = counted.fetch_add(1, Ordering::SeqCst) + 1;
            let key = request.headers()["idempotency-key"].to_str().unwrap().to_owned();
            handler(Work { base: base.clone(), tx, key, run })
        };
        let routes = Routes::none().otherwise(policy).unwrap();
        let layer = AtomicIdempotency::new(engine.clone(), pool, scope::header("x-tenant"), routes);
        let app = Router::new().fallback(handler).layer(layer.within(within));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { addr, engine, runs, server }
    }

    /// How often the handler was called.
    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    /// The row of a key.
    pub(crate) async fn record(&self, key: &str) -> Option<Record> {
        read_one(self.engine.store(), id_of(key)).await.unwrap()
    }

    pub(crate) async fn state(&self, key: &str) -> Option<StateKind> {
        self.record(key).await.map(|record| record.state.kind())
    }
}

impl<B: Base> Drop for Node<B> {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Longer than any handler of a test takes.
pub(crate) const LONG: Duration = Duration::from_mins(1);

/// A service whose handler has its effect.
pub(crate) async fn simple<B: Base>(base: &B, policy: impl Into<Named>) -> Node<B> {
    Node::new(base, policy, Work::done).await
}

/// A service whose handler has its effect, stops at a gate with its transaction open, then answers.
pub(crate) async fn gated<B: Base>(base: &B, policy: impl Into<Named>) -> (Gate, Node<B>) {
    let gate = Gate::new();
    let at_gate = gate.clone();
    let handler = move |mut work: Work<B>| {
        let gate = at_gate.clone();
        async move {
            work.charge().await.unwrap();
            gate.pass().await;
            format!("run {}", work.run)
        }
    };
    (gate, Node::new(base, policy, handler).await)
}
