//! Kept connections: used again while they may be, and never the reason for an error or for a second send.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;

use crate::client::{Call, Connection, within};
use crate::gateway::{Stage, in_front_of, record, start};
use crate::http2::Both;
use crate::tls::Certificates;
use crate::upstream::{Act, Seen, Upstream, answer, ok};
use crate::wire;

#[tokio::test]
async fn a_connection_is_used_again() {
    let stage = Stage::numbered("").await;
    for run in 1..=20 {
        stage.send(&Call::pay(&format!("key-{run}"))).await.expect_first(200, &format!("run {run}"));
    }
    assert_eq!(stage.upstream.connections(), 1);
}

#[tokio::test]
async fn unless_somebody_says_otherwise() {
    let rows = [
        ("connection: close", "", 5),
        // It may be closed at any moment from now on.
        ("keep-alive: timeout=0", "", 5),
        ("keep-alive: max=7, timeout=60", "", 1),
        ("x-nothing: 1", "[upstream]\nidle_max = 0", 5),
        ("x-nothing: 1", "[upstream]\nidle_timeout = \"0s\"", 5),
    ];
    for (header, toml, connections) in rows {
        let (name, value) = header.split_once(": ").unwrap();
        let bytes = answer(200, &[(name, value)], "answered");
        let upstream = Upstream::start(move |_| std::future::ready(Act::Answer(bytes.clone()))).await;
        let stage = Stage::new(upstream, toml).await;
        for run in 1..=5 {
            stage.send(&Call::pay(&format!("key-{run}"))).await.expect_first(200, "answered");
        }
        assert_eq!((stage.runs(), stage.upstream.connections()), (5, connections), "{header} {toml}");
    }
}

/// Every connection is closed right after its answer, without a word about it: the next request finds it dead, gets itself back
/// unsent, and goes by another.
#[tokio::test]
async fn connections_that_are_closed_when_they_are_idle() {
    const REQUESTS: usize = 2_000;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway = in_front_of(listener.local_addr().unwrap(), "").await;
    let (closed, mut has_closed) = watch::channel(0);
    let keys = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&keys);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = BufReader::new(stream);
            let Ok((_, headers)) = wire::read_head(&mut stream).await else { continue };
            wire::read_body(&mut stream, &headers).await.unwrap();
            seen.lock().await.push(key_of(&headers));
            stream.write_all(&answer(200, &[], "answered")).await.unwrap();
            drop(stream);
            closed.send_modify(|count| *count += 1);
        }
    });
    let mut client = Connection::to(gateway.address()).await;
    for request in 1..=REQUESTS {
        client.ask(&Call::pay(&format!("key-{request}"))).await.expect_first(200, "answered");
        // The end of the connection is in the gateway's socket by then, seen or not.
        within(has_closed.wait_for(|count| *count == request)).await.unwrap();
    }
    let expected: Vec<String> = (1..=REQUESTS).map(|request| format!("key-{request}")).collect();
    assert_eq!(*keys.lock().await, expected, "each once, in order");
}

/// Connections end at any moment, also while a request is on its way: that one's outcome is unknown, and it is never sent again.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_closed_at_any_moment() {
    const CLIENTS: usize = 8;
    const REQUESTS: usize = 250;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let toml = "[upstream]\ntimeout = \"20s\"";
    let gateway = in_front_of(listener.local_addr().unwrap(), toml).await;
    let runs = Arc::new(Mutex::new(HashMap::<String, usize>::new()));
    let counted = Arc::clone(&runs);
    tokio::spawn(async move {
        let mut seed = 42_u32;
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            tokio::spawn(close_at_any_moment(BufReader::new(stream), Arc::clone(&counted), seed));
        }
    });
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let addr = gateway.address();
        clients.spawn(async move {
            let mut connection = Connection::to(addr).await;
            let mut told = Vec::new();
            for request in 0..REQUESTS {
                let key = format!("key-{client}-{request}");
                let reply = connection.ask(&Call::pay(&key)).await;
                if reply.status != 200 {
                    reply.expect_problem_of_operation(504, "outcome_unknown");
                }
                told.push((key, reply.status));
            }
            told
        });
    }
    let told: Vec<(String, u16)> = clients.join_all().await.into_iter().flatten().collect();
    let runs = runs.lock().await;
    for (key, status) in &told {
        let runs = runs.get(key).copied().unwrap_or_default();
        if *status == 200 {
            assert_eq!(runs, 1, "{key}");
        } else {
            assert!(runs <= 1, "{key} ran {runs} times");
            let record = record(&gateway, key).await.unwrap();
            assert_eq!(record["state"], "unknown", "{key}");
            // Every connection is answered by, or ends: nobody has to wait for a timeout.
            let error = record["last_error"]["detail"].as_str().unwrap();
            assert!(!error.contains("in time"), "{key} ran {runs} times: {error}");
        }
    }
    assert_eq!(told.len(), CLIENTS * REQUESTS);
    let answered = told.iter().filter(|(_, status)| *status == 200).count();
    assert!(answered > told.len() / 2, "most get through: {answered} of {}", told.len());
}

async fn close_at_any_moment(
    mut stream: BufReader<tokio::net::TcpStream>,
    runs: Arc<Mutex<HashMap<String, usize>>>,
    mut seed: u32,
) {
    loop {
        let Ok((_, headers)) = wire::read_head(&mut stream).await else { return };
        wire::read_body(&mut stream, &headers).await.unwrap();
        *runs.lock().await.entry(key_of(&headers)).or_default() += 1;
        if stream.write_all(&answer(200, &[], "answered")).await.is_err() {
            return;
        }
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Goes on, closes at once, or gives the others a moment first.
        match seed >> 30 {
            0 => {}
            1 => return,
            more => {
                for _ in 0..more * (seed >> 24 & 15) {
                    tokio::task::yield_now().await;
                }
                return;
            }
        }
    }
}

fn key_of(headers: &wire::Headers) -> String {
    let (_, key) = headers.iter().find(|(name, _)| name == "idempotency-key").expect("a key");
    String::from_utf8(key.clone()).unwrap()
}

/// As many connections as are needed at once, and no more afterwards.
#[tokio::test]
async fn requests_at_the_same_time() {
    let (gate, upstream) = Upstream::gated().await;
    let stage = Stage::new(upstream, "").await;
    for _ in 0..2 {
        let mut clients = Vec::new();
        for client in 0..10 {
            let key = format!("key-{client}-{}", stage.runs());
            clients.push(Call::pay(&key).open(stage.addr()).await);
            gate.entered().await;
        }
        (0..10).for_each(|_| gate.open());
        for mut client in clients {
            assert_eq!(client.reply().await.status, 200);
        }
    }
    assert_eq!((stage.runs(), stage.upstream.connections()), (20, 10));
}

/// An answer that nobody read to its end takes its connection with it; the next request does not get the rest.
#[tokio::test]
async fn a_client_that_leaves_in_the_answer() {
    let (gate, upstream) = {
        let gate = crate::upstream::Gate::new();
        let at_gate = gate.clone();
        let upstream = Upstream::start(move |seen: Seen| {
            let gate = at_gate.clone();
            async move {
                if seen.number > 1 {
                    gate.pass().await;
                    return ok("whole");
                }
                // Half of it, for ever.
                Act::Answer([&b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n"[..], &[b'x'; 50]].concat())
            }
        });
        (gate, upstream.await)
    };
    let stage = Stage::new(upstream, "").await;
    let mut client = Call::get("/").open(stage.addr()).await;
    assert_eq!(client.reply_head().await.0, 200);
    drop(client);
    let mut second = Call::get("/").open(stage.addr()).await;
    gate.entered().await;
    gate.open();
    second.reply().await.expect_first(200, "whole");
    assert_eq!(stage.upstream.last().connection, 2);
}

/// One HTTP/2 connection carries everything, and another takes its place when it ends.
#[tokio::test]
async fn http_2_shares_one_connection() {
    let upstream = Both::start(None).await;
    let gateway = start(&format!("http://{}", upstream.addr), "[upstream]\nhttp = \"2\"").await;
    let mut calls = JoinSet::new();
    for request in 0..50 {
        let addr = gateway.address();
        calls.spawn(async move { Call::pay(&format!("key-{request}")).send(addr).await.status });
    }
    assert!(calls.join_all().await.iter().all(|status| *status == 200));
    assert_eq!((upstream.runs(), upstream.connections()), (50, 1));
    upstream.hang_up().await;
    Call::pay("after").send(gateway.address()).await.expect_first(200, "run 51");
    assert_eq!(upstream.connections(), 1, "another");
}

/// Requests that wait for a connection that somebody else is making do not each try in turn, when it does not come: the last of them
/// would be told after as many timeouts.
#[tokio::test]
async fn http_2_does_not_queue_for_a_connection_that_does_not_come() {
    const REQUESTS: usize = 20;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let (accepted, tried) = watch::channel(0);
    tokio::spawn(async move {
        let mut silent = Vec::new();
        loop {
            silent.push(listener.accept().await.unwrap());
            accepted.send_modify(|count| *count += 1);
        }
    });
    let certificates = Certificates::new();
    let toml = format!("[upstream]\nhttp = \"2\"\nconnect_timeout = \"200ms\"\n{}", certificates.trust());
    let gateway = start(&url, &toml).await;
    let mut calls = JoinSet::new();
    for request in 0..REQUESTS {
        let addr = gateway.address();
        calls.spawn(async move { Call::pay(&format!("key-{request}")).send(addr).await });
    }
    for reply in calls.join_all().await {
        reply.expect_problem(502, "upstream_unreachable");
    }
    assert!(*tried.borrow() < REQUESTS, "{} of {REQUESTS}", *tried.borrow());
}

/// The connection ends after a request was given to it and before it has sent a byte: it gives the request back, which goes by another.
///
/// The gateway has one thread here, which is held while first the request and then the end of the connection come in.
#[tokio::test]
async fn a_request_that_is_given_back_goes_by_another_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let held = Held::start(listener.local_addr().unwrap()).await;
    let mut client = Connection::to(held.addr).await;
    client.send(&Call::get("/first")).await;
    let mut first = BufReader::new(within(listener.accept()).await.unwrap().0);
    wire::read_head(&mut first).await.unwrap();
    first.write_all(&answer(200, &[], "first")).await.unwrap();
    client.reply().await.expect_first(200, "first");

    let let_go = held.hold().await;
    client.send(&Call::get("/second")).await;
    drop(first);
    let_go.send(()).unwrap();
    let mut second = BufReader::new(within(listener.accept()).await.unwrap().0);
    let (line, _) = within(wire::read_head(&mut second)).await.unwrap();
    assert_eq!(line, "GET /second HTTP/1.1");
    second.write_all(&answer(200, &[], "second")).await.unwrap();
    client.reply().await.expect_first(200, "second");
}

/// A gateway with a thread of its own, which can be held.
struct Held {
    addr: std::net::SocketAddr,
    runtime: tokio::runtime::Handle,
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl Held {
    async fn start(upstream: std::net::SocketAddr) -> Self {
        let (started, has_started) = tokio::sync::oneshot::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let gateway = in_front_of(upstream, "").await;
                started.send((gateway.address(), tokio::runtime::Handle::current())).unwrap();
                let _ = stopped.await;
            });
        });
        let (addr, runtime) = within(has_started).await.unwrap();
        Self { addr, runtime, _stop: stop }
    }

    /// Its thread does nothing until it is told to go on.
    async fn hold(&self) -> std::sync::mpsc::Sender<()> {
        let (let_go, told) = std::sync::mpsc::channel();
        let (holding, holds) = tokio::sync::oneshot::channel();
        self.runtime.spawn(async move {
            holding.send(()).unwrap();
            let _ = told.recv();
        });
        within(holds).await.unwrap();
        let_go
    }
}
