//! Runs, damage, and files and processes of another release.

use super::*;

/// `count` rows, reserved and settled; each ends a second after the one before it.
fn settled(store: &SqliteStore, from: u64, count: u64) -> Vec<Record> {
    let rows: Vec<_> = (from..from + count).map(|n| reserved(&format!("key-{n}"), n, LONG_AGO)).collect();
    let ended =
        |(n, row): (u64, &Record)| moved_to(row, StateKind::Completed, LONG_AGO.plus(Duration::from_secs(n)));
    let ended: Vec<_> = (from..).zip(&rows).map(ended).collect();
    applied(store, &rows.iter().map(insert).collect::<Vec<_>>());
    // Not in the order in which they came.
    let mut swaps: Vec<_> = rows.iter().zip(&ended).map(|(row, end)| swap(row, end)).collect();
    swaps.reverse();
    applied(store, &swaps);
    ended
}

#[test]
fn runs_are_whole_at_their_edges_and_after_a_reopening() {
    let run = u64::try_from(RUN).unwrap();
    for count in [run - 1, run, run + 1, 2 * run + 1] {
        let place = Place::new();
        let store = place.open();
        let rows = settled(&store, 0, count);
        let whole = i64::try_from(count).unwrap() / RUN;
        assert_eq!((place.count("record_run"), place.count("record_run_ids")), (whole, whole), "{count}");
        for store in [&store, &place.open()] {
            let ids: Vec<_> = rows.iter().map(|row| row.id).collect();
            let found = block_on(store.read(&ids)).unwrap();
            let found: Vec<_> = found.into_iter().map(|row| row.unwrap().unwrap()).collect();
            assert!(found == rows, "{count}: every row is found");
            let again: Vec<_> =
                rows.iter().map(|row| insert(&reserved(row.address.key.as_str(), 7, FAR_AHEAD))).collect();
            assert!(
                outcomes(store, &again)
                    .iter()
                    .all(|outcome| matches!(outcome, Outcome::Refused { current: Some(_) }))
            );
            assert_eq!(block_on(store.counts()).unwrap().completed, count);
            // The longest due first, though it was settled last of its batch.
            let scan = block_on(store.due(Due::Expired, FAR_AHEAD, 10)).unwrap();
            assert_eq!((&scan.records[..], scan.is_cut), (&rows[..10], true), "{count}");
            let from = LONG_AGO.plus(Duration::from_secs(count - 3));
            let moments = oncegate_store::Moments { from, by: FAR_AHEAD };
            let scan = block_on(store.due_in(Due::Expired, moments, 10)).unwrap();
            assert_eq!((scan.records.len(), scan.is_cut), (3, false));
            // Newest first, page by page.
            let (mut shown, mut cursor) = (Vec::new(), None);
            loop {
                let page = block_on(store.browse(&Filter::default(), cursor.as_ref(), 1_500)).unwrap();
                shown.extend(page.records);
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
            assert!(shown.iter().eq(rows.iter().rev()), "{count}: each row once, newest first");
            let one = Filter { key: Some("key-5".to_owned()), ..Filter::default() };
            assert_eq!(block_on(store.browse(&one, None, 10)).unwrap().records, [rows[5].clone()]);
            let one = Filter { scope: Some("tenant".to_owned()), ..one };
            assert_eq!(block_on(store.browse(&one, None, 10)).unwrap().records, [rows[5].clone()]);
        }
    }
}

/// As the reaper does it: batch by batch from the front, until nothing is left; and another handle keeps up.
#[test]
fn what_is_reaped_leaves_no_runs_and_no_memory_behind() {
    let place = Place::new();
    let (store, other) = (place.open(), place.open());
    let count = 2 * u64::try_from(RUN).unwrap() + 10;
    settled(&store, 0, count);
    read(&other, "any");
    // They were settled in reverse, so this one is at the front; and it is removed last.
    let last = format!("key-{}", count - 6);
    let known = |store: &SqliteStore| store.shared.memory.read().unwrap().ids().len();
    let due = || block_on(store.due(Due::Expired, FAR_AHEAD, 500)).unwrap().records;
    let mut removed = 0;
    loop {
        let mut rows = due();
        rows.retain(|row| row.address.key.as_str() != last);
        if rows.is_empty() {
            break;
        }
        applied(&store, &rows.iter().map(remove).collect::<Vec<_>>());
        removed += rows.len() as u64;
        assert_eq!(block_on(store.counts()).unwrap().completed, count - removed);
    }
    assert_eq!(removed, count - 1);
    assert_eq!((place.tables(), place.count("record_run"), place.count("record_run_ids")), ([0, 1, 0], 1, 1));
    let written: i64 =
        place.raw().query_row("SELECT length(ids) FROM record_run_ids", [], |row| row.get(0)).unwrap();
    assert_eq!(written, 18, "one id");
    assert_eq!(known(&store), 1);
    let reopened = place.open();
    for store in [&other, &reopened] {
        assert!(read(store, &last).is_some());
        assert_eq!(read(store, "key-4"), None);
    }
    assert_eq!(known(&reopened), 1);
    applied(&store, &due().iter().map(remove).collect::<Vec<_>>());
    assert_eq!((place.tables(), place.count("record_run"), place.count("record_run_ids")), ([0, 0, 0], 0, 0));
    assert_eq!(read(&other, "key-4"), None);
    assert!(known(&other) <= 10, "what another has removed is forgotten as well: {}", known(&other));
    applied(&reopened, &[insert(&reserved("key-4", 1, LONG_AGO))]);
    assert!(read(&other, "key-4").is_some());
}

/// A row that was damaged is an error for whoever asks for it, and for nobody else.
#[test]
fn a_row_that_cannot_be_read_hinders_nobody_else() {
    let place = Place::new();
    let store = place.open();
    let (bad, good) = (reserved("bad", 1, LONG_AGO), reserved("good", 2, LONG_AGO));
    applied(&store, &[insert(&bad), insert(&good)]);
    let (bad_end, good_end) =
        (moved_to(&bad, StateKind::Completed, LONG_AGO), moved_to(&good, StateKind::Completed, LONG_AGO));
    applied(&store, &[swap(&bad, &bad_end), swap(&good, &good_end)]);
    place
        .raw()
        .execute("UPDATE record_settled SET bytes = x'09' WHERE id = ?1", [&bad.id.as_bytes()[..]])
        .unwrap();
    check(&store, &bad, &good_end);
    let scan = block_on(store.due(Due::Expired, FAR_AHEAD, 1)).unwrap();
    assert_eq!((scan.records, scan.unreadable), (vec![good_end], 1));

    // And one in flight.
    let place = Place::new();
    let store = place.open();
    applied(&store, &[insert(&bad), insert(&good)]);
    let raw = place.raw();
    let (seq, mut blob): (i64, Vec<u8>) = raw
        .query_row("SELECT seq, bytes FROM record_reserved WHERE seq > 0", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .unwrap();
    // Behind the form, the number, an id and its length, a place and a length: the row's form.
    blob[1 + 4 + 20 + 8 + 4] = 9;
    raw.execute("UPDATE record_reserved SET bytes = ?2 WHERE seq = ?1", rusqlite::params![seq, blob])
        .unwrap();
    let store = place.open();
    check(&store, &bad, &good);
    let scan = block_on(store.due(Due::Lapsed, FAR_AHEAD, 10)).unwrap();
    assert_eq!((scan.records.len(), scan.unreadable), (2, 1), "good and other");
    // It stays as it is when its blob is written anew.
    let ended = moved_to(&good, StateKind::Completed, LONG_AGO);
    applied(&store, &[swap(&good, &ended)]);
    applied(&store, &[remove(&ended)]);
    let store = place.impatient();
    assert!(matches!(outcomes(&store, &[insert(&bad)])[..], [Outcome::Unreadable { .. }]));
    assert_eq!(read(&store, "good"), None);
}

fn check(store: &SqliteStore, bad: &Record, good: &Record) {
    let mut found = block_on(store.read(&[bad.id, good.id])).unwrap();
    assert_eq!(found.pop().unwrap().unwrap().as_ref(), Some(good));
    assert_eq!(found.pop().unwrap().unwrap_err().kind(), Kind::Unreadable);
    let outcomes = outcomes(store, &[insert(bad), insert(&reserved("other", 3, LONG_AGO))]);
    assert!(matches!(outcomes[0], Outcome::Unreadable { .. }), "{outcomes:?}");
    assert_eq!(outcomes[1], Outcome::Applied);
    let page = block_on(store.browse(&Filter::default(), None, 10)).unwrap();
    assert_eq!((page.records.len(), page.unreadable), (2, 1));
}

/// A process of the release before, which has the file open while a newer one migrates it: it knows of no marks and no quarantines, and names some keys
/// otherwise. Whatever it tries to admit is refused, by its own statements, and the error says why.
#[test]
fn a_process_of_the_release_before_admits_nothing_and_is_told_why() {
    let place = Place::new();
    let store = place.open();
    applied(&store, &[insert(&reserved("a", 1, LONG_AGO))]);
    let row = moved_to(&reserved("b", 1, LONG_AGO), StateKind::FailedRetryable, FAR_AHEAD);
    applied(&store, &[insert(&row)]);
    let others = super::super::super::row::COLUMNS.iter().filter(|column| **column != "layout");
    let columns = others.copied().collect::<Vec<_>>().join(", ");
    let older = [
        // Two releases ago, and one.
        format!("INSERT INTO record ({columns}) SELECT {columns} FROM record WHERE true ON CONFLICT (id) DO NOTHING"),
        format!(
            "INSERT INTO record ({columns}, layout) SELECT {columns}, 2 FROM record WHERE true ON CONFLICT (id) DO NOTHING"
        ),
        // Its batches, with reservations and answers of the happy path.
        "UPDATE record_reserved SET generation = generation + 1, arrived = arrived + 1, settled = settled WHERE seq = 0".to_owned(),
        // A caller's transaction, appended; and one that moves a row.
        "UPDATE record_reserved SET generation = generation + 1, arrived = 1 + max(arrived, coalesce((SELECT max(seq) FROM record), 0)), \
         settled = settled + 1 WHERE seq = 0 AND generation = generation"
            .to_owned(),
        "UPDATE record_reserved SET generation = generation + 1 WHERE seq = 0".to_owned(),
        // A key that was released is granted once more.
        "UPDATE record SET state = 1, layout = 2".to_owned(),
    ];
    for older in &older {
        let error = place.raw().execute(older, []).unwrap_err();
        assert!(error.to_string().contains("a newer release has taken over this file"), "{older}: {error}");
    }
    // What it has begun there it may still settle.
    assert_eq!(
        place.raw().execute("UPDATE record SET last_error = 'x: y', layout = 2, state = 4", []).unwrap(),
        1
    );
}

/// Large answers are kept here as well.
#[test]
fn an_answer_of_any_size_comes_back() {
    let place = Place::new();
    let store = place.open();
    for bytes in [0, 1, 4_000, 100_000, 3 << 20] {
        let row = reserved(&format!("key-{bytes}"), 1, LONG_AGO);
        let mut done = completed(&row);
        done.state = State::Completed(answer(200, &vec![7; bytes]));
        applied(&store, &[insert(&row), swap(&row, &done)]);
        assert_eq!(read(&store, &format!("key-{bytes}")), Some(done));
    }
    assert_eq!(place.tables(), [0, 5, 0]);
}
