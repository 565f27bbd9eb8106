//! The cases about watermarks and quarantines.

use std::time::Duration;

use oncegate_store::{Durability, History, Quarantine, Sharing, Store};

use super::{Harness, LONG_AGO, applied, insert, reserved};

pub async fn a_history_is_intact_while_nothing_is_lost<H: Harness>(harness: H) {
    let (store, other) = (harness.open().await, harness.open().await);
    for n in 0..20 {
        for store in [&store, &other] {
            assert_eq!(store.check_history().await.expect("it is asked"), History::Intact, "round {n}");
        }
        applied(&store, &[insert(&reserved(&format!("key-{n}"), n, LONG_AGO))]).await;
    }
    drop(other);
    assert_eq!(harness.open().await.check_history().await.expect("it is asked"), History::Intact);
    assert_eq!(store.check_history().await.expect("it is asked"), History::Intact);
}

pub async fn a_watermark_that_is_gone_is_noticed<H: Harness>(harness: H) {
    let (store, other) = (harness.open().await, harness.open().await);
    for store in [&store, &other] {
        assert_eq!(store.check_history().await.expect("it is asked"), History::Intact);
    }
    store.leave().await.expect("it leaves");
    assert_eq!(store.check_history().await.expect("it is asked"), History::Lost);
    assert_eq!(store.check_history().await.expect("it is asked"), History::Lost, "for good");
    let are_apart = store.capability().sharing != Sharing::Process;
    if are_apart {
        assert_eq!(other.check_history().await.expect("it is asked"), History::Intact, "another's is there");
        assert_eq!(harness.open().await.check_history().await.expect("it is asked"), History::Intact);
    }
}

pub async fn quarantines_are_kept<H: Harness>(harness: H) {
    let (store, other) = (harness.open().await, harness.open().await);
    assert_eq!(store.quarantines().await.expect("listed"), []);
    let window = |id: &str, hours: u64| Quarantine {
        id: id.into(),
        since: LONG_AGO,
        until: LONG_AGO.plus(Duration::from_hours(hours)),
        declared_at: LONG_AGO.plus(Duration::from_hours(2 * hours)),
        released_at: None,
        reason: "the disk of db1 failed; \u{fc}".into(),
    };
    let (late, early) = (window("late", 3), window("early", 2));
    store.declare_quarantine(&late).await.expect("declared");
    other.declare_quarantine(&early).await.expect("declared");
    store.declare_quarantine(&Quarantine { reason: "another".into(), ..late.clone() }).await.expect("once");
    for store in [&store, &other] {
        assert_eq!(store.quarantines().await.expect("listed"), [early.clone(), late.clone()]);
    }
    let at = late.declared_at.plus(Duration::from_secs(1));
    assert!(!store.release_quarantine("none", at).await.expect("asked"));
    assert!(other.release_quarantine("early", at).await.expect("released"));
    assert!(!store.release_quarantine("early", at).await.expect("asked"), "once");
    let expected = [Quarantine { released_at: Some(at), ..early }, late];
    assert_eq!(store.quarantines().await.expect("listed"), expected);
    if store.capability().durability == Durability::Durable {
        drop((store, other));
        assert_eq!(harness.open().await.quarantines().await.expect("listed"), expected, "after a reopening");
    }
}
