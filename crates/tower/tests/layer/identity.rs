//! What a key's identity depends on: the request and declared names, never the text of the
//! configuration.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use oncegate_core::decide::Arrival;
use oncegate_core::fingerprint::{self, Content, Mode};
use oncegate_core::key::Key;
use oncegate_core::policy::{AfterDoubt, Credentials, KeySyntax, Policy, Profile, WhileInProgress};
use oncegate_core::record::{Execution, Reason, StateKind, StoredRequest};
use oncegate_core::response::{Answer, Response};
use oncegate_core::scope::Operation;
use oncegate_engine::{Arrived, Engine, Held, Options, Route, Settlement, WorkerOptions, Workers};
use oncegate_store::Store as _;
use oncegate_store::drive::read_one;
use oncegate_store::memory::MemoryStore;
use oncegate_tower::{Idempotency, Named, Routes, scope};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::client::{Call, within};
use crate::reply::Reply;
use crate::stage::{Gate, policy};

/// Every profile that protects something.
const PROFILES: [Profile; 7] = [
    Profile::Ietf,
    Profile::IetfStrict,
    Profile::Stripe,
    Profile::Payments,
    Profile::Resume,
    Profile::Accepted,
    Profile::Lenient,
];

/// Two configurations that serve the same requests under other texts: before a deploy, and after
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deploy {
    /// A parameter of the pattern got another name.
    Renamed,
    /// A route was added for what the defaults served.
    Added,
    /// A route was removed, and the defaults serve its requests.
    Removed,
}

impl Deploy {
    fn of(profile: Profile) -> &'static [Self] {
        match profile {
            // It needs a route: the defaults have no phases.
            Profile::Resume => &[Self::Renamed],
            _ => &[Self::Renamed, Self::Added, Self::Removed],
        }
    }

    /// The routes before and after.
    fn routes(self, profile: Profile) -> [Routes; 2] {
        let one = |pattern: &str| match profile {
            Profile::Resume => Routes::none().phased(pattern, profile).unwrap(),
            _ => Routes::none().route(pattern, profile).unwrap(),
        };
        let defaults = || Routes::all(profile).unwrap();
        let with_route = || defaults().route("POST /orders/{id}", profile).unwrap();
        match self {
            Self::Renamed => [one("POST /orders/{id}"), one("POST /orders/{order}")],
            Self::Added => [defaults(), with_route()],
            Self::Removed => [with_route(), defaults()],
        }
    }
}

/// What all nodes of a story share: the rows, and the effects.
#[derive(Clone)]
struct World {
    store: MemoryStore,
    effects: Arc<AtomicUsize>,
    /// Where handlers stop, if they do.
    gate: Option<Gate>,
}

struct Node {
    addr: SocketAddr,
    _workers: Workers,
    server: JoinHandle<()>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl World {
    fn new() -> Self {
        Self { store: MemoryStore::new(), effects: Arc::default(), gate: None }
    }

    fn gated() -> (Self, Gate) {
        let gate = Gate::new();
        (Self { gate: Some(gate.clone()), ..Self::new() }, gate)
    }

    fn effects(&self) -> usize {
        self.effects.load(Ordering::SeqCst)
    }

    async fn node(&self, routes: Routes) -> Node {
        let engine = Engine::start(self.store.clone(), Options::default()).await.unwrap();
        let (effects, gate) = (Arc::clone(&self.effects), self.gate.clone());
        let handler = move |_: Request| {
            let (effects, gate) = (Arc::clone(&effects), gate.clone());
            async move {
                let run = effects.fetch_add(1, Ordering::SeqCst) + 1;
                if let Some(gate) = gate {
                    gate.pass().await;
                }
                format!("run {run}")
            }
        };
        let inner = Router::new().fallback(handler);
        let layer = Idempotency::new(engine, scope::header("x-tenant"), routes);
        let layer = layer.serve_operations_at("/operations/");
        let workers = layer.start_completer(inner.clone(), &WorkerOptions::default());
        let app = inner.layer(layer);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Node { addr, _workers: workers, server }
    }
}

/// Long enough for every profile, and in quotes, which every profile accepts.
fn call() -> Call {
    Call::post("/orders/17").key("\"key-of-sixteen-or-more\"").json(r#"{"amount":100}"#)
}

/// Sends it until it is over, and gives the answer.
async fn settled(node: &Node) -> Reply {
    settled_of(call(), node).await
}

async fn settled_of(call: Call, node: &Node) -> Reply {
    let reply = call.send_until_settled(node.addr).await;
    let Some(location) = reply.header("location").filter(|_| reply.status == 202) else { return reply };
    let asking = Call::anonymous("GET", location).tenant("acme").header("prefer", b"wait=20");
    within(asking.send(node.addr)).await
}

/// Attack 22. Under `lenient` and `accepted` the text of the route was part of the scope. After a
/// parameter was renamed, or a route was added for what the defaults served, the retry had
/// another record, and was executed again.
#[tokio::test]
async fn attack_22_a_retry_after_a_deploy_that_changed_the_routes_is_a_replay_in_every_profile() {
    for profile in PROFILES {
        for deploy in Deploy::of(profile) {
            let world = World::new();
            let [before, after] = deploy.routes(profile);
            let (before, after) = (world.node(before).await, world.node(after).await);
            let first = settled(&before).await;
            assert_eq!((first.status, &*first.body), (200, &b"run 1"[..]), "{profile} {deploy:?}");
            let retry = call().send(after.addr).await;
            assert_eq!((retry.status, &*retry.body), (200, &b"run 1"[..]), "{profile} {deploy:?}");
            assert!(retry.header(profile.policy().replayed_header).is_some(), "{profile} {deploy:?}");
            assert_eq!(world.effects(), 1, "{profile} {deploy:?}");
        }
    }
}

/// Attack 22, while the deploy is under way: one node has the old routes and one the new ones,
/// and the first request is still running when its retry comes to the other node.
#[tokio::test]
async fn attack_22_nodes_of_a_rolling_deploy_do_not_both_execute_a_key() {
    for profile in PROFILES {
        for deploy in Deploy::of(profile) {
            let (world, gate) = World::gated();
            let [before, after] = deploy.routes(profile);
            let (before, after) = (world.node(before).await, world.node(after).await);
            let mut first = call().open(before.addr).await;
            gate.entered().await;
            let mut retry = call().open(after.addr).await;
            // Those who let duplicates wait do not reply yet; a second execution would stop at
            // the gate.
            let waits = profile.policy().in_progress == WhileInProgress::Wait;
            if !waits {
                let status = retry.reply().await.unwrap().status;
                assert!(matches!(status, 202 | 409), "{profile} {deploy:?}: {status}");
            }
            gate.open();
            assert!(matches!(first.reply().await.unwrap().status, 200 | 202), "{profile} {deploy:?}");
            let last = settled(&after).await;
            assert_eq!((last.status, &*last.body), (200, &b"run 1"[..]), "{profile} {deploy:?}");
            if waits {
                retry.reply().await.unwrap().expect_replay(200, "run 1");
            }
            assert_eq!(world.effects(), 1, "{profile} {deploy:?}");
        }
    }
}

/// Attack 22, with many clients at once on both nodes.
#[tokio::test]
async fn attack_22_a_crowd_on_two_nodes_with_different_routes_executes_once() {
    for profile in PROFILES {
        for deploy in Deploy::of(profile) {
            let world = World::new();
            let [before, after] = deploy.routes(profile);
            let nodes = [world.node(before).await, world.node(after).await];
            let crowd = (0..8).map(|n| settled(&nodes[n % 2]));
            for reply in futures_util::future::join_all(crowd).await {
                assert_eq!((reply.status, &*reply.body), (200, &b"run 1"[..]), "{profile} {deploy:?}");
            }
            assert_eq!(world.effects(), 1, "{profile} {deploy:?}");
        }
    }
}

/// Profiles of the defaults and of the one route that a deploy adds or removes. They differ in
/// what tells keys apart, in how a key in quotes is read, or in both.
const PAIRS: [(Profile, Profile); 6] = [
    (Profile::Ietf, Profile::Lenient),
    (Profile::Ietf, Profile::Accepted),
    (Profile::Ietf, Profile::Stripe),
    (Profile::Lenient, Profile::Ietf),
    (Profile::Stripe, Profile::Payments),
    (Profile::Accepted, Profile::Stripe),
];

/// Attack 22. A route was added under another profile than the defaults, or removed. Its scope was
/// another, or it read the key in quotes otherwise, so the retry had a new record and was executed
/// again.
#[tokio::test]
async fn attack_22_a_retry_finds_its_record_when_a_route_of_another_profile_is_added_or_removed() {
    const ROUTE: &str = "POST /orders/{id}";
    let keys = ["key-of-sixteen-or-more", "\"key-of-sixteen-or-more\""];
    for ((defaults, route), key) in PAIRS.into_iter().flat_map(|pair| keys.map(|key| (pair, key))) {
        let without = || Routes::all(defaults).unwrap();
        let with = || without().route(ROUTE, route).unwrap();
        // What the layer does not have any more, it must be told of.
        let removed = || Routes::none().otherwise(Named::from(defaults).formerly([ROUTE])).unwrap();
        for (deploy, before, after) in
            [(Deploy::Added, without(), with()), (Deploy::Removed, with(), removed())]
        {
            // A route that takes quotes literally cannot tell how one that is gone read them.
            let is_lost = reads_literally(defaults) && !reads_literally(route) && key.starts_with('"');
            if deploy == Deploy::Removed && is_lost {
                continue;
            }
            let world = World::new();
            let (before, after) = (world.node(before).await, world.node(after).await);
            let (about, order) = (format!("{defaults} with {route} {deploy:?}: {key}"), |body: &str| {
                Call::post("/orders/17").key(key).json(body)
            });
            let first = settled_of(order("{}"), &before).await;
            assert_eq!((first.status, &*first.body), (200, &b"run 1"[..]), "{about}");
            let retry = settled_of(order("{}"), &after).await;
            assert_eq!((retry.status, &*retry.body), (200, &b"run 1"[..]), "{about}");
            assert_eq!(world.effects(), 1, "{about}");
            // The same key of another request is another operation, or misuse; never that answer.
            let other = settled_of(order("[]"), &after).await;
            assert_ne!(&*other.body, b"run 1", "{about}: {other:?}");
        }
    }
}

fn reads_literally(profile: Profile) -> bool {
    profile.policy().key.syntax == KeySyntax::Opaque
}

/// `k` and `"k"` are two keys to a route that takes them literally. Where another route of the
/// layer reads them as one, they must not share an answer for that: the content of both requests
/// is the same.
#[tokio::test]
async fn attack_22_two_keys_that_another_route_reads_as_one_do_not_share_an_answer() {
    let stripe = || Routes::all(Profile::Stripe).unwrap().route("POST /ietf", Profile::Ietf).unwrap();
    let mixed = || stripe().route("POST /orders/{id}", Profile::Lenient).unwrap();
    let order = |key: &str| Call::post("/orders/17").key(key).json("{}");
    for (before, after) in [(stripe(), mixed()), (mixed(), mixed()), (stripe(), stripe())] {
        for (one, other) in [("k", "\"k\""), ("\"k\"", "k")] {
            let world = World::new();
            let (before, after) = (world.node(before.clone()).await, world.node(after.clone()).await);
            order(one).send(before.addr).await.expect_first(200, "run 1");
            order(other).send(after.addr).await.expect_first(200, "run 2");
            // And each of them finds its own.
            let retry = order(one).send(after.addr).await;
            assert_eq!((retry.status, &*retry.body), (200, &b"run 1"[..]), "{one}");
        }
    }
}

/// A reserve as the release before made it: the text of the route is part of the scope.
async fn reserved_before(world: &World, text: &str, policy: Policy) -> Held<MemoryStore> {
    let engine = Engine::start(world.store.clone(), Options::default()).await.unwrap();
    let route = Route::new("before", policy, Operation::new(text).unwrap());
    match engine.arrive(&route, arrival_before(&route)).await.unwrap() {
        Arrived::Execute(held) => *held,
        other => unreachable!("{other:?}"),
    }
}

fn arrival_before(route: &Route) -> Arrival {
    let content = Content {
        method: "POST",
        path: "/orders/17",
        query: None,
        content_type: Some(b"application/json"),
        body: br#"{"amount":100}"#,
    };
    let fingerprint = fingerprint::of(&Mode::Json, &content).unwrap();
    let request = StoredRequest {
        method: "POST".into(),
        target: "/orders/17".into(),
        headers: vec![("content-type".to_owned(), b"application/json".to_vec())],
        body: content.body.to_vec(),
        credentials: Some(Credentials::Kept),
    };
    let key = Key::from_text("key-of-sixteen-or-more").unwrap();
    route.arrival(route.scope("acme").unwrap(), key, fingerprint, Some(request))
}

fn answered_before() -> Settlement {
    let response = Response { status: 200, headers: Vec::new(), body: b"before".to_vec() };
    Settlement::Complete(Answer::Kept(response).into())
}

/// `lenient`, but a duplicate does not wait; and keys may be in quotes.
fn lenient() -> Policy {
    policy(Profile::Lenient, |policy| {
        policy.in_progress = WhileInProgress::Reject;
        policy.key.syntax = KeySyntax::Either;
    })
}

/// What a route may have been called by the release before, and how it is configured today.
fn stories(policy: &Policy) -> Vec<(&'static str, Routes)> {
    let one = |pattern: &str, named: Named| Routes::none().route(pattern, named).unwrap();
    let named = || Named::from(policy.clone());
    vec![
        ("POST /orders/{id}", one("POST /orders/{id}", named())),
        ("POST /orders/{id}", one("POST /orders/{order}", named().formerly(["POST /orders/{id}"]))),
        ("POST /orders/{id}", one("POST /orders/{id}", named().operation("create-order"))),
        ("POST *", one("POST /orders/{id}", named())),
        ("POST *", Routes::none().otherwise(named()).unwrap()),
        ("POST /orders/{id}", Routes::none().otherwise(named().formerly(["POST /orders/{id}"])).unwrap()),
    ]
}

/// Attack 22, by an upgrade: a record whose scope has the route's text in it was not found under
/// the new rule.
#[tokio::test]
async fn attack_22_a_record_of_the_release_before_is_replayed_and_one_in_progress_is_busy() {
    let inline = policy(Profile::Accepted, |policy| {
        policy.execution = Execution::Inline;
        policy.in_progress = WhileInProgress::Reject;
        policy.after_doubt = AfterDoubt::Reject;
    });
    for policy in [lenient(), inline] {
        for (text, routes) in stories(&policy) {
            let world = World::new();
            let node = world.node(routes).await;
            let held = reserved_before(&world, text, policy.clone()).await;
            let id = held.id();
            let reply = call().send(node.addr).await;
            let is_busy = reply.code().as_deref() == Some("in_progress") || reply.status == 202;
            assert!(is_busy, "{text}: {reply:?}");
            // It names the record that there is.
            assert!(String::from_utf8_lossy(&reply.body).contains(&id.to_string()), "{text}: {reply:?}");
            drop(held.settle(answered_before()).await);
            for _ in 0..2 {
                call().send(node.addr).await.expect_replay(200, "before");
            }
            assert_eq!(world.effects(), 0, "{text}");
        }
    }
}

/// What the release before has let go of runs again where its record is, so that nodes agree on
/// one address.
#[tokio::test]
async fn attack_22_a_released_record_of_the_release_before_runs_again_at_its_address() {
    for (text, routes) in stories(&lenient()) {
        let world = World::new();
        let node = world.node(routes).await;
        let held = reserved_before(&world, text, lenient()).await;
        let id = held.id();
        let reason = Reason::new("refused", "connection refused");
        drop(held.settle(Settlement::Release { reason, backoff: Duration::ZERO }).await);
        call().send(node.addr).await.expect_first(200, "run 1");
        let row = read_one(&world.store, id).await.unwrap().unwrap();
        assert_eq!((row.attempts, row.state.kind()), (2, StateKind::Completed), "{text}");
        let counts = world.store.counts().await.unwrap();
        let others = counts.in_progress + counts.failed_retryable + counts.unknown;
        assert_eq!((counts.completed, others), (1, 0), "{text}: one record, and not two");
        call().send(node.addr).await.expect_replay(200, "run 1");
    }
}

/// Work was accepted under a route whose pattern a deploy has renamed. No worker looked for the
/// old text, so the work waited until it was given up with 408.
#[tokio::test]
async fn attack_22_accepted_work_of_a_renamed_route_is_run() {
    let renamed = Routes::none().route("POST /orders/{order}", Profile::Accepted).unwrap();
    let declared = Named::from(Profile::Accepted).formerly(["POST *"]);
    let replaced = Routes::none().route("POST /orders/{id}", declared).unwrap();
    for (text, routes) in [("POST /orders/{id}", renamed), ("POST *", replaced)] {
        let world = World::new();
        let engine = Engine::start(world.store.clone(), Options::default()).await.unwrap();
        let route = Route::of_profile(Profile::Accepted, Operation::new(text).unwrap());
        let arrived = engine.arrive(&route, arrival_before(&route)).await.unwrap();
        let Arrived::Accepted { id, is_new: true, .. } = arrived else { unreachable!("{arrived:?}") };
        let node = world.node(routes).await;
        let asking = Call::anonymous("GET", &format!("/operations/{id}")).tenant("acme");
        let reply = within(asking.header("prefer", b"wait=20").send(node.addr)).await;
        assert_eq!((reply.status, &*reply.body), (200, &b"run 1"[..]), "{text}");
    }
}

/// A declared name is what the keys of an operation go by, whatever its path.
#[tokio::test]
async fn attack_22_a_declared_name_outlives_the_path() {
    let named = || Named::from(lenient()).operation("create-order");
    let world = World::new();
    let before = world.node(Routes::none().route("POST /orders/{id}", named()).unwrap()).await;
    let after = world.node(Routes::none().route("POST /v2/orders/{id}", named()).unwrap()).await;
    call().send(before.addr).await.expect_first(200, "run 1");
    let moved = Call::post("/v2/orders/17").key("\"key-of-sixteen-or-more\"").json(r#"{"amount":100}"#);
    moved.send(after.addr).await.expect_replay(200, "run 1");
    assert_eq!(world.effects(), 1);
    let refused = |named: Named| Routes::none().otherwise(named).unwrap_err().to_string();
    assert!(refused(named()).contains("only for a single route"), "{}", refused(named()));
    let wrong = Routes::none().route("POST /a", Named::from(lenient()).operation("create order"));
    assert!(wrong.unwrap_err().to_string().contains("is not a valid name"));
}

/// `ietf`, but for a fingerprint that checks nothing.
fn unchecked() -> Policy {
    policy(Profile::Ietf, |policy| policy.fingerprint = Mode::None)
}

/// Attack 23. A key was used for an upload on a route without fingerprints, and then for a
/// payment. The fingerprint of the upload matched every request, so the payment was answered with
/// the upload's response and never executed.
#[tokio::test]
async fn attack_23_an_unchecked_fingerprint_matches_only_its_own_operation() {
    for payments in [Named::from(unchecked()), Named::from(Profile::Ietf)] {
        let world = World::new();
        let routes = Routes::none().route("POST /uploads/{id}", unchecked()).unwrap();
        let node = world.node(routes.route("POST /payments", payments).unwrap()).await;
        let call = |path| Call::post(path).key("k");
        call("/uploads/1").body(b"one").send(node.addr).await.expect_first(200, "run 1");
        call("/payments").json("{}").send(node.addr).await.expect_problem(422, "key_reused");
        // Another upload is another operation too; of the same one, the body is not checked.
        call("/uploads/2").body(b"one").send(node.addr).await.expect_problem(422, "key_reused");
        call("/uploads/1").body(b"two").send(node.addr).await.expect_replay(200, "run 1");
        // And the other way round.
        Call::post("/payments").key("other").json("{}").send(node.addr).await.expect_first(200, "run 2");
        let upload = Call::post("/uploads/1").key("other").body(b"one");
        upload.send(node.addr).await.expect_problem(422, "key_reused");
        assert_eq!(world.effects(), 2);
    }
}
