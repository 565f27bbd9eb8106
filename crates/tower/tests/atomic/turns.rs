//! SQLite has one writer: handlers' transactions and the engine's own writes take turns.

use std::time::Duration;

use axum::extract::Request;
use oncegate_core::policy::Profile;
use oncegate_tower::{Idempotency, Routes, scope};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::base::{Base as _, OnSqlite};
use crate::client::{Call, Connection, within};
use crate::node::{Node, gated, simple};

/// The ordinary layer over the node's own engine.
async fn ordinary(node: &Node<OnSqlite>) -> std::net::SocketAddr {
    let routes = Routes::none().otherwise(Profile::Ietf).unwrap();
    let layer = Idempotency::new(node.engine.clone(), scope::header("x-tenant"), routes);
    let app = axum::Router::new().fallback(|_: Request| std::future::ready("done")).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    addr
}

/// Nobody is refused, although handlers do not wait at all where another writes (`SQLITE_BUSY`); and nobody starves: all of them finish.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_and_ordinary_keys_take_turns() {
    let base = OnSqlite::patient_for(Duration::ZERO).await;
    let node = simple(&base, Profile::Ietf).await;
    let ordinary = ordinary(&node).await;
    let mut clients = JoinSet::new();
    for client in 0..8 {
        let addr = if client < 4 { node.addr } else { ordinary };
        clients.spawn(async move {
            let mut connection = Connection::to(addr).await.unwrap();
            for n in 0..100 {
                connection.send(&Call::post("/charges").key(&format!("{client}-{n:03}"))).await.unwrap();
                let reply = connection.reply().await.unwrap();
                assert_eq!(reply.status, 200, "client {client}, request {n}: {reply:?}");
            }
        });
    }
    while let Some(client) = within(clients.join_next()).await {
        client.unwrap();
    }
    assert_eq!(base.charges().await.len(), 400);
}

/// The engine's writes wait for their turn without blocking the runtime: what holds it may need the same threads to go on.
#[tokio::test(flavor = "current_thread")]
async fn an_ordinary_write_that_waits_for_its_turn_stops_nobody() {
    let base = OnSqlite::start().await;
    let (gate, node) = gated(&base, Profile::Ietf).await;
    let ordinary = ordinary(&node).await;
    let mut first = Call::post("/charges").key("atomic").open(node.addr).await;
    gate.entered().await;
    let mut second = Call::post("/charges").key("ordinary").open(ordinary).await;
    // Answered from elsewhere, by the only thread there is: the request before it was taken up, and waits.
    let get = Call::anonymous("GET", "/").send(ordinary).await;
    assert_eq!(get.status, 200);
    assert!(second.is_silent());
    gate.open();
    first.reply().await.unwrap().expect_first(200, "run 1");
    second.reply().await.unwrap().expect_first(200, "done");
}
