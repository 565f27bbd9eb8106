//! Handlers with phases, as their clients see them: over a SQLite file and a pool of the service's own.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{Extensions, HeaderMap};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use oncegate_core::policy::{Profile, ScopeWidth};
use oncegate_core::record::StateKind;
use oncegate_engine::{Engine, Options, Worker, WorkerOptions};
use oncegate_store_sql::SqliteStore;
use oncegate_store_sql::sqlx::SqliteTransactions;
use oncegate_test_servers::until;
use oncegate_tower::phased::{Completing, DownstreamKey, JobError, Phased, Retry, Stopped};
use oncegate_tower::{Idempotency, Routes, scope};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use tokio::net::TcpListener;

use crate::client::{Call, Connection};
use crate::reply::Reply;
use crate::stage::{id_of, policy};

const KEY: &str = "ride-to-the-station";
const TICK: Duration = Duration::from_millis(1);

/// What handlers are told to do, and what they saw.
#[derive(Default)]
struct Town {
    provider_is_down: AtomicBool,
    is_renamed: AtomicBool,
    /// It has done something in no phase, and does not know what came of it.
    is_unsure: AtomicBool,
    /// The headers of every run, and whether nobody waited for it.
    runs: Mutex<Vec<(HeaderMap, Option<Completing>)>>,
}

async fn ride(
    State(town): State<Arc<Town>>,
    headers: HeaderMap,
    extensions: Extensions,
    Phased(mut run): Phased<SqliteTransactions>,
    body: String,
) -> Result<Response, Stopped> {
    town.runs.lock().unwrap().push((headers, extensions.get().cloned()));
    let name = if town.is_renamed.load(Ordering::SeqCst) { "trip" } else { "ride" };
    let ride: i64 = run
        .atomic(name, async |tx| {
            let insert = "INSERT INTO ride (body) VALUES (?1) RETURNING rowid";
            Ok(sqlx::query_scalar(insert).bind(&body).fetch_one(tx).await?)
        })
        .await?;
    let call = async |key: DownstreamKey| {
        if town.provider_is_down.load(Ordering::SeqCst) {
            return Err(JobError::unknown("no answer"));
        }
        Ok(format!("charged under a key of {} letters", key.as_str().len()))
    };
    let charge = match run.foreign("charge", Retry, call).await {
        Ok(charge) => charge,
        Err(_) if town.is_unsure.load(Ordering::SeqCst) => return Ok(unsure()),
        Err(stopped) => return Err(stopped.into()),
    };
    if town.is_unsure.load(Ordering::SeqCst) {
        return Ok(run.finish(unsure())?);
    }
    Ok(run.finish(format!("ride {ride}: {charge}").into_response())?)
}

fn unsure() -> Response {
    ([("idempotency-outcome", "unknown")], "the driver was called, and the line went dead").into_response()
}

struct Service {
    town: Arc<Town>,
    engine: Engine<SqliteStore>,
    idempotency: Idempotency<SqliteStore>,
    inner: Router,
    pool: SqlitePool,
    connection: tokio::sync::Mutex<Connection>,
    _folder: tempfile::TempDir,
}

impl Service {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rides.db");
        let engine = Engine::start(SqliteStore::open(&file).unwrap(), Options::default()).await.unwrap();
        let pool = SqlitePool::connect_with(SqliteConnectOptions::new().filename(&file)).await.unwrap();
        sqlx::raw_sql("CREATE TABLE ride (body TEXT NOT NULL)").execute(&pool).await.unwrap();
        let routes = Routes::none().phased("POST /rides", Profile::Resume).unwrap();
        let idempotency = Idempotency::new(engine.clone(), scope::header("x-tenant"), routes);
        let idempotency = idempotency.phases(SqliteTransactions(pool.clone()));
        let town = Arc::new(Town::default());
        let inner = Router::new().route("/rides", post(ride)).with_state(Arc::clone(&town));
        let app = inner.clone().layer(idempotency.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        let connection = Connection::to(addr).await.unwrap().into();
        Self { town, engine, idempotency, inner, pool, connection, _folder: folder }
    }

    async fn ask(&self) -> Reply {
        let call = Call::post("/rides").key(KEY).header("authorization", b"Bearer secret");
        let mut connection = self.connection.lock().await;
        connection.send(&call.json("{\"to\": \"the station\"}")).await.unwrap();
        connection.reply().await.unwrap()
    }

    async fn rides(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM ride").fetch_one(&self.pool).await.unwrap()
    }
}

#[tokio::test]
async fn a_ride_that_stops_in_the_middle_is_in_progress_and_the_client_goes_on_with_it() {
    let service = Service::start().await;
    service.town.provider_is_down.store(true, Ordering::SeqCst);
    service.ask().await.expect_problem(409, "in_progress");
    service.ask().await.expect_problem(409, "in_progress");
    service.town.provider_is_down.store(false, Ordering::SeqCst);
    let first = service.ask().await;
    first.expect_first(200, "ride 1: charged under a key of 26 letters");
    service.ask().await.expect_replay(200, "ride 1: charged under a key of 26 letters");
    assert_eq!(service.rides().await, 1);
}

#[tokio::test]
async fn a_ride_that_its_client_has_left_is_completed_from_what_was_kept_without_credentials() {
    let service = Service::start().await;
    service.town.provider_is_down.store(true, Ordering::SeqCst);
    service.ask().await.expect_problem(409, "in_progress");
    service.town.provider_is_down.store(false, Ordering::SeqCst);
    let options = WorkerOptions { complete_every: TICK, ..WorkerOptions::default() };
    let _completer = service.idempotency.start_completer(service.inner.clone(), &options);
    until("it is completed", async || {
        let record = service.engine.read(id_of(KEY)).await.unwrap().unwrap();
        record.state.kind() == StateKind::Completed
    })
    .await;
    service.ask().await.expect_replay(200, "ride 1: charged under a key of 26 letters");
    assert_eq!(service.rides().await, 1);
    let runs = service.town.runs.lock().unwrap().clone();
    let (headers, completing) = &runs[1];
    assert_eq!(completing.as_ref().map(|completing| completing.scope.tenant_str()), Some("acme"));
    assert_eq!(runs[0].1, None);
    assert!(runs[0].0.contains_key("authorization"), "the client's own run has it");
    let names: Vec<_> = headers.keys().map(http::HeaderName::as_str).collect();
    assert_eq!(names, ["content-type", "accept-encoding"], "nothing else was kept");
}

/// A deploy gave a handler phases, and what it had accepted before could be run by nobody.
#[tokio::test]
async fn a_ride_that_was_accepted_before_it_had_phases_is_run_with_them() {
    let service = Service::start().await;
    let accepted = policy(Profile::Accepted, |policy| policy.scope = ScopeWidth::Tenant);
    let routes = Routes::none().route("POST /rides", accepted).unwrap();
    let before = Idempotency::new(service.engine.clone(), scope::header("x-tenant"), routes);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let app = service.inner.clone().layer(before);
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let call = Call::post("/rides").key(KEY).json("{\"to\": \"the station\"}");
    assert_eq!(call.send(addr).await.status, 202);
    let options = WorkerOptions { complete_every: TICK, ..WorkerOptions::default() };
    let _completer = service.idempotency.start_completer(service.inner.clone(), &options);
    until("it is completed", async || {
        let record = service.engine.read(id_of(KEY)).await.unwrap().unwrap();
        record.state.kind() == StateKind::Completed
    })
    .await;
    service.ask().await.expect_replay(200, "ride 1: charged under a key of 26 letters");
    assert_eq!(service.rides().await, 1);
}

/// A handler that says that it does not know is not run again by anybody: no journal tells what it did outside its phases.
#[tokio::test]
async fn a_handler_that_says_unknown_ends_unknown_and_is_not_run_again() {
    let service = Service::start().await;
    service.town.is_unsure.store(true, Ordering::SeqCst);
    let first = service.ask().await;
    first.expect_first(200, "the driver was called, and the line went dead");
    assert_eq!(first.header("idempotency-outcome"), None);
    service.town.is_unsure.store(false, Ordering::SeqCst);
    let options = WorkerOptions { complete_every: TICK, ..WorkerOptions::default() };
    let mut completer = service.idempotency.start_completer(service.inner.clone(), &options);
    completer.until_passes(Worker::Completer, 2).await;
    service.ask().await.expect_problem(409, "outcome_unknown");
    let record = service.engine.read(id_of(KEY)).await.unwrap().unwrap();
    assert_eq!(record.state.kind(), StateKind::Unknown);
    assert!(record.last_error.unwrap().to_string().contains("Idempotency-Outcome: unknown"));
    assert!(record.recovery.is_some(), "and what was done is still known");
    assert_eq!((service.rides().await, service.town.runs.lock().unwrap().len()), (1, 1));
}

/// What stopped at a phase is handled as the phase declares, whatever the handler says.
#[tokio::test]
async fn a_phase_that_was_interrupted_is_handled_as_it_declares_also_if_the_handler_says_unknown() {
    let service = Service::start().await;
    service.town.is_unsure.store(true, Ordering::SeqCst);
    service.town.provider_is_down.store(true, Ordering::SeqCst);
    service.ask().await.expect_problem(409, "in_progress");
    service.town.is_unsure.store(false, Ordering::SeqCst);
    service.town.provider_is_down.store(false, Ordering::SeqCst);
    service.ask().await.expect_first(200, "ride 1: charged under a key of 26 letters");
    assert_eq!(service.rides().await, 1);
}

#[tokio::test]
async fn a_changed_handler_is_409_outcome_unknown_and_the_record_says_why() {
    let service = Service::start().await;
    service.town.provider_is_down.store(true, Ordering::SeqCst);
    service.ask().await.expect_problem(409, "in_progress");
    service.town.is_renamed.store(true, Ordering::SeqCst);
    service.ask().await.expect_problem(409, "outcome_unknown");
    service.ask().await.expect_problem(409, "outcome_unknown");
    let record = service.engine.read(id_of(KEY)).await.unwrap().unwrap();
    let reason = record.last_error.unwrap().to_string();
    assert!(reason.starts_with("changed_handler") && reason.contains("\"trip\""), "{reason}");
    assert_eq!(service.rides().await, 1);
}

/// A ride stopped after its first phase. A deploy then moved the route to a profile without phases, and
/// the client's retry ran the whole handler from its beginning: the first phase took effect twice. What
/// was begun under `resume` is not run by a handler without phases.
#[tokio::test]
async fn attack_25_what_was_begun_in_phases_is_not_run_again_as_a_whole() {
    let service = Service::start().await;
    service.town.provider_is_down.store(true, Ordering::SeqCst);
    service.ask().await.expect_problem(409, "in_progress");
    let runs = Arc::new(AtomicUsize::new(0));
    let handler = {
        let runs = Arc::clone(&runs);
        move || async move { format!("ride {}", runs.fetch_add(1, Ordering::SeqCst)) }
    };
    let routes = Routes::none().route("POST /rides", Profile::Payments).unwrap();
    let without_phases = Idempotency::new(service.engine.clone(), scope::header("x-tenant"), routes);
    let app = Router::new().route("/rides", post(handler)).layer(without_phases);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let call = Call::post("/rides").key(KEY).json("{\"to\": \"the station\"}");
    call.send(addr).await.expect_problem(409, "outcome_unknown");
    assert_eq!(runs.load(Ordering::SeqCst), 0, "the first phase has taken effect already");
    let record = service.engine.read(id_of(KEY)).await.unwrap().unwrap();
    assert_eq!(record.state.kind(), StateKind::Unknown);
    let reason = record.last_error.unwrap().to_string();
    assert!(reason.starts_with("changed_handler"), "{reason}");
}
