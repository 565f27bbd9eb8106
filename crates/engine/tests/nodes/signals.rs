//! What one node records or forgets, another hears of.
//!
//! Where a test says "soon", nodes look by themselves only after a minute, and keep what they have for an hour: what comes
//! within ten seconds came by a signal.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use oncegate_test_servers::{PgBouncer, Postgres, TcpProxy, shared};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::{AsyncMessage, NoTls};

use crate::actor::Actor;
use crate::node::{URL, WAIT_POLL_MS};
use crate::schema::{Schema, own_schema};

const SOON: Duration = Duration::from_secs(10);
const A_MINUTE: &str = "60000";
const ROUNDS: usize = 20;

fn node(url: &str, wait_poll_ms: &str) -> Actor {
    let node = Actor::start("node", &[(URL, url), (WAIT_POLL_MS, wait_poll_ms)]);
    let _wall = node.hear_word("ready");
    node
}

/// One holds, the other waits, the first completes; how long the other waited from then on.
fn wait_for(holder: &mut Actor, waiter: &mut Actor, key: &str) -> Duration {
    assert!(holder.ask(&format!("hold {key}")).starts_with("execute"));
    assert_eq!(waiter.ask(&format!("wait {key}")), "waiting");
    assert_eq!(holder.ask(&format!("complete {key} paid-{key}")), "done");
    let completed = Instant::now();
    assert_eq!(waiter.hear(), format!("replay paid-{key}"));
    completed.elapsed()
}

pub(crate) fn wake() {
    let schema = own_schema(&shared::postgres_url());
    let (mut a, mut b) = (node(&schema.url, A_MINUTE), node(&schema.url, A_MINUTE));
    assert_eq!(b.ask("signals"), "some");
    let mut worst = Duration::ZERO;
    for round in 0..ROUNDS {
        worst = worst.max(wait_for(&mut a, &mut b, &format!("there-{round}")));
        worst = worst.max(wait_for(&mut b, &mut a, &format!("back-{round}")));
    }
    println!("{} answers woke a waiter on the other node, the slowest after {worst:?}", 2 * ROUNDS);
    assert!(worst < SOON, "{worst:?}");
}

pub(crate) fn pooled() {
    let server = shared::postgres_url();
    let bouncer = PgBouncer::start(&server, &[]);
    let schema = own_schema(&bouncer.url());
    let (mut a, mut b) = (node(&schema.url, "50"), node(&schema.url, "50"));
    assert_eq!((a.ask("signals"), b.ask("signals")), ("none".to_owned(), "none".to_owned()));
    let worst = (0..ROUNDS).map(|round| wait_for(&mut a, &mut b, &format!("k-{round}"))).max().unwrap();
    println!(
        "{ROUNDS} answers were found by looking every 50 ms through a pooler, the slowest after {worst:?}"
    );
    assert!(worst < SOON, "{worst:?}");
}

/// The bytes that a node's cache holds, and the writes it has sent to the store.
fn stats(node: &mut Actor) -> (u64, u64) {
    let said = node.ask("stats");
    let (writes, bytes) = said.split_once(' ').unwrap();
    (bytes.parse().unwrap(), writes.parse().unwrap())
}

/// Completed on `a`, replayed by `b` from its own cache.
fn cached(a: &mut Actor, b: &mut Actor, key: &str) {
    assert!(a.ask(&format!("arrive {key}")).starts_with("execute"));
    assert_eq!(a.ask(&format!("complete {key} paid")), "done");
    assert_eq!(b.ask(&format!("arrive {key}")), "replay paid");
    let (bytes, writes) = stats(b);
    assert!(bytes > 0, "nothing is cached");
    for _ in 0..3 {
        assert_eq!(b.ask(&format!("arrive {key}")), "replay paid");
    }
    assert_eq!(stats(b).1, writes, "replayed without asking the store");
}

/// Asks until it is no longer replayed; how long that took.
fn until_gone(node: &mut Actor, key: &str) -> Duration {
    let started = Instant::now();
    loop {
        match node.ask(&format!("arrive {key}")).as_str() {
            "replay paid" => assert!(started.elapsed() < SOON, "still replayed after {SOON:?}"),
            "gone" => return started.elapsed(),
            other => panic!("{other}"),
        }
    }
}

pub(crate) fn forget() {
    let schema = own_schema(&shared::postgres_url());
    let (mut a, mut b) = (node(&schema.url, A_MINUTE), node(&schema.url, A_MINUTE));
    let mut worst = Duration::ZERO;
    for round in 0..ROUNDS {
        let key = format!("k-{round}");
        // Also so that B hears: what it keeps before that goes when it begins to.
        wait_for(&mut a, &mut b, &format!("w-{round}"));
        cached(&mut a, &mut b, &key);
        assert_eq!(a.ask(&format!("forget {key}")), "Done");
        worst = worst.max(until_gone(&mut b, &key));
    }
    println!("{ROUNDS} answers were forgotten by the other node's cache, the slowest after {worst:?}");
}

/// What anybody tells on a schema's channel.
fn listen(runtime: &tokio::runtime::Runtime, schema: &Schema) -> UnboundedReceiver<String> {
    let (sender, heard) = unbounded_channel();
    runtime.block_on(async {
        let (client, mut connection) = tokio_postgres::connect(&schema.server, NoTls).await.unwrap();
        tokio::spawn(async move {
            let mut messages = stream::poll_fn(move |context| connection.poll_message(context));
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notification(notification) = message
                    && sender.send(notification.payload().to_owned()).is_err()
                {
                    return;
                }
            }
        });
        client.batch_execute(&format!("LISTEN oncegate_{}", schema.name)).await.unwrap();
        // Kept for as long as the runtime lives.
        std::mem::forget(client);
    });
    heard
}

/// B is cut off while A tells of an answer and of a forgetting. Mended, B hears that it may have missed something.
pub(crate) fn gap() {
    let schema = own_schema(&shared::postgres_url());
    let proxy = TcpProxy::start(&shared::postgres_url());
    let (mut a, mut b) = (node(&schema.url, A_MINUTE), node(&proxy.url_of(&schema.url), A_MINUTE));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut told = listen(&runtime, &schema);
    // From here on B hears: what it keeps before that goes when it begins to.
    wait_for(&mut a, &mut b, "heard");
    cached(&mut a, &mut b, "kept");
    let first = runtime.block_on(told.recv()).unwrap();
    assert!(first.starts_with('s'), "{first}");
    assert!(a.ask("hold missed").starts_with("execute"));
    assert_eq!(b.ask("wait missed"), "waiting");
    proxy.cut();
    assert_eq!(a.ask("complete missed paid"), "done");
    assert_eq!(a.ask("forget kept"), "Done");
    // Both were told, to whoever could hear it.
    let mut words = Vec::new();
    while words.len() < 2 {
        let payload = runtime.block_on(told.recv()).unwrap();
        words.extend(payload.split(' ').map(|word| word[..1].to_owned()));
    }
    words.sort();
    assert_eq!(words, ["f", "s"]);
    // B can neither hear nor ask; what it has kept, it replays, for no longer than the cache's age.
    assert_eq!(b.ask("arrive kept"), "replay paid");
    proxy.mend();
    let mended = Instant::now();
    assert_eq!(b.hear(), "replay paid", "the waiter was woken by the gap");
    let woken = mended.elapsed();
    let gone = until_gone(&mut b, "kept");
    println!("deaf for a while: the waiter was woken {woken:?}, the cache empty {gone:?} later");
    assert!(woken < SOON && gone < SOON);
    assert!(wait_for(&mut a, &mut b, "again") < SOON, "signals work again");
}

pub(crate) fn restarted() {
    let mut server = Postgres::start(&[]);
    let url = server.url();
    let (mut a, mut b) = (node(&url, A_MINUTE), node(&url, A_MINUTE));
    cached(&mut a, &mut b, "kept");
    wait_for(&mut a, &mut b, "before");
    assert!(a.ask("hold over").starts_with("execute"));
    assert_eq!(b.ask("wait over"), "waiting");
    server.stop_immediate();
    a.tell("complete over paid");
    server.start_again();
    let started = Instant::now();
    assert_eq!(a.hear(), "done");
    assert_eq!(b.hear(), "replay paid");
    let woken = started.elapsed();
    println!("server started again: the waiter had its answer after {woken:?}");
    assert!(woken < SOON, "{woken:?}");
    assert!(wait_for(&mut a, &mut b, "after") < SOON, "signals work again");
    assert_eq!(b.ask("arrive kept"), "replay paid");
}
