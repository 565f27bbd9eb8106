//! Requests that are accepted, and run later: what their clients are told, what the upstream sees, and who may take one back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use crate::client::{Call, within};
use crate::gateway::{Stage, defaults};
use crate::reply::Reply;
use crate::upstream::{Act, Gate, Refusing, Seen, Upstream, answer, numbered};

/// One at a time, so that what comes second waits.
const ONE_AT_A_TIME: &str = "[workers]\ndeferred_max = 1\n";

fn accepted(more: &str) -> String {
    format!("{ONE_AT_A_TIME}{}", defaults("accepted", more))
}

/// Checks that it is a 202 of the boundary's own with this state, and gives its location.
#[track_caller]
fn expect_accepted(reply: &Reply, state: &str) -> String {
    assert_eq!((reply.status, reply.header("content-type")), (202, Some("application/json")), "{reply:?}");
    let shown = reply.json();
    assert_eq!((&shown["state"], &shown["retry_after_s"]), (&json!(state), &json!(1)), "{reply:?}");
    reply.expect_retry_after(Some(1));
    assert_eq!(reply.header("idempotency-expires"), None, "nothing of it is kept: {reply:?}");
    assert!(!reply.is_replay(), "{reply:?}");
    let location = reply.header("location").unwrap_or_else(|| panic!("{reply:?}"));
    assert_eq!(location, format!("/.oncegate/operations/{}", shown["id"].as_str().unwrap()));
    location.to_owned()
}

async fn look(stage: &Stage, location: &str) -> Reply {
    stage.send(&Call::get(location)).await
}

/// The answer, once it is there: the gateway holds the question, so nothing is waited for here.
async fn awaited(stage: &Stage, location: &str) -> Reply {
    let held = Call::get(location).header("prefer", "wait=20");
    within(async { stage.send(&held).await }).await
}

#[tokio::test]
async fn accepted_now_and_answered_later() {
    let (gate, upstream) = Upstream::gated().await;
    let stage = Stage::new(upstream, &accepted("wait_limit = \"20s\"")).await;
    let reply = stage.send(&Call::pay("one")).await;
    let location = expect_accepted(&reply, "pending");
    assert_eq!(reply.header("preference-applied"), None, "nobody asked");
    gate.entered().await;
    // Both ask the same, and get the same.
    for reply in [look(&stage, &location).await, stage.send(&Call::pay("one")).await] {
        assert_eq!(expect_accepted(&reply, "in_progress"), location);
    }
    gate.open();
    let first = awaited(&stage, &location).await;
    first.expect_replay(200, "run 1");
    assert!(first.header("idempotency-expires").is_some(), "{first:?}");
    assert_eq!(first.header("cache-control"), Some("no-store"), "{first:?}");
    for reply in [look(&stage, &location).await, stage.send(&Call::pay("one")).await] {
        reply.expect_replay(200, "run 1");
    }
    // Another request under the key is not it.
    let other = Call::post("/payments").key("one").json("{\"amount\":7}");
    stage.send(&other).await.expect_problem(422, "key_reused");
    assert_eq!(stage.runs(), 1);
}

#[tokio::test]
async fn a_client_may_prefer_it_where_the_route_allows_it() {
    let route = "respond_async = true\n[[route]]\nmatch = \"POST /never\"\nprofile = \"ietf\"\n";
    let stage = Stage::numbered(&defaults("ietf", route)).await;
    stage.send(&Call::pay("now")).await.expect_first(200, "run 1");
    let reply = stage.send(&Call::pay("later").header("prefer", "respond-async")).await;
    let location = expect_accepted(&reply, "pending");
    assert_eq!(reply.header("preference-applied"), Some("respond-async"));
    awaited(&stage, &location).await.expect_replay(200, "run 2");
    // It is for whoever asked then; a retry that would rather wait gets the answer too.
    stage.send(&Call::pay("later")).await.expect_replay(200, "run 2");
    let reply = stage.send(&Call::post("/never").key("now-2").header("prefer", "respond-async")).await;
    reply.expect_first(200, "run 3");
    assert_eq!(reply.header("preference-applied"), None);
}

/// Deferred, a request reached the upstream with the address of the proxy alone, and as plain
/// HTTP.
#[tokio::test]
async fn what_a_trusted_proxy_says_of_its_client_goes_with_a_deferred_request() {
    let names = [
        "forwarded",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-forwarded-port",
        "x-real-ip",
    ];
    let call = |key: &str| {
        Call::pay(key)
            .header("x-forwarded-for", "203.0.113.9, 198.51.100.4")
            .header("x-forwarded-for", "10.0.0.3")
            .header("x-forwarded-proto", "https")
            .header("x-forwarded-host", "shop.test")
            .header("x-forwarded-port", "443")
            .header("x-real-ip", "203.0.113.9")
            .header("forwarded", "for=203.0.113.9;proto=https")
    };
    let of = |seen: &Seen| names.map(|name| seen.values(name).join(", "));
    let own = "for=127.0.0.1;host=\"api.test\";proto=http";
    let hops = "203.0.113.9, 198.51.100.4, 10.0.0.3, 127.0.0.1";
    for (peers, expected) in [
        (
            "127.0.0.0/8",
            [
                &*format!("for=203.0.113.9;proto=https, {own}"),
                hops,
                "shop.test",
                "https",
                "443",
                "203.0.113.9",
            ],
        ),
        ("192.0.2.1", [own, "127.0.0.1", "api.test", "http", "", ""]),
    ] {
        let scope = format!("[scope]\nfrom = \"authorization\"\ntrusted_peers = [\"{peers}\"]\n");
        let stage = Stage::numbered(&format!("{scope}{}", defaults("ietf", "respond_async = true"))).await;
        stage.send(&call("now")).await.expect_first(200, "run 1");
        let inline = of(&stage.upstream.last());
        expect_accepted(&stage.send(&call("later").header("prefer", "respond-async")).await, "pending");
        stage.upstream.ran(2).await;
        let deferred = stage.upstream.last();
        assert_eq!(of(&deferred), inline, "{peers}: deferred, then inline");
        assert_eq!(inline, expected, "{peers}");
        assert!(deferred.headers.iter().all(|(name, _)| !name.starts_with("oncegate-")), "{deferred:?}");
    }
}

/// A retry gets what the location gives, also if it does not prefer it any more; an inline one that is busy is no promise of anybody's.
#[tokio::test]
async fn a_retry_of_what_was_accepted_is_told_so_whatever_it_prefers() {
    let (gate, upstream) = Upstream::gated().await;
    let stage = Stage::new(upstream, &defaults("ietf", "respond_async = true")).await;
    let location =
        expect_accepted(&stage.send(&Call::pay("later").header("prefer", "respond-async")).await, "pending");
    gate.entered().await;
    assert_eq!(expect_accepted(&stage.send(&Call::pay("later")).await, "in_progress"), location);
    let mut inline = Call::pay("now").open(stage.addr()).await;
    gate.entered().await;
    stage.send(&Call::pay("now")).await.expect_problem_of_operation(409, "in_progress");
    gate.open();
    gate.open();
    inline.reply().await.expect_first(200, "run 2");
}

#[tokio::test]
async fn the_post_is_held_as_long_as_its_client_prefers() {
    let (gate, upstream) = Upstream::gated().await;
    let stage = Stage::new(upstream, &accepted("wait_limit = \"20s\"")).await;
    let held = |key: &str| Call::pay(key).header("prefer", "wait=20");
    let mut first = held("one").open(stage.addr()).await;
    gate.entered().await;
    let mut second = held("one").open(stage.addr()).await;
    // At no point is there anything to tell, so nothing is told.
    assert!(first.is_silent() && second.is_silent());
    gate.open();
    let reply = first.reply().await;
    reply.expect_first(200, "run 1");
    assert!(reply.header("idempotency-expires").is_some(), "it is the kept answer: {reply:?}");
    second.reply().await.expect_replay(200, "run 1");
}

#[tokio::test]
async fn nobody_is_held_longer_than_the_route_allows() {
    let (gate, upstream) = Upstream::gated().await;
    let stage = Stage::new(upstream, &accepted("wait_limit = \"50ms\"")).await;
    let call = Call::pay("one").header("prefer", "wait=86400");
    let location = expect_accepted(&within(async { stage.send(&call).await }).await, "in_progress");
    let held = Call::get(&location).header("prefer", "wait=86400");
    expect_accepted(&within(async { stage.send(&held).await }).await, "in_progress");
    gate.open();
}

#[tokio::test]
async fn only_its_owner_sees_it_and_may_cancel_it() {
    let (gate, upstream) = Upstream::gated().await;
    let stage = Stage::new(upstream, &accepted("")).await;
    stage.send(&Call::pay("running")).await;
    gate.entered().await;
    let location = expect_accepted(&stage.send(&Call::pay("waiting")).await, "pending");
    for method in ["GET", "HEAD", "DELETE"] {
        let anothers = stage.send(&Call::anonymous(method, &location).tenant("umbrella")).await;
        let nobodys = Call::anonymous(method, "/.oncegate/operations/op_0").tenant("umbrella");
        assert_eq!((anothers.status, stage.send(&nobodys).await.status), (404, 404), "{method}");
        assert_eq!(stage.send(&Call::anonymous(method, &location)).await.status, 401, "{method}");
    }
    expect_accepted(&look(&stage, &location).await, "pending");
    gate.open();
    gate.open();
}

#[tokio::test]
async fn what_still_waits_can_be_cancelled_and_what_has_begun_cannot() {
    let (gate, upstream) = Upstream::gated().await;
    let stage = Stage::new(upstream, &accepted("wait_limit = \"20s\"")).await;
    let running = expect_accepted(&stage.send(&Call::pay("running")).await, "pending");
    gate.entered().await;
    let waiting = expect_accepted(&stage.send(&Call::pay("waiting")).await, "pending");
    let delete = |location: &str| Call::anonymous("DELETE", location).tenant("acme");
    // Whoever waits for it hears of it.
    let mut held = Call::get(&waiting).header("prefer", "wait=20").open(stage.addr()).await;
    // Twice is once.
    for _ in 0..2 {
        let reply = stage.send(&delete(&waiting)).await;
        assert_eq!((reply.status, reply.body.len()), (204, 0), "{reply:?}");
    }
    for reply in [held.reply().await, look(&stage, &waiting).await, stage.send(&Call::pay("waiting")).await] {
        assert_eq!((reply.status, &reply.json()["code"]), (410, &json!("cancelled")), "{reply:?}");
        assert!(reply.is_replay(), "it is the stored answer: {reply:?}");
    }
    let problem = stage.send(&delete(&running)).await.expect_problem(409, "not_cancellable");
    assert_eq!(problem["state"], "in_progress");
    gate.open();
    awaited(&stage, &running).await.expect_replay(200, "run 1");
    let problem = stage.send(&delete(&running)).await.expect_problem(409, "not_cancellable");
    assert_eq!(problem["state"], "completed");
    assert_eq!(stage.runs(), 1, "what was cancelled never went out");
    let story = crate::acts::story(&stage, &stage.record("waiting").await.unwrap()).await;
    let cancelled = story.iter().find(|entry| entry["act"] == "cancelled");
    assert_eq!(cancelled.unwrap_or_else(|| panic!("{story:?}"))["source"], "owner", "{story:?}");
}

/// What the upstream gets, it gets as from a client that is there: its credentials, and of the
/// rest what the route names.
#[tokio::test]
async fn it_goes_out_as_an_inline_one_would() {
    let stage = Stage::numbered(&format!(
        "[upstream]\nhost = \"client\"\n{}",
        defaults("ietf", "respond_async = true\nrequest_headers = [\"content-type\", \"x-trace\"]")
    ))
    .await;
    let call = |key: &str| {
        Call::post("/orders?x=1").key(key).header("x-trace", "7").header("x-other", "1").json("{\"a\": 1}")
    };
    let inline = stage.send(&call("inline")).await;
    inline.expect_first(200, "run 1");
    let reply = stage.send(&call("deferred").header("prefer", "respond-async")).await;
    assert_eq!(reply.status, 202, "{reply:?}");
    stage.upstream.ran(2).await;
    let [first, second]: [Seen; 2] = stage.upstream.seen().try_into().unwrap();
    assert_eq!((&first.line, &first.body), (&second.line, &second.body));
    for name in [
        "authorization",
        "content-type",
        "x-trace",
        "host",
        "forwarded",
        "x-forwarded-for",
        "x-forwarded-proto",
        "via",
        "accept-encoding",
    ] {
        assert_eq!(first.header(name), second.header(name), "{name}");
    }
    assert_eq!(second.header("idempotency-key"), Some("deferred"));
    assert!(second.header("idempotency-attempt").is_some());
    for name in ["x-other", "prefer", "oncegate-peer", "oncegate-proto"] {
        assert_eq!(second.header(name), None, "{name}");
    }
}

#[tokio::test]
async fn a_derived_key_goes_out_as_an_inline_ones_would() {
    let route = accepted("request_headers = [\"authorization\"]\nforward_key = \"derived\"");
    let stage = Stage::numbered(&route).await;
    stage.send(&Call::pay("one")).await;
    stage.upstream.ran(1).await;
    let seen = stage.upstream.last();
    assert_eq!(seen.values("authorization"), ["Bearer acme"], "named, and kept anyway: once");
    let key = seen.header("idempotency-key").unwrap();
    assert!(key != "one" && key.starts_with('"'), "derived, as an inline one's: {key}");
}

/// Released: nothing happened, so the worker tries again by itself. The client sees only that it is not over.
#[tokio::test]
async fn what_is_refused_is_tried_again_by_itself() {
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&tries);
    let upstream = Upstream::start(move |seen: Seen| {
        let tries = Arc::clone(&counted);
        async move {
            match tries.fetch_add(1, Ordering::SeqCst) {
                0 => Act::Answer(answer(503, &[], "later")),
                _ => numbered(seen).await,
            }
        }
    });
    let stage = Stage::new(upstream.await, &accepted("wait_limit = \"20s\"")).await;
    let location = expect_accepted(&stage.send(&Call::pay("one")).await, "pending");
    awaited(&stage, &location).await.expect_replay(200, "run 2");
    assert_eq!(stage.record("one").await.unwrap()["attempts"], 2);
}

/// The upstream is not there yet: refused connections prove that nothing was sent.
#[tokio::test]
async fn an_upstream_that_comes_back_gets_what_waited() {
    let port = Refusing::new();
    let gateway = crate::gateway::in_front_of(port.addr(), &accepted("wait_limit = \"20s\"")).await;
    let reply = Call::pay("one").send(gateway.address()).await;
    let location = expect_accepted(&reply, "pending");
    let upstream = Upstream::on(port.listen(), numbered);
    let held = Call::get(&location).header("prefer", "wait=20");
    within(async { held.send(gateway.address()).await }).await.expect_replay(200, "run 1");
    assert_eq!(upstream.runs(), 1);
}

#[tokio::test]
async fn a_doubt_is_shown_as_the_route_says_and_never_run_again() {
    for (after_doubt, is_accepted) in [("accept", true), ("reject", false)] {
        let upstream = Upstream::start(|_| async { Act::AnswerAndClose(Vec::new()) }).await;
        let stage = Stage::new(upstream, &accepted(&format!("after_doubt = \"{after_doubt}\""))).await;
        let location = expect_accepted(&stage.send(&Call::pay("one")).await, "pending");
        // Parked at once: nobody can be asked. So it is not waited for.
        let reply = awaited(&stage, &location).await;
        let retried = stage.send(&Call::pay("one")).await;
        for reply in [reply, retried] {
            if is_accepted {
                assert_eq!((reply.status, &reply.json()["state"]), (202, &json!("unknown")), "{reply:?}");
                reply.expect_retry_after(Some(5));
            } else {
                reply.expect_problem_of_operation(409, "outcome_unknown");
            }
        }
        assert_eq!(stage.runs(), 1);
    }
}

/// In doubt, asked about, and found not to have happened: nobody but a worker would run it again, and it does.
#[tokio::test]
async fn what_is_found_not_to_have_happened_is_queued_again_and_run() {
    let upstream = Upstream::start(|seen: Seen| async move {
        match (seen.line.starts_with("GET "), seen.number) {
            (true, _) => Act::Answer(answer(404, &[], "")),
            (false, 1) => Act::Reset,
            (false, _) => Act::Answer(answer(201, &[], "done")),
        }
    });
    let stage = Stage::new(upstream.await, &asking("accepted", "")).await;
    let location = expect_accepted(&stage.send(&Call::pay("one")).await, "pending");
    awaited(&stage, &location).await.expect_replay(201, "done");
    expect_second_run(&stage).await;
}

/// Its client was there when it ended in doubt, and hears of that; it comes again, and would rather be told later. What it was promised is kept.
#[tokio::test]
async fn a_doubt_that_is_accepted_later_is_run_when_it_did_not_happen() {
    let (gate, is_found) = (Gate::new(), Arc::new(AtomicUsize::new(0)));
    let upstream = {
        let (gate, is_found) = (gate.clone(), Arc::clone(&is_found));
        Upstream::start(move |seen: Seen| {
            let (gate, is_found) = (gate.clone(), Arc::clone(&is_found));
            async move {
                match (seen.line.starts_with("GET "), seen.number) {
                    (true, _) if is_found.load(Ordering::SeqCst) == 0 => Act::Answer(answer(503, &[], "")),
                    (true, _) => Act::Answer(answer(404, &[], "")),
                    (false, 1) => Act::Reset,
                    (false, _) => {
                        gate.pass().await;
                        Act::Answer(answer(201, &[], "done"))
                    }
                }
            }
        })
    };
    let rules = "respond_async = true\nafter_doubt = \"accept\"";
    let stage = Stage::new(upstream.await, &asking("ietf", rules)).await;
    stage.send(&Call::pay("one")).await.expect_problem_of_operation(504, "outcome_unknown");
    let again = stage.send(&Call::pay("one").header("prefer", "respond-async")).await;
    assert_eq!((again.status, &again.json()["state"]), (202, &json!("unknown")), "{again:?}");
    assert_eq!(again.header("preference-applied"), Some("respond-async"));
    is_found.store(1, Ordering::SeqCst);
    gate.entered().await;
    gate.open();
    awaited(&stage, again.header("location").unwrap()).await.expect_replay(201, "done");
    expect_second_run(&stage).await;
}

/// Somebody can be asked, and "none" is soon believed.
fn asking(profile: &str, more: &str) -> String {
    let rules = format!(
        "wait_limit = \"20s\"\nforward_key = \"derived\"\nhorizon = \"1ms\"\n{more}\n[defaults.probe]\nbackoff = \"10ms\"\nbackoff_max = \"50ms\"\n\
         url = \"/found?by={{forwarded_key}}\"\nhappened = [200]\ndid_not_happen = [404]\nanswer = {{ status = 201, body = \"found\" }}"
    );
    format!("{ONE_AT_A_TIME}reconcile_every = \"50ms\"\n{}", defaults(profile, &rules))
}

/// The record of `one` was unknown, was found not to have happened, waited, and was run a second time.
async fn expect_second_run(stage: &Stage) {
    let record = stage.record("one").await.unwrap();
    let story = crate::acts::story(stage, &record).await;
    let steps: Vec<_> = story.iter().map(|entry| (&entry["from"], &entry["to"])).collect();
    for step in [("in_progress", "unknown"), ("unknown", "pending")] {
        assert!(steps.contains(&(&json!(step.0), &json!(step.1))), "{step:?}: {story:#?}");
    }
    assert_eq!(record["attempts"], 2, "{record}");
    let posts = stage.upstream.seen().iter().filter(|seen| seen.line.starts_with("POST ")).count();
    assert_eq!(posts, 2);
}

/// One has much, and was there first; the other has one. It does not wait behind.
#[tokio::test]
async fn a_busy_tenant_does_not_hold_up_another() {
    let (gate, upstream) = Upstream::gated().await;
    let stage = Stage::new(upstream, &accepted("")).await;
    let call =
        |tenant: &str, key: String| Call::anonymous("POST", "/pay").tenant(tenant).key(&key).json("{}");
    for n in 0..20 {
        assert_eq!(stage.send(&call("busy", format!("b-{n}"))).await.status, 202);
    }
    gate.entered().await;
    assert_eq!(stage.send(&call("quiet", "q".to_owned())).await.status, 202);
    for n in 2..=3 {
        gate.open();
        stage.upstream.ran(n).await;
    }
    let keys: Vec<_> =
        stage.upstream.seen().iter().map(|seen| seen.header("idempotency-key").unwrap().to_owned()).collect();
    assert!(keys[1..3].contains(&"q".to_owned()), "its turn comes next, or after one more: {keys:?}");
    assert_eq!(keys[0], "b-0", "oldest first");
    for _ in 0..30 {
        gate.open();
    }
    stage.upstream.ran(21).await;
    let busy: Vec<_> = stage
        .upstream
        .seen()
        .iter()
        .map(|seen| seen.header("idempotency-key").unwrap().to_owned())
        .filter(|key| key.starts_with('b'))
        .collect();
    let expected: Vec<_> = (0..20).map(|n| format!("b-{n}")).collect();
    assert_eq!(busy, expected, "each line oldest first");
}

/// At a shutdown what runs is waited for, and what waits is left to others: nothing is in doubt afterwards.
#[tokio::test]
async fn a_shutdown_leaves_what_waits_and_finishes_what_runs() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("[store]\nurl = \"sqlite://{}\"\n", folder.path().join("o.db").display());
    let (gate, upstream) = Upstream::gated().await;
    let stage = Stage::new(upstream.clone(), &format!("{store}{}", accepted("wait_limit = \"20s\""))).await;
    let locations: Vec<_> = {
        let mut all = Vec::new();
        for n in 0..5 {
            all.push(expect_accepted(&stage.send(&Call::pay(&format!("key-{n}"))).await, "pending"));
        }
        all
    };
    gate.entered().await;
    let closing = tokio::spawn(stage.gateway.shut_down());
    gate.open();
    assert!(within(closing).await.unwrap(), "all was settled");
    assert_eq!(upstream.runs(), 1, "nothing more was begun");
    let stage = Stage::new(upstream, &format!("{store}{}", accepted("wait_limit = \"20s\""))).await;
    for _ in 0..4 {
        gate.open();
    }
    for (n, location) in (1..).zip(&locations) {
        awaited(&stage, location).await.expect_replay(200, &format!("run {n}"));
    }
    assert_eq!(stage.runs(), 5);
}

/// A route that is read again runs what was accepted under the old one, by its new rules.
#[tokio::test]
async fn what_was_accepted_is_run_after_a_reload() {
    let (gate, upstream) = Upstream::gated().await;
    let mut stage = Stage::new(upstream, &accepted("wait_limit = \"20s\"")).await;
    let locations = {
        let mut all = Vec::new();
        for n in 0..2 {
            all.push(expect_accepted(&stage.send(&Call::pay(&format!("key-{n}"))).await, "pending"));
        }
        all
    };
    gate.entered().await;
    let address = format!("http://{}", stage.upstream.addr);
    let inline =
        format!("{ONE_AT_A_TIME}{}", defaults("ietf", "scope = \"tenant+operation\"\nwait_limit = \"20s\""));
    stage.gateway.reload(crate::gateway::config(&address, &inline)).unwrap();
    gate.open();
    gate.open();
    for (n, location) in (1..).zip(&locations) {
        awaited(&stage, location).await.expect_replay(200, &format!("run {n}"));
    }
}
