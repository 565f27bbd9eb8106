//! Nodes hear each other.

use std::collections::HashSet;

use oncegate_core::identity::RecordId;
use oncegate_store::Store;
use oncegate_store::signals::{Heard, Signal, Signals};
use oncegate_test_servers::{Postgres, until};

use crate::place::{Place, in_time, number};

fn signal(n: u32) -> Signal {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    let id = RecordId::from_bytes(bytes);
    if n.is_multiple_of(2) { Signal::Settled(id) } else { Signal::Forgotten(id) }
}

/// Hears until all of `expected` have come.
async fn hear_all(ears: &dyn Signals, expected: impl Iterator<Item = u32>) {
    let mut missing: HashSet<Signal> = expected.map(signal).collect();
    while !missing.is_empty() {
        match in_time(ears.hear()).await {
            Heard::Signals(signals) => missing.retain(|signal| !signals.contains(signal)),
            Heard::Gap => panic!("nothing was lost, and {} are missing", missing.len()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_node_tells_the_others_hear() {
    let (place, elsewhere) = (Place::shared(), Place::shared());
    let (one, two, other) = (place.open().await, place.open().await, elsewhere.open().await);
    let [mouth, ears, foreign] =
        [&one, &two, &other].map(|store| store.signals().expect("nothing is in between"));
    assert_eq!(in_time(ears.hear()).await, Heard::Gap, "what was told before is not heard");
    assert_eq!(in_time(foreign.hear()).await, Heard::Gap);
    mouth.tell(&[signal(1), signal(2)]).await.expect("it is told");
    assert_eq!(in_time(ears.hear()).await, Heard::Signals(vec![signal(1), signal(2)]));
    // More than one payload holds.
    let many: Vec<_> = (1_000..2_000).map(signal).collect();
    mouth.tell(&many).await.expect("they are told");
    hear_all(&*ears, 1_000..2_000).await;
    for n in 0..20 {
        mouth.tell(&[signal(n)]).await.expect("it is told");
    }
    hear_all(&*ears, 0..20).await;
    // Another schema is another channel: the first thing heard there is its own.
    other.signals().expect("the same").tell(&[signal(7)]).await.expect("it is told");
    assert_eq!(in_time(foreign.hear()).await, Heard::Signals(vec![signal(7)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_server_is_a_gap_and_then_heard_again() {
    let mut server = Postgres::start(&[]);
    let place = Place::at(&server.url());
    let (one, two) = (place.open().await, place.open().await);
    let (mouth, ears) = (one.signals().expect("direct"), two.signals().expect("direct"));
    assert_eq!(in_time(ears.hear()).await, Heard::Gap);
    mouth.tell(&[signal(1)]).await.expect("it is told");
    assert_eq!(in_time(ears.hear()).await, Heard::Signals(vec![signal(1)]));
    server.stop_immediate();
    assert!(in_time(mouth.tell(&[signal(2)])).await.is_err(), "nobody hears it");
    let (heard, ()) =
        tokio::join!(in_time(ears.hear()), async { tokio::task::block_in_place(|| server.start_again()) });
    assert_eq!(heard, Heard::Gap);
    mouth.tell(&[signal(3)]).await.expect("it is told on a new connection");
    assert_eq!(in_time(ears.hear()).await, Heard::Signals(vec![signal(3)]));
}

/// Whoever does not listen for long has missed something, and is told so instead of being held in memory for.
#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_keep_up_hears_of_a_gap() {
    let place = Place::shared();
    let store = place.open().await;
    let signals = store.signals().expect("nothing is in between");
    assert_eq!(in_time(signals.hear()).await, Heard::Gap);
    // Each is a notification of its own; more than are kept.
    let flood = format!(
        "SELECT pg_notify('oncegate_{}', 'x' || n) FROM generate_series(1, 20000) AS n",
        place.schema
    );
    let client = place.raw().await;
    client.batch_execute(&flood).await.expect("they are told");
    // Nobody hears meanwhile, until the line is given up.
    let listening =
        format!("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN oncegate_{}%'", place.schema);
    until("the line is given up", async || number(&client, &listening).await == 0).await;
    while in_time(signals.hear()).await != Heard::Gap {}
    store.signals().expect("the same").tell(&[signal(5)]).await.expect("it is told");
    assert_eq!(in_time(signals.hear()).await, Heard::Signals(vec![signal(5)]));
}

/// Found by review: telling had no limit, and on a dead line the next one waited behind it for ever.
#[tokio::test(flavor = "multi_thread")]
async fn telling_ends_by_itself_on_a_dead_line() {
    let place = Place::shared();
    let proxy = oncegate_test_servers::TcpProxy::start(&place.url);
    let store = place.open_through(&proxy.url_of(&place.url)).await;
    let mouth = store.signals().expect("nothing is in between");
    mouth.tell(&[signal(1)]).await.expect("it is told");
    proxy.stall();
    assert!(in_time(mouth.tell(&[signal(2)])).await.is_err());
    proxy.flow();
    mouth.tell(&[signal(3)]).await.expect("it is told on a new connection");
}
