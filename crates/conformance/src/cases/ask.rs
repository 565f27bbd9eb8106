//! The cases about scans, pages, counts and the clock.

use super::{
    Due, FAR_AHEAD, Filter, Harness, LONG_AGO, Moments, Record, State, StateKind, Store, Write, answer,
    applied, fill, moved_to, parked, remove, reserved, reserved_at,
};
use crate::samples::{address, stored_request};
use oncegate_core::record::CrashPolicy;
use oncegate_core::scope::Operation;
use oncegate_core::time::Timestamp;
use oncegate_store::SCAN_BYTES_MAX;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

fn second(n: u64) -> Timestamp {
    LONG_AGO.plus(Duration::from_secs(n))
}

/// Three rows of each state, all due at different seconds, and one that is due in the far future; written in an order that is
/// not that of their moments.
fn due_rows() -> Vec<Record> {
    let mut rows = Vec::new();
    for (place, state) in (0..).zip(StateKind::ALL) {
        for n in [30, 10, 20] {
            let base = reserved(&format!("{state}-{n}"), n, LONG_AGO);
            let mut row = moved_to(&base, state, second(n + place));
            if state == StateKind::Pending {
                // Its limit comes later than its turn.
                row.expires_at = Some(second(n + 100));
            }
            rows.push(row);
        }
        rows.push(moved_to(&reserved(&format!("{state}-later"), 9, LONG_AGO), state, FAR_AHEAD));
    }
    // Lapsed rows that wait for their client, or for the completer: not the sweeper's.
    for (name, crash, request) in [
        ("restart-stored", CrashPolicy::Restart, true),
        ("restart", CrashPolicy::Restart, false),
        ("resume-stored", CrashPolicy::Resume, true),
        ("resume", CrashPolicy::Resume, false),
    ] {
        let mut row = moved_to(&reserved(name, 8, LONG_AGO), StateKind::InProgress, second(5));
        row.terms.crash = crash;
        row.request = request.then(stored_request);
        rows.push(row);
    }
    rows
}

pub async fn due_finds_what_is_due<H: Harness>(harness: H) {
    let store = harness.open().await;
    fill(&store, &due_rows()).await;
    let day = 86_400;
    let table: &[(Due, u64, usize, &[&str])] = &[
        (Due::Pending, 9, 10, &[]),
        (Due::Pending, 10, 10, &["pending-10"]),
        (Due::Pending, 1_000, 10, &["pending-10", "pending-20", "pending-30"]),
        (Due::Pending, 1_000, 2, &["pending-10", "pending-20"]),
        (Due::Pending, 1_000, 0, &[]),
        (Due::Lapsed, 25, 10, &["restart-stored", "in_progress-10", "in_progress-20"]),
        (Due::Lapsed, 1_000, 2, &["restart-stored", "in_progress-10"]),
        // What only a client can run again is due past its retention, and stands in nobody's way before.
        (
            Due::Lapsed,
            5 + day,
            10,
            &["restart-stored", "in_progress-10", "in_progress-20", "in_progress-30", "restart", "resume"],
        ),
        (Due::Resumable, 4, 10, &[]),
        (Due::Resumable, 5 + day, 10, &["resume-stored"]),
        (Due::Doubted, 24, 10, &["unknown-10", "unknown-20"]),
        (Due::Doubted, 1_000, 1, &["unknown-10"]),
        (Due::Expired, 11, 10, &[]),
        (Due::Expired, 15, 10, &["completed-10", "failed_retryable-10", "expired-10"]),
        (Due::Expired, 1_000, 2, &["completed-10", "failed_retryable-10"]),
        (
            Due::Expired,
            25,
            5,
            &["completed-10", "failed_retryable-10", "expired-10", "completed-20", "failed_retryable-20"],
        ),
        // Waiting work past its limit is the reaper's too.
        (
            Due::Expired,
            110,
            100,
            &[
                "completed-10",
                "failed_retryable-10",
                "expired-10",
                "completed-20",
                "failed_retryable-20",
                "expired-20",
                "completed-30",
                "failed_retryable-30",
                "expired-30",
                "pending-10",
            ],
        ),
    ];
    for (what, now, limit, expected) in table {
        let found = store.due(*what, second(*now), *limit).await.expect("scanned");
        let keys: Vec<_> = found.records.iter().map(|row| row.address.key.as_str()).collect();
        assert_eq!((&keys[..], found.unreadable), (*expected, 0), "{what:?} at {now}, at most {limit}");
    }
}

/// What is due before that moment stands in nobody's way, also where the rows before it are more than the limit.
pub async fn due_goes_on_from_a_moment<H: Harness>(harness: H) {
    let store = harness.open().await;
    fill(&store, &due_rows()).await;
    let day = 86_400;
    let table: &[(Due, [u64; 2], usize, &[&str])] = &[
        (Due::Pending, [10, 1_000], 1, &["pending-10"]),
        (Due::Pending, [11, 1_000], 1, &["pending-20"]),
        (Due::Pending, [11, 29], 10, &["pending-20"]),
        (Due::Pending, [31, 1_000], 10, &[]),
        (Due::Lapsed, [6, 25], 10, &["in_progress-10", "in_progress-20"]),
        (Due::Lapsed, [21, 1_000], 1, &["in_progress-20"]),
        (Due::Resumable, [5, day], 10, &["resume-stored"]),
        (Due::Resumable, [6, day], 10, &[]),
        (Due::Doubted, [15, 1_000], 1, &["unknown-20"]),
        (Due::Expired, [16, 26], 10, &["completed-20", "failed_retryable-20", "expired-20"]),
        (Due::Expired, [33, 120], 3, &["failed_retryable-30", "expired-30", "pending-10"]),
    ];
    for (what, [from, by], limit, expected) in table {
        let moments = Moments { from: second(*from), by: second(*by) };
        let found = store.due_in(*what, moments, *limit).await.expect("scanned");
        let keys: Vec<_> = found.records.iter().map(|row| row.address.key.as_str()).collect();
        assert_eq!((&keys[..], found.unreadable), (*expected, 0), "{what:?} from {from} by {by}");
    }
}

/// More doubts of one operation than a scan shows, all of them due before the one of another.
pub async fn excepted_operations_hide_no_other<H: Harness>(harness: H) {
    let store = harness.open().await;
    let of = |n: u64, operation: &str| {
        let base = Record {
            operation: Operation::new(operation).expect("an operation"),
            ..reserved(&format!("{}-{n}", operation.len()), 1, LONG_AGO)
        };
        moved_to(&base, StateKind::Unknown, LONG_AGO)
    };
    let (many, few) = ("POST /many", "POST /few");
    let mut rows: Vec<_> = (0..300).map(|n| of(n, many)).collect();
    rows.extend((0..3).map(|n| of(n, few)));
    fill(&store, &rows).await;
    let found = async |except: &[&str], limit| {
        let except: Vec<_> = except.iter().map(|one| Operation::new(one).expect("an operation")).collect();
        let moments = Moments::by(FAR_AHEAD);
        let scan = store.doubted_except(&except, moments, limit).await.expect("scanned");
        let operations: Vec<_> = scan.records.iter().map(|row| row.operation.as_str().to_owned()).collect();
        (operations, scan.is_cut)
    };
    assert_eq!(found(&[], 2).await, (vec![many.to_owned(); 2], true));
    assert_eq!(found(&[many], 2).await, (vec![few.to_owned(); 2], true));
    assert_eq!(found(&[many], 100).await, (vec![few.to_owned(); 3], false));
    assert_eq!(found(&[many, few, "POST /none"], 100).await, (vec![], false));
    // A name that another begins with is another name.
    assert_eq!(found(&["POST /man", "POST /manyfold", few], 1).await, (vec![many.to_owned()], true));
}

pub async fn parked_is_never_due<H: Harness>(harness: H) {
    let store = harness.open().await;
    let base = reserved("a", 1, LONG_AGO);
    let waiting = moved_to(&base, StateKind::Unknown, LONG_AGO);
    applied(&store, &[Write::insert(Arc::new(waiting.clone()))]).await;
    let due = async |what| store.due(what, FAR_AHEAD, 10).await.expect("scanned").records;
    assert_eq!(due(Due::Doubted).await, std::slice::from_ref(&waiting));
    let mut parked = parked(&waiting);
    parked.version = moved_to(&waiting, StateKind::Unknown, LONG_AGO).version;
    applied(&store, &[Write::swap(waiting.version, Arc::new(parked.clone()))]).await;
    for what in Due::ALL {
        assert_eq!(due(what).await, [], "{what:?}");
    }
    // Taken up again, it is due again.
    let again = moved_to(&parked, StateKind::Unknown, LONG_AGO);
    applied(&store, &[Write::swap(parked.version, Arc::new(again.clone()))]).await;
    assert_eq!(due(Due::Doubted).await, [again]);
}

/// Large answers: a scan stops long before its limit, and whoever goes by the number of rows alone would take it for the last one.
pub async fn a_scan_says_whether_it_came_to_the_end<H: Harness>(harness: H) {
    const ROWS: usize = 20;
    let store = harness.open().await;
    let large = |n| {
        let mut row =
            moved_to(&reserved(&format!("large-{n}"), n, LONG_AGO), StateKind::Completed, second(n));
        row.state = State::Completed(answer(200, &vec![b'x'; 1 << 20]));
        row
    };
    for n in 0..ROWS as u64 {
        fill(&store, &[large(n)]).await;
    }
    let due = async |limit| store.due(Due::Expired, second(1_000), limit).await.expect("scanned");
    let few = due(3).await;
    assert_eq!((few.records.len(), few.is_cut), (3, true), "at its limit");
    let mut removed = 0;
    loop {
        let scan = due(1_000).await;
        let met = scan.records.len();
        assert!(met <= (SCAN_BYTES_MAX >> 20) + 1, "{met} of a MiB each, at once");
        assert!(met > 0 || !scan.is_cut, "every scan comes further");
        applied(&store, &scan.records.iter().map(remove).collect::<Vec<_>>()).await;
        removed += met;
        if !scan.is_cut {
            break;
        }
    }
    assert_eq!(removed, ROWS, "the last scan came to the end");
}

pub async fn browsing_filters<H: Harness>(harness: H) {
    let store = harness.open().await;
    let long = "\0\u{1F4B6}".repeat(2_000);
    let mut rows = Vec::new();
    for (n, state) in (0_u64..).zip(StateKind::ALL) {
        for tenant in ["one", "two"] {
            let base = reserved_at(address(tenant, &format!("key-{n}")), n, second(n));
            let mut row = moved_to(&base, state, FAR_AHEAD);
            if n % 2 == 0 {
                row.operation = Operation::new("POST /refunds").expect("a valid pattern");
            }
            // Any text, of any length; and some records share one.
            row.provider_reference = match n {
                1 => Some(format!("ch_{tenant}").into()),
                2 => Some("ch_both".into()),
                3 => Some(long.as_str().into()),
                4 => Some("".into()),
                _ => None,
            };
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
        Filter { reference: text("ch_one"), ..Filter::default() },
        Filter { reference: text("ch_both"), ..Filter::default() },
        Filter { reference: text("ch_both"), scope: text("two"), ..Filter::default() },
        Filter { reference: text("ch_"), ..Filter::default() },
        Filter { reference: text(&long), ..Filter::default() },
        Filter { reference: text(""), ..Filter::default() },
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
        let outcome = model.apply(&Write::insert(Arc::new(row.clone())), LONG_AGO);
        assert_eq!(outcome, oncegate_store::Outcome::Applied);
    }
    for filter in filters {
        let expected = model.browse(&filter, None, 100).expect("browsed").records;
        for limit in [1, 2, 100] {
            let mut shown = Vec::new();
            let mut cursor = None;
            loop {
                let page = store.browse(&filter, cursor.as_ref(), limit).await.expect("browsed");
                assert!(page.records.len() <= limit && page.unreadable == 0);
                shown.extend(page.records);
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
            assert_eq!(shown, expected, "{filter:?}, {limit} at a time");
        }
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
    // A row that changes keeps its place, also through states that a store lists apart.
    let oldest = &rows[0];
    let mut row = oldest.clone();
    for state in [StateKind::Completed, StateKind::Expired, StateKind::InProgress] {
        let next = moved_to(&row, state, FAR_AHEAD);
        applied(&store, &[Write::swap(row.version, Arc::new(next.clone()))]).await;
        row = next;
    }
    let all = store.browse(&Filter::default(), None, 1_000).await.expect("browsed");
    assert_eq!(all.records.last().map(|row| row.id), Some(oldest.id), "it is still the oldest");
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
        in_progress: 8,
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
    let first = one.clock().await.expect("a clock");
    let mut last = first;
    let started = Instant::now();
    // It goes on: a clock that stands still would never lapse a lease.
    while last == first || started.elapsed() < Duration::from_millis(5) {
        assert!(started.elapsed() < Duration::from_secs(2), "the clock stands still at {first:?}");
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
