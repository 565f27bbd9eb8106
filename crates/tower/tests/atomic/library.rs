//! Handlers with another database library: tokio-postgres.

use std::sync::{Arc, Mutex};

use axum::http::StatusCode;
use oncegate_core::policy::Profile;
use oncegate_test_servers::{Cut, TcpProxy};

use crate::base::{Base as _, OnPostgres};
use crate::client::Call;
use crate::cut::expect_one_to_one;
use crate::node::{LONG, Node, Work};
use crate::tokio_postgres_client::Clients;

async fn node(base: &OnPostgres, url: &str) -> Node<OnPostgres> {
    let clients = Clients { url: url.to_owned(), idle: Arc::new(Mutex::new(Vec::new())) };
    let text = format!("INSERT INTO {}.charge (key) VALUES ($1)", base.place.schema);
    Node::with(base, clients, Profile::Ietf, LONG, move |work: Work<OnPostgres, Clients>| {
        let text = text.clone();
        async move {
            work.tx.execute(&text, &[&work.key()]).await.unwrap();
            let status = if work.key() == "bad" { StatusCode::BAD_GATEWAY } else { StatusCode::OK };
            (status, format!("run {}", work.run))
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokio_postgres_joins_too() {
    let base = OnPostgres::start().await;
    let node = node(&base, &base.place.url).await;
    let call = Call::post("/charges").key("k");
    call.send(node.addr).await.expect_first(200, "run 1");
    call.send(node.addr).await.expect_replay(200, "run 1");
    Call::post("/charges").key("bad").send(node.addr).await.expect_first(502, "run 2");
    assert_eq!(expect_one_to_one(&base).await, ["k"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokio_postgres_finds_a_commit_whose_acknowledgement_was_lost() {
    let base = OnPostgres::start().await;
    let proxy = TcpProxy::start(&base.place.url);
    let node = node(&base, &proxy.url_of(&base.place.url)).await;
    let call = Call::post("/charges").key("k");
    proxy.cut_at(b"COMMIT", 1, Cut::AfterSending);
    call.send(node.addr).await.expect_first(200, "run 1");
    proxy.fired();
    call.send(node.addr).await.expect_replay(200, "run 1");
    assert_eq!(expect_one_to_one(&base).await, ["k"]);
}
