//! A handler that is run later: accepted by the layer, run by its completer, asked for where the layer serves operations.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use http::StatusCode;
use http::request::Parts;
use http_body_util::BodyExt as _;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use oncegate_core::policy::{AfterDoubt, Credentials, Profile, WhileInProgress};
use oncegate_core::problem::{Code, Problem};
use oncegate_engine::{BackgroundWorkers, Engine, Options, Route, WorkerOptions, Workers};
use oncegate_store::drive::read_one;
use oncegate_store::faulty::{Fault, Faulty};
use oncegate_store::memory::MemoryStore;
use oncegate_store::{Filter, Store as _};
use oncegate_tower::phased::Completing;
use oncegate_tower::{Attempt, Authorize, Checking, Denied, Idempotency, Routes, scope};
use tokio::net::TcpListener;

use crate::client::{Call, within};
use crate::reply::Reply;
use crate::stage::{Gate, id_of, policy};

/// What a run saw: its request line, its headers' names, its body, whose it is, and under which key.
type Run = (String, Vec<String>, String, Option<String>, String);

type Shaky = Faulty<MemoryStore>;

struct Service {
    addr: std::net::SocketAddr,
    store: Shaky,
    engine: Engine<Shaky>,
    gate: Gate,
    runs: Arc<Mutex<Vec<Run>>>,
    _completer: Workers,
}

impl Service {
    async fn start() -> Self {
        Self::with(Options::default(), |layer| layer.serve_operations_at("/operations/")).await
    }

    async fn with(options: Options, placed: impl FnOnce(Idempotency<Shaky>) -> Idempotency<Shaky>) -> Self {
        let store = Faulty::new(MemoryStore::new());
        let options = Options { workers: BackgroundWorkers::None, ..options };
        let engine = Engine::start(store.clone(), options).await.unwrap();
        let accepted = policy(Profile::Accepted, |policy| policy.wait_limit = Duration::from_secs(20));
        let inline = policy(Profile::Ietf, |policy| {
            policy.respond_async = true;
            policy.in_progress = WhileInProgress::Accept;
            policy.after_doubt = AfterDoubt::Accept;
            policy.wait_limit = Duration::from_secs(20);
        });
        let routes = Routes::none().route("POST /jobs/{id}", accepted).unwrap();
        let routes = routes.route("POST /now", inline.clone()).unwrap();
        let routes = routes.route("POST /doubted", inline.clone()).unwrap();
        let routes = routes.route("POST /later", inline).unwrap();
        let routes = routes.route("POST /inline", Profile::Ietf).unwrap();
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
                    // Released: a 503 did nothing.
                    if head.uri.path() == "/now" {
                        return (StatusCode::SERVICE_UNAVAILABLE, "later");
                    }
                    // What it did is not known.
                    if head.uri.path() == "/doubted" {
                        return (StatusCode::GATEWAY_TIMEOUT, "no answer");
                    }
                    (StatusCode::OK, "done")
                }
            }
        };
        let inner = Router::new().fallback(handler);
        let idempotency = placed(Idempotency::new(engine.clone(), scope::header("x-tenant"), routes));
        let options = WorkerOptions { completions_at_once: 1, ..WorkerOptions::default() };
        let completer = idempotency.start_completer(inner.clone(), &options);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let app = inner.layer(idempotency);
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { addr, store, engine, gate, runs, _completer: completer }
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
    let location = expect_accepted(&reply, "pending");
    assert!(location.starts_with("/operations/op_"), "{location}");
    assert_eq!(reply.header("preference-applied"), None, "nobody asked");
    service.gate.entered().await;
    service.gate.open();
    service.ask("GET", "acme", &location).await.expect_replay(200, "done");
    service.job("one").await.expect_replay(200, "done");
    let runs = service.runs.lock().unwrap().clone();
    let names = ["accept-encoding", "authorization", "content-type", "idempotency-key", "x-tenant"];
    let names = names.map(str::to_owned).to_vec();
    let expected = (
        "POST /jobs/7?x=1".to_owned(),
        names,
        "{\"a\":1}".to_owned(),
        Some("acme".to_owned()),
        "one".to_owned(),
    );
    assert_eq!(runs, [expected]);
}

/// Refuses callers once it is told to; remembers which routes it was asked about.
#[derive(Clone, Default)]
struct Bouncer {
    refuses: Arc<AtomicBool>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Authorize for Bouncer {
    fn check<'a>(&'a self, route: &'a Route, request: &'a Parts) -> Option<Checking<'a>> {
        Some(Box::pin(async move {
            self.asked.lock().unwrap().push(format!("{} for {}", request.method, route.operation()));
            if !self.refuses.load(Ordering::SeqCst) {
                return Ok(());
            }
            let problem = Problem::new(Code::NotAuthorized, "No.");
            Err(Denied { problem, challenges: vec!["Custom".parse().unwrap()] })
        }))
    }
}

/// What is recorded, and how far it is, is shown only to callers who still may.
#[tokio::test]
async fn who_may_not_any_more_gets_no_replay_and_no_state() {
    let bouncer = Bouncer::default();
    let authorize = bouncer.clone();
    let placed = |layer: Idempotency<Shaky>| layer.serve_operations_at("/operations/").authorize(authorize);
    let service = Service::with(Options::default(), placed).await;
    let location = expect_accepted(&service.job("one").await, "pending");
    service.gate.entered().await;
    service.gate.open();
    service.ask("GET", "acme", &location).await.expect_replay(200, "done");
    bouncer.refuses.store(true, Ordering::SeqCst);
    for reply in [
        service.job("one").await,
        service.job("two").await,
        service.ask("GET", "acme", &location).await,
        service.ask("DELETE", "acme", &location).await,
    ] {
        assert_eq!((reply.status, reply.header("www-authenticate")), (401, Some("Custom")), "{reply:?}");
        assert!(String::from_utf8_lossy(&reply.body).contains("not_authorized"), "{reply:?}");
    }
    assert_eq!(service.ask("GET", "other", &location).await.status, 404);
    assert_eq!(read_one(&service.store, id_of("two")).await.unwrap(), None);
    assert_eq!(service.runs.lock().unwrap().len(), 1);
    let asked = bouncer.asked.lock().unwrap().clone();
    assert_eq!(
        asked,
        ["POST", "GET", "POST", "POST", "GET", "DELETE"]
            .map(|method| format!("{method} for POST /jobs/{{id}}"))
    );
}

/// Counters by their labels, of the thread that a test runs on.
#[derive(Clone, Debug, Default)]
struct Counters(Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>);

impl Counters {
    /// What was counted of one name: its labels, as `name=value`, and how often.
    fn of(&self, name: &str) -> Vec<(String, u64)> {
        let counters = self.0.lock().unwrap();
        let counts = counters.iter().map(|(key, count)| (key, count.load(Ordering::SeqCst)));
        let named =
            counts.filter_map(|(key, count)| Some((key.strip_prefix(name)?.trim().to_owned(), count)));
        named.filter(|(_, count)| *count > 0).collect()
    }
}

impl Recorder for Counters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let labels = key.labels().map(|label| format!(" {}={}", label.key(), label.value()));
        let name = format!("{}{}", key.name(), labels.collect::<String>());
        Counter::from_arc(Arc::clone(self.0.lock().unwrap().entry(name).or_default()))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// What the layer refuses about operations has no route, and is counted once.
#[tokio::test]
async fn refusals_about_operations_are_counted() {
    let counters = Counters::default();
    let _counting = metrics::set_default_local_recorder(&counters);
    let bouncer = Bouncer::default();
    let authorize = bouncer.clone();
    let placed = |layer: Idempotency<Shaky>| layer.serve_operations_at("/operations/").authorize(authorize);
    let service = Service::with(Options::default(), placed).await;
    let location = expect_accepted(&service.job("one").await, "pending");
    service.gate.entered().await;
    service.gate.open();
    service.ask("GET", "acme", &location).await.expect_replay(200, "done");
    assert_eq!(counters.of("oncegate.refusal.count"), []);

    let unknown = format!("/operations/{}", id_of("unknown"));
    assert_eq!(service.ask("GET", "acme", &unknown).await.status, 404);
    assert_eq!(Call::anonymous("GET", &location).send(service.addr).await.status, 401);
    bouncer.refuses.store(true, Ordering::SeqCst);
    assert_eq!(service.ask("GET", "acme", &location).await.status, 401);
    let once = |reason: &str| (format!("reason={reason} route=none"), 1);
    let expected = ["not_authorized", "operation_not_found", "scope_missing"].map(once);
    assert_eq!(counters.of("oncegate.refusal.count"), expected);
}

/// `Prefer: respond-async`, where the route allows it, runs later what would have run at once; and says so.
#[tokio::test]
async fn who_prefers_it_is_answered_at_once_and_told_later() {
    let service = Service::start().await;
    let call = |path: &str| Call::post(path).key(path).json("{}").header("prefer", b"respond-async, wait=0");
    let reply = call("/later").send(service.addr).await;
    let location = expect_accepted(&reply, "pending");
    assert_eq!(reply.header("preference-applied"), Some("respond-async"));
    service.gate.entered().await;
    let reply = call("/later").send(service.addr).await;
    assert_eq!(expect_accepted(&reply, "in_progress"), location);
    assert_eq!(reply.header("preference-applied"), Some("respond-async"));
    // One who does not prefer it any more is told the same, and not that its preference counted.
    let reply = Call::post("/later").key("/later").json("{}").send(service.addr).await;
    assert_eq!(expect_accepted(&reply, "in_progress"), location);
    assert_eq!(reply.header("preference-applied"), None, "{reply:?}");
    service.gate.open();
    service.ask("GET", "acme", &location).await.expect_replay(200, "done");
    assert_eq!(service.runs.lock().unwrap()[0].3.as_deref(), Some("acme"), "by the completer");
    // Where the route does not allow it, it changes nothing.
    service.gate.open();
    let reply = call("/inline").send(service.addr).await;
    reply.expect_first(200, "done");
    assert_eq!(reply.header("preference-applied"), None, "{reply:?}");
}

/// Checks that it is a 202 of the layer's own with this state, and gives its place.
#[track_caller]
fn expect_accepted(reply: &Reply, state: &str) -> String {
    assert_eq!((reply.status, reply.header("content-type")), (202, Some("application/json")), "{reply:?}");
    let shown: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!((&shown["state"], &shown["retry_after_s"]), (&state.into(), &1.into()), "{reply:?}");
    assert_eq!(reply.header("retry-after"), Some("1"), "{reply:?}");
    assert_eq!(reply.header("cache-control"), Some("no-store"), "{reply:?}");
    assert_eq!(reply.header("idempotency-expires"), None, "nothing of it is kept: {reply:?}");
    reply.header("location").expect("a place to ask at").to_owned()
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

/// A 202 without a place looks like one of the API's own, which is a success: a client would stop there, and nobody would hear of the rest.
#[tokio::test]
async fn what_is_accepted_has_a_place_though_nobody_chose_one() {
    let service = Service::with(Options::default(), |layer| layer).await;
    let reply = service.job("one").await;
    assert_eq!(reply.status, 202, "{reply:?}");
    let location = reply.header("location").unwrap().to_owned();
    assert!(location.starts_with("/.oncegate/operations/op_"), "{location}");
    service.gate.entered().await;
    service.gate.open();
    service.ask("GET", "acme", &location).await.expect_replay(200, "done");
}

/// Nor is a place that no header can carry.
#[tokio::test]
async fn a_place_that_cannot_be_told_is_no_202() {
    let service = Service::with(Options::default(), |layer| layer.operations_at("/elsewhere\n/")).await;
    service.job("one").await.expect_problem(409, "in_progress");
    service.gate.entered().await;
    service.gate.open();
}

/// It was told 503, "nothing was executed", though it had landed: with a new key it would have been executed twice.
#[tokio::test]
async fn what_may_have_been_accepted_is_told_so() {
    let options = Options { doubt_patience: Duration::ZERO, ..Options::default() };
    let service = Service::with(options, |layer| layer).await;
    service.store.queue(Fault::AcknowledgementLost);
    let reply = service.job("one").await;
    let problem = reply.expect_problem(504, "outcome_unknown");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("it may be executed") && !detail.contains("othing was executed"), "{detail}");
    let place = problem["instance"].as_str().unwrap().to_owned();
    within(service.engine.quiet()).await;
    let again = service.job("one").await;
    assert_eq!((again.status, again.header("location")), (202, Some(&*place)), "{again:?}");
    service.gate.entered().await;
    service.gate.open();
    service.ask("GET", "acme", &place).await.expect_replay(200, "done");
    assert_eq!(service.runs.lock().unwrap().len(), 1);
}

/// A request runs while its client waits, on a route that allows `respond-async` and accepts duplicates. A
/// duplicate that did not prefer that was answered 202 all the same; the attempt was released, no worker ran it,
/// and the promise was broken. Such a duplicate is told 409, as on any other inline route.
#[tokio::test]
async fn what_ran_inline_is_described_and_not_promised() {
    let service = Service::start().await;
    let call = Call::post("/now").key("one").json("{}");
    let mut first = call.open(service.addr).await;
    service.gate.entered().await;
    let busy = call.send(service.addr).await;
    busy.expect_problem(409, "in_progress");
    call.clone().header("prefer", b"wait=20").send(service.addr).await.expect_problem(409, "in_progress");
    service.gate.open();
    assert_eq!(first.reply().await.unwrap().status, 503);
    let place = format!("/operations/{}", id_of("one"));
    let shown = service.ask("GET", "acme", &place).await;
    assert_eq!((shown.status, shown.header("content-type")), (200, Some("application/json")), "{shown:?}");
    let shown: serde_json::Value = serde_json::from_slice(&shown.body).unwrap();
    assert_eq!(shown["state"], "failed_retryable", "{shown}");
    assert_eq!(shown["attempts"], 1, "{shown}");
}

/// The same where the outcome of the inline attempt is unknown: once it is proved that it did not
/// happen, only its client runs it again. A duplicate that prefers `respond-async` makes it
/// deferred, and then 202 is true.
#[tokio::test]
async fn a_doubt_about_what_ran_inline_is_promised_only_to_who_prefers_it() {
    let service = Service::start().await;
    let call = Call::post("/doubted").key("one").json("{}");
    service.gate.open();
    assert_eq!(call.send(service.addr).await.status, 504);
    call.send(service.addr).await.expect_problem(409, "outcome_unknown");
    let reply = call.clone().header("prefer", b"respond-async").send(service.addr).await;
    let place = reply.header("location").map(str::to_owned);
    assert!(reply.status == 202 && place.is_some(), "{reply:?}");
    let reply = call.send(service.addr).await;
    assert_eq!((reply.status, reply.header("location")), (202, place.as_deref()), "deferred from then on");
}

/// A tenant is taken from a header that the layer cannot know: the request was accepted, and ran as
/// nobody.
#[tokio::test]
async fn attack_33_a_request_that_would_lose_its_caller_is_refused_before_anything_is_recorded() {
    let store = MemoryStore::new();
    let engine = Engine::start(store.clone(), Options::default()).await.unwrap();
    let account = |head: &Parts| Some(head.headers.get("x-account")?.to_str().ok()?.to_owned());
    let named = policy(Profile::Accepted, |policy| policy.request_headers = vec!["x-account".into()]);
    let dropped = policy(Profile::Accepted, |policy| policy.credentials = Credentials::Dropped);
    let routes = Routes::none().route("POST /lost", Profile::Accepted).unwrap();
    let routes = routes.route("POST /named", named).unwrap();
    let routes = routes.route("POST /dropped", dropped).unwrap();
    let (runs, seen) = tokio::sync::mpsc::unbounded_channel();
    let inner = Router::new().fallback(move |request: Request| {
        let account = request.headers().get("x-account").map(|value| value.to_str().unwrap().to_owned());
        let by = request.extensions().get::<Completing>().map(|by| by.scope.tenant_str().to_owned());
        runs.send((request.uri().path().to_owned(), account, by)).unwrap();
        async { "done" }
    });
    let layer = Idempotency::new(engine.clone(), account, routes);
    let _completer = layer.start_completer(inner.clone(), &WorkerOptions::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let app = inner.layer(layer);
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });

    let call = |path: &str| Call::post(path).key(path).header("x-account", b"acct_A").json("{}");
    let problem = call("/lost").send(addr).await.expect_problem(401, "scope_missing");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("`request_headers`") && detail.contains("nothing was executed"), "{detail}");
    let all = store.browse(&Filter::default(), None, 10).await.unwrap();
    assert_eq!(all.records, []);
    let mut seen = seen;
    for (path, account) in [("/named", Some("acct_A".to_owned())), ("/dropped", None)] {
        assert_eq!(call(path).send(addr).await.status, 202, "{path}");
        let expected = (path.to_owned(), account, Some("acct_A".to_owned()));
        assert_eq!(within(seen.recv()).await, Some(expected));
    }
}
