//! Batches that get in each other's way end with outcomes all the same.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use oncegate_conformance::samples::{FAR_AHEAD, LONG_AGO, entry, moved_to, reserved, token};
use oncegate_core::audit::{Act, Entry};
use oncegate_core::record::{Record, StateKind};
use oncegate_store::{Change, Kind, Outcome, Store, Write};
use oncegate_store_sql::PostgresStore;
use tokio_postgres::error::SqlState;

use crate::place::{Place, apply_all, completed, in_time, insert, leased, read, swap, until_waiting};

const KEYS: usize = 24;
const ROUNDS: u64 = 30;

fn key(n: usize) -> String {
    format!("hammered-{n}")
}

/// A reservation that only `who` can have made.
fn reservation(n: usize, who: u64) -> Record {
    let mut record = reserved(&key(n), who, FAR_AHEAD);
    record.life = token(who);
    record
}

/// Reserves, settles, moves on, removes; in this order of keys; some keys twice.
fn batch(round: u64, who: u64, order: impl Iterator<Item = usize>) -> Vec<Write> {
    let mut writes = Vec::new();
    for n in order {
        let own = reservation(n, who);
        let expired = moved_to(&own, StateKind::FailedRetryable, LONG_AGO);
        match (n as u64 + round) % 5 {
            0 => writes.extend([insert(&own), swap(&own, &expired)]),
            1 => writes.push(swap(&own, &moved_to(&own, StateKind::Unknown, FAR_AHEAD))),
            2 => writes.push(swap(&own, &expired)),
            3 => writes.push(Write::remove(own.id, expired.version, Duration::ZERO)),
            _ => writes.push(insert(&own)),
        }
    }
    // Every other one tells of what it does, so that the statements with and without entries meet over the same keys.
    let tells = |write: Write| {
        let told = (who % 2 == 1).then(|| entry(&reservation(0, who), FAR_AHEAD, Act::Doubted));
        let told = told.map(|told| Entry { id: write.id(), node: format!("{who}-{round}").into(), ..told });
        write.telling(told)
    };
    writes.into_iter().map(tells).collect()
}

/// Hammers, and counts by key what was applied: inserts up, removals down.
async fn hammer(store: Arc<PostgresStore>, who: u64) -> HashMap<usize, i64> {
    let mut living: HashMap<usize, i64> = HashMap::new();
    for round in 0..ROUNDS {
        let order: Vec<usize> =
            if who.is_multiple_of(2) { (0..KEYS).collect() } else { (0..KEYS).rev().collect() };
        let writes = batch(round, who, order.into_iter());
        let outcomes = match store.apply(&writes).await {
            Ok(outcomes) => outcomes,
            Err(error) if error.kind() == Kind::Contended => {
                assert_eq!(error.effect(), oncegate_store::Effect::None, "{error}");
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(outcomes.len(), writes.len());
        for (write, outcome) in writes.iter().zip(outcomes) {
            let n = (0..KEYS).find(|n| reservation(*n, who).id == write.id()).expect("one of them");
            match (&write.change, outcome) {
                (Change::Insert(_), Outcome::Applied) => *living.entry(n).or_default() += 1,
                (Change::Remove { .. }, Outcome::Applied) => *living.entry(n).or_default() -= 1,
                (_, Outcome::Unreadable { problem }) => panic!("{problem}"),
                _ => {}
            }
        }
    }
    living
}

/// Every insert that was told it won is a row, until somebody is told that he removed it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn stores_that_hammer_the_same_keys_agree_on_who_won() {
    let place = Place::shared();
    let mut tasks = Vec::new();
    for who in 0..4 {
        let store = Arc::new(place.open().await);
        tasks.push(tokio::spawn(hammer(store, who)));
    }
    let mut living: HashMap<usize, i64> = HashMap::new();
    for task in tasks {
        for (n, count) in task.await.expect("no task fails") {
            *living.entry(n).or_default() += count;
        }
    }
    let store = place.open().await;
    for n in 0..KEYS {
        let there = i64::from(read(&store, &key(n)).await.is_some());
        assert_eq!(living.get(&n).copied().unwrap_or_default(), there, "key {n}: {living:?}");
    }
}

/// Waits for a row, and has it.
fn lock(place: &Place, row: &Record) -> String {
    let id = u128::from_be_bytes(*row.id.as_bytes());
    format!("SELECT FROM {}.record WHERE id = '\\x{id:032x}' FOR UPDATE", place.schema)
}

/// The store's session finds the deadlock first, and its batch is the one that is undone; it is tried again.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_was_undone_by_a_deadlock_is_tried_again() {
    let place = Place::shared();
    let mut rows = [leased("one"), leased("two")];
    rows.sort_by_key(|row| row.id);
    let [low, high] = &rows;
    apply_all(&place.open().await, &[insert(low), insert(high)]).await;
    let separator = if place.url.contains('?') { '&' } else { '?' };
    let url = format!("{}{separator}options=-c%20deadlock_timeout%3D2s", place.url);
    let store = place.open_through(&url).await;
    // A usual batch, which is over when it is undone, and one of two waves, whose transaction must be ended first.
    let third = leased("three");
    let settle = [swap(high, &completed(high)), swap(low, &completed(low))];
    let (low_on, high_on) = (completed(low), completed(high));
    let on = |row: &Record| swap(row, &moved_to(row, StateKind::Completed, FAR_AHEAD));
    let twice = [on(&high_on), on(&low_on), insert(&third), swap(&third, &completed(&third))];
    for batch in [&settle[..], &twice] {
        let (other, watcher) = (place.raw().await, place.raw().await);
        other.batch_execute("SET deadlock_timeout = '1min'; BEGIN").await.expect("it waits for longer");
        other.batch_execute(&lock(&place, high)).await.expect("the higher is held");
        let (outcomes, ()) = in_time(async {
            tokio::join!(store.apply(batch), async {
                // The batch has the lower and waits for the higher.
                until_waiting(&watcher, &place.schema, 1).await;
                other.batch_execute(&lock(&place, low)).await.expect("the store gives way");
                other.batch_execute("COMMIT").await.expect("it ends");
            })
        })
        .await;
        let outcomes = outcomes.expect("the second try works");
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Applied), "{outcomes:?}");
    }
    // The session is as good as before.
    apply_all(&store, &[insert(&leased("after"))]).await;
}

/// Of two batches, each of which settles what the other moves on, neither must wait for what the other waits for. Once such batches were left to the server, which ends one of them after a second; with
/// four contenders, again and again. (A statement that once waited for all of the five seconds that it is given was taken for such a one; that itself was not seen again.)
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_changes_rows_by_several_statements_has_the_lower_keys_first() {
    let place = Place::shared();
    let store = place.open().await;
    let mut rows = [leased("one"), leased("two")];
    rows.sort_by_key(|row| row.id);
    let [low, high] = &rows;
    apply_all(&store, &[insert(low), insert(high)]).await;
    let (other, watcher) = (place.raw().await, place.raw().await);
    other.batch_execute(&format!("BEGIN; {}", lock(&place, high))).await.expect("the higher is held");
    // Settlements are written before other swaps: left to their own order, the batch would wait for the higher with nothing in its hands.
    let batch = [swap(high, &completed(high)), swap(low, &moved_to(low, StateKind::Unknown, FAR_AHEAD))];
    let (outcomes, ()) = in_time(async {
        tokio::join!(store.apply(&batch), async {
            until_waiting(&watcher, &place.schema, 1).await;
            let taken = watcher.batch_execute(&format!("{} NOWAIT", lock(&place, low))).await;
            assert_eq!(
                taken.expect_err("the batch has the lower").code(),
                Some(&SqlState::LOCK_NOT_AVAILABLE)
            );
            other.batch_execute("COMMIT").await.expect("it ends");
        })
    })
    .await;
    assert_eq!(outcomes.expect("it has outcomes"), [Outcome::Applied, Outcome::Applied]);
}
