//! How a handler may end other than well: nothing is written, the key is free, and the client is told so.

use std::time::Duration;

use axum::http::StatusCode;
use oncegate_core::policy::Profile;
use oncegate_core::record::StateKind;

use crate::base::{Base as _, OnPostgres, OnSqlite};
use crate::client::Call;
use crate::node::{Node, Work, simple};
use crate::stage::Gate;

/// A handler that has its effect, and then answers with this status the first time.
macro_rules! answering {
    ($status:expr) => {
        async |mut work: Work<B>| {
            work.charge().await.unwrap();
            let status = if work.run == 1 { $status } else { StatusCode::CREATED };
            (status, format!("run {}", work.run))
        }
    };
}

/// Nothing of the key is there; and the same request again has its effect.
macro_rules! expect_rolled_back {
    ($base:expr, $node:expr, $call:expr) => {
        assert_eq!($base.charges().await, [""; 0]);
        assert_eq!($node.state("k").await, None);
        $call.send_until_settled($node.addr).await.expect_first(201, "run 2");
        assert_eq!($base.charges().await, ["k"]);
        $call.send($node.addr).await.expect_replay(201, "run 2");
    };
}

fn call() -> Call {
    Call::post("/charges").key("k")
}

on_both! {
    async fn a_5xx_is_rolled_back_and_the_client_sees_it<B: Base>() {
        let base = B::start().await;
        let node = Node::new(&base, Profile::Ietf, answering!(StatusCode::INTERNAL_SERVER_ERROR)).await;
        call().send(node.addr).await.expect_first(500, "run 1");
        expect_rolled_back!(base, node, call());
    }

    /// Under a profile that keeps a 500, and under one that doubts it: here it is known that nothing happened.
    async fn a_5xx_is_rolled_back_whatever_the_profile<B: Base>() {
        for profile in [Profile::Stripe, Profile::Payments] {
            let base = B::start().await;
            let node = Node::new(&base, profile, answering!(StatusCode::INTERNAL_SERVER_ERROR)).await;
            let call = Call::post("/charges").key("a-key-of-some-length");
            call.send(node.addr).await.expect_first(500, "run 1");
            assert_eq!(base.charges().await, [""; 0]);
            call.send(node.addr).await.expect_first(201, "run 2");
        }
    }

    async fn a_status_that_releases_is_rolled_back<B: Base>() {
        let base = B::start().await;
        let node = Node::new(&base, Profile::Ietf, answering!(StatusCode::TOO_MANY_REQUESTS)).await;
        call().send(node.addr).await.expect_first(429, "run 1");
        expect_rolled_back!(base, node, call());
    }

    async fn a_4xx_is_kept_with_what_was_done<B: Base>() {
        let base = B::start().await;
        let node = Node::new(&base, Profile::Ietf, answering!(StatusCode::PAYMENT_REQUIRED)).await;
        call().send(node.addr).await.expect_first(402, "run 1");
        call().send(node.addr).await.expect_replay(402, "run 1");
        assert_eq!((base.charges().await.len(), node.runs()), (1, 1));
        assert_eq!(node.state("k").await, Some(StateKind::Completed));
    }

    async fn a_panic_is_rolled_back<B: Base>() {
        let base = B::start().await;
        let node = Node::new(&base, Profile::Ietf, async |mut work: Work<B>| {
            work.charge().await.unwrap();
            assert!(work.run > 1, "the first one panics");
            (StatusCode::CREATED, format!("run {}", work.run))
        })
        .await;
        let reply = call().send(node.addr).await;
        let problem = reply.expect_problem(502, "upstream_unreachable");
        assert!(problem["detail"].as_str().unwrap().contains("Nothing was executed"), "{problem}");
        expect_rolled_back!(base, node, call());
    }

    async fn a_transaction_held_for_too_long_is_rolled_back<B: Base>() {
        let base = B::start().await;
        let hanging = async |mut work: Work<B>| {
            work.charge().await.unwrap();
            std::future::pending::<String>().await
        };
        let hasty = Duration::from_millis(20);
        let node = Node::with(&base, base.pool(), Profile::Ietf, hasty, hanging).await;
        let problem = call().send(node.addr).await.expect_problem(503, "overloaded");
        assert!(problem["detail"].as_str().unwrap().contains("Nothing was executed"), "{problem}");
        assert_eq!(base.charges().await, [""; 0]);
        assert_eq!(node.state("k").await, None);
        let node = simple(&base, Profile::Ietf).await;
        call().send_until_settled(node.addr).await.expect_first(200, "run 1");
        assert_eq!(base.charges().await, ["k"]);
    }

    /// Somebody who goes on in a task of its own. What it does later must not become part of what was answered.
    async fn a_transaction_kept_beyond_the_answer_is_rolled_back<B: Base>() {
        let base = B::start().await;
        let gate = Gate::new();
        let at_gate = gate.clone();
        let node = Node::new(&base, Profile::Ietf, move |mut work: Work<B>| {
            let gate = at_gate.clone();
            async move {
                let answer = (StatusCode::CREATED, format!("run {}", work.run));
                work.charge().await.unwrap();
                if work.run == 1 {
                    tokio::spawn(async move {
                        gate.pass().await;
                        drop(work);
                    });
                }
                answer
            }
        })
        .await;
        let problem = call().send(node.addr).await.expect_problem(502, "upstream_unreachable");
        assert!(problem["detail"].as_str().unwrap().contains("beyond its answer"), "{problem}");
        assert_eq!(base.charges().await, [""; 0]);
        gate.entered().await;
        call().send(node.addr).await.expect_problem(409, "in_progress");
        gate.open();
        expect_rolled_back!(base, node, call());
    }

    /// Its retry finds the answer.
    async fn a_client_that_hangs_up_does_not_cancel_the_handler<B: Base>() {
        let base = B::start().await;
        let (gate, node) = crate::node::gated(&base, Profile::Ietf).await;
        let connection = call().open(node.addr).await;
        gate.entered().await;
        drop(connection);
        gate.open();
        call().send_until_settled(node.addr).await.expect_replay(200, "run 1");
        assert_eq!(base.charges().await, ["k"]);
    }
}

/// SQLite rolls back by itself when a statement fails badly enough, and takes what follows one by one. A handler that does not mind must
/// not have its answer kept, nor anything else of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_sqlite_has_rolled_back_by_itself_is_not_kept() {
    let base = OnSqlite::start().await;
    let node = Node::new(&base, Profile::Ietf, async |mut work: Work<OnSqlite>| {
        work.charge().await.unwrap();
        if work.run == 1 {
            let bad = "INSERT OR ROLLBACK INTO charge VALUES (NULL)";
            assert!(sqlx::query(bad).execute(&mut *work.tx).await.is_err(), "and all is rolled back");
        }
        (StatusCode::CREATED, format!("run {}", work.run))
    })
    .await;
    call().send(node.addr).await.expect_problem(503, "store_unavailable");
    expect_rolled_back!(base, node, call());
}

/// After a failed statement PostgreSQL takes a COMMIT for a ROLLBACK, and says that all is well. A handler that does not mind must not
/// have its answer kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_statement_that_the_handler_ignores_is_rolled_back() {
    let base = OnPostgres::start().await;
    let node = Node::new(&base, Profile::Ietf, async |mut work: Work<OnPostgres>| {
        work.charge().await.unwrap();
        if work.run == 1 {
            assert!(sqlx::query("SELECT 1/0").execute(&mut *work.tx).await.is_err(), "it fails");
        }
        (StatusCode::CREATED, format!("run {}", work.run))
    })
    .await;
    call().send(node.addr).await.expect_problem(503, "store_unavailable");
    expect_rolled_back!(base, node, call());
}
