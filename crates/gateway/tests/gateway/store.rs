//! A store that does not answer, or not in time: it fails closed, and what was decided stays decided.

use oncegate_test_servers::{Cut, Redis, TcpProxy};
use rusqlite::Connection as Sqlite;

use crate::client::{Call, within};
use crate::gateway::{Stage, admin, defaults};
use crate::upstream::Upstream;

/// Another process writes, and does not end: SQLite admits one at a time.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_locked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("records.db");
    let stage = Stage::numbered(&format!("[store]\nurl = \"sqlite://{}\"", file.display())).await;
    stage.send(&Call::pay("one")).await.expect_first(200, "run 1");
    let other = Sqlite::open(&file).unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let reply = stage.send(&Call::pay("two")).await;
    reply.expect_problem(503, "store_unavailable");
    reply.expect_retry_after(Some(5));
    assert_eq!(stage.runs(), 1, "nothing is sent that is not recorded");
    // What is known is known.
    stage.send(&Call::pay("one")).await.expect_replay(200, "run 1");
    other.execute_batch("ROLLBACK").unwrap();
    // The reserve may have come to the file after its client was told, and is taken back then.
    let retrying = async {
        loop {
            let reply = stage.send(&Call::pay("two")).await;
            if reply.status == 200 {
                return reply;
            }
            assert!([503, 409].contains(&reply.status), "{reply:?}");
        }
    };
    within(retrying).await.expect_first(200, "run 2");
}

/// It goes away between the reserve and the settlement. The client is told that the outcome is unknown, never the answer that is not
/// recorded; the answer is recorded as soon as that can be, and its retry gets it.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_goes_away_while_the_upstream_works() {
    let redis = Redis::start(&[]);
    let cable = TcpProxy::start(&redis.url());
    let (gate, upstream) = Upstream::gated().await;
    let store = format!("[store]\nurl = \"{}\"\n", cable.url_of(&redis.url()));
    let stage = Stage::new(upstream, &(store + &defaults("ietf", "patience = \"100ms\""))).await;
    let mut client = Call::pay("one").open(stage.addr()).await;
    gate.entered().await;
    cable.cut();
    gate.open();
    client.reply().await.expect_problem_of_operation(504, "outcome_unknown");
    cable.mend();
    let retrying = async {
        loop {
            let reply = stage.send(&Call::pay("one")).await;
            if reply.status == 200 {
                return reply;
            }
            assert!([503, 409].contains(&reply.status), "{reply:?}");
        }
    };
    within(retrying).await.expect_replay(200, "run 1");
    assert_eq!(stage.runs(), 1);
}

/// The reserve's own acknowledgement is lost. Whatever the client is told, it ran at most once, and the retry is told the truth.
#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_that_is_lost() {
    let redis = Redis::start(&[]);
    let cable = TcpProxy::start(&redis.url());
    let stage = Stage::numbered(&format!("[store]\nurl = \"{}\"", cable.url_of(&redis.url()))).await;
    stage.send(&Call::pay("one")).await.expect_first(200, "run 1");
    cable.cut_at(b"EVAL", 1, Cut::AfterSending);
    let reply = stage.send(&Call::pay("two")).await;
    cable.fired();
    assert!([200, 503].contains(&reply.status), "{reply:?}");
    assert_eq!(stage.runs(), if reply.status == 200 { 2 } else { 1 });
    let retrying = async {
        loop {
            let reply = stage.send(&Call::pay("two")).await;
            if reply.status == 200 {
                return reply;
            }
            assert_eq!(reply.status, 503, "{reply:?}");
        }
    };
    let told = within(retrying).await;
    assert_eq!((told.text(), stage.runs()), ("run 2", 2));
    assert_eq!(admin(&stage.gateway, "/api/v1/counts").await.json()["completed"], 2);
}
