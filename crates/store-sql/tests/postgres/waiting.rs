//! Writes that wait for another's transaction, and see what became of it.

use std::sync::Arc;

use oncegate_conformance::samples::{FAR_AHEAD, moved_to};
use oncegate_core::record::StateKind;
use oncegate_store::{Effect, Kind, Outcome, Store};

use crate::place::{Place, apply_all, completed, in_time, insert, leased, read, swap, until_waiting};

/// Runs `write` while `holder`'s transaction is in the way, which ends with `end` once the store waits for it.
async fn while_held(place: &Place, hold: &str, end: &str, write: oncegate_store::Write) -> Outcome {
    let store = place.open().await;
    let (holder, watcher) = (place.raw().await, place.raw().await);
    let hold = format!("BEGIN; {}", hold.replace("{}", &place.schema));
    holder.batch_execute(&hold).await.expect("the row is held");
    let batch = [write];
    let (outcomes, ()) = in_time(async {
        tokio::join!(store.apply(&batch), async {
            until_waiting(&watcher, &place.schema, 1).await;
            holder.batch_execute(end).await.expect("it ends");
        })
    })
    .await;
    outcomes.expect("the store waits").remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_insert_waits_for_its_uncommitted_twin() {
    let place = Place::shared();
    let store = place.open().await;
    let row = leased("twin");
    apply_all(&store, &[insert(&row)]).await;
    let schema = &place.schema;
    let save = format!("CREATE TABLE {schema}.saved AS TABLE {schema}.record; DELETE FROM {schema}.record");
    place.raw().await.batch_execute(&save).await.expect("the row is put aside");
    let twin = "INSERT INTO {}.record SELECT * FROM {}.saved";
    // The twin aborts: the insert is admitted. It commits: the insert is refused, and gets the twin.
    let mut other = row.clone();
    other.life = oncegate_conformance::samples::token(77);
    assert_eq!(while_held(&place, twin, "ROLLBACK", insert(&other)).await, Outcome::Applied);
    assert_eq!(read(&store, "twin").await, Some(other.clone()));
    place.raw().await.batch_execute(&format!("DELETE FROM {schema}.record")).await.expect("it goes");
    let refused = while_held(&place, twin, "COMMIT", insert(&other)).await;
    assert_eq!(refused, Outcome::Refused { current: Some(Arc::new(row)) });
}

/// READ COMMITTED looks at the row again once it has it: an old version is refused, though it fitted before the wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_swap_that_waits_for_another_is_refused_if_that_one_commits() {
    let place = Place::shared();
    let store = place.open().await;
    let row = leased("swapped");
    apply_all(&store, &[insert(&row)]).await;
    let overtake = "UPDATE {}.record SET version = version + 1";
    for next in [completed(&row), moved_to(&row, StateKind::Unknown, FAR_AHEAD)] {
        let refused = while_held(&place, overtake, "COMMIT", swap(&row, &next)).await;
        assert!(matches!(refused, Outcome::Refused { current: Some(_) }), "{refused:?}");
        for table in ["answer", "note WHERE due_at > 3600000000000000 AND first = last"] {
            assert_eq!(
                place.number(&format!("SELECT count(*) FROM {{}}.{table}")).await,
                0,
                "nothing of it is kept"
            );
        }
        let back = format!("UPDATE {}.record SET version = version - 1", place.schema);
        place.raw().await.batch_execute(&back).await.expect("as before");
    }
    let applied = while_held(&place, overtake, "ROLLBACK", swap(&row, &completed(&row))).await;
    assert_eq!(applied, Outcome::Applied);
    assert_eq!(read(&store, "swapped").await, Some(completed(&row)));
}

/// Two settlements of one attempt at once, over two stores: one answer, and it is the winner's.
#[tokio::test(flavor = "multi_thread")]
async fn a_swap_that_waits_for_a_removal_is_refused_with_nothing() {
    let place = Place::shared();
    let store = place.open().await;
    let row = leased("removed");
    apply_all(&store, &[insert(&row)]).await;
    let refused = while_held(&place, "DELETE FROM {}.record", "COMMIT", swap(&row, &completed(&row))).await;
    assert_eq!(refused, Outcome::Refused { current: None });
    assert_eq!(place.number("SELECT count(*) FROM {}.answer").await, 0);
}

/// Somebody who never ends is not waited for for ever, and what was waiting is undone.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_without_end_is_given_up_without_effect() {
    let place = Place::shared();
    let store = place.open().await;
    let (row, other) = (leased("stuck"), leased("beside it"));
    apply_all(&store, &[insert(&row)]).await;
    let holder = place.raw().await;
    let hold = format!("BEGIN; SELECT FROM {}.record FOR UPDATE", place.schema);
    holder.batch_execute(&hold).await.expect("the row is held");
    let batch = [insert(&other), swap(&row, &completed(&row))];
    let error = in_time(store.apply(&batch)).await.expect_err("the row is held for longer than that");
    assert_eq!((error.kind(), error.effect()), (Kind::Contended, Effect::None), "{error}");
    assert_eq!(read(&store, "beside it").await, None);
    holder.batch_execute("ROLLBACK").await.expect("it ends");
    apply_all(&store, &batch).await;
}
