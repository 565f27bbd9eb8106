//! Another file while it runs: for new requests. What is under way ends as it began.

use crate::client::{Call, within};
use crate::gateway::{Stage, config};
use crate::upstream::{Act, Gate, Seen, Upstream, ok};

async fn gated(toml: &str) -> (Gate, Stage) {
    let (gate, upstream) = Upstream::gated().await;
    (gate, Stage::new(upstream, toml).await)
}

/// Takes over another file.
pub(crate) fn reload(stage: &mut Stage, toml: &str) -> oncegate_gateway::Reloaded {
    let new = config(&format!("http://{}", stage.upstream.addr), toml);
    stage.gateway.reload(new).unwrap()
}

#[tokio::test]
async fn new_requests_are_under_the_new_file() {
    let mut stage = Stage::numbered("").await;
    stage.send(&Call::post("/payments").json("{}")).await.expect_problem(400, "key_missing");
    let reloaded = reload(&mut stage, "[defaults]\nkey_required = false\n[[route]]\nmatch = \"POST /a\"");
    assert_eq!((reloaded.routes, reloaded.needs_restart), (1, vec![]));
    stage.send(&Call::post("/payments").json("{}")).await.expect_first(200, "run 1");
    // Whose key it is, too.
    let nobody = Call::anonymous("POST", "/payments").key("one").json("{}");
    stage.send(&nobody).await.expect_problem(401, "scope_missing");
    reload(&mut stage, "[scope]\nanonymous = \"share\"");
    stage.send(&nobody).await.expect_first(200, "run 2");
    stage.send(&nobody).await.expect_replay(200, "run 2");
    // A connection that was there before is no exception.
    let mut connection = crate::client::Connection::to(stage.addr()).await;
    connection.ask(&Call::post("/payments").json("{}")).await.expect_problem(400, "key_missing");
    reload(&mut stage, "[defaults]\nprofile = \"off\"");
    connection.ask(&Call::post("/payments").json("{}")).await.expect_first(200, "run 3");
}

#[tokio::test]
async fn what_needs_a_restart_is_said() {
    let mut stage = Stage::numbered("").await;
    let other = "[limits]\nexecutions_max = 1\n[upstream]\ntimeout = \"1s\"\n[listen]\nconnections_max = 1\n\
                 [admin]\ntoken = \"0123456789abcdef\"\n[store]\nurl = \"sqlite://elsewhere.db\"";
    let reloaded = reload(&mut stage, other);
    assert_eq!(reloaded.needs_restart, ["listen", "admin", "upstream", "store", "limits"]);
    // They are as they were.
    assert_eq!(crate::gateway::admin(&stage.gateway, "/api/v1/counts").await.status, 200);
    stage.send(&Call::pay("one")).await.expect_first(200, "run 1");
}

/// A new upstream needs a restart. The check of callers asked the new one at once.
#[tokio::test]
async fn callers_are_checked_by_the_upstream_that_executes_their_requests() {
    let mut stage = Stage::numbered("").await;
    let other = Upstream::start(|_: Seen| async { Act::Reset }).await;
    let new = config(&format!("http://{}", other.addr), "[defaults]\npreauthorize = { url = \"/check\" }");
    assert_eq!(stage.gateway.reload(new).unwrap().needs_restart, ["upstream"]);
    // The check is the first run.
    stage.send(&Call::pay("one")).await.expect_first(200, "run 2");
    assert!(other.seen().is_empty());
}

#[tokio::test]
async fn requests_in_flight_end_under_the_old_one() {
    let keeps = "[defaults]\nanswer_bytes_max = \"1 MiB\"\nretention = \"1d\"";
    let keeps_nothing = "[defaults]\nanswer_bytes_max = 1\nretention = \"2d\"";
    let (gate, mut stage) = gated(keeps).await;
    let mut old = Call::pay("old").open(stage.addr()).await;
    gate.entered().await;
    reload(&mut stage, keeps_nothing);
    let mut new = Call::pay("new").open(stage.addr()).await;
    gate.entered().await;
    gate.open();
    gate.open();
    old.reply().await.expect_first(200, "run 1");
    new.reply().await.expect_first(200, "run 2");
    stage.send(&Call::pay("old")).await.expect_replay(200, "run 1");
    stage.send(&Call::pay("new")).await.expect_problem(409, "answer_not_kept");
    // As long as was promised when it began.
    let days = |record: &serde_json::Value| {
        let day = |name: &str| record[name].as_str().unwrap()[..10].to_owned();
        (day("settled_at"), day("expires_at"))
    };
    let (old, new) = (stage.record("old").await.unwrap(), stage.record("new").await.unwrap());
    assert_ne!(days(&old).1, days(&new).1, "{old} {new}");
    assert!(days(&old).1 < days(&new).1);
}

/// What was frozen when a key's life began holds for all of it.
#[tokio::test]
async fn a_key_keeps_its_terms() {
    let under_410 = "[defaults]\nretention = \"1ms\"\nafter_retention = 410";
    let fresh = "[defaults]\nretention = \"1ms\"\nafter_retention = \"fresh\"";
    let (gate, mut stage) = gated(under_410).await;
    let mut running = Call::pay("one").open(stage.addr()).await;
    gate.entered().await;
    reload(&mut stage, fresh);
    gate.open();
    running.reply().await.expect_first(200, "run 1");
    let asking = async {
        loop {
            let reply = stage.send(&Call::pay("one")).await;
            if !reply.is_replay() {
                return reply;
            }
        }
    };
    within(asking).await.expect_problem_of_operation(410, "key_expired");
    assert_eq!(stage.runs(), 1);
}

/// `forward_key` was changed while an outcome was unknown, and the probe asked by a key that the upstream had never been sent: "not
/// found" was true, and meant nothing.
#[tokio::test]
async fn a_probe_asks_by_the_key_that_was_sent_when_the_life_began() {
    let file = |forward: &str| {
        format!(
            "[defaults]\nforward_key = \"{forward}\"\n[defaults.probe]\nurl = \"/found?by={{forwarded_key}}\"\n\
             keys_are_never_reused = true\nhappened = [200]\nanswer = {{ status = 201, body = \"found\" }}"
        )
    };
    let gate = Gate::new();
    let upstream = Upstream::start({
        let gate = gate.clone();
        move |seen: Seen| {
            let gate = gate.clone();
            async move {
                if seen.line.starts_with("GET ") {
                    return ok(seen.line);
                }
                gate.pass().await;
                Act::AnswerAndClose(Vec::new())
            }
        }
    });
    let mut stage = Stage::new(upstream.await, &file("derived")).await;
    let mut asking = Call::pay("one").open(stage.addr()).await;
    gate.entered().await;
    let sent = stage.upstream.last().header("idempotency-key").unwrap().trim_matches('"').to_owned();
    reload(&mut stage, &file("as-is"));
    gate.open();
    asking.reply().await.expect_problem(504, "outcome_unknown");
    within(stage.upstream.ran(2)).await;
    let question = stage.upstream.last().line;
    assert!(question.starts_with(&format!("GET /found?by={sent} ")), "{question} instead of {sent}");
}

/// A route was dropped while an outcome of it was unknown. Its record was asked about by the default's probe, which knows nothing of that resource:
/// "none" was believed, and a retry would have charged a second time.
#[tokio::test]
async fn a_doubt_of_a_route_that_is_gone_is_nobody_s_until_it_is_back() {
    let defaults = "[defaults]\nforward_key = \"derived\"\nhorizon = \"1ms\"\n[defaults.probe]\n\
                    url = \"/others?by={forwarded_key}\"\ndid_not_happen = [200]\n\
                    happened = [201]\nanswer = { status = 201, body = \"another\" }\n";
    let with_route = format!(
        "{defaults}[[route]]\nmatch = \"POST /charges\"\n[route.probe]\nurl = \"/charges?by={{forwarded_key}}\"\n\
         happened = [200]\nanswer = {{ status = 201, body = \"charged\" }}"
    );
    let gate = Gate::new();
    let upstream = Upstream::start({
        let gate = gate.clone();
        move |seen: Seen| {
            let gate = gate.clone();
            async move {
                if seen.line.starts_with("GET ") {
                    return ok("[]");
                }
                gate.pass().await;
                Act::AnswerAndClose(Vec::new())
            }
        }
    });
    let mut stage = Stage::new(upstream.await, &with_route).await;
    let charge = Call::post("/charges").key("charge").json("{}");
    let mut charging = charge.open(stage.addr()).await;
    gate.entered().await;
    reload(&mut stage, defaults);
    gate.open();
    charging.reply().await.expect_problem(504, "outcome_unknown");
    // What was made where no route matched has the default's probe, as before.
    let mut other = Call::pay("other").open(stage.addr()).await;
    gate.entered().await;
    gate.open();
    other.reply().await.expect_problem(504, "outcome_unknown");
    oncegate_test_servers::until("the other one is found out", async || {
        stage.state("other").await.as_deref() == Some("failed_retryable")
    })
    .await;
    let sent = stage.upstream.seen()[0].header("idempotency-key").unwrap().trim_matches('"').to_owned();
    let asked = |stage: &Stage| {
        stage.upstream.seen().iter().filter(|seen| seen.line.contains(&format!("?by={sent} "))).count()
    };
    assert_eq!(asked(&stage), 0, "nobody who knows nothing of charges is asked");
    let record = stage.record("charge").await.unwrap();
    assert_eq!(
        (&record["state"], &record["doubt"]["parked"]),
        (&"unknown".into(), &false.into()),
        "{record}"
    );
    reload(&mut stage, &with_route);
    oncegate_test_servers::until("its own probe is asked", async || asked(&stage) > 0).await;
    oncegate_test_servers::until("and settles it", async || {
        stage.state("charge").await.as_deref() == Some("completed")
    })
    .await;
    stage.send(&charge).await.expect_replay(201, "charged");
}

/// A route's pattern was renamed, or moved, while an outcome of it was unknown. No route had the
/// stored text any more, so the record was asked about by none, and its client was told 409 until
/// an operator decided.
#[tokio::test]
async fn a_doubt_of_a_route_that_was_renamed_is_asked_about_by_its_probe() {
    let file = |route: &str| {
        format!(
            "[defaults]\nforward_key = \"derived\"\n[[route]]\n{route}\nprofile = \"lenient\"\nforward_key = \"derived\"\n\
             after_doubt = \"reject\"\n[route.probe]\nurl = \"/found?by={{forwarded_key}}\"\n\
             happened = [200]\nanswer = {{ status = 201, body = \"charged\" }}"
        )
    };
    let moved = "match = \"POST /v2/charges/{id}\"\nformerly = [\"POST /charges/{id}\"]";
    for (after, retry) in [("match = \"POST /charges/{charge}\"", "/charges/7"), (moved, "/v2/charges/7")] {
        let gate = Gate::new();
        let upstream = Upstream::start({
            let gate = gate.clone();
            move |seen: Seen| {
                let gate = gate.clone();
                async move {
                    if seen.line.starts_with("GET ") {
                        return ok("{}");
                    }
                    gate.pass().await;
                    Act::AnswerAndClose(Vec::new())
                }
            }
        });
        let mut stage = Stage::new(upstream.await, &file("match = \"POST /charges/{id}\"")).await;
        let charge = Call::post("/charges/7").key("charge").json("{}");
        let mut charging = charge.open(stage.addr()).await;
        gate.entered().await;
        reload(&mut stage, &file(after));
        gate.open();
        charging.reply().await.expect_problem(504, "outcome_unknown");
        oncegate_test_servers::until("its probe settles it", async || {
            stage.state("charge").await.as_deref() == Some("completed")
        })
        .await;
        if retry == "/charges/7" {
            stage.send(&charge).await.expect_replay(201, "charged");
        }
    }
}
