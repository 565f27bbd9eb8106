//! The cases about the audit trail, and about what is kept apart.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::audit::{Act, Entry};
use oncegate_core::record::{Record, StateKind};
use oncegate_core::time::Timestamp;
use oncegate_store::{Apart, Durability, EntryPlace, Outcome, Store, TimeSpan};
use tokio::sync::Barrier;

use crate::samples::entry;

use super::{FAR_AHEAD, Harness, LONG_AGO, applied, insert, moved_to, one, remove, reserved, swap};

fn second(n: u64) -> Timestamp {
    LONG_AGO.plus(Duration::from_secs(n))
}

fn bare(row: &Record, at: Timestamp, act: Act) -> Entry {
    Entry { from: None, to: None, source: None, reason: None, notices: Vec::new(), ..entry(row, at, act) }
}

pub async fn an_entry_comes_with_its_write<H: Harness>(harness: H) {
    let store = harness.open().await;
    let first = reserved("a", 1, LONG_AGO);
    let next = moved_to(&first, StateKind::Unknown, FAR_AHEAD);
    let began = bare(&first, second(1), Act::Began);
    let doubted = entry(&next, second(2), Act::Doubted);
    applied(&store, &[insert(&first).telling(Some(began.clone()))]).await;
    assert_eq!(store.story(first.id, 10).await.expect("told"), std::slice::from_ref(&began));
    // Refused, so nothing is told: neither of a second insert nor of a swap over another version.
    let late = entry(&first, second(3), Act::RanAgain);
    let refused = one(&store, insert(&first).telling(Some(late.clone()))).await;
    assert!(matches!(refused, Outcome::Refused { .. }));
    applied(&store, &[swap(&first, &next).telling(Some(doubted.clone()))]).await;
    let refused = one(&store, swap(&first, &next).telling(Some(late))).await;
    assert!(matches!(refused, Outcome::Refused { .. }));
    let refused = one(&store, remove(&next).telling(Some(entry(&next, second(4), Act::Forgotten)))).await;
    assert!(matches!(refused, Outcome::Refused { .. }), "it lives");
    assert_eq!(store.story(first.id, 10).await.expect("told"), [began.clone(), doubted.clone()]);
    // One of a batch is refused, and the others' entries are there.
    let others: Vec<_> = ["b", "a", "c"].iter().map(|key| reserved(key, 2, LONG_AGO)).collect();
    let batch: Vec<_> =
        others.iter().map(|row| insert(row).telling(Some(bare(row, second(5), Act::Began)))).collect();
    let outcomes = store.apply(&batch).await.expect("applied");
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Outcome::Applied).count(), 2);
    for (row, told) in others.iter().zip([1, 2, 1]) {
        assert_eq!(store.story(row.id, 10).await.expect("told").len(), told, "{}", row.id);
    }
    if store.capability().durability == Durability::Durable {
        drop(store);
        let store = harness.open().await;
        assert_eq!(store.story(first.id, 10).await.expect("told"), [began, doubted], "after a reopening");
    }
}

/// The contenders propose the same new version, so a row that has it is not yet the row of whoever asks.
pub async fn only_the_winner_tells<H: Harness>(harness: H) {
    const KEYS: usize = 12;
    let handles = [Arc::new(harness.open().await), Arc::new(harness.open().await)];
    for round in 0..10 {
        let rows: Vec<_> = (0..KEYS).map(|n| reserved(&format!("told-{round}-{n}"), 1, LONG_AGO)).collect();
        applied(&*handles[0], &rows.iter().map(insert).collect::<Vec<_>>()).await;
        let start = Arc::new(Barrier::new(4));
        let contenders: Vec<_> = (0..4_usize)
            .map(|n| {
                let (store, start) = (Arc::clone(&handles[n % 2]), Arc::clone(&start));
                // Of one kind of write each, or of several.
                let states = [StateKind::Unknown, StateKind::Completed, StateKind::FailedRetryable];
                let next = |(place, row): (usize, &Record)| {
                    let next = moved_to(row, states[(place * n) % 3], FAR_AHEAD);
                    let told = entry(&next, second(1), Act::Doubted);
                    let told = Entry { node: format!("node-{n}").into(), ..told };
                    (swap(row, &next).telling(Some(told.clone())), told)
                };
                let (writes, told): (Vec<_>, Vec<_>) = rows.iter().enumerate().map(next).unzip();
                tokio::spawn(async move {
                    start.wait().await;
                    let outcomes = store.apply(&writes).await.expect("it has outcomes");
                    let won = outcomes.into_iter().map(|outcome| outcome == Outcome::Applied);
                    won.zip(told).map(|(won, told)| won.then_some(told)).collect::<Vec<_>>()
                })
            })
            .collect();
        let mut told = vec![Vec::new(); KEYS];
        for contender in contenders {
            for (told, won) in told.iter_mut().zip(contender.await.expect("a contender finishes")) {
                told.extend(won);
            }
        }
        for (row, told) in rows.iter().zip(told) {
            assert_eq!(told.len(), 1, "one swap is applied");
            assert_eq!(handles[1].story(row.id, 10).await.expect("told"), told, "and it alone tells");
        }
    }
}

pub async fn a_story_outlives_its_record<H: Harness>(harness: H) {
    let store = harness.open().await;
    let first = reserved("a", 1, LONG_AGO);
    let ended = moved_to(&first, StateKind::Completed, LONG_AGO);
    let told = entry(&ended, second(2), Act::Happened);
    let gone = bare(&ended, second(3), Act::Forgotten);
    applied(&store, &[insert(&first), swap(&first, &ended).telling(Some(told.clone()))]).await;
    applied(&store, &[remove(&ended).telling(Some(gone.clone()))]).await;
    assert_eq!(super::read(&store, "a").await, None);
    assert_eq!(store.story(first.id, 10).await.expect("told"), [told, gone]);
}

pub async fn a_story_is_told_in_order<H: Harness>(harness: H) {
    let store = harness.open().await;
    let row = reserved("a", 1, LONG_AGO);
    let same_moment = [Act::Lapsed, Act::Woken, Act::NotKnown, Act::Happened, Act::AskedAgain];
    let mut expected = vec![entry(&row, second(1), Act::Doubted)];
    expected.extend(same_moment.map(|act| entry(&row, second(2), act)));
    for entry in &expected {
        store.tell(std::slice::from_ref(entry)).await.expect("told");
    }
    // Again is once; and another record's story is another.
    store.tell(&expected).await.expect("told");
    let other = reserved("b", 1, LONG_AGO);
    store.tell(&[entry(&other, second(2), Act::Doubted)]).await.expect("told");
    assert_eq!(store.story(row.id, 10).await.expect("told"), expected);
    assert_eq!(store.story(row.id, 2).await.expect("told"), expected[4..], "the last ones");
    assert_eq!(store.story(reserved("c", 1, LONG_AGO).id, 2).await.expect("told"), []);
    store.tell(&[]).await.expect("nothing is told");
}

/// A clock that was set back stands still for as long as the step, so entries of one record carry
/// the same time. A store that knew an entry by its record, time, act and node dropped all but the
/// first.
pub async fn entries_of_one_moment_are_all_kept<H: Harness>(harness: H) {
    let store = harness.open().await;
    let first = reserved("a", 1, LONG_AGO);
    let second_row = moved_to(&first, StateKind::Unknown, FAR_AHEAD);
    let third_row = moved_to(&second_row, StateKind::Unknown, FAR_AHEAD);
    let by_write = [&second_row, &third_row].map(|row| entry(row, second(1), Act::NotKnown));
    applied(&store, &[insert(&first)]).await;
    applied(&store, &[swap(&first, &second_row).telling(Some(by_write[0].clone()))]).await;
    applied(&store, &[swap(&second_row, &third_row).telling(Some(by_write[1].clone()))]).await;
    // Of one version too: verdicts that changed nothing.
    let by_itself = ["one", "two"].map(|source| Entry {
        source: Some(source.into()),
        ..entry(&third_row, second(1), Act::DidNotHappen)
    });
    store.tell(&by_itself).await.expect("told");
    store.tell(&by_itself[1..]).await.expect("told again");
    let expected = [by_write, by_itself].concat();
    assert_eq!(store.story(first.id, 10).await.expect("told"), expected);
    assert_eq!(store.drop_entries(second(2), 10).await.expect("dropped"), 4);
    assert_eq!(store.story(first.id, 10).await.expect("told"), []);
}

pub async fn old_entries_are_dropped<H: Harness>(harness: H) {
    let store = harness.open().await;
    let row = reserved("a", 1, LONG_AGO);
    let acts = [Act::Doubted, Act::Lapsed, Act::NotKnown, Act::Happened];
    let entries: Vec<_> = (1..).zip(acts).map(|(n, act)| entry(&row, second(n), act)).collect();
    store.tell(&entries).await.expect("told");
    assert_eq!(store.drop_entries(second(4), 2).await.expect("dropped"), 2, "no more than the limit");
    assert_eq!(store.story(row.id, 10).await.expect("told"), entries[2..], "the oldest first");
    assert_eq!(store.drop_entries(second(4), 2).await.expect("dropped"), 1, "only what is older");
    assert_eq!(store.drop_entries(second(4), 2).await.expect("dropped"), 0);
    assert_eq!(store.story(row.id, 10).await.expect("told"), entries[3..]);
}

fn readable(entries: Vec<(EntryPlace, Option<Entry>)>) -> Vec<Entry> {
    entries.into_iter().map(|(_, entry)| entry.expect("it can be read")).collect()
}

/// All entries of a span, read by pages of this length.
async fn paged<S: Store>(store: &S, span: TimeSpan, limit: usize) -> Vec<Entry> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = store.entries(span, after, limit).await.expect("read");
        assert!(page.entries.len() <= limit, "no more than the limit");
        all.extend(readable(page.entries));
        match page.next {
            // As it goes through a command line.
            Some(next) => after = Some(next.to_string().parse::<EntryPlace>().expect("a place")),
            None => return all,
        }
    }
}

/// A cursor that was a moment alone would pass over what else that moment has, or show it again.
pub async fn pages_of_the_trail_show_each_entry_once<H: Harness>(harness: H) {
    let store = harness.open().await;
    assert_eq!(paged(&store, TimeSpan::ALL, 3).await, []);
    let rows = ["a", "b", "c"].map(|key| reserved(key, 1, LONG_AGO));
    let acts = [Act::Doubted, Act::Lapsed, Act::NotKnown, Act::Happened];
    let of_moment = |n: u64| {
        let entries = rows.iter().flat_map(|row| acts.map(|act| entry(row, second(n), act)));
        entries.collect::<Vec<_>>()
    };
    let (first, crowd, last) =
        (entry(&rows[1], second(1), Act::Began), of_moment(2), entry(&rows[0], second(3), Act::Began));
    // One by one, and the latest first: the order of arrival counts within a moment only.
    for entry in [&last].into_iter().chain(&crowd).chain([&first]) {
        store.tell(std::slice::from_ref(entry)).await.expect("told");
    }
    let all = [vec![first.clone()], crowd.clone(), vec![last.clone()]].concat();
    for limit in [1, 2, 5, 14, 100] {
        assert_eq!(paged(&store, TimeSpan::ALL, limit).await, all, "pages of {limit}");
    }
    let span = |from: u64, before: u64| TimeSpan { from: second(from), before: second(before) };
    assert_eq!(paged(&store, span(2, 3), 5).await, crowd, "the end is left out");
    assert_eq!(paged(&store, span(3, 9), 5).await, std::slice::from_ref(&last));
    assert_eq!(paged(&store, span(4, 9), 5).await, []);
    // What has been dropped meanwhile does not move the place.
    let page = store.entries(TimeSpan::ALL, None, 5).await.expect("read");
    assert_eq!(store.drop_entries(second(2), 10).await.expect("dropped"), 1);
    let rest = store.entries(TimeSpan::ALL, page.next, 100).await.expect("read");
    assert_eq!(readable(rest.entries), all[5..]);
    assert_eq!(rest.next, None);
}

pub async fn what_is_kept_apart_comes_back<H: Harness>(harness: H) {
    let store = Arc::new(harness.open().await);
    let apart = |n: u64, at: u64| Apart {
        name: format!("message {n}").into(),
        at: second(at),
        until: FAR_AHEAD,
        bytes: vec![u8::try_from(n).expect("small"), 0, 0xff],
    };
    assert_eq!(store.apart(None, 10).await.expect("asked"), []);
    for message in [apart(3, 2), apart(1, 1), apart(2, 2)] {
        store.keep_apart(&message).await.expect("kept");
    }
    // Delivered again, and changed: the first stays.
    let again = Apart { at: second(9), bytes: vec![9], ..apart(1, 1) };
    store.keep_apart(&again).await.expect("kept");
    let all = [apart(1, 1), apart(2, 2), apart(3, 2)];
    assert_eq!(store.apart(None, 10).await.expect("asked"), all);
    assert_eq!(store.apart(None, 2).await.expect("asked"), all[..2]);
    assert_eq!(store.apart(Some(&all[1]), 10).await.expect("asked"), all[2..]);
    store.drop_apart(&[apart(2, 2), apart(7, 7)]).await.expect("dropped");
    assert_eq!(store.apart(None, 10).await.expect("asked"), [apart(1, 1), apart(3, 2)]);
    store.drop_apart(&[]).await.expect("nothing is dropped");
}
