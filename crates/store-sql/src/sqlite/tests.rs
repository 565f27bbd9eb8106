//! What the conformance suite cannot see from outside: plans, settings, files that are not ours, and failing commits.

use std::path::{Path, PathBuf};

use oncegate_conformance::samples::{FAR_AHEAD, LONG_AGO, answer, entry, id, moved_to, reserved};
use oncegate_core::audit::Act;
use oncegate_core::record::{Record, State, StateKind};
use oncegate_store::drive::read_one;
use oncegate_store::{Due, Filter, Kind};
use rusqlite::Connection;
use tempfile::TempDir;

use super::removed;
use super::*;

mod check;
mod joined;
mod older;
mod outbox;
mod passes;
mod restored;

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("records.db")
    }

    fn open(&self) -> SqliteStore {
        SqliteStore::open(self.file()).unwrap()
    }

    fn raw(&self) -> Connection {
        Connection::open(self.file()).unwrap()
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn insert(record: &Record) -> Write {
    Write::insert(Arc::new(record.clone()))
}

fn swap(from: &Record, to: &Record) -> Write {
    Write::swap(from.version, Arc::new(to.clone()))
}

fn completed(record: &Record) -> Record {
    moved_to(record, StateKind::Completed, FAR_AHEAD)
}

fn applied(store: &SqliteStore, batch: &[Write]) {
    let outcomes = block_on(store.apply(batch)).unwrap();
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Applied), "{outcomes:?}");
}

fn refused_by(store: &SqliteStore, write: Write, current: &Record) {
    let refused = Outcome::Refused { current: Some(Arc::new(current.clone())) };
    assert_eq!(block_on(store.apply(&[write])).unwrap(), [refused]);
}

fn read(store: &SqliteStore, key: &str) -> Option<Record> {
    block_on(read_one(store, id(key))).unwrap()
}

// ---- Plans -----------------------------------------------------------------------------------------------------------

fn plan(connection: &Connection, sql: &str) -> String {
    let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let lines = statement.raw_query().mapped(|row| row.get::<_, String>("detail"));
    lines.map(|line| line.unwrap()).collect::<Vec<_>>().join("; ")
}

/// The cost of a write or a pass must not grow with the table: every statement goes through an index, on an empty table
/// and on a filled and analysed one.
#[test]
fn every_statement_goes_through_an_index_whatever_the_table_holds() {
    let place = Place::new();
    let store = place.open();
    let check = || {
        let connection = Connection::open(place.file()).unwrap();
        let by_id = "SEARCH record USING INDEX sqlite_autoindex_record_1 (id=?)";
        for sql in [statements::REMOVE.as_str(), statements::SWAP.as_str(), statements::READ] {
            assert_eq!(plan(&connection, sql), by_id, "{sql}");
        }
        let by_due = "SEARCH record USING INDEX record_by_due (state=? AND due_at>? AND due_at<?)";
        assert_eq!(plan(&connection, statements::DUE), by_due);
        let overdue = "SEARCH record USING INDEX record_overdue (give_up_at>? AND give_up_at<?)";
        assert_eq!(plan(&connection, &statements::OVERDUE), overdue);
        for (sql, by) in [
            (waiting::NEXT_LINE, "record_waiting (line>?)"),
            (waiting::OF_LINE, "record_waiting (line=? AND due_at<?)"),
        ] {
            let plan = plan(&connection, sql);
            assert!(plan.contains(&format!("INDEX {by}")) && !plan.contains("B-TREE"), "{sql}: {plan}");
        }
        for [count, oldest] in [waiting::DOUBTS, waiting::PARKED] {
            let (counted, found) = (plan(&connection, count), plan(&connection, oldest));
            assert!(counted.contains("COVERING INDEX record_"), "{counted}");
            assert!(found.contains("_since>?)") && !found.contains("B-TREE"), "{found}");
        }
        assert!(plan(&connection, browse::COUNT_STATES).contains("USING COVERING INDEX record_by_due"));
        let parked = plan(&connection, browse::COUNT_PARKED);
        assert_eq!(parked, "SEARCH record USING COVERING INDEX record_parked (parked_since>?)");
        let by_reference = plan(&connection, "SELECT seq FROM record WHERE reference = ? ORDER BY seq DESC");
        assert_eq!(by_reference, "SEARCH record USING COVERING INDEX record_by_reference (reference=?)");
        let job = |sql: &str, by: &str| {
            let plan = plan(&connection, sql);
            assert!(plan.contains(&format!("USING INDEX {by}")), "{sql}: {plan}");
            assert!(!plan.contains("SCAN job") && !plan.contains("B-TREE"), "{sql}: {plan}");
        };
        job(&jobs::FRESH, "job_fresh (effect=? AND due_at<?)");
        job(&jobs::AGAIN, "job_again (effect=? AND due_at<?)");
        job(jobs::WITHDRAW, "job_by_id (id=?)");
        job(jobs::REPORT, "job_by_id (id=?)");
        job(&jobs::ONE, "job_by_id (id=?)");
        job(&jobs::OF_RECORD, "job_by_record (record=?)");
        job(&jobs::PARKED, "job_parked (stage=? AND rowid>?)");
        job(jobs::UNPARK, "job_by_id (id=?)");
        let doubted = plan(
            &connection,
            &format!("{} INDEXED BY record_by_due WHERE state IN (?, ?) ORDER BY seq DESC", browse::PLACES),
        );
        assert!(
            doubted.starts_with("SEARCH record USING COVERING INDEX record_by_due (state=?)"),
            "{doubted}"
        );
        let by_record = "SEARCH entry USING INDEX entry_by_record (id=?)";
        assert_eq!(plan(&connection, trail::STORY), by_record);
        let page = plan(&connection, trail::ENTRIES);
        assert_eq!(page, "SEARCH entry USING INDEX entry_by_age (at>? AND at<?)");
        for (sql, by) in [
            (removed::IS_REMOVED, "SEARCH removed_id USING PRIMARY KEY (day=? AND digest=?)"),
            (removed::DROP_REMOVED, "SEARCH removed_id USING PRIMARY KEY (day<?)"),
        ] {
            let plan = plan(&connection, sql);
            assert!(plan.contains(by) && !plan.contains("SCAN removed_id"), "{sql}: {plan}");
        }
        let oldest = plan(&connection, trail::DROP_ENTRIES);
        assert!(oldest.contains("SEARCH entry USING COVERING INDEX entry_by_age (at<?)"), "{oldest}");
        assert!(oldest.contains("SEARCH entry USING INTEGER PRIMARY KEY (rowid=?)"), "{oldest}");
        let apart = plan(&connection, trail::APART_AFTER);
        assert_eq!(apart, "SEARCH apart USING INDEX apart_by_age ((at,name)>(?,?))");
        assert!(plan(&connection, trail::DROP_APART).contains("USING INDEX apart_by_name (name=?)"));
    };
    check();
    let rows: Vec<_> = (0..20_000).map(|n| reserved(&format!("key-{n}"), n, LONG_AGO)).collect();
    let settled: Vec<_> = rows.iter().map(|row| moved_to(row, StateKind::Completed, FAR_AHEAD)).collect();
    block_on(store.apply(&settled.iter().map(insert).collect::<Vec<_>>())).unwrap();
    check();
    Connection::open(place.file()).unwrap().execute_batch("ANALYZE").unwrap();
    check();
}

// ---- Files -----------------------------------------------------------------------------------------------------------

fn refusal(path: &Path) -> (Kind, String) {
    let error = SqliteStore::open(path).unwrap_err();
    assert_eq!(error.effect(), Effect::None);
    (error.kind(), error.to_string())
}

#[test]
fn files_that_are_not_ours_are_refused_and_left_alone() {
    let place = Place::new();
    let other = Connection::open(place.file()).unwrap();
    other.execute_batch("CREATE TABLE customers (name TEXT); INSERT INTO customers VALUES ('a');").unwrap();
    drop(other);
    let before = std::fs::read(place.file()).unwrap();
    let (kind, words) = refusal(&place.file());
    assert_eq!(kind, Kind::Misconfigured);
    assert!(words.contains("a SQLite database of something else; it was not touched"), "{words}");
    assert_eq!(std::fs::read(place.file()).unwrap(), before);

    let text = place.0.path().join("notes.txt");
    std::fs::write(&text, "not a database, but long enough to look like one".repeat(100)).unwrap();
    assert_eq!(refusal(&text).0, Kind::Unreadable);
    assert_eq!(std::fs::read_to_string(&text).unwrap().len(), 4_800);

    let (kind, words) = refusal(&place.0.path().join("no/such/folder/records.db"));
    assert_eq!(kind, Kind::Unavailable);
    assert!(words.contains("no/such/folder/records.db"), "it names the file: {words}");
}

#[test]
fn a_newer_schema_is_refused_and_left_alone() {
    let place = Place::new();
    drop(place.open());
    let newer = Connection::open(place.file()).unwrap();
    newer.pragma_update(None, "user_version", 99).unwrap();
    drop(newer);
    let (kind, words) = refusal(&place.file());
    assert_eq!(kind, Kind::Unreadable);
    assert!(words.contains("the file has schema 99") && words.contains("Run the newer release"), "{words}");
}

/// A row that was damaged, or written by a newer release, is an error for whoever asks for it, and for nobody else: not for
/// the same batch, not for the scan that meets it.
#[test]
fn a_row_that_cannot_be_read_hinders_nobody_else() {
    for damage in [
        "UPDATE record SET body = x'09' WHERE seq = 1",
        "UPDATE record SET body = substr(body, 1, length(body) - 1) WHERE seq = 1",
        "UPDATE record SET body = (SELECT body FROM record WHERE seq = 2) WHERE seq = 1",
    ] {
        let place = Place::new();
        let store = place.open();
        let bad = moved_to(&reserved("bad", 1, LONG_AGO), StateKind::Completed, LONG_AGO);
        let good = moved_to(&reserved("good", 2, LONG_AGO), StateKind::Completed, LONG_AGO);
        block_on(store.apply(&[insert(&bad), insert(&good)])).unwrap();
        Connection::open(place.file()).unwrap().execute_batch(damage).unwrap();

        let mut found = block_on(store.read(&[bad.id, good.id])).unwrap();
        assert_eq!(found.pop().unwrap().unwrap(), Some(good.clone()), "{damage}");
        assert_eq!(found.pop().unwrap().unwrap_err().kind(), Kind::Unreadable, "{damage}");

        let batch = [insert(&bad), insert(&reserved("other", 3, LONG_AGO))];
        let outcomes = block_on(store.apply(&batch)).unwrap();
        assert!(matches!(outcomes[0], Outcome::Unreadable { .. }), "{damage}: {outcomes:?}");
        assert_eq!(outcomes[1], Outcome::Applied, "{damage}");

        let scan = block_on(store.due(Due::Expired, FAR_AHEAD, 1)).unwrap();
        assert_eq!(scan.records, [good], "{damage}");
        let page = block_on(store.browse(&Filter::default(), None, 10)).unwrap();
        assert_eq!((page.records.len(), page.unreadable), (2, 1), "{damage}");
    }
}

/// SQLite goes on writing into a file that was removed, where nobody else would see it: two processes could admit one key.
#[cfg(unix)]
#[test]
fn a_file_that_was_removed_or_replaced_takes_no_more_writes() {
    let place = Place::new();
    let store = place.open();
    let row = reserved("a", 1, LONG_AGO);
    block_on(store.apply(&[insert(&row)])).unwrap();
    for ending in ["", "-wal", "-shm"] {
        std::fs::remove_file(place.0.path().join(format!("records.db{ending}"))).unwrap();
    }
    let refuses = || {
        let error = block_on(store.apply(&[insert(&reserved("b", 2, LONG_AGO))])).unwrap_err();
        assert_eq!((error.kind(), error.effect()), (Kind::Unavailable, Effect::None));
        assert!(error.to_string().contains("was removed or replaced while it was open"), "{error}");
    };
    refuses();
    let another = place.open();
    refuses();
    assert_eq!(block_on(another.apply(&[insert(&row)])).unwrap(), [Outcome::Applied]);
}

/// What must be true of the connection that writes.
#[test]
fn the_writing_connection_is_durable_and_never_checkpoints_by_itself() {
    let place = Place::new();
    drop(place.open());
    let options = SqliteOptions::new(place.file());
    let connection = connection::for_writing(&options).unwrap();
    let pragma = |name: &str| -> String {
        connection
            .pragma_query_value(None, name, |row| {
                Ok(format!("{:?}", row.get::<_, rusqlite::types::Value>(0)?))
            })
            .unwrap()
    };
    assert_eq!(pragma("journal_mode"), "Text(\"wal\")");
    assert_eq!(pragma("synchronous"), "Integer(2)");
    assert_eq!(pragma("wal_autocheckpoint"), "Integer(0)");
    assert_eq!(pragma("page_size"), "Integer(4096)");
}

// ---- Uniqueness and size --------------------------------------------------------------------

/// The database refuses a second row of a key, whatever the code above it does.
#[test]
fn plain_sql_cannot_insert_a_key_twice() {
    let place = Place::new();
    let store = place.open();
    let row = reserved("a", 1, LONG_AGO);
    applied(&store, &[insert(&row)]);
    let twice = "INSERT INTO record (id, version, state, body) SELECT id, 99, state, body FROM record";
    let error = place.raw().execute(twice, []).unwrap_err();
    assert_eq!(error.to_string(), "UNIQUE constraint failed: record.id");
    applied(&store, &[swap(&row, &completed(&row))]);
    let error = place.raw().execute(twice, []).unwrap_err();
    assert_eq!(error.to_string(), "UNIQUE constraint failed: record.id");
    assert_eq!(read(&store, "a"), Some(completed(&row)));
}

/// A 200-byte body, some headers, and names as long as they are in service.
#[test]
fn a_completed_key_takes_less_than_700_bytes() {
    const KEYS: u64 = 20_000;
    let place = Place::new();
    let store = place.open();
    let rows: Vec<_> = (0..KEYS)
        .map(|n| reserved(&format!("{n:08x}-7d1b-4a52-9c3e-{n:012x}"), n, LONG_AGO))
        .map(|row| {
            let mut done = completed(&row);
            done.state = State::Completed(answer(201, &[b'x'; 200]));
            (row, done)
        })
        .collect();
    for rows in rows.chunks(256) {
        applied(&store, &rows.iter().map(|(row, _)| insert(row)).collect::<Vec<_>>());
        applied(&store, &rows.iter().map(|(row, done)| swap(row, done)).collect::<Vec<_>>());
    }
    drop(store);
    place.raw().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let bytes = std::fs::metadata(place.file()).unwrap().len() / KEYS;
    println!("{bytes} bytes per key");
    assert!(bytes <= 700, "{bytes} bytes per key");
}

#[test]
fn a_response_of_any_size_comes_back() {
    let place = Place::new();
    let store = place.open();
    for bytes in [0, 1, 4_000, 100_000, 3 << 20] {
        let key = format!("key-{bytes}");
        let row = reserved(&key, 1, LONG_AGO);
        let mut done = completed(&row);
        done.state = State::Completed(answer(200, &vec![7; bytes]));
        applied(&store, &[insert(&row), swap(&row, &done)]);
        assert_eq!(read(&store, &key), Some(done));
    }
}

// ---- Failing writes --------------------------------------------------------------------------------------------------

/// A commit that fails may have been written; what fails before it was not, and leaves nothing behind.
#[test]
fn a_failed_commit_is_in_doubt_and_a_failed_statement_is_not() {
    let place = Place::new();
    let store = place.open();
    let connection = connection::for_writing(&SqliteOptions::new(place.file())).unwrap();
    let commit = |batch: &[Write]| {
        writer::transact(&connection, None, "apply", LONG_AGO, |tx| apply::apply_in(tx, batch, LONG_AGO))
    };
    let batch = [insert(&reserved("a", 1, LONG_AGO)), insert(&reserved("b", 2, LONG_AGO))];

    connection.commit_hook(Some(|| true)).unwrap();
    let error = commit(&batch).unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    connection.commit_hook(None::<fn() -> bool>).unwrap();

    // No room after the first insert: the second fails, and the first goes with it.
    let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    connection.pragma_update(None, "max_page_count", pages).unwrap();
    let mut large = moved_to(&reserved("large", 3, LONG_AGO), StateKind::Completed, FAR_AHEAD);
    large.state = State::Completed(answer(200, &vec![0; 1 << 20]));
    let too_much = [insert(&reserved("a", 1, LONG_AGO)), insert(&large)];
    let error = commit(&too_much).unwrap_err();
    assert_eq!((error.kind(), error.effect()), (Kind::Full, Effect::None), "{error}");
    assert!(connection.is_autocommit(), "no transaction is left open");
    for key in ["a", "large"] {
        assert_eq!(block_on(read_one(&store, id(key))).unwrap(), None);
    }

    connection.pragma_update(None, "max_page_count", 1_000_000).unwrap();
    let outcomes = commit(&batch).unwrap();
    assert_eq!(outcomes, [Outcome::Applied, Outcome::Applied]);
}

/// Another process holds the write lock: the write fails as contended, nothing is written, and the next one works.
#[test]
fn a_writer_in_the_way_is_contention_not_doubt() {
    let place = Place::new();
    let store = SqliteOptions::new(place.file()).busy_timeout(Duration::from_millis(20)).open().unwrap();
    let other = Connection::open(place.file()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = block_on(store.apply(&[insert(&reserved("a", 1, LONG_AGO))])).unwrap_err();
    assert_eq!((error.kind(), error.effect()), (Kind::Contended, Effect::None), "{error}");
    other.execute_batch("COMMIT").unwrap();
    let outcomes = block_on(store.apply(&[insert(&reserved("a", 1, LONG_AGO))])).unwrap();
    assert_eq!(outcomes, [Outcome::Applied]);
}

/// A dropped future takes nothing back: whoever gave up waiting must expect the write to be there.
#[test]
fn a_write_nobody_waits_for_lands_all_the_same() {
    let place = Place::new();
    let store = place.open();
    let batch = [insert(&reserved("a", 1, LONG_AGO))];
    block_on(async {
        let mut apply = std::pin::pin!(store.apply(&batch));
        // Polled once, then dropped.
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let _ = apply.as_mut().poll(&mut context);
    });
    // Whoever writes next comes after it.
    block_on(store.apply(&[insert(&reserved("b", 2, LONG_AGO))])).unwrap();
    assert!(block_on(read_one(&store, id("a"))).unwrap().is_some());
}

/// The log starts over while the writer never pauses: its file stays near the limit, however much is written.
#[test]
fn the_log_stays_short_under_constant_writing() {
    let place = Place::new();
    let store = place.open();
    let body = vec![7; 1 << 20];
    let mut longest = 0;
    for n in 0..400 {
        let mut row = moved_to(&reserved(&format!("key-{n}"), n, LONG_AGO), StateKind::Completed, FAR_AHEAD);
        row.state = State::Completed(answer(200, &body));
        block_on(store.apply(&[insert(&row)])).unwrap();
        longest = longest.max(std::fs::metadata(place.0.path().join("records.db-wal")).unwrap().len());
    }
    let limit = u64::try_from(checkpoint::RESTART_BYTES).unwrap();
    assert!(longest > limit / 2, "the log was used: {longest}");
    assert!(longest < 3 * limit, "400 MiB were written, and the log grew to {longest}");
}

/// A scan that is due after a restart is the same scan.
#[test]
fn what_is_due_survives_a_reopening() {
    let place = Place::new();
    let row = moved_to(&reserved("a", 1, LONG_AGO), StateKind::Unknown, LONG_AGO);
    block_on(place.open().apply(&[insert(&row)])).unwrap();
    assert_eq!(block_on(place.open().due(Due::Doubted, FAR_AHEAD, 10)).unwrap().records, [row]);
}

// ---- The modes of the files
// -------------------------------------------------------------------------------------------

/// Stored answers and credentials of customers stood in a file that every user of the machine
/// could read.
#[test]
#[cfg(unix)]
fn a_new_file_is_its_owners_only_and_a_wider_one_is_warned_of() {
    use std::fs::{Permissions, metadata, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    let modes = || {
        let names = ["records.db", "records.db-wal", "records.db-shm"];
        names.map(|name| metadata(place.0.path().join(name)).unwrap().permissions().mode() & 0o777)
    };
    assert_eq!(SqliteOptions::new(place.file()).warnings(), Vec::<String>::new(), "there is no file yet");
    let store = place.open();
    block_on(store.apply(&[insert(&reserved("a", 1, LONG_AGO))])).unwrap();
    assert_eq!(modes(), [0o600; 3]);
    assert_eq!(store.warnings(), Vec::<String>::new());
    // What an earlier release, or an operator, has left wider is left as it is, and said.
    set_permissions(place.file(), Permissions::from_mode(0o640)).unwrap();
    let again = place.open();
    assert_eq!(modes(), [0o640, 0o600, 0o600]);
    let [warning] = again.warnings() else { panic!("{:?}", again.warnings()) };
    let file = place.file();
    let expected = format!(
        "{0} has mode 0640: other users of this machine can read or change stored requests and responses; run `chmod 600 {0}`",
        file.display()
    );
    assert_eq!(*warning, expected);
    assert_eq!(SqliteOptions::new(&file).warnings(), [expected]);
    // The log holds the same rows.
    set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    set_permissions(place.0.path().join("records.db-wal"), Permissions::from_mode(0o604)).unwrap();
    let warnings = SqliteOptions::new(&file).warnings();
    assert!(matches!(&warnings[..], [one] if one.contains("records.db-wal has mode 0604")), "{warnings:?}");
}
