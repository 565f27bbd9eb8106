//! The end: what is in flight is answered or settled, and nothing new begins.

use oncegate_gateway::Gateway;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::client::{Call, Connection, within};
use crate::gateway::{Stage, admin, in_front_of, state};
use crate::upstream::{Gate, Upstream};

/// A store that another gateway can look into afterwards.
struct Kept(tempfile::TempDir);

impl Kept {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn toml(&self, rest: &str) -> String {
        format!("[store]\nurl = \"sqlite://{}/records.db\"\n{rest}", self.0.path().display())
    }
}

async fn gated(toml: &str) -> (Gate, Stage) {
    let (gate, upstream) = Upstream::gated().await;
    (gate, Stage::new(upstream, toml).await)
}

/// Begins to shut down, and returns when that is known.
async fn begin(gateway: Gateway) -> JoinHandle<bool> {
    let asked = gateway.admin_address().tcp().unwrap();
    let ending = tokio::spawn(gateway.shut_down());
    let asking = async { while Call::operator("GET", "/readyz").send(asked).await.status == 200 {} };
    within(asking).await;
    ending
}

#[tokio::test]
async fn what_is_in_flight_is_answered() {
    let (gate, stage) = gated("").await;
    let (addr, asked) = (stage.addr(), stage.gateway.admin_address().tcp().unwrap());
    let mut protected = Call::pay("one").open(addr).await;
    gate.entered().await;
    let mut passing = Call::get("/").open(addr).await;
    gate.entered().await;
    let mut idle = Connection::to(addr).await;
    gate.open();
    assert_eq!(idle.ask(&Call::anonymous("GET", "/.oncegate/")).await.status, 404);

    let ending = begin(stage.gateway).await;
    let ready = Call::operator("GET", "/readyz").send(asked).await;
    assert_eq!((ready.status, &ready.json()["life"]), (503, &"draining".into()));
    assert!(TcpStream::connect(addr).await.is_err(), "nobody new");
    idle.closed().await;
    gate.open();
    let reply = protected.reply().await;
    reply.expect_first(200, "run 1");
    passing.reply().await.expect_first(200, "run 2");
    assert!(within(ending).await.unwrap(), "everything was answered");
    assert!(TcpStream::connect(asked).await.is_err(), "and then the operators' door is shut, too");
}

#[tokio::test]
async fn what_outlasts_the_drain_is_recorded_as_unknown() {
    let kept = Kept::new();
    let (gate, stage) = gated(&kept.toml("[shutdown]\ndrain = \"1s\"")).await;
    let mut client = Call::pay("one").open(stage.addr()).await;
    gate.entered().await;
    let mut passing = Call::get("/").open(stage.addr()).await;
    gate.entered().await;
    let Stage { gateway, upstream } = stage;
    let settled = within(gateway.shut_down()).await;
    assert!(settled, "all of it is written down");
    client.reply().await.expect_problem_of_operation(504, "outcome_unknown");
    passing.reply().await.expect_problem(502, "upstream_failed");
    // Whoever comes next finds it, and does not run it again.
    let next = in_front_of(upstream.addr, &kept.toml("")).await;
    assert_eq!(state(&next, "one").await.as_deref(), Some("unknown"));
    Call::pay("one").send(next.address()).await.expect_problem(409, "outcome_unknown");
    assert_eq!(upstream.runs(), 2);
}

/// Its connection is gone, and the attempt is not.
#[tokio::test]
async fn an_attempt_whose_client_hung_up_is_waited_for() {
    let kept = Kept::new();
    let (gate, stage) = gated(&kept.toml("")).await;
    let client = Call::pay("one").open(stage.addr()).await;
    gate.entered().await;
    drop(client);
    let Stage { gateway, upstream } = stage;
    let ending = begin(gateway).await;
    gate.open();
    assert!(within(ending).await.unwrap());
    let next = in_front_of(upstream.addr, &kept.toml("")).await;
    Call::pay("one").send(next.address()).await.expect_replay(200, "run 1");
    assert_eq!(upstream.runs(), 1);
}

/// Who still waited for its turn was never sent: its key is free again, and it is not sent now.
#[tokio::test]
async fn what_waits_for_its_turn_is_not_sent_at_the_end() {
    let kept = Kept::new();
    let limits = "[limits]\nexecutions_max = 1\nqueue_timeout = \"2m\"\n[shutdown]\ndrain = \"1s\"";
    let (gate, stage) = gated(&kept.toml(limits)).await;
    let mut first = Call::pay("one").open(stage.addr()).await;
    gate.entered().await;
    let mut second = Call::pay("two").open(stage.addr()).await;
    let recorded = async { while stage.state("two").await.is_none() {} };
    within(recorded).await;
    let Stage { gateway, upstream } = stage;
    assert!(within(gateway.shut_down()).await);
    first.reply().await.expect_problem(504, "outcome_unknown");
    second.reply().await.expect_problem(503, "overloaded");
    let next = in_front_of(upstream.addr, &kept.toml("")).await;
    assert_eq!(state(&next, "two").await.as_deref(), Some("failed_retryable"));
    assert_eq!(upstream.runs(), 1);
}

/// A file may shorten the drain while it runs.
#[tokio::test]
async fn nothing_in_flight_ends_at_once() {
    let stage = Stage::numbered("[shutdown]\ndrain = \"1h\"").await;
    stage.send(&Call::pay("one")).await.expect_first(200, "run 1");
    let mut idle = Connection::to(stage.addr()).await;
    idle.ask(&Call::pay("one")).await.expect_replay(200, "run 1");
    assert_eq!(admin(&stage.gateway, "/readyz").await.status, 200);
    assert!(within(stage.gateway.shut_down()).await, "long before the drain is over");
}
