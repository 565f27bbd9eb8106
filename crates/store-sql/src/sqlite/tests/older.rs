//! Files of earlier releases: migration, and processes that still have them open.

use oncegate_core::record::Reason;

use super::*;

const FIXTURE: &[u8] = include_bytes!("../../../../conformance/fixtures/0.1.0/records.db");

/// The tables, indexes and triggers of a file, without those that refuse earlier releases.
fn catalogue(connection: &Connection) -> Vec<String> {
    let sql = "SELECT type || ' ' || name || ': ' || coalesce(sql, '') FROM sqlite_schema \
               WHERE tbl_name NOT IN ('record_reserved', 'record_settled', 'record_run', 'record_run_ids', 'charge') \
               ORDER BY name";
    let mut statement = connection.prepare(sql).unwrap();
    let rows =
        statement.query_map([], |row| row.get::<_, String>(0)).unwrap().map(std::result::Result::unwrap);
    // A renamed table has its name in quotes; comments and line breaks say nothing.
    let words = |text: String| {
        let lines = text.lines().map(|line| line.split("--").next().unwrap_or_default().to_owned());
        let text = lines.collect::<Vec<_>>().join(" ").replace('"', "");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        text.replace(" ,", ",").replace("( ", "(").replace(" )", ")")
    };
    rows.map(words).collect()
}

/// A file of the release before, as that release left it.
fn fixture() -> Place {
    let place = Place::new();
    std::fs::write(place.file(), FIXTURE).unwrap();
    place
}

#[test]
fn a_migrated_file_has_the_tables_of_a_new_one() {
    let (old, new) = (fixture(), Place::new());
    drop((old.open(), new.open()));
    assert_eq!(catalogue(&old.raw()), catalogue(&new.raw()));
}

/// Every record of the file before is one row afterwards, in the order of arrival, in the same
/// state.
#[test]
fn every_record_of_an_older_file_is_kept() {
    let place = fixture();
    let count = |sql: &str| -> i64 { place.raw().query_row(sql, [], |row| row.get(0)).unwrap() };
    let columns = count("SELECT count(*) FROM record");
    let settled = count("SELECT count(*) FROM record_settled");
    assert!(columns > 0 && settled > 0, "the fixture has both layouts");
    let reserved = count("SELECT count(*) FROM record_reserved WHERE seq > 0");
    assert!(reserved > 0, "and reservations in flight");

    let looker = SqliteOptions::new(place.file()).existing().open().unwrap_err();
    assert!(looker.to_string().contains("Run `oncegate migrate` on it first"), "{looker}");
    let store = place.open();
    let page = block_on(store.browse(&Filter::default(), None, 100)).unwrap();
    assert_eq!(page.unreadable, 0);
    let in_flight = page.records.iter().filter(|record| record.state == State::InProgress).count();
    assert!(in_flight >= usize::try_from(reserved).unwrap());
    assert!(page.records.len() >= usize::try_from(columns + settled).unwrap());
    for record in &page.records {
        assert_eq!(block_on(read_one(&store, record.id)).unwrap().as_ref(), Some(record));
        refused_by(&store, insert(&Record { version: record.version, ..record.clone() }), record);
    }
    assert_eq!(check::checked(&store).1, []);
    let entries = count("SELECT count(*) FROM entry");
    assert!(entries > 0, "the audit trail stays");
}

/// A process of the release before has the file open while a newer one migrates it. Whatever it
/// tries to admit or to settle is refused by its own statements, and the error says why.
#[test]
fn a_process_of_the_release_before_is_refused_and_told_why() {
    let place = fixture();
    let older = place.raw();
    let ledger = "SELECT generation, arrived, settled, (SELECT max(seq) FROM record) FROM record_reserved WHERE seq = 0";
    older.prepare_cached(ledger).unwrap().query_row([], |_| Ok(())).unwrap();
    drop(place.open());
    older.prepare_cached(ledger).unwrap().query_row([], |_| Ok(())).unwrap();
    for statement in [
        // Its batches: the ledger, reservations, and completed records.
        "UPDATE record_reserved SET generation = generation + 1, arrived = arrived + 1, settled = settled WHERE seq = 0",
        "INSERT INTO record_reserved (seq, bytes) VALUES (99, x'00')",
        "INSERT INTO record_settled (seq, id, arrival, version, expires_at, bytes) VALUES (99, x'00', 1, 1, 1, x'00')",
    ] {
        let error = older.execute(statement, []).unwrap_err();
        assert!(
            error.to_string().contains("a newer release has taken over this file"),
            "{statement}: {error}"
        );
    }
    let row = "INSERT INTO record (id, scope, key, state, version) VALUES (x'00', 'a', 'b', 1, 1)";
    assert!(older.execute(row, []).is_err(), "its table of columns is gone");
}

/// A damaged row of an older file keeps its key refused, its bytes, and hinders no other.
#[test]
fn a_damaged_row_of_an_older_file_stays_refused_after_the_migration() {
    let place = fixture();
    let raw = place.raw();
    raw.execute_batch(
        "UPDATE record_settled SET bytes = x'09' WHERE seq = (SELECT min(seq) FROM record_settled); \
         UPDATE record SET crash = 9 WHERE seq = (SELECT min(seq) FROM record)",
    )
    .unwrap();
    let damaged =
        "SELECT id FROM record_settled WHERE bytes = x'09' UNION ALL SELECT id FROM record WHERE crash = 9";
    let ids: Vec<[u8; 16]> = raw
        .prepare(damaged)
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(std::result::Result::unwrap)
        .collect();
    assert_eq!(ids.len(), 2);
    drop(raw);
    let store = place.open();
    for bytes in ids {
        let id = RecordId::from_bytes(bytes);
        assert_eq!(block_on(read_one(&store, id)).unwrap_err().kind(), Kind::Unreadable);
        let write = insert(&Record { id, ..reserved("any", 1, LONG_AGO) });
        let outcomes = block_on(store.apply(&[write])).unwrap();
        assert!(matches!(outcomes[..], [Outcome::Unreadable { .. }]), "{outcomes:?}");
    }
    applied(&store, &[insert(&reserved("other", 1, LONG_AGO))]);
    let page = block_on(store.browse(&Filter::default(), None, 100)).unwrap();
    assert_eq!(page.unreadable, 2);
}

/// Which keys a damaged batch of reservations has cannot be told, so the file is left alone.
#[test]
fn a_file_with_a_damaged_batch_of_reservations_is_not_migrated() {
    let place = fixture();
    place.raw().execute("UPDATE record_reserved SET bytes = x'0102' WHERE seq > 0", []).unwrap();
    let (kind, words) = refusal(&place.file());
    assert_eq!(kind, Kind::Other);
    assert!(words.contains("of record_reserved is damaged") && words.contains("Restore a backup"), "{words}");
    let version: i64 = place.raw().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(version, 9, "nothing was changed");
}

/// A file of the very first schema.
#[test]
fn a_file_of_the_first_schema_is_migrated() {
    let place = Place::new();
    let first = place.raw();
    first.execute_batch(include_str!("../../../migrations/sqlite/0001_records.sql")).unwrap();
    first.pragma_update(None, "user_version", 1).unwrap();
    first.pragma_update(None, "application_id", 0x4F6E_6365).unwrap();
    let id = id("a");
    let address = reserved("a", 1, LONG_AGO).address;
    first
        .execute(
            "INSERT INTO record (seq, id, scope, key, state, version, operation, fingerprint_version, fingerprint, crash, retention, \
             retention_from, after_retention, created_at, execution, fence, token, lease_until, attempt_deadline, attempts, \
             unaccounted, last_error) VALUES (7, ?1, ?2, ?3, 1, 5, 'POST /a', 1, zeroblob(32), 0, 1000, 0, 0, 1, 0, 1, zeroblob(16), 2, 3, 1, \
             0, 'before: it was tried')",
            rusqlite::params![&id.as_bytes()[..], address.scope.as_str(), address.key.as_str()],
        )
        .unwrap();
    drop(first);
    let store = place.open();
    let record = block_on(read_one(&store, id)).unwrap().unwrap();
    assert_eq!(
        (record.state.clone(), record.version.as_raw(), record.terms.forward_key),
        (State::InProgress, 5, None)
    );
    assert_eq!(record.last_error, Some(Reason::from_stored("before: it was tried")));
    refused_by(&store, insert(&reserved("a", 9, LONG_AGO)), &record);
}
