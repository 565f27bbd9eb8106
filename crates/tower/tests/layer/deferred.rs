//! A handler that is run later: accepted by the layer, run by its completer, asked for where the layer serves operations.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Request;
use http_body_util::BodyExt as _;
use oncegate_core::policy::Profile;
use oncegate_engine::{Engine, Options, WorkerOptions, Workers};
use oncegate_store::memory::MemoryStore;
use oncegate_tower::phased::Completing;
use oncegate_tower::{Attempt, Idempotency, Routes, scope};
use tokio::net::TcpListener;

use crate::client::{Call, within};
use crate::reply::Reply;
use crate::stage::{Gate, policy};

/// What a run saw: its request line, its headers' names, its body, whose it is, and under which key.
type Run = (String, Vec<String>, String, Option<String>, String);

struct Service {
    addr: std::net::SocketAddr,
    gate: Gate,
    runs: Arc<Mutex<Vec<Run>>>,
    _completer: Workers,
}

impl Service {
    async fn start() -> Self {
        let engine = Engine::start(MemoryStore::new(), Options::default()).await.unwrap();
        let accepted = policy(Profile::Accepted, |policy| {
            policy.wait_limit = std::time::Duration::from_secs(20);
        });
        let routes = Routes::none().route("POST /jobs/{id}", accepted).unwrap();
        let (gate, runs) = (Gate::new(), Arc::<Mutex<Vec<Run>>>::default());
        let handler = {
            let (gate, runs) = (gate.clone(), Arc::clone(&runs));
            move |request: Request| {
                let (gate, runs) = (gate.clone(), Arc::clone(&runs));
                async move {
                    let (head, body) = request.into_parts();
                    let body = body.collect().await.unwrap().to_bytes();
                    let whose =
                        head.extensions.get::<Completing>().map(|by| by.scope.tenant_str().to_owned());
                    let key = head.extensions.get::<Attempt>().unwrap().key.as_str().to_owned();
                    let line = format!("{} {}", head.method, head.uri);
                    let mut names: Vec<_> = head.headers.keys().map(ToString::to_string).collect();
                    names.sort();
                    runs.lock().unwrap().push((
                        line,
                        names,
                        String::from_utf8_lossy(&body).into(),
                        whose,
                        key,
                    ));
                    gate.pass().await;
                    "done"
                }
            }
        };
        let inner = Router::new().fallback(handler);
        let idempotency = Idempotency::new(engine, scope::header("x-tenant"), routes);
        let idempotency = idempotency.serve_operations_at("/operations/");
        let options = WorkerOptions { completions_at_once: 1, ..WorkerOptions::default() };
        let completer = idempotency.start_completer(inner.clone(), &options);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let app = inner.layer(idempotency);
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { addr, gate, runs, _completer: completer }
    }

    async fn job(&self, key: &str) -> Reply {
        Call::post("/jobs/7?x=1")
            .key(key)
            .header("authorization", b"secret")
            .json("{\"a\":1}")
            .send(self.addr)
            .await
    }

    async fn ask(&self, method: &str, tenant: &str, path: &str) -> Reply {
        let call = Call::anonymous(method, path).tenant(tenant).header("prefer", b"wait=20");
        within(async { call.send(self.addr).await }).await
    }
}

#[tokio::test]
async fn it_is_accepted_run_with_what_was_kept_and_answered_where_the_layer_says() {
    let service = Service::start().await;
    let reply = service.job("one").await;
    assert_eq!(reply.status, 202, "{reply:?}");
    let location = reply.header("location").unwrap().to_owned();
    assert!(location.starts_with("/operations/op_"), "{location}");
    service.gate.entered().await;
    service.gate.open();
    service.ask("GET", "acme", &location).await.expect_replay(200, "done");
    service.job("one").await.expect_replay(200, "done");
    let runs = service.runs.lock().unwrap().clone();
    let names = ["accept-encoding", "content-type", "idempotency-key"].map(str::to_owned).to_vec();
    let expected = (
        "POST /jobs/7?x=1".to_owned(),
        names,
        "{\"a\":1}".to_owned(),
        Some("acme".to_owned()),
        "one".to_owned(),
    );
    assert_eq!(runs, [expected]);
}

#[tokio::test]
async fn its_owner_alone_sees_it_and_takes_it_back_while_it_waits() {
    let service = Service::start().await;
    service.job("running").await;
    service.gate.entered().await;
    let waiting = service.job("waiting").await.header("location").unwrap().to_owned();
    for method in ["GET", "DELETE"] {
        service.ask(method, "umbrella", &waiting).await.expect_problem(404, "operation_not_found");
    }
    for path in ["/operations/", "/operations/op_x", "/operations/op_00000000000000000000000000"] {
        service.ask("GET", "acme", path).await.expect_problem(404, "operation_not_found");
    }
    assert_eq!(service.ask("POST", "acme", &waiting).await.status, 404, "nothing else is done there");
    assert_eq!(service.ask("DELETE", "acme", &waiting).await.status, 204);
    let reply = service.ask("GET", "acme", &waiting).await;
    assert_eq!((reply.status, reply.is_replay()), (410, true), "{reply:?}");
    service.gate.open();
    assert_eq!(service.runs.lock().unwrap().len(), 1, "what was taken back never ran");
}
