//! What a batch costs in round trips. Between two data centres one of them is a millisecond, and a request waits for it twice.
//!
//! Counted at a proxy, on one thread: there a batch is handed over whole before the task that writes to the connection gets its
//! turn, so the count is exact.

use std::sync::Arc;

use oncegate_store::{Outcome, Store, Write};
use oncegate_store_sql::PostgresStore;
use oncegate_store_sql::postgres::PostgresOptions;
use oncegate_test_servers::{PgBouncer, TcpProxy};

use crate::place::{Place, apply_all, completed, insert, leased, swap, told};

/// A store with one connection for its writes, which goes through a proxy.
struct Counted {
    proxy: TcpProxy,
    store: PostgresStore,
}

impl Counted {
    async fn open(place: &Place, url: &str) -> Self {
        let proxy = TcpProxy::start(url);
        let options =
            PostgresOptions::new(&proxy.url_of(url)).and_then(|options| options.schema(&place.schema));
        let store = options.expect("a valid URL").writers(1).open().await.expect("the store opens");
        let counted = Self { proxy, store };
        // Connects, and prepares each statement that is used below.
        let (first, other) = (leased("first"), leased("other"));
        apply_all(&counted.store, &[insert(&first)]).await;
        apply_all(&counted.store, &[insert(&other), swap(&first, &completed(&first))]).await;
        let teller = leased("teller");
        apply_all(&counted.store, &[told(insert(&teller), &teller, "node")]).await;
        apply_all(&counted.store, &[told(swap(&teller, &completed(&teller)), &teller, "node")]).await;
        counted
    }

    /// What a batch gives, and how many round trips it took.
    async fn apply(&self, batch: &[Write]) -> (Vec<Outcome>, u64) {
        let before = self.proxy.round_trips();
        let outcomes = self.store.apply(batch).await.expect("the batch is applied");
        (outcomes, self.proxy.round_trips() - before)
    }

    /// The same, where all writes must apply.
    async fn all(&self, batch: &[Write]) -> u64 {
        let (outcomes, round_trips) = self.apply(batch).await;
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Applied), "{outcomes:?}");
        round_trips
    }
}

async fn check(place: &Place, url: &str) {
    let counted = Counted::open(place, url).await;
    let rows: Vec<_> = (0..8).map(|n| leased(&format!("k-{n}"))).collect();
    let settled: Vec<_> = rows.iter().map(|row| swap(row, &completed(row))).collect();
    assert_eq!(counted.all(&[insert(&rows[0])]).await, 1, "a reserve");
    assert_eq!(counted.all(&rows[1..].iter().map(insert).collect::<Vec<_>>()).await, 1, "reserves");
    assert_eq!(counted.all(&settled[..1]).await, 1, "a settlement");
    let mixed: Vec<_> = settled[1..4].iter().cloned().chain([insert(&leased("new"))]).collect();
    assert_eq!(counted.all(&mixed).await, 1, "settlements and a reserve");

    // What refuses a write is read in a statement of its own, once for all of them.
    let (outcomes, round_trips) = counted.apply(&[insert(&rows[0])]).await;
    let winner = Outcome::Refused { current: Some(Arc::new(completed(&rows[0]))) };
    assert_eq!((outcomes, round_trips), (vec![winner.clone()], 2), "a refused reserve");
    let batch = [insert(&rows[0]), insert(&leased("newer")), settled[1].clone(), settled[4].clone()];
    let (outcomes, round_trips) = counted.apply(&batch).await;
    assert_eq!((&outcomes[0], &outcomes[1], &outcomes[3]), (&winner, &Outcome::Applied, &Outcome::Applied));
    assert!(matches!(outcomes[2], Outcome::Refused { current: Some(_) }), "{outcomes:?}");
    assert_eq!(round_trips, 2, "two of four refused");

    // What a write tells goes along with it, also beside others that tell nothing.
    let (new, more) = (leased("told"), leased("more"));
    assert_eq!(counted.all(&[told(insert(&new), &new, "node"), insert(&more)]).await, 1, "a told reserve");
    let settled_new = told(swap(&new, &completed(&new)), &new, "other");
    let both = [settled_new, swap(&more, &completed(&more))];
    assert_eq!(counted.all(&both).await, 1, "a told settlement");
    assert_eq!(counted.store.story(new.id, 10).await.expect("it is told").len(), 2);

    // One key twice is a conversation: a begin, two waves, a commit. A batch of the engine names each key once.
    let twice = leased("twice");
    assert_eq!(counted.all(&[insert(&twice), swap(&twice, &completed(&twice))]).await, 4, "a key twice");
}

#[tokio::test(flavor = "current_thread")]
async fn a_batch_is_one_round_trip_and_a_refusal_a_second_one() {
    let place = Place::shared();
    check(&place, &place.url).await;
}

/// Nothing is prepared there, and the transaction is set up each time; but that is sent along, and waited for by nobody.
#[tokio::test(flavor = "current_thread")]
async fn through_a_pooler_it_is_the_same() {
    let place = Place::shared();
    let bouncer = PgBouncer::start(&place.url, &[("default_pool_size", "2")]);
    check(&place, &bouncer.url()).await;
}
