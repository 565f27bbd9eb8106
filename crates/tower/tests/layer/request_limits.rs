//! Requests that are refused before they are read to the end, and whether their clients can read why.

use futures_util::future::join_all;
use oncegate_core::policy::{Policy, Profile};
use oncegate_store::memory::MemoryStore;
use oncegate_store::{Counts, Store as _};

use crate::client::{Call, Connection};
use crate::stage::{policy, simple};

const LIMIT: usize = 64 << 10;
/// More than the buffers of a connection hold: a server that does not read makes this client wait or fail.
const MUCH: usize = 8 << 20;

fn limited(profile: Profile) -> Policy {
    policy(profile, |policy| policy.body_bytes_max = LIMIT as u64)
}

/// A client that writes all before it reads anything, both ways of framing.
fn much(call: &Call) -> [Call; 2] {
    let call = call.clone().body(&vec![b'x'; MUCH]);
    [call.clone(), call.chunked()]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_limit_is_413_and_its_key_is_unused() {
    let store = MemoryStore::new();
    let stage = simple(store.clone(), limited(Profile::Ietf)).await;
    let call = Call::post("/payments").key("one");
    for call in much(&call) {
        let mut client = call.open(stage.addr).await;
        let reply = client.reply().await.unwrap();
        let problem = reply.expect_problem(413, "too_large");
        assert!(problem["detail"].as_str().unwrap().contains("65536 bytes"), "{problem}");
        // All was read, so the connection serves on.
        client.send(&Call::anonymous("GET", "/")).await.unwrap();
        assert_eq!(client.reply().await.unwrap().status, 200);
    }
    assert_eq!(store.counts().await.unwrap(), Counts::default());
    let small = call.body(b"small").send(stage.addr).await;
    assert!(small.status == 200 && !small.is_replay(), "{small:?}");
    assert_eq!(stage.runs(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_itself_is_allowed() {
    let stage = simple(MemoryStore::new(), limited(Profile::Ietf)).await;
    for (number, is_chunked) in [(1, false), (2, true)] {
        let call = |bytes: usize| {
            let call = Call::post("/payments").key(&format!("key-{number}")).body(&vec![b'x'; bytes]);
            if is_chunked { call.chunked() } else { call }
        };
        call(LIMIT + 1).send(stage.addr).await.expect_problem(413, "too_large");
        call(LIMIT).send(stage.addr).await.expect_first(200, &format!("run {number}"));
        call(LIMIT).send(stage.addr).await.expect_replay(200, &format!("run {number}"));
        call(LIMIT - 1).send(stage.addr).await.expect_problem(422, "key_reused");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_by_its_head_can_be_read_by_a_client_that_is_still_sending() {
    let stage = simple(MemoryStore::new(), limited(Profile::Ietf)).await;
    let refusals = [
        (Call::post("/payments"), 400, "key_missing"),
        (Call::post("/payments").key("\"open"), 400, "key_invalid"),
        (Call::anonymous("POST", "/payments").key("one"), 401, "scope_missing"),
    ];
    for (call, status, code) in refusals {
        for call in much(&call) {
            call.send(stage.addr).await.expect_problem(status, code);
        }
    }
    assert_eq!(stage.runs(), 0);
}

/// Reading on for the client's sake has an end.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_without_end_is_not_read_for_ever() {
    let stage = simple(MemoryStore::new(), limited(Profile::Ietf)).await;
    let mut client = Connection::to(stage.addr).await.unwrap();
    client.write(&Call::post("/payments").key("one").chunked().head()).await.unwrap();
    let chunk = [b"100000\r\n".as_slice(), &vec![b'x'; 1 << 20], b"\r\n"].concat();
    let (reply, mebibytes) = client.write_until_reply(&chunk).await.unwrap();
    reply.expect_problem(413, "too_large");
    assert!(mebibytes < 64, "{mebibytes} MiB were read, or wait in buffers");
    // The server has hung up on what is still being sent.
    while client.write(&chunk).await.is_ok() {}
    assert_eq!(stage.runs(), 0);
}

/// Nor is it waited for for ever: some seconds, of real time.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_stalls_is_answered_all_the_same() {
    let stage = simple(MemoryStore::new(), limited(Profile::Ietf)).await;
    let stalling = [
        (Call::post("/payments").key("one"), 413, "too_large"),
        (Call::post("/payments"), 400, "key_missing"),
    ];
    let addr = stage.addr;
    let replies = stalling.map(|(call, status, code)| async move {
        let mut client = Connection::to(addr).await.unwrap();
        client.write(&call.body(&vec![b'x'; MUCH]).head()).await.unwrap();
        client.reply().await.unwrap().expect_problem(status, code);
    });
    join_all(replies).await;
}

/// Who asks first, and is refused, never sends the body: nothing is read, and nothing is waited for.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_asks_first_is_refused_at_once() {
    let stage = simple(MemoryStore::new(), limited(Profile::Ietf)).await;
    let expecting = |call: Call| call.header("expect", b"100-continue").body(&vec![b'x'; MUCH]);
    let refusals = [
        (Call::post("/payments").key("one"), 413, "too_large"),
        (Call::post("/payments"), 400, "key_missing"),
        (Call::anonymous("POST", "/payments").key("one"), 401, "scope_missing"),
    ];
    for (call, status, code) in refusals {
        let mut client = Connection::to(stage.addr).await.unwrap();
        client.write(&expecting(call).head()).await.unwrap();
        client.reply().await.unwrap().expect_problem(status, code);
    }
    assert_eq!(stage.runs(), 0);
}
