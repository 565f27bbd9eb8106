//! SIGTERM: what is in flight is answered or settled, and nothing is lost.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use oncegate_test_servers::{Certificate, wait_until};
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::client::{Connection, within};
use crate::process::Gateway;
use crate::reply::Reply;
use crate::upstream::{Mute, Upstream};
use crate::world::{Place, charge};

const CLIENTS: usize = 32;

/// What clients know.
#[derive(Default)]
struct Board {
    answers: Mutex<BTreeMap<String, Reply>>,
    /// Requests that got no answer: their connection was refused, or closed.
    unanswered: Mutex<Vec<String>>,
}

impl Board {
    fn answered(&self) -> usize {
        self.answers.lock().unwrap().len()
    }

    fn take_unanswered(&self) -> Vec<String> {
        std::mem::take(&mut *self.unanswered.lock().unwrap())
    }

    /// The first answer to a key is kept; every other is a replay of it.
    fn keep(&self, key: &str, mut reply: Reply) {
        assert_eq!(reply.status, 201, "{key}: {reply:?}");
        // Of the connection that it came by.
        reply.headers.retain(|(name, _)| name != "connection");
        let mut answers = self.answers.lock().unwrap();
        if let Some(first) = answers.get(key) {
            assert!(reply.is_replay(), "{key}: {reply:?}");
            assert_eq!(first.in_common(), reply.in_common(), "{key}");
        } else {
            answers.insert(key.to_owned(), reply);
        }
    }
}

/// One key after the other by a kept connection, until the gateway takes no more.
async fn client(address: SocketAddr, name: String, board: Arc<Board>) {
    let mut connection = None;
    for number in 0.. {
        let key = format!("{name}-{number}");
        if let Some(reply) = exchange(&mut connection, address, &key).await {
            assert!(!reply.is_replay(), "{key}: {reply:?}");
            board.keep(&key, reply);
        } else {
            board.unanswered.lock().unwrap().push(key);
            return;
        }
    }
}

/// The reply, by the connection that is there or a new one. `None`: refused, or cut off without one.
async fn exchange(connection: &mut Option<Connection>, address: SocketAddr, key: &str) -> Option<Reply> {
    let mut by = match connection.take() {
        Some(by) => by,
        None => Connection::to(address).await.ok()?,
    };
    by.send(&charge(key)).await.ok()?;
    let reply = by.reply().await.ok()?;
    if reply.header("connection") != Some("close") {
        *connection = Some(by);
    }
    Some(reply)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_under_load_answers_what_it_took_and_leaves_nothing_in_progress() {
    const ROUNDS: usize = 6;
    let (place, upstream) = (Place::sqlite(), Upstream::start().await);
    let board = Arc::new(Board::default());
    let mut cut_off = 0;
    for round in 0..ROUNDS {
        let mut gateway = place.start(&upstream.url(), "");
        assert_eq!((gateway.count("in_progress"), gateway.count("unknown")), (0, 0), "all was settled");
        for key in board.take_unanswered() {
            board.keep(&key, charge(&key).send(gateway.address).await);
        }
        let enough = board.answered() + 10 * CLIENTS;
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            clients.spawn(client(gateway.address, format!("{round}-{number}"), Arc::clone(&board)));
        }
        wait_until("there is some load", || board.answered() >= enough);
        if round % 2 == 0 {
            // Each client's request is at the upstream when the signal comes, and ends after it.
            upstream.shut();
            upstream.wait_for_waiting(CLIENTS);
            let answered = board.answered();
            gateway.signal(Signal::TERM);
            wait_until("it drains", || gateway.readiness().0 == 503);
            assert_eq!(gateway.readiness().1["life"], "draining");
            assert!(Connection::to(gateway.address).await.is_err(), "nobody new is let in");
            upstream.open();
            assert_eq!(gateway.exit_code(), 0, "{}", gateway.said());
            within(clients.join_all()).await;
            assert_eq!(board.answered(), answered + CLIENTS, "each is answered");
        } else {
            assert_eq!(gateway.terminate(), 0, "{}", gateway.said());
            within(clients.join_all()).await;
        }
        assert!(gateway.said().contains("everything was answered or settled"), "{}", gateway.said());
        // What got no answer was not taken: so nothing is in doubt, and nothing was done.
        for key in &*board.unanswered.lock().unwrap() {
            assert_eq!(upstream.acted(key), 0, "{key} was executed and not answered");
            cut_off += 1;
        }
    }
    let gateway = place.start(&upstream.url(), "");
    for key in board.take_unanswered() {
        board.keep(&key, charge(&key).send(gateway.address).await);
    }
    let answers = board.answers.lock().unwrap().clone();
    for key in answers.keys() {
        board.keep(key, charge(key).send(gateway.address).await);
    }
    let effects = upstream.effects();
    assert!(effects.values().all(|times| *times == 1), "{effects:?}");
    assert!(effects.keys().eq(answers.keys()), "every key ran, and no other");
    assert_eq!(gateway.count("completed"), answers.len() as u64);
    println!("{ROUNDS} shutdowns, {} keys, {cut_off} sent to a gateway that took no more", answers.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_of_two_loses_nothing() {
    let (place, upstream) = (Place::postgres(), Upstream::start().await);
    let start = || place.start(&upstream.url(), "");
    let mut gateways = [start(), start()];
    let addresses = Arc::new(Mutex::new([Some(gateways[0].address), Some(gateways[1].address)]));
    let board = Arc::new(Board::default());
    let (stop, stopping) = watch::channel(false);
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(roaming_client(number, Arc::clone(&addresses), Arc::clone(&board), stopping.clone()));
    }
    let more = |count: usize| {
        let enough = board.answered() + count;
        wait_until("the load goes on", || board.answered() >= enough);
    };
    for which in [0, 1, 0] {
        more(10 * CLIENTS);
        assert_eq!(gateways[which].terminate(), 0, "{}", gateways[which].said());
        // As a load balancer would: known to be gone only when it is gone.
        addresses.lock().unwrap()[which] = None;
        more(10 * CLIENTS);
        gateways[which] = start();
        addresses.lock().unwrap()[which] = Some(gateways[which].address);
    }
    more(10 * CLIENTS);
    stop.send_replace(true);
    let retries: usize = within(clients.join_all()).await.into_iter().sum();

    let answers = board.answers.lock().unwrap().clone();
    for (number, key) in answers.keys().enumerate() {
        board.keep(key, charge(key).send(gateways[number % 2].address).await);
    }
    let effects = upstream.effects();
    assert!(effects.values().all(|times| *times == 1), "{effects:?}");
    assert!(effects.keys().eq(answers.keys()), "every key ran, and no other");
    let states = ["pending", "in_progress", "failed_retryable", "unknown", "completed"];
    let counts = states.map(|state| gateways[0].count(state));
    assert_eq!(counts, [0, 0, 0, 0, answers.len() as u64], "{states:?}");
    println!("3 restarts, {} keys, {retries} tried again at the other", answers.len());
}

/// Goes to the other gateway with the same key if this one is gone; says how often it had to.
async fn roaming_client(
    name: usize,
    addresses: Arc<Mutex<[Option<SocketAddr>; 2]>>,
    board: Arc<Board>,
    stopping: watch::Receiver<bool>,
) -> usize {
    let mut retries = 0;
    let mut connections = [None, None];
    for number in 0.. {
        if *stopping.borrow() {
            break;
        }
        let key = format!("{name}-{number}");
        let mut at = (name + number) % 2;
        loop {
            let address = addresses.lock().unwrap()[at];
            let reply = match address {
                Some(address) => exchange(&mut connections[at], address, &key).await,
                None => None,
            };
            match reply {
                None => {
                    connections[at] = None;
                    at = 1 - at;
                    retries += 1;
                    tokio::task::yield_now().await;
                }
                // The other has it, and will have its answer.
                Some(reply) if reply.status == 409 => {
                    reply.expect_problem(409, "in_progress");
                }
                Some(reply) => {
                    board.keep(&key, reply);
                    break;
                }
            }
        }
    }
    retries
}

/// A gateway that is told to end while a request is at the upstream, which does not end.
async fn draining(place: &Place, upstream: &Upstream, drain: &str, signal: Signal) -> (Gateway, Connection) {
    upstream.shut();
    let gateway = place.start(&upstream.url(), &format!("[shutdown]\ndrain = \"{drain}\"\n"));
    let client = charge("key-1").open(gateway.address).await;
    upstream.wait_for_waiting(1);
    assert_eq!(gateway.readiness().0, 200);
    gateway.signal(signal);
    (gateway, client)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_outlasts_the_drain_is_recorded_as_unknown() {
    let (place, upstream) = (Place::sqlite(), Upstream::start().await);
    let (mut gateway, mut client) = draining(&place, &upstream, "1s", Signal::TERM).await;
    client.reply().await.unwrap().expect_problem(504, "outcome_unknown");
    assert_eq!(gateway.exit_code(), 0, "{}", gateway.said());
    assert!(gateway.said().contains(OUTLASTED), "{}", gateway.said());
    is_unknown(&place, &upstream).await;
}

/// A gateway whose drain was 1 s gave the store a quarter of that; a store that took longer left the key in progress, for the rest of
/// its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_drain_leaves_time_to_write_it_down() {
    let (place, upstream) = (Place::sqlite(), Upstream::start().await);
    upstream.shut();
    let mut gateway = place.start(&upstream.url(), "[shutdown]\ndrain = \"10ms\"\n");
    let mut client = charge("key-1").open(gateway.address).await;
    upstream.wait_for_waiting(1);
    let lock = place.lock();
    gateway.signal(Signal::TERM);
    gateway.hear(OUTLASTED);
    drop(lock);
    client.reply().await.unwrap().expect_problem(504, "outcome_unknown");
    assert_eq!(gateway.exit_code(), 0, "{}", gateway.said());
    is_unknown(&place, &upstream).await;
}

const OUTLASTED: &str = "requests are still in flight at the end of the drain";

async fn is_unknown(place: &Place, upstream: &Upstream) {
    let gateway = place.start(&upstream.url(), "");
    assert_eq!((gateway.count("in_progress"), gateway.count("unknown")), (0, 1));
    charge("key-1").send(gateway.address).await.expect_problem(409, "outcome_unknown");
    assert_eq!(upstream.requests(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigint_drains_too_and_readiness_says_so() {
    let (place, upstream) = (Place::sqlite(), Upstream::start().await);
    let (mut gateway, mut client) = draining(&place, &upstream, "1h", Signal::INT).await;
    wait_until("it drains", || gateway.readiness().0 == 503);
    let (_, page) = gateway.readiness();
    assert_eq!(
        (&page["life"], &page["ready"], &page["store"]),
        (&"draining".into(), &false.into(), &"ok".into())
    );
    assert_eq!(gateway.state("key-1"), "in_progress", "operators still see records");
    assert_eq!(gateway.look("/healthz").0, 200, "alive");
    assert!(!gateway.has_ended());
    upstream.open();
    let reply = client.reply().await.unwrap();
    assert_eq!((reply.status, reply.header("connection")), (201, Some("close")), "{reply:?}");
    assert_eq!(gateway.exit_code(), 0, "{}", gateway.said());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn told_twice_it_ends_at_once() {
    for (first, second) in
        [(Signal::TERM, Signal::TERM), (Signal::INT, Signal::TERM), (Signal::TERM, Signal::INT)]
    {
        let (place, upstream) = (Place::sqlite(), Upstream::start().await);
        let (mut gateway, client) = draining(&place, &upstream, "1h", first).await;
        gateway.hear("shutting down");
        gateway.signal(second);
        assert_eq!(gateway.exit_code(), 1, "{}", gateway.said());
        assert!(gateway.said().contains("told twice to end"), "{}", gateway.said());
        drop(client);
        let gateway = place.start(&upstream.url(), "");
        // Until its lease lapses; or there was still time to write it down.
        let state = gateway.state("key-1");
        assert!(["in_progress", "unknown"].contains(&&*state), "{state}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_hung_up_is_waited_for_too() {
    let (place, upstream) = (Place::sqlite(), Upstream::start().await);
    upstream.shut();
    let mut gateway = place.start(&upstream.url(), "");
    let client = charge("key-1").open(gateway.address).await;
    upstream.wait_for_waiting(1);
    drop(client);
    gateway.signal(Signal::TERM);
    wait_until("it drains", || gateway.readiness().0 == 503);
    assert!(!gateway.has_ended());
    upstream.open();
    assert_eq!(gateway.exit_code(), 0, "{}", gateway.said());
    let gateway = place.start(&upstream.url(), "");
    assert_eq!(gateway.state("key-1"), "completed");
    assert!(charge("key-1").send(gateway.address).await.is_replay());
    assert_eq!(upstream.requests(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_was_not_sent_by_the_end_of_the_drain_frees_its_key() {
    let place = Place::sqlite();
    let mute = Mute::start();
    let mut gateway = place.start(&mute.url(), "connect_timeout = \"1h\"\n[shutdown]\ndrain = \"10ms\"\n");
    let mut client = charge("key-1").open(gateway.address).await;
    let _connection = mute.accept();
    gateway.signal(Signal::TERM);
    client.reply().await.unwrap().expect_problem(502, "upstream_unreachable");
    assert_eq!(gateway.exit_code(), 0, "{}", gateway.said());

    let upstream = Upstream::start().await;
    let gateway = place.start(&upstream.url(), "");
    assert_eq!(gateway.state("key-1"), "failed_retryable");
    assert_eq!(charge("key-1").send(gateway.address).await.status, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_waits_for_its_turn_at_the_end_of_the_drain_frees_its_key() {
    let (place, upstream) = (Place::sqlite(), Upstream::start().await);
    upstream.shut();
    let more =
        "[limits]\nexecutions_max = 1\nqueue_max = 1\nqueue_timeout = \"1h\"\n[shutdown]\ndrain = \"10ms\"\n";
    let mut gateway = place.start(&upstream.url(), more);
    let mut first = charge("key-1").open(gateway.address).await;
    upstream.wait_for_waiting(1);
    let mut second = charge("key-2").open(gateway.address).await;
    wait_until("the second waits, and there is no room for a third", || {
        gateway.readiness().1["load"] == "shedding"
    });
    assert_eq!(gateway.state("key-2"), "in_progress");
    gateway.signal(Signal::TERM);
    first.reply().await.unwrap().expect_problem(504, "outcome_unknown");
    // Its turn may come in the instant in which the first is given up; it is not sent then either.
    let reply = second.reply().await.unwrap();
    match reply.code().as_deref() {
        Some("overloaded") => reply.expect_problem(503, "overloaded"),
        _ => reply.expect_problem(502, "upstream_unreachable"),
    };
    assert_eq!(gateway.exit_code(), 0, "{}", gateway.said());

    upstream.open();
    let gateway = place.start(&upstream.url(), "");
    assert_eq!([gateway.state("key-1"), gateway.state("key-2")], ["unknown", "failed_retryable"]);
    assert_eq!(charge("key-2").send(gateway.address).await.status, 201);
    assert_eq!((upstream.acted("key-1"), upstream.acted("key-2")), (1, 1));
}

/// A connection whose TLS handshake never began held the shutdown up for the whole drain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_have_asked_for_nothing_are_not_waited_for() {
    let place = Place::sqlite();
    let files = Certificate::new(place.path());
    let tls = format!("tls_certificate = {:?}\ntls_key = {:?}\n", files.certificate, files.key);
    for tls in ["", &tls] {
        let file = place.configure("http://127.0.0.1:1", "[shutdown]\ndrain = \"1h\"\n");
        let text = std::fs::read_to_string(&file).unwrap();
        let listen = format!("[listen]\nheader_timeout = \"1h\"\n{tls}");
        std::fs::write(&file, text.replacen("[listen]\n", &listen, 1)).unwrap();
        let mut gateway = Gateway::start(&file);
        let open_files = || std::fs::read_dir(format!("/proc/{}/fd", gateway.pid())).unwrap().count();
        let before = open_files();
        let _silent = std::net::TcpStream::connect(gateway.address).unwrap();
        wait_until("it has accepted", || open_files() > before);
        assert_eq!(gateway.terminate(), 0, "{}", gateway.said());
        assert!(!gateway.said().contains(OUTLASTED), "{}", gateway.said());
    }
}
