//! A service with a route for every way to treat a key: plain, deferred, atomic and in phases.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use oncegate_core::fingerprint::Mode;
use oncegate_core::policy::{Credentials, Policy, Profile};
use oncegate_core::record::{AfterRetention, CrashPolicy, GoneStatus};
use oncegate_engine::{Engine, Options, WorkerOptions, Workers};
use oncegate_tower::phased::{Phased, Stopped};
use oncegate_tower::{Atomic, AtomicIdempotency, Attempt, Idempotency, Routes, scope};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::base::Base;
use crate::stage::policy;

/// Longer than a fixture stays in the repository.
pub(crate) const YEARS: Duration = Duration::from_hours(24 * 365 * 20);
/// A lease that lapses soon after its process was killed.
const LEASE: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_millis(1);

/// Which of the two services it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Leaves records behind. What a handler does depends on the key.
    Writer,
    /// Takes them over. Its handlers succeed, unless a key asks for a failure.
    Reader,
}

pub(crate) struct Service<B: Base> {
    pub(crate) engine: Engine<B::Store>,
    /// Plain, deferred and phased routes.
    pub(crate) plain: SocketAddr,
    /// The atomic route.
    pub(crate) atomic: SocketAddr,
    idempotency: Idempotency<B::Store>,
    router: Router,
    /// The keys of handlers that hang.
    pub(crate) hanging: mpsc::UnboundedReceiver<String>,
}

#[derive(Clone)]
struct Shop<B> {
    base: B,
    role: Role,
    hanging: mpsc::UnboundedSender<String>,
}

impl<B: Base> Service<B> {
    pub(crate) async fn start(base: &B, role: Role) -> Self {
        Self::start_with(base, role, Credentials::Kept).await
    }

    /// With deferred requests that run so.
    pub(crate) async fn start_with(base: &B, role: Role, credentials: Credentials) -> Self {
        let engine = Engine::start(base.store().await, Options::default()).await.unwrap();
        let (sender, hanging) = mpsc::unbounded_channel();
        let shop = Arc::new(Shop { base: base.clone(), role, hanging: sender });
        let tenant = || scope::header("x-tenant");

        let router =
            Router::new().route("/rides", post(ride::<B>)).fallback(plain::<B>).with_state(Arc::clone(&shop));
        let idempotency = Idempotency::new(engine.clone(), tenant(), routes(credentials))
            .serve_operations_at("/operations/")
            .phases(base.pool());
        let protected = router.clone().layer(idempotency.clone());

        let charges = Routes::none().route("POST /charges", kept(Profile::Payments, |_| ())).unwrap();
        let layer = AtomicIdempotency::new(engine.clone(), base.pool(), tenant(), charges);
        let atomic = Router::new().route("/charges", post(charge::<B>)).with_state(shop).layer(layer);

        let (plain, atomic) = (serve(protected).await, serve(atomic).await);
        Self { engine, plain, atomic, idempotency, router, hanging }
    }

    /// Starts the worker that runs what was accepted for later.
    pub(crate) fn start_completer(&self) -> Workers {
        self.idempotency.start_completer(self.router.clone(), &WorkerOptions::default())
    }
}

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    addr
}

/// A policy whose records outlive the fixture, and whose leases do not.
fn kept(profile: Profile, change: impl FnOnce(&mut Policy)) -> Policy {
    policy(profile, |policy| {
        policy.retention = YEARS;
        policy.lease = LEASE;
        change(policy);
    })
}

fn routes(credentials: Credentials) -> Routes {
    let gone = AfterRetention::Gone { status: GoneStatus::Gone, tombstone: YEARS };
    let routes = [
        ("POST /payments", kept(Profile::Ietf, |_| ())),
        ("POST /money", kept(Profile::Payments, |policy| policy.horizon = Some(MOMENT))),
        ("POST /restarts", kept(Profile::Ietf, |policy| policy.crash = CrashPolicy::Restart)),
        ("POST /reports/{id}", kept(Profile::Accepted, |policy| policy.credentials = credentials)),
        ("POST /orders/{id}", kept(Profile::Lenient, |_| ())),
        ("POST /uploads/{id}", kept(Profile::Ietf, |policy| policy.fingerprint = Mode::None)),
        (
            "POST /gone",
            kept(Profile::Ietf, |policy| {
                policy.retention = MOMENT;
                policy.after_retention = gone;
            }),
        ),
        ("POST /short", kept(Profile::Ietf, |policy| policy.retention = MOMENT)),
    ];
    let routes = routes
        .into_iter()
        .fold(Routes::none(), |routes, (pattern, policy)| routes.route(pattern, policy).unwrap());
    routes.phased("POST /rides", kept(Profile::Resume, |_| ())).unwrap()
}

/// The completer sends no header; an atomic handler's request has no `Attempt`.
fn key_of(request: &Request) -> String {
    match request.extensions().get::<Attempt>() {
        Some(attempt) => attempt.key.as_str().to_owned(),
        None => request.headers()["idempotency-key"].to_str().unwrap().to_owned(),
    }
}

async fn plain<B: Base>(State(shop): State<Arc<Shop<B>>>, request: Request) -> Response {
    let key = key_of(&request);
    let status = match key.split('-').next().unwrap() {
        "always_broken" => StatusCode::INTERNAL_SERVER_ERROR,
        _ if shop.role == Role::Reader => StatusCode::CREATED,
        "refused" => StatusCode::SERVICE_UNAVAILABLE,
        "broken" => StatusCode::INTERNAL_SERVER_ERROR,
        "declined" => StatusCode::PAYMENT_REQUIRED,
        "hanging" => {
            shop.hanging.send(key).unwrap();
            std::future::pending().await
        }
        _ => StatusCode::CREATED,
    };
    (status, [("x-by", "handler")], format!("{} by the {:?}", request.uri().path(), shop.role))
        .into_response()
}

/// One row, and for some keys a call that is promised with it.
async fn charge<B: Base>(
    State(shop): State<Arc<Shop<B>>>,
    mut tx: Atomic<B::Pool>,
    request: Request,
) -> Response {
    let key = key_of(&request);
    shop.base.charge(&mut tx, &key).await.unwrap();
    if key.starts_with("promised") {
        tx.enqueue("charge", &key).unwrap().answers();
    }
    (StatusCode::CREATED, format!("charged by the {:?}", shop.role)).into_response()
}

/// Two phases, each a row.
async fn ride<B: Base>(
    State(shop): State<Arc<Shop<B>>>,
    Phased(mut run): Phased<B::Pool>,
    request: Request,
) -> Result<String, Stopped> {
    let key = key_of(&request);
    let first = run
        .atomic("created", async |tx| {
            shop.base.charge(tx, &format!("{key}: created")).await?;
            Ok(format!("{:?}", shop.role))
        })
        .await?;
    if shop.role == Role::Writer {
        shop.hanging.send(key.clone()).unwrap();
        std::future::pending::<()>().await;
    }
    run.atomic("receipt", async |tx| Ok(shop.base.charge(tx, &format!("{key}: receipt")).await?)).await?;
    Ok(run.finish(format!("created by the {first}"))?)
}
