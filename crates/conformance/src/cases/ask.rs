//! The cases about scans, pages, counts and the clock.

use super::{
    Due, FAR_AHEAD, Filter, Harness, LONG_AGO, Record, StateKind, Store, Write, applied, fill, moved_to,
    parked, reserved, reserved_at,
};
use crate::samples::address;
use oncegate_core::record::State;
use oncegate_core::time::Timestamp;
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn second(n: u64) -> Timestamp {
    LONG_AGO.plus(Duration::from_secs(n))
}

/// Three rows of each state, due at seconds 10, 20 and 30, and one that is due in the far future.
fn due_rows() -> Vec<Record> {
    let mut rows = Vec::new();
    for state in StateKind::ALL {
        for n in [30, 10, 20] {
            let base = reserved(&format!("{state}-{n}"), n, LONG_AGO);
            let mut row = moved_to(&base, state, second(n));
            if state == StateKind::Pending {
                // Its limit comes later than its turn.
                row.expires_at = Some(second(n + 100));
            }
            rows.push(row);
        }
        rows.push(moved_to(&reserved(&format!("{state}-later"), 9, LONG_AGO), state, FAR_AHEAD));
    }
    rows
}

pub async fn due_finds_what_is_due<H: Harness>(harness: H) {
    let store = harness.open().await;
    fill(&store, &due_rows()).await;
    let table: &[(Due, u64, usize, &[&str])] = &[
        (Due::Pending, 9, 10, &[]),
        (Due::Pending, 10, 10, &["pending-10"]),
        (Due::Pending, 1_000, 10, &["pending-10", "pending-20", "pending-30"]),
        (Due::Pending, 1_000, 2, &["pending-10", "pending-20"]),
        (Due::Lapsed, 25, 10, &["in_progress-10", "in_progress-20"]),
        (Due::Lapsed, 1_000, 1, &["in_progress-10"]),
        (Due::Doubted, 20, 10, &["unknown-10", "unknown-20"]),
        (Due::Expired, 9, 10, &[]),
        (Due::Expired, 10, 10, &["completed-10", "failed_retryable-10", "expired-10"]),
        (Due::Expired, 10, 2, &["completed-10", "failed_retryable-10"]),
        (Due::Expired, 25, 4, &["completed-10", "failed_retryable-10", "expired-10", "completed-20"]),
        (Due::Expired, 0, 10, &[]),
        (Due::Lapsed, 1_000, 0, &[]),
    ];
    for (what, now, limit, expected) in table {
        let found = store.due(*what, second(*now), *limit).await.expect("scanned");
        let keys: Vec<_> = found.iter().map(|row| row.address.key.as_str()).collect();
        // Rows due at one moment come in any order: compare them as sets, moment by moment.
        let moments: Vec<_> = found.iter().map(|row| what.moment(row)).collect();
        assert!(moments.is_sorted(), "{what:?} at {now}: oldest first");
        assert_eq!(keys.len(), expected.len(), "{what:?} at {now}, at most {limit}: {keys:?}");
        let whole: BTreeSet<_> = keys.iter().copied().collect();
        if *limit >= 10 {
            assert_eq!(whole, expected.iter().copied().collect(), "{what:?} at {now}");
        }
    }
    // Waiting work past its limit is the reaper's too.
    let found = store.due(Due::Expired, second(110), 100).await.expect("scanned");
    assert!(found.iter().any(|row| row.address.key.as_str() == "pending-10"));
    assert!(!found.iter().any(|row| row.address.key.as_str() == "pending-20"));
    assert!(found.iter().all(|row| !matches!(row.state, State::InProgress | State::Unknown(_))));
}

pub async fn parked_is_never_due<H: Harness>(harness: H) {
    let store = harness.open().await;
    let base = reserved("a", 1, LONG_AGO);
    let waiting = moved_to(&base, StateKind::Unknown, LONG_AGO);
    applied(&store, &[Write::Insert(Box::new(waiting.clone()))]).await;
    assert_eq!(
        store.due(Due::Doubted, FAR_AHEAD, 10).await.expect("scanned"),
        std::slice::from_ref(&waiting)
    );
    let mut parked = parked(&waiting);
    parked.version = moved_to(&waiting, StateKind::Unknown, LONG_AGO).version;
    applied(&store, &[Write::Swap { expect: waiting.version, record: Box::new(parked.clone()) }]).await;
    for what in Due::ALL {
        assert_eq!(store.due(what, FAR_AHEAD, 10).await.expect("scanned"), [], "{what:?}");
    }
    // Taken up again, it is due again.
    let again = moved_to(&parked, StateKind::Unknown, LONG_AGO);
    applied(&store, &[Write::Swap { expect: parked.version, record: Box::new(again.clone()) }]).await;
    assert_eq!(store.due(Due::Doubted, FAR_AHEAD, 10).await.expect("scanned"), [again]);
}

pub async fn browsing_filters<H: Harness>(harness: H) {
    let store = harness.open().await;
    let mut rows = Vec::new();
    for (n, state) in (0_u64..).zip(StateKind::ALL) {
        for tenant in ["one", "two"] {
            let base = reserved_at(address(tenant, &format!("key-{n}")), n, second(n));
            let mut row = moved_to(&base, state, FAR_AHEAD);
            if n % 2 == 0 {
                row.operation =
                    oncegate_core::scope::Operation::new("POST /refunds").expect("a valid pattern");
            }
            rows.push(row);
        }
    }
    let mut seen_by_operator = parked(&reserved_at(address("one", "parked"), 50, second(50)));
    seen_by_operator.operation = rows[0].operation.clone();
    rows.push(seen_by_operator);
    fill(&store, &rows).await;

    let text = |text: &str| Some(text.to_owned());
    let filters = [
        Filter::default(),
        Filter { state: Some(StateKind::Unknown), ..Filter::default() },
        Filter { state: Some(StateKind::Completed), ..Filter::default() },
        Filter { parked: Some(true), ..Filter::default() },
        Filter { parked: Some(false), ..Filter::default() },
        Filter { state: Some(StateKind::Unknown), parked: Some(false), ..Filter::default() },
        Filter { scope: text("one"), ..Filter::default() },
        Filter { scope: text("nobody"), ..Filter::default() },
        Filter { key: text("key-3"), ..Filter::default() },
        Filter { key: text("key-3"), scope: text("two"), ..Filter::default() },
        Filter { operation: text("POST /refunds"), ..Filter::default() },
        Filter { created_from: Some(second(2)), ..Filter::default() },
        Filter { created_before: Some(second(2)), ..Filter::default() },
        Filter {
            created_from: Some(second(1)),
            created_before: Some(second(3)),
            scope: text("two"),
            ..Filter::default()
        },
    ];
    // The memory model says what each must give.
    let mut model = oncegate_store::memory::Model::default();
    for row in &rows {
        let outcome = model.apply(&Write::Insert(Box::new(row.clone())), LONG_AGO);
        assert_eq!(outcome, oncegate_store::Outcome::Applied);
    }
    for filter in filters {
        let got = store.browse(&filter, None, 100).await.expect("browsed");
        let expected = model.browse(&filter, None, 100).expect("browsed");
        assert_eq!(got.records, expected.records, "{filter:?}");
        assert_eq!(got.next, None, "{filter:?}");
    }
}

pub async fn browsing_pages_show_each_row_once<H: Harness>(harness: H) {
    let store = harness.open().await;
    let rows: Vec<_> = (0..25).map(|n| reserved(&format!("key-{n}"), n, LONG_AGO)).collect();
    fill(&store, &rows).await;
    let mut shown = Vec::new();
    let mut cursor = None;
    let mut pages = 0;
    loop {
        let page = store.browse(&Filter::default(), cursor.as_ref(), 10).await.expect("browsed");
        pages += 1;
        shown.extend(page.records.into_iter().map(|row| row.id));
        // Rows that come meanwhile are newer, and belong to no later page.
        fill(&store, &[reserved(&format!("meanwhile-{pages}"), 100, FAR_AHEAD)]).await;
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    let newest_first: Vec<_> = rows.iter().rev().map(|row| row.id).collect();
    assert_eq!((pages, shown), (3, newest_first));
    // A page that ends exactly at the last row has no next.
    let page = store.browse(&Filter { key: Some("key-1".to_owned()), ..Filter::default() }, None, 1).await;
    assert_eq!(page.expect("browsed").next, None);
    let bad = oncegate_store::Cursor::new("not a cursor");
    assert!(store.browse(&Filter::default(), Some(&bad), 1).await.is_err(), "a foreign cursor is refused");
}

pub async fn counts_are_true<H: Harness>(harness: H) {
    let store = harness.open().await;
    assert_eq!(store.counts().await.expect("counted"), oncegate_store::Counts::default());
    let rows = due_rows();
    fill(&store, &rows).await;
    fill(&store, &[parked(&reserved("parked", 1, LONG_AGO))]).await;
    let counts = store.counts().await.expect("counted");
    let expected = oncegate_store::Counts {
        pending: 4,
        in_progress: 4,
        completed: 4,
        failed_retryable: 4,
        unknown: 5,
        parked: 1,
        expired: 4,
    };
    assert_eq!(counts, expected);
}

pub async fn the_clock_never_runs_backwards<H: Harness>(harness: H) {
    let (one, two) = (harness.open().await, harness.open().await);
    let mut last = Timestamp::from_micros(i64::MIN);
    for _ in 0..100 {
        for store in [&one, &two] {
            let now = store.clock().await.expect("a clock");
            assert!(now >= last, "{now:?} after {last:?}");
            last = now;
        }
    }
    // It is a clock: within a day of this machine's, in case the two are far apart.
    let here = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
    let here = Timestamp::from_micros(i64::try_from(here).unwrap_or(i64::MAX));
    let day = Duration::from_hours(24);
    assert!(last.since(here) < day && here.since(last) < day, "{last:?} is not the present, {here:?}");
}
