//! The usual request: what is there afterwards, and what it cost.

use std::sync::Arc;

use oncegate_core::policy::Profile;
use oncegate_core::record::StateKind;
use oncegate_store::join::{Transaction as _, Transactions as _};
use oncegate_test_servers::TcpProxy;

use crate::base::{Base as _, OnPostgres};
use crate::client::Call;
use crate::counted::{Count, Counted};
use crate::node::{LONG, Node, Work, simple};

on_both! {
    async fn the_row_the_key_and_the_answer_are_there_together<B: Base>() {
        let base = B::start().await;
        let node = simple(&base, Profile::Ietf).await;
        let call = Call::post("/charges").key("k").json(r#"{"amount":1}"#);
        let first = call.send(node.addr).await;
        first.expect_first(200, "run 1");
        assert_eq!(base.charges().await, ["k"]);
        assert_eq!(node.state("k").await, Some(StateKind::Completed));
        // From this node's cache, and from the row.
        let another = simple(&base, Profile::Ietf).await;
        for addr in [node.addr, another.addr] {
            let replay = call.send(addr).await;
            replay.expect_replay(200, "run 1");
            assert_eq!(replay.in_common(), first.in_common());
        }
        assert_eq!((node.runs(), another.runs()), (1, 0));
        assert_eq!(base.charges().await, ["k"]);
    }

    async fn another_request_with_the_key_is_refused<B: Base>() {
        let base = B::start().await;
        let node = simple(&base, Profile::Ietf).await;
        Call::post("/charges").key("k").json(r#"{"amount":1}"#).send(node.addr).await.expect_first(200, "run 1");
        let another = simple(&base, Profile::Ietf).await;
        for addr in [node.addr, another.addr] {
            let call = Call::post("/charges").key("k").json(r#"{"amount":2}"#);
            call.send(addr).await.expect_problem(422, "key_reused");
        }
        assert_eq!(base.charges().await, ["k"]);
    }

    async fn a_request_is_one_commit_and_a_replay_none<B: Base>() {
        let base = B::start().await;
        let count = Arc::new(Count::default());
        let pool = Counted { inner: base.pool(), count: Arc::clone(&count) };
        let node = Node::with(&base, pool, Profile::Ietf, LONG, Work::done).await;
        for round in 1..=3 {
            let call = Call::post("/charges").key(&format!("key-{round}"));
            call.send(node.addr).await.expect_first(200, &format!("run {round}"));
            call.send(node.addr).await.expect_replay(200, &format!("run {round}"));
            assert_eq!(count.committed(), round);
        }
        assert_eq!(node.engine.stats().commits, 0, "the engine has written nothing by itself");
    }

    /// A request without a key, where the policy allows it, has no transaction: a handler that asks for one is told so.
    async fn a_handler_without_a_key_has_no_transaction<B: Base>() {
        let base = B::start().await;
        let node = simple(&base, Profile::Lenient).await;
        let reply = Call::post("/charges").send(node.addr).await;
        assert_eq!(reply.status, 500);
        assert!(String::from_utf8_lossy(&reply.body).contains("this request has no transaction"), "{reply:?}");
        assert_eq!(base.charges().await, [""; 0]);
    }
}

/// To those of the same transaction without it: the message of its `BEGIN` takes the key, and that of its `COMMIT` writes the row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_layer_adds_no_round_trip() {
    let base = OnPostgres::start().await;
    let proxy = TcpProxy::start(&base.place.url);
    let base = base.through_one(&proxy.url_of(&base.place.url));
    let node = simple(&base, Profile::Ietf).await;
    // The first request connects, and prepares the statements.
    Call::post("/charges").key("first").send(node.addr).await.expect_first(200, "run 1");
    let begin = proxy.round_trips();
    for round in 0..20 {
        let reply = Call::post("/charges").key(&format!("key-{round}")).send(node.addr).await;
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    let middle = proxy.round_trips();
    for _ in 0..20 {
        let mut transaction = base.pool().begin().await.unwrap();
        base.charge(&mut transaction, "plain").await.unwrap();
        transaction.commit().await.unwrap();
    }
    let (atomic, plain) = (middle - begin, proxy.round_trips() - middle);
    assert_eq!(proxy.accepted(), 1);
    // The pool looks after a connection that comes back, and may not have done so yet at the beginning, or at the end.
    assert!(atomic.abs_diff(plain) <= 2, "{atomic} with it, {plain} without");
}
