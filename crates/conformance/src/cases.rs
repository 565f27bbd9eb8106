//! The cases, one a promise. Each is named by a bullet of the contract in `oncegate_store::Store`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::decide::{Decision, Event};
use oncegate_core::identity::{RecordId, Version};
use oncegate_core::record::{Record, State, StateKind};
use oncegate_core::scope::{Address, Scope};
use oncegate_core::time::Now;
use oncegate_store::{Due, Durability, Filter, Moments, Outcome, Store, Write, drive};
use tokio::sync::Barrier;

use crate::Harness;
use crate::samples::{
    FAR_AHEAD, LONG_AGO, address, answer, arrival, every_shape, id, moved_to, parked, reserved, reserved_at,
};

mod ask;
mod history;
mod jobs;
mod removed;
mod trail;
mod waiting;

pub use ask::{
    a_scan_says_whether_it_came_to_the_end, browsing_filters, browsing_pages_show_each_row_once,
    counts_are_true, due_finds_what_is_due, due_goes_on_from_a_moment, excepted_operations_hide_no_other,
    parked_is_never_due, the_clock_never_runs_backwards,
};

pub use history::{
    a_history_is_intact_while_nothing_is_lost, a_watermark_that_is_gone_is_noticed, quarantines_are_kept,
};
pub use jobs::{
    a_claim_ends, a_line_is_kept_in_order, a_parked_job_holds_back_its_own_line,
    a_promise_takes_the_place_of_a_parked_one, a_promise_that_stands_is_not_replaced,
    a_try_that_does_not_count_is_not_counted, a_withdrawn_job_lets_its_line_go_on,
    a_withdrawn_promise_can_be_made_again, depth_is_true, every_field_of_a_job_comes_back,
    only_old_jobs_that_are_over_are_dropped, only_the_claimer_reports, only_what_is_due_is_claimed,
    parked_jobs_are_listed_and_put_back, racing_claimers_share_the_jobs, what_was_delivered_is_kept,
    what_was_tried_stands_in_no_way,
};

pub use removed::{a_removal_is_remembered, old_removals_are_forgotten};

pub use trail::{
    a_story_is_told_in_order, a_story_outlives_its_record, an_entry_comes_with_its_write,
    entries_of_one_moment_are_all_kept, old_entries_are_dropped, only_the_winner_tells,
    pages_of_the_trail_show_each_entry_once, what_is_kept_apart_comes_back,
};

pub use waiting::{
    lines_take_turns, no_line_is_passed_over, only_what_waits_is_called, the_backlog_is_true,
    the_doubts_are_true,
};

/// Random histories with injected faults; hundreds of them.
pub async fn random_histories_equal_the_model<H: Harness>(_: H) {
    // The histories make harnesses and a runtime of their own, so they must not run on this one's threads.
    let ran = tokio::task::spawn_blocking(|| crate::histories::equal_the_model::<H>(256)).await;
    if let Err(failure) = ran.expect("the histories ran") {
        panic!("{failure}");
    }
}

pub async fn applied_writes_survive_a_reopening<H: Harness>(harness: H) {
    let store = harness.open().await;
    if store.capability().durability == Durability::None {
        return;
    }
    let first = reserved("a", 1, LONG_AGO);
    let second = moved_to(&first, StateKind::Completed, FAR_AHEAD);
    applied(&store, &[insert(&first), swap(&first, &second), insert(&reserved("b", 2, LONG_AGO))]).await;
    drop(store);
    let store = harness.open().await;
    assert_eq!(read(&store, "a").await, Some(second));
    assert_eq!(read(&store, "b").await, Some(reserved("b", 2, LONG_AGO)));
}

pub async fn racing_inserts_admit_one<H: Harness>(harness: H) {
    let store = Arc::new(harness.open().await);
    race_inserts(&[Arc::clone(&store), store]).await;
}

pub async fn two_handles_are_one_store<H: Harness>(harness: H) {
    let (one, two) = (Arc::new(harness.open().await), Arc::new(harness.open().await));
    let row = reserved("seen by both", 1, LONG_AGO);
    applied(&*one, &[insert(&row)]).await;
    assert_eq!(read(&*two, "seen by both").await, Some(row));
    race_inserts(&[one, two]).await;
}

/// 16 contenders for each of 60 keys, started together: one winner a key, and every loser is shown it.
async fn race_inserts<S: Store>(stores: &[Arc<S>]) {
    const CONTENDERS: u64 = 16;
    for round in 0..60 {
        let key = format!("raced-{round}");
        let start = Arc::new(Barrier::new(usize::try_from(CONTENDERS).unwrap_or(1)));
        let contenders: Vec<_> = (0..CONTENDERS)
            .map(|n| {
                let store = Arc::clone(&stores[usize::try_from(n).unwrap_or(0) % stores.len()]);
                let (start, row) = (Arc::clone(&start), reserved(&key, n, LONG_AGO));
                tokio::spawn(async move {
                    start.wait().await;
                    (row.clone(), one(&*store, Write::insert(Arc::new(row))).await)
                })
            })
            .collect();
        let mut winners = Vec::new();
        let mut shown = Vec::new();
        for contender in contenders {
            match contender.await.expect("a contender finishes") {
                (row, Outcome::Applied) => winners.push(row),
                (_, Outcome::Refused { current }) => shown.push(current.expect("the winner is there")),
                (_, Outcome::Unreadable { problem }) => panic!("{key} can be read: {problem}"),
            }
        }
        assert_eq!(winners.len(), 1, "one insert of {key} is applied");
        assert!(shown.iter().all(|row| **row == winners[0]), "every loser of {key} is shown the winner");
        assert_eq!(read(&*stores[0], &key).await.as_ref(), winners.first());
    }
}

pub async fn a_clash_returns_the_winner<H: Harness>(harness: H) {
    let store = harness.open().await;
    let winner = reserved("a", 1, LONG_AGO);
    applied(&store, &[insert(&winner)]).await;
    let outcome = one(&store, insert(&reserved("a", 2, FAR_AHEAD))).await;
    assert_eq!(outcome, Outcome::Refused { current: Some(Arc::new(winner.clone())) });
    assert_eq!(read(&store, "a").await, Some(winner));
}

pub async fn a_stale_swap_is_refused<H: Harness>(harness: H) {
    let store = harness.open().await;
    let first = reserved("a", 1, LONG_AGO);
    let second = moved_to(&first, StateKind::Unknown, FAR_AHEAD);
    let third = moved_to(&second, StateKind::Completed, FAR_AHEAD);
    applied(&store, &[insert(&first), swap(&first, &second)]).await;
    let current = Some(Arc::new(second.clone()));
    assert_eq!(one(&store, swap(&first, &third)).await, Outcome::Refused { current: current.clone() });
    // A version from the future fits no better than one from the past.
    assert_eq!(one(&store, swap(&third, &third)).await, Outcome::Refused { current });
    assert_eq!(read(&store, "a").await, Some(second));
}

pub async fn racing_swaps_admit_one<H: Harness>(harness: H) {
    let handles = [Arc::new(harness.open().await), Arc::new(harness.open().await)];
    for round in 0..20 {
        let key = format!("raced-{round}");
        let base = reserved(&key, 1, LONG_AGO);
        applied(&*handles[0], &[insert(&base)]).await;
        let start = Arc::new(Barrier::new(16));
        let contenders: Vec<_> = (0..16_u16)
            .map(|n| {
                let (store, start) = (Arc::clone(&handles[usize::from(n % 2)]), Arc::clone(&start));
                let base = base.clone();
                tokio::spawn(async move {
                    let mut next = moved_to(&base, StateKind::Completed, FAR_AHEAD);
                    next.state = State::Completed(answer(200 + n, b""));
                    start.wait().await;
                    let is_applied = one(&*store, swap(&base, &next)).await == Outcome::Applied;
                    is_applied.then_some(next)
                })
            })
            .collect();
        let mut winners = Vec::new();
        for contender in contenders {
            winners.extend(contender.await.expect("a contender finishes"));
        }
        assert_eq!(winners.len(), 1, "one swap of {key} is applied");
        assert_eq!(read(&*handles[1], &key).await, winners.pop(), "and it is the winner's row that is there");
    }
}

pub async fn what_is_absent_cannot_change<H: Harness>(harness: H) {
    let store = harness.open().await;
    let row = reserved("a", 1, LONG_AGO);
    let gone = Outcome::Refused { current: None };
    assert_eq!(one(&store, swap(&row, &moved_to(&row, StateKind::Unknown, LONG_AGO))).await, gone);
    assert_eq!(one(&store, remove(&row)).await, gone);
    assert_eq!(read(&store, "a").await, None);
}

pub async fn each_write_stands_alone<H: Harness>(harness: H) {
    let store = harness.open().await;
    let taken = reserved("taken", 1, LONG_AGO);
    applied(&store, &[insert(&taken)]).await;
    let fresh: Vec<_> = (0..4).map(|n| reserved(&format!("fresh-{n}"), n, LONG_AGO)).collect();
    let settled = moved_to(&taken, StateKind::Completed, FAR_AHEAD);
    let absent = reserved("absent", 9, LONG_AGO);
    let batch = [
        insert(&fresh[3]),
        insert(&reserved("taken", 2, LONG_AGO)),
        insert(&fresh[0]),
        swap(&absent, &absent),
        swap(&taken, &settled),
        remove(&absent),
        insert(&fresh[1]),
        swap(&taken, &taken),
        insert(&fresh[2]),
    ];
    let outcomes = store.apply(&batch).await.expect("applied");
    let expected = [
        Outcome::Applied,
        Outcome::Refused { current: Some(Arc::new(taken.clone())) },
        Outcome::Applied,
        Outcome::Refused { current: None },
        Outcome::Applied,
        Outcome::Refused { current: None },
        Outcome::Applied,
        Outcome::Refused { current: Some(Arc::new(settled.clone())) },
        Outcome::Applied,
    ];
    for (place, (got, expected)) in outcomes.iter().zip(&expected).enumerate() {
        // A clash may be shown the row as it is after the batch: what it read is then newer, never older.
        let newer = Outcome::Refused { current: Some(Arc::new(settled.clone())) };
        assert!(got == expected || (place == 1 && *got == newer), "write {place}: {got:?}");
    }
    assert_eq!(outcomes.len(), expected.len());
    for row in &fresh {
        assert_eq!(read(&store, row.address.key.as_str()).await.as_ref(), Some(row));
    }
    assert_eq!(read(&store, "taken").await, Some(settled));
}

pub async fn one_key_twice_in_a_batch<H: Harness>(harness: H) {
    let store = harness.open().await;
    let first = reserved("a", 1, LONG_AGO);
    let second = moved_to(&first, StateKind::FailedRetryable, LONG_AGO);
    let batch =
        [insert(&first), insert(&reserved("a", 2, LONG_AGO)), swap(&first, &second), swap(&first, &first)];
    let outcomes = store.apply(&batch).await.expect("applied");
    let kinds: Vec<_> = outcomes.iter().map(|outcome| *outcome == Outcome::Applied).collect();
    assert_eq!(kinds, [true, false, true, false]);
    assert_eq!(read(&store, "a").await, Some(second.clone()));
    // Removed and taken again, in one batch.
    let again = reserved("a", 3, FAR_AHEAD);
    let outcomes = store.apply(&[remove(&second), insert(&again)]).await.expect("applied");
    assert_eq!(outcomes, [Outcome::Applied, Outcome::Applied]);
    assert_eq!(read(&store, "a").await, Some(again));
}

pub async fn removal_spares_what_lives<H: Harness>(harness: H) {
    let store = harness.open().await;
    let base = reserved("a", 1, LONG_AGO);
    applied(&store, &[insert(&base)]).await;
    let mut row = base;
    // Whatever the caller's clock says: unsettled rows, and rows whose time is not up, stay.
    let lives = [
        (StateKind::InProgress, LONG_AGO),
        (StateKind::Unknown, LONG_AGO),
        (StateKind::Pending, LONG_AGO),
        (StateKind::Completed, FAR_AHEAD),
        (StateKind::FailedRetryable, FAR_AHEAD),
        (StateKind::Expired, FAR_AHEAD),
    ];
    for (state, moment) in lives {
        let next = moved_to(&row, state, moment);
        applied(&store, &[swap(&row, &next)]).await;
        row = next;
        let refused = Outcome::Refused { current: Some(Arc::new(row.clone())) };
        assert_eq!(one(&store, remove(&row)).await, refused, "{state} until {moment:?} must stay");
    }
    // Waiting work past its limit is settled, never removed.
    let mut waiting = moved_to(&row, StateKind::Pending, LONG_AGO);
    waiting.expires_at = Some(LONG_AGO);
    applied(&store, &[swap(&row, &waiting)]).await;
    row = waiting;
    let refused = Outcome::Refused { current: Some(Arc::new(row.clone())) };
    assert_eq!(one(&store, remove(&row)).await, refused, "waiting work must stay");
    for state in [StateKind::Completed, StateKind::FailedRetryable, StateKind::Expired] {
        let next = moved_to(&row, state, LONG_AGO);
        applied(&store, &[swap(&row, &next)]).await;
        let stale = Write::remove(row.id, row.version, Duration::ZERO);
        assert!(matches!(one(&store, stale).await, Outcome::Refused { current: Some(_) }), "an old version");
        // 200 years of grace.
        let grace = Duration::from_hours(1_752_000);
        let hasty = Write::remove(row.id, next.version, grace);
        assert!(
            matches!(one(&store, hasty).await, Outcome::Refused { current: Some(_) }),
            "within its grace"
        );
        applied(&store, &[remove(&next)]).await;
        assert_eq!(read(&store, "a").await, None);
        row = reserved("a", 2, FAR_AHEAD);
        applied(&store, &[insert(&row)]).await;
    }
}

pub async fn every_field_comes_back<H: Harness>(harness: H) {
    let store = harness.open().await;
    let rows = every_shape();
    applied(&store, &rows.iter().map(insert).collect::<Vec<_>>()).await;
    let ids: Vec<_> = rows.iter().map(|row| row.id).collect();
    let read_back = read_all(&store, &ids).await;
    for (row, read_back) in rows.iter().zip(&read_back) {
        assert_eq!(read_back.as_ref(), Some(row), "inserted");
    }
    // A swap may change every field but the identity: each row takes the place of its neighbour's contents.
    for (n, row) in rows.iter().enumerate() {
        let contents = &rows[(n + 1) % rows.len()];
        let next = Record {
            id: row.id,
            address: row.address.clone(),
            version: Version::from_raw(row.version.as_raw() + 1),
            ..contents.clone()
        };
        applied(&store, &[swap(row, &next)]).await;
        assert_eq!(read_all(&store, &[row.id]).await, [Some(next)], "swapped");
    }
}

pub async fn scopes_never_meet<H: Harness>(harness: H) {
    let store = harness.open().await;
    let operation = oncegate_core::scope::Operation::new("c").expect("a valid pattern");
    let narrow = Scope::tenant_and_operation("a", &operation).expect("a valid scope");
    let addresses = [
        address("a", "bc"),
        address("ab", "c"),
        address("A", "bc"),
        address("a", "BC"),
        address("a", "bc "),
        Address { scope: narrow, key: address("a", "bc").key },
    ];
    let rows: Vec<_> =
        addresses.iter().zip(1..).map(|(at, n)| reserved_at(at.clone(), n, LONG_AGO)).collect();
    applied(&store, &rows.iter().map(insert).collect::<Vec<_>>()).await;
    let ids: Vec<_> = rows.iter().map(|row| row.id).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), rows.len());
    let read_back: Vec<_> = read_all(&store, &ids).await.into_iter().flatten().collect();
    assert_eq!(read_back, rows);
}

pub async fn batches_may_be_empty_or_large<H: Harness>(harness: H) {
    let store = harness.open().await;
    assert_eq!(store.apply(&[]).await.expect("applied"), []);
    assert_eq!(read_all(&store, &[]).await, []);
    let rows: Vec<_> = (0..3_000).map(|n| reserved(&format!("key-{n}"), n, LONG_AGO)).collect();
    applied(&store, &rows.iter().map(insert).collect::<Vec<_>>()).await;
    let mut ids: Vec<_> = rows.iter().map(|row| row.id).collect();
    ids.reverse();
    let read_back = read_all(&store, &ids).await;
    assert!(read_back.iter().rev().flatten().eq(rows.iter()), "in the order of the ids");
}

pub async fn reads_follow_writes<H: Harness>(harness: H) {
    let handles = [harness.open().await, harness.open().await];
    let mut row = reserved("a", 1, LONG_AGO);
    applied(&handles[0], &[insert(&row)]).await;
    for n in 0..50 {
        // Written through one handle, read through both: what a handle remembers must not show.
        let next = moved_to(&row, StateKind::InProgress, FAR_AHEAD);
        applied(&handles[n % 2], &[swap(&row, &next)]).await;
        for handle in &handles {
            assert_eq!(read(handle, "a").await.as_ref(), Some(&next));
        }
        row = next;
    }
    let found = read_all(&handles[0], &[id("none"), row.id, id("nor this"), row.id]).await;
    assert_eq!(found, [None, Some(row.clone()), None, Some(row)], "one place per id");
}

/// Twenty clients arrive with one key, through the real rules: one executes, the others see it; then all replay.
pub async fn the_rules_hold_over_this_store<H: Harness>(harness: H) {
    let store = Arc::new(harness.open().await);
    let now = Now::exact(store.clock().await.expect("a clock"));
    let key = id("payment");
    let start = Arc::new(Barrier::new(20));
    let clients: Vec<_> = (0..20)
        .map(|n| {
            let (store, start) = (Arc::clone(&store), Arc::clone(&start));
            tokio::spawn(async move {
                start.wait().await;
                drive::drive(&*store, key, &Event::Arrive(arrival("payment", n)), now)
                    .await
                    .expect("decided")
                    .decision
            })
        })
        .collect();
    let mut leases = Vec::new();
    for client in clients {
        match client.await.expect("a client finishes") {
            Decision::Execute(lease) => leases.push(lease),
            Decision::Busy { .. } => {}
            other => panic!("a rival executes or waits, not {other:?}"),
        }
    }
    assert_eq!(leases.len(), 1, "one client executes");
    let complete = Event::Complete { holder: leases[0].holder, answer: answer(201, b"{}"), reference: None };
    assert_eq!(drive::drive(&*store, key, &complete, now).await.expect("settled").decision, Decision::Done);
    let again =
        drive::drive(&*store, key, &Event::Arrive(arrival("payment", 99)), now).await.expect("decided");
    assert_eq!(again.decision, Decision::Replay(answer(201, b"{}")));
}

/// A row that is due in every sense there is, for the cases that ask.
async fn fill<S: Store>(store: &S, rows: &[Record]) {
    applied(store, &rows.iter().map(insert).collect::<Vec<_>>()).await;
}

fn insert(record: &Record) -> Write {
    Write::insert(Arc::new(record.clone()))
}

fn swap(from: &Record, to: &Record) -> Write {
    Write::swap(from.version, Arc::new(to.clone()))
}

fn remove(record: &Record) -> Write {
    Write::remove(record.id, record.version, Duration::ZERO)
}

async fn one(store: &impl Store, write: Write) -> Outcome {
    store.apply(&[write]).await.expect("applied").pop().expect("one outcome per write")
}

async fn applied(store: &impl Store, batch: &[Write]) {
    let outcomes = store.apply(batch).await.expect("applied");
    assert_eq!(outcomes.len(), batch.len(), "one outcome per write");
    for (write, outcome) in batch.iter().zip(outcomes) {
        assert_eq!(outcome, Outcome::Applied, "{:?}", write.id());
    }
}

async fn read(store: &impl Store, key: &str) -> Option<Record> {
    read_all(store, &[id(key)]).await.pop().flatten()
}

async fn read_all(store: &impl Store, ids: &[RecordId]) -> Vec<Option<Record>> {
    let found = store.read(ids).await.expect("read");
    found.into_iter().map(|row| row.expect("the row can be read")).collect()
}
