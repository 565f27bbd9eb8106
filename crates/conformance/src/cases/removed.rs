//! The cases about what is remembered of removed rows.

use std::time::Duration;

use oncegate_core::record::{Record, StateKind};
use oncegate_core::time::Timestamp;
use oncegate_store::removed::{day_of, start_of};
use oncegate_store::{Durability, Outcome, Store};

use super::{FAR_AHEAD, Harness, LONG_AGO, applied, insert, moved_to, one, remove, reserved};

const DAY: Duration = Duration::from_hours(24);
/// Before every removal.
const BEFORE: Timestamp = LONG_AGO;

async fn removed<S: Store>(store: &S, rows: &[&Record], since: Timestamp) -> Vec<Option<Timestamp>> {
    let ids: Vec<_> = rows.iter().map(|row| row.id).collect();
    store.removed(&ids, since).await.expect("asked")
}

pub async fn a_removal_is_remembered<H: Harness>(harness: H) {
    let store = harness.open().await;
    let ended = |key: &str| moved_to(&reserved(key, 1, LONG_AGO), StateKind::Completed, LONG_AGO);
    let (gone, also_gone, there) = (ended("gone"), ended("also gone"), ended("there"));
    let unremembered = ended("released");
    let lives = moved_to(&reserved("lives", 1, LONG_AGO), StateKind::Completed, FAR_AHEAD);
    let (first, second) = (store.clock().await.expect("a time"), &lives);
    applied(&store, &[&gone, &also_gone, &there, second].map(insert)).await;
    let all = [&gone, &also_gone, &there, second];
    assert_eq!(removed(&store, &all, BEFORE).await, [None; 4]);
    applied(&store, &[insert(&unremembered), remove(&unremembered)]).await;
    applied(&store, &[remove(&gone).remembered(), remove(&also_gone).remembered()]).await;
    let refused = one(&store, remove(&lives).remembered()).await;
    assert!(matches!(refused, Outcome::Refused { .. }), "it lives");
    let absent = one(&store, remove(&ended("never there")).remembered()).await;
    assert!(matches!(absent, Outcome::Refused { current: None }));
    let last = store.clock().await.expect("a time");
    // Midnight may have passed meanwhile.
    let today = [first, last].map(|at| Some(start_of(day_of(at))));
    let expected = |found: &[Option<Timestamp>]| {
        found[..2].iter().all(|day| today.contains(day)) && found[2..] == [None, None]
    };
    let found = removed(&store, &all, BEFORE).await;
    assert!(expected(&found), "{found:?}, and today is {today:?}");
    assert_eq!(
        removed(&store, &[&ended("never there"), &unremembered, &gone], BEFORE).await[..2],
        [None, None]
    );
    assert_eq!(removed(&store, &[], BEFORE).await, []);
    assert_eq!(removed(&store, &all, last.plus(2 * DAY)).await, [None; 4], "not since then");
    // A new life does not undo it, and the end of that one is no other removal.
    applied(&store, &[insert(&gone)]).await;
    assert!(expected(&removed(&store, &all, BEFORE).await));
    applied(&store, &[remove(&gone).remembered()]).await;
    assert!(expected(&removed(&store, &all, BEFORE).await));
    let other = harness.open().await;
    assert!(expected(&removed(&other, &all, BEFORE).await), "through another handle");
    if store.capability().durability == Durability::Durable {
        drop((store, other));
        let store = harness.open().await;
        assert!(expected(&removed(&store, &all, BEFORE).await), "after a reopening");
    }
}

pub async fn old_removals_are_forgotten<H: Harness>(harness: H) {
    let store = harness.open().await;
    let ended: Vec<_> = (0..5)
        .map(|n| moved_to(&reserved(&format!("k{n}"), 1, LONG_AGO), StateKind::Completed, LONG_AGO))
        .collect();
    applied(&store, &ended.iter().map(insert).collect::<Vec<_>>()).await;
    let first = store.clock().await.expect("a time");
    applied(&store, &ended.iter().map(|row| remove(row).remembered()).collect::<Vec<_>>()).await;
    let rows: Vec<_> = ended.iter().collect();
    assert_eq!(store.drop_removed(first, 100).await.expect("dropped"), 0, "that day is not over");
    assert!(removed(&store, &rows, BEFORE).await.iter().all(Option::is_some));
    let tomorrow = first.plus(2 * DAY);
    let mut dropped = 0;
    while dropped < ended.len() {
        let more = store.drop_removed(tomorrow, 2).await.expect("dropped");
        assert!(more > 0, "{dropped} of {} were dropped", ended.len());
        dropped += more;
    }
    assert_eq!(dropped, ended.len());
    assert_eq!(store.drop_removed(tomorrow, 2).await.expect("dropped"), 0);
    assert_eq!(removed(&store, &rows, BEFORE).await, [None; 5]);
}
