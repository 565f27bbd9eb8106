//! The gateway is killed with `kill -9` at each step of a request's life, and started again on the same file.
//!
//! The moments are made without any hook in the product: by an upstream that never finishes its TLS handshake, one that works for as
//! long as the test likes, a lock on the SQLite file, and a client that does not read.

use std::io::Read as _;
use std::net::TcpStream;

use oncegate_test_servers::wait_until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

use crate::client::within;
use crate::process::Gateway;
use crate::reply::Reply;
use crate::upstream::{Manners, Mute, Upstream};
use crate::world::{CHARGE, Place, charge};

/// So short that it lapses while a test waits.
const RECONCILE: &str = "[defaults]\nlease = \"1s\"\n";
const RESTART: &str = "[defaults]\nlease = \"1s\"\ncrash = \"restart\"\n";

/// All that was sent by a connection whose other end is gone.
fn all_of(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

/// A record whose holder was killed: written down as in progress still, and lapsed after its lease; nobody knows what became of it.
async fn nobody_knows(gateway: &Gateway, key: &str) {
    assert_eq!(gateway.count("in_progress"), 1, "as it was when its holder died");
    let reply = charge(key).send_until_settled(gateway.address).await;
    reply.expect_problem(409, "outcome_unknown");
    assert_eq!(gateway.state(key), "unknown");
    charge(key).send(gateway.address).await.expect_problem(409, "outcome_unknown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_before_forwarding_nothing_was_sent_and_nobody_guesses() {
    let place = Place::sqlite();
    let mute = Mute::start();
    let waiting = format!("connect_timeout = \"1h\"\n{RECONCILE}");
    let gateway = place.start(&mute.url(), &waiting);
    let client = charge("key-1").open(gateway.address).await;
    let connection = mute.accept();
    assert_eq!(gateway.state("key-1"), "in_progress", "reserved before it is forwarded");
    gateway.kill_9();
    drop(client);
    let sent = all_of(connection);
    assert_eq!(sent[0], 0x16, "a TLS handshake");
    assert!(!sent.windows(8).any(|words| words == b"/charges"), "and no request");

    let upstream = Upstream::start().await;
    let gateway = place.start(&upstream.url(), RECONCILE);
    nobody_knows(&gateway, "key-1").await;
    assert_eq!(upstream.requests(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_before_forwarding_a_route_that_may_restart_runs_once() {
    let place = Place::sqlite();
    let mute = Mute::start();
    let gateway = place.start(&mute.url(), &format!("connect_timeout = \"1h\"\n{RESTART}"));
    let client = charge("key-1").open(gateway.address).await;
    let connection = mute.accept();
    assert_eq!(gateway.state("key-1"), "in_progress");
    gateway.kill_9();
    drop((client, connection));

    let upstream = Upstream::with(Manners { dedupes: true, ..Manners::default() }).await;
    let gateway = place.start(&upstream.url(), RESTART);
    assert_eq!(gateway.count("in_progress"), 1, "as it was when its holder died");
    let first = charge("key-1").send_until_settled(gateway.address).await;
    assert_eq!((first.status, first.is_replay()), (201, false), "{first:?}");
    replayed(&gateway, "key-1", &first).await;
    assert_eq!((upstream.acted("key-1"), upstream.requests()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_while_the_upstream_works_it_is_not_asked_again() {
    let (place, upstream) = (Place::sqlite(), Upstream::start().await);
    kill_at_work(&place, &upstream, RECONCILE).await;
    let gateway = place.start(&upstream.url(), RECONCILE);
    nobody_knows(&gateway, "key-1").await;
    assert_eq!((upstream.acted("key-1"), upstream.requests()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_while_an_upstream_that_dedupes_works_it_is_asked_again_and_acts_once() {
    let place = Place::sqlite();
    let upstream = Upstream::with(Manners { dedupes: true, ..Manners::default() }).await;
    kill_at_work(&place, &upstream, RESTART).await;
    let gateway = place.start(&upstream.url(), RESTART);
    assert_eq!(gateway.count("in_progress"), 1, "as it was when its holder died");
    let first = charge("key-1").send_until_settled(gateway.address).await;
    assert_eq!((first.status, first.is_replay()), (201, false), "{first:?}");
    replayed(&gateway, "key-1", &first).await;
    assert_eq!((upstream.acted("key-1"), upstream.requests()), (1, 2));
}

async fn kill_at_work(place: &Place, upstream: &Upstream, more: &str) {
    upstream.shut();
    let gateway = place.start(&upstream.url(), more);
    let client = charge("key-1").open(gateway.address).await;
    upstream.wait_for_waiting(1);
    assert_eq!(gateway.state("key-1"), "in_progress");
    gateway.kill_9();
    drop(client);
    upstream.open();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_after_the_answer_and_before_settling_it_is_not_asked_again() {
    let (place, upstream) = (Place::sqlite(), Upstream::start().await);
    upstream.shut();
    let gateway = place.start(&upstream.url(), RECONCILE);
    let mut client = charge("key-1").open(gateway.address).await;
    upstream.wait_for_waiting(1);
    let lock = place.lock();
    upstream.open();
    // Counted when an attempt has ended, and before it is settled.
    wait_until("the answer has been read", || {
        gateway.metric("api_idempotency_execute_duration_seconds_count") >= 1.0
    });
    assert_eq!(gateway.count("in_progress"), 1);
    assert!(client.is_silent(), "no answer leaves before it is settled");
    gateway.kill_9();
    drop((client, lock));

    let gateway = place.start(&upstream.url(), RECONCILE);
    nobody_knows(&gateway, "key-1").await;
    assert_eq!((upstream.acted("key-1"), upstream.requests()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_after_settling_and_before_answering_the_answer_is_replayed() {
    // More than the kernel takes off the gateway's hands: the rest of it must still be there when it is killed.
    const ANSWER: usize = 12 << 20;
    let more = format!("{RECONCILE}answer_bytes_max = \"16 MiB\"\n");
    let place = Place::sqlite();
    let upstream = Upstream::with(Manners { answer_bytes: ANSWER, ..Manners::default() }).await;
    let gateway = place.start(&upstream.url(), &more);
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut client = within(socket.connect(gateway.address)).await.unwrap();
    client.write_all(&[&*charge("key-1").head(), CHARGE.as_bytes()].concat()).await.unwrap();
    gateway.wait_for_state("key-1", "completed");
    gateway.kill_9();
    let mut got = Vec::new();
    let ended = within(client.read_to_end(&mut got)).await;
    assert!(got.len() < ANSWER, "the answer was under way: {ended:?}");

    let gateway = place.start(&upstream.url(), &more);
    let reply = charge("key-1").send(gateway.address).await;
    assert_eq!((reply.status, reply.body.len(), reply.is_replay()), (201, ANSWER, true), "{reply:?}");
    let head_end = got.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head has come") + 4;
    assert!(reply.body.starts_with(&got[head_end..]), "byte for byte what the first client has seen of it");
    replayed(&gateway, "key-1", &reply).await;
    assert_eq!((upstream.acted("key-1"), upstream.requests()), (1, 1));
}

async fn replayed(gateway: &Gateway, key: &str, first: &Reply) {
    let again = charge(key).send(gateway.address).await;
    assert!(again.is_replay(), "{again:?}");
    assert_eq!(again.in_common(), first.in_common());
    assert_eq!(gateway.state(key), "completed");
}
