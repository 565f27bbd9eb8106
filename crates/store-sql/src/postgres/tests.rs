//! What only the inside can show: the plans of the statements, and what a session is set up with.
//!
//! **Invariant held here:** no plan of a write or of a read by id looks at more of a table than the batch names, whatever the
//! table held when the plan was made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use oncegate_core::identity::RecordId;
use oncegate_core::time::Timestamp;
use oncegate_store::join::{Join, Routine};
use oncegate_store::turns::{BACKLOG_MAX, Backlog};
use oncegate_test_servers::shared;
use tokio_postgres::types::Type;

use super::row::{Look, digest};
use super::session::Session;
use super::settings::{Schema, Settings};
use super::statements::types::placeholders;
use super::statements::{
    QUERIES, Query, SETUP_PAGES, SETUP_READ, SETUP_WRITE, SETUP_WRITE_LOCAL, Statements,
};
use super::{PostgresOptions, PostgresStore, migrate};

mod outbox;
mod pages;

const BATCH: u64 = 64;
const TABLES: [&str; 8] = ["record", "mark", "answer", "note", "entry", "apart", "job", "removed_id"];
/// The first 128 notes of [`Place::fill`].
const PAGE: &str = "1, 4000000000000000, 0, 4000000000012701, 4100000000000000";

/// A schema of its own; removed by `gone`.
struct Place {
    settings: Arc<Settings>,
    statements: Statements,
    schema: String,
}

impl Place {
    async fn start() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let schema = format!("i{}_{}", std::process::id(), now.as_nanos());
        let options = PostgresOptions::new(&shared::postgres_url()).unwrap().schema(&schema).unwrap();
        let settings = Arc::new(options.settings);
        migrate::run(&settings).await.unwrap();
        Self { statements: Statements::new(&Schema::new(&schema).unwrap()), settings, schema }
    }

    async fn store(&self) -> PostgresStore {
        let options = PostgresOptions::new(&shared::postgres_url()).unwrap().schema(&self.schema).unwrap();
        options.open().await.unwrap()
    }

    async fn session(&self, setup: &str) -> Session {
        Session::open(&self.settings, setup).await.unwrap()
    }

    async fn run(&self, text: &str) {
        self.session("").await.run(&text.replace("{}", &self.schema)).await.unwrap();
    }

    /// `rows` records in progress, with answers all the same, and a note for each hundred; `id(n)` is the id of the nth.
    async fn fill(&self, rows: u64) {
        self.run(&format!(
            "INSERT INTO {{}}.record SELECT n, int8send(n * 2654435761 % 4294967296) || int8send(n), 1, 1, 1, \
             '', CASE WHEN n % 1000 = 0 THEN 4000000000000000 END FROM generate_series(1, {rows}) n; \
             INSERT INTO {{}}.mark SELECT n, w, w, 'o', d, d, int8send(n) FROM generate_series(1, {rows}) n, \
             LATERAL (SELECT CASE WHEN n % 1000 = 0 THEN n END AS w, CASE WHEN n % 1000 = 1 THEN n END AS d) few; \
             INSERT INTO {{}}.answer SELECT n, '' FROM generate_series(1, {rows}) n; \
             INSERT INTO {{}}.note (about, due_at, first, last) SELECT 1, 4000000000000000 + n, n, n + 99 \
             FROM generate_series(1, {rows}, 100) n; \
             INSERT INTO {{}}.entry (id, at, act, node, bytes) SELECT int8send(n), n, 1, '', '' \
             FROM generate_series(1, {rows}) n; \
             INSERT INTO {{}}.removed_id SELECT n * 2654435761, n % 7 FROM generate_series(1, {rows}) n \
             ON CONFLICT DO NOTHING; \
             INSERT INTO {{}}.apart SELECT int8send(n), n, n, '' FROM generate_series(1, {rows}) n; \
             INSERT INTO {{}}.job (id, effect, payload, line, record, life, created_at, due_at, tries, stage, over_at) \
             SELECT int8send(n * 2654435761 % 4294967296) || int8send(n), (n % 50)::text, '', \
             CASE WHEN n % 10 = 1 THEN int8send(n / 20) END, int8send(n), '', n, n, 0, \
             CASE WHEN n % 100 = 0 THEN 2 WHEN n % 2 = 0 THEN 3 ELSE 0 END, n FROM generate_series(1, {rows}) n"
        ))
        .await;
    }

    async fn gone(&self) {
        self.run("DROP SCHEMA {} CASCADE").await;
    }

    /// Each statement that must not look further than it has to, with what is bound to it and the setup of its sessions.
    fn watched(&self) -> Vec<(&'static str, &Query, &'static str)> {
        let all = &self.statements;
        vec![
            ("reserve", &all.reserve, SETUP_WRITE),
            ("insert", &all.insert, SETUP_WRITE),
            ("lock_rows", &all.lock, SETUP_WRITE),
            ("settle", &all.settle, SETUP_WRITE),
            ("settle_over", &all.settle_over, SETUP_WRITE),
            ("move_on", &all.move_on, SETUP_WRITE),
            ("remove", &all.remove, SETUP_WRITE),
            ("insert_told", &all.insert_told, SETUP_WRITE),
            ("settle_told", &all.settle_told, SETUP_WRITE),
            ("move_on_told", &all.move_on_told, SETUP_WRITE),
            ("remove_told", &all.remove_told, SETUP_WRITE),
            ("tell", &all.trail.tell, SETUP_WRITE),
            ("story", &all.trail.story, SETUP_READ),
            ("drop_entries", &all.trail.drop_entries, SETUP_WRITE),
            ("removed", &all.removed.removed, SETUP_READ),
            ("drop_removed", &all.removed.drop, SETUP_WRITE),
            ("keep_apart", &all.trail.keep_apart, SETUP_WRITE),
            ("apart", &all.trail.apart, SETUP_READ),
            ("drop_apart", &all.trail.drop_apart, SETUP_WRITE),
            ("promise", &all.outbox.promise, SETUP_WRITE),
            ("claim", &all.outbox.claim, SETUP_WRITE),
            ("report", &all.outbox.report, SETUP_WRITE),
            ("job", &all.outbox.one, SETUP_READ),
            ("jobs_of", &all.outbox.of_record, SETUP_READ),
            ("parked", &all.outbox.parked, SETUP_READ),
            ("unpark", &all.outbox.unpark, SETUP_WRITE),
            ("withdraw", &all.outbox.withdraw, SETUP_WRITE),
            ("drop_jobs", &all.outbox.drop_jobs, SETUP_WRITE),
            ("read_refused", &all.read, SETUP_WRITE),
            ("read", &all.read, SETUP_READ),
            ("read_by_seq", &all.read_by_seq, SETUP_READ),
            ("page", &all.page, SETUP_READ),
            ("tidy", &all.tidy, SETUP_READ),
            ("noted", &all.noted, SETUP_READ),
            ("looked", &all.looked, SETUP_READ),
            ("lines", &all.lines, SETUP_READ),
            ("of_lines", &all.of_lines, SETUP_READ),
            ("backlog", &all.backlog, SETUP_READ),
            ("doubts", &all.doubts, SETUP_READ),
            ("pending", &all.pending, SETUP_READ),
        ]
    }
}

fn hex_id(n: u64) -> String {
    format!("\\\\x{:016x}{n:016x}", n * 2_654_435_761 % 4_294_967_296)
}

/// A batch's parameters as SQL writes them: `BATCH` rows from the `first` on; or a page of notes.
fn bound(what: &str, query: &Query, first: u64) -> String {
    match what {
        "page" => return "1, 4100000000000000, 0, 0, 128".to_owned(),
        "tidy" => return format!("{PAGE}, 1"),
        "claim" => return format!("'\\x00', '{{1,3}}', 1000000, {BATCH}, {BATCH}"),
        "job" | "jobs_of" | "unpark" => return format!("'\\x{:016x}'", 7),
        "withdraw" => return format!("'\\x{:016x}', '\\x00', 1", 7),
        "parked" => return format!("NULL, {BATCH}"),
        "story" => return format!("'\\x{:016x}', {BATCH}", 7),
        "removed" => {
            let digests: Vec<_> = (first..first + BATCH).map(|n| (n * 2_654_435_761).to_string()).collect();
            return format!("'{{{}}}'", digests.join(","));
        }
        "drop_removed" => return format!("3, {BATCH}"),
        "drop_entries" | "drop_jobs" => return format!("1000, {BATCH}"),
        "keep_apart" => return "'\\x00', 1, 1, '\\x00'".to_owned(),
        "apart" => return format!("10, '\\x00', {BATCH}"),
        "noted" => return format!("{PAGE}, 1, 4100000000000000, {BATCH}, 0"),
        "looked" => return format!("0, 4100000000000000, {BATCH}"),
        "backlog" | "doubts" => return BATCH.to_string(),
        "pending" => return format!("1000, {BATCH}, 0"),
        "of_lines" => {
            let lines: Vec<_> = (first..first + BATCH).map(|line| (1000 * line).to_string()).collect();
            return format!("ARRAY[{}], 4100000000000000, ARRAY['o'], {BATCH}", lines.join(", "));
        }
        _ => {}
    }
    let mut is_id = true;
    let mut values = Vec::new();
    for of in &query.types {
        let array = |value: &dyn Fn(u64) -> String| {
            let all: Vec<_> = (first..first + BATCH).map(value).collect();
            format!("'{{{}}}'", all.join(","))
        };
        values.push(match of {
            &Type::BYTEA_ARRAY if std::mem::take(&mut is_id) => array(&|n| format!("\"{}\"", hex_id(n))),
            &Type::BYTEA_ARRAY => array(&|_| "\"\\\\x00\"".to_owned()),
            &Type::INT4_ARRAY => array(&|n| (n - first).to_string()),
            &Type::INT8_ARRAY if query.types.len() == 1 => array(&|n| n.to_string()),
            &Type::INT8_ARRAY | &Type::INT2_ARRAY => array(&|_| "1".to_owned()),
            &Type::BOOL_ARRAY => array(&|_| "false".to_owned()),
            &Type::TEXT_ARRAY => array(&|n| n.to_string()),
            &Type::BOOL => "false".to_owned(),
            &Type::BYTEA => "'\\x00'".to_owned(),
            _ => "1".to_owned(),
        });
    }
    values.join(", ")
}

async fn prepare(session: &Session, name: &str, query: &Query, mode: &str) {
    let types: Vec<_> = query.types.iter().map(Type::name).collect();
    let text =
        format!("SET plan_cache_mode = {mode}; PREPARE {name} ({}) AS {}", types.join(", "), query.text);
    session.run(&text).await.unwrap();
}

async fn explain(session: &Session, how: &str, name: &str, bound: &str) -> String {
    let rows = session.query_once(&format!("EXPLAIN ({how}) EXECUTE {name} ({bound})"), &[]).await.unwrap();
    rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>().join("\n")
}

/// No table is read as a whole; a row of `record` is reached by the index of what was named.
fn is_by_index(what: &str, plan: &str) {
    for table in TABLES {
        assert!(!plan.contains(&format!("Seq Scan on {table}")), "{what} reads all of {table}:\n{plan}");
    }
    let expected = match what {
        "reserve" | "insert" => ["Conflict Arbiter Indexes: record_id", "Insert on record"],
        "insert_told" => ["Conflict Arbiter Indexes: record_id", "Insert on entry"],
        "lock_rows" | "read_refused" | "read" => ["using record_id on record", "Index Cond: (id = ANY ("],
        "settle" | "settle_over" | "move_on" | "remove" => {
            ["using record_id on record", "using mark_pkey on mark"]
        }
        "settle_told" | "move_on_told" | "remove_told" => ["using record_id on record", "Insert on entry"],
        "tell" => ["Insert on entry", "Conflict Resolution: NOTHING"],
        "story" => ["using entry_record on entry", "Index Cond: (id = "],
        "removed" => ["using removed_id_pkey on removed_id", "Index Cond: (digest = ANY ("],
        "drop_removed" => ["using removed_id_day on removed_id", "Index Cond: (day < "],
        "drop_entries" => ["using entry_age on entry", "using entry_pkey on entry"],
        "keep_apart" => ["Insert on apart", "Conflict Resolution: NOTHING"],
        "apart" => ["using apart_age on apart", "(at >= "],
        "drop_apart" => ["using apart_name on apart", "Index Cond: (sha256(name) = ANY ("],
        "promise" => ["Conflict Arbiter Indexes: job_id", "Insert on job"],
        "claim" => ["using job_fresh on job", "using job_again on job"],
        "report" => ["using job_id on job", "Index Cond: (id = ANY ("],
        "job" | "unpark" | "withdraw" => ["using job_id on job", "Index Cond: (id = "],
        "jobs_of" => ["using job_record on job", "Index Cond: (record = "],
        "parked" => ["using job_parked on job", "Index Cond: (seq > "],
        "drop_jobs" => ["using job_over on job", "using job_pkey on job"],
        "read_by_seq" => ["using record_seq on record", "Index Cond: (seq = ANY ("],
        "lines" => ["using mark_waiting on mark", "Index Cond: (line > "],
        "of_lines" => ["using mark_waiting on mark", "Index Cond: ((line = "],
        "backlog" | "pending" => ["using mark_waiting on mark", "Index Cond: ((line >= "],
        "doubts" => ["using mark_doubt_since on mark", "using mark_parked_since on mark"],
        "page" => ["using note_due on note", "Index Cond: ((about = "],
        "opening" => ["using record_id on record", "Index Cond: (id = "],
        "tidy" | "noted" => ["using note_due on note", "using record_seq on record"],
        _ => ["using record_look on record", "Index Cond: ((look_at >= "],
    };
    for expected in expected {
        assert!(plan.contains(expected), "{what} lacks {expected:?}:\n{plan}");
    }
    // A scan of an index as a whole is no better than one of its table.
    let lines: Vec<_> = plan.lines().collect();
    for (line, next) in lines.iter().zip(lines.iter().skip(1)) {
        if TABLES.iter().any(|table| line.contains(" using ") && line.contains(&format!(" on {table}"))) {
            assert!(next.contains("Index Cond"), "{what} reads all of an index:\n{plan}");
        }
    }
}

async fn all_are_by_index(place: &Place) {
    for (what, query, setup) in place.watched() {
        for mode in ["force_generic_plan", "force_custom_plan"] {
            let session = place.session(setup).await;
            prepare(&session, what, query, mode).await;
            is_by_index(what, &explain(&session, "COSTS OFF", what, &bound(what, query, 1)).await);
        }
    }
}

#[tokio::test]
async fn plans_use_indexes_on_empty_and_on_small_tables() {
    let place = Place::start().await;
    all_are_by_index(&place).await;
    place.fill(3).await;
    all_are_by_index(&place).await;
    place.run("ANALYZE {}.record, {}.mark, {}.answer, {}.note, {}.entry, {}.apart, {}.job").await;
    all_are_by_index(&place).await;
    place.gone().await;
}

/// The session is a service's own, with whatever it is set up with, and keeps its plan for as long as it lasts.
#[tokio::test]
async fn an_opening_by_name_is_by_the_index_however_small_the_table_was() {
    let place = Place::start().await;
    let opening = place.store().await.opening(RecordId::from_bytes([7; 16])).unwrap().or_tell;
    let Routine { name, statement, .. } = &*opening.routine;
    let explained = opening.by_name();
    let bound = explained.strip_prefix(&format!("EXECUTE {name}(")).unwrap().trim_end_matches(')');
    for rows in [0, 1, 60, 0] {
        for table in TABLES {
            place.run(&format!("DELETE FROM {{}}.{table}")).await;
        }
        place.fill(rows).await;
        place.run("VACUUM ANALYZE {}.record").await;
        for mode in ["force_generic_plan", "force_custom_plan"] {
            let session = place.session("").await;
            session
                .run(&format!("SET plan_cache_mode = {mode}; PREPARE {name} AS {statement}"))
                .await
                .unwrap();
            let plan = explain(&session, "COSTS OFF", name, bound).await;
            is_by_index("opening", &plan);
        }
    }
    place.gone().await;
}

/// Accepted work, for each `n`: `r.due_at` and `r.line` are its own.
fn waiting(from: &str) -> String {
    let expiring = Look::Expiring.at(Timestamp::from_micros(4_000_000_000_000_000));
    format!(
        "WITH r AS (SELECT n, r.* FROM {from}), \
         m AS (INSERT INTO {{}}.mark (seq, line, waits_since, operation) SELECT n, line, due_at, 'POST /jobs' FROM r) \
         INSERT INTO {{}}.record (seq, id, version, state, due_at, look_at, rest) SELECT n, int8send(n), 1, 0, due_at, {expiring}, '' FROM r"
    )
}

/// A hundred thousand requests of one tenant wait: a turn looks at a few blocks, and so does whoever looks for something else.
#[tokio::test]
async fn what_waits_is_in_nobodys_way() {
    let place = Place::start().await;
    let busy = digest(&[b"busy"]);
    place
        .run(&waiting(&format!(
            "generate_series(1, 100000) n, LATERAL (SELECT n AS due_at, CASE WHEN n % 1000 = 0 THEN n ELSE {busy} END AS line) r"
        )))
        .await;
    let session = place.session(SETUP_READ).await;
    let all = &place.statements;
    for (what, query, bound) in [
        ("lines", &all.lines, "-9223372036854775808, 16".to_owned()),
        (
            "of_lines",
            &all.of_lines,
            format!("ARRAY[{busy}, 1000], 2500000000000000, ARRAY['POST /jobs'], 32"),
        ),
        ("doubted", &all.looked, "0, 2500000000000000, 128".to_owned()),
        ("expired", &all.looked, format!("{0}, {0} + 2500000000000000, 128", Look::Expiring.first())),
    ] {
        prepare(&session, what, query, "force_generic_plan").await;
        let plan = explain(&session, "ANALYZE, BUFFERS", what, &bound).await;
        assert!(blocks(&plan) < 150, "{what} looks at {} blocks:\n{plan}", blocks(&plan));
    }
    place.gone().await;
}

/// More waits than is counted, all of it of one tenant, and it comes first in the index. The oldest is another's, behind it.
#[tokio::test]
async fn the_oldest_of_a_backlog_is_found_behind_more_than_is_counted() {
    let place = Place::start().await;
    let busy =
        format!("generate_series(1, {BACKLOG_MAX} + 1) n, LATERAL (SELECT 1000 + n AS due_at, 1 AS line) r");
    let oldest = "generate_series(1000000, 1000000) n, LATERAL (SELECT 7 AS due_at, 2 AS line) r";
    place.run(&format!("{}; {}", waiting(&busy), waiting(oldest))).await;
    let session = place.session(SETUP_READ).await;
    let backlog = super::waiting::backlog(&session, &place.statements).await.unwrap();
    assert_eq!(backlog, Backlog { rows: BACKLOG_MAX, oldest: Some(Timestamp::from_micros(7)) });
    place.gone().await;
}

/// The blocks that a statement has looked at, in all its nodes.
fn blocks(plan: &str) -> u64 {
    let first = plan.lines().find(|line| line.contains("Buffers: shared")).expect("blocks are counted");
    first
        .split(' ')
        .filter_map(|word| word.split_once('='))
        .filter(|(name, _)| ["hit", "read"].contains(name))
        .map(|(_, n)| n.parse::<u64>().unwrap())
        .sum()
}

#[tokio::test]
async fn a_plan_made_on_an_empty_table_is_good_on_a_million_rows() {
    const ROWS: u64 = 1_000_000;
    let place = Place::start().await;
    // Nobody may come to the plans' help; and what is filled in need not survive.
    for table in TABLES {
        place.run(&format!("ALTER TABLE {{}}.{table} SET UNLOGGED; ALTER TABLE {{}}.{table} SET (autovacuum_enabled = off)")).await;
    }
    let mut sessions = Vec::new();
    for (n, (what, query, setup)) in (1..).zip(place.watched()) {
        let session = place.session(setup).await;
        prepare(&session, what, query, "force_generic_plan").await;
        // The plan is made now, and kept.
        explain(&session, "ANALYZE", what, &bound(what, query, 2 * ROWS + n * BATCH)).await;
        sessions.push((what, query, session));
    }
    place.run("TRUNCATE {}.record, {}.mark, {}.answer, {}.note, {}.entry, {}.apart, {}.job").await;
    for (n, (what, query, session)) in (1..).zip(&sessions) {
        explain(session, "ANALYZE", what, &bound(what, query, 2 * ROWS + n * BATCH)).await;
    }
    // Unlike TRUNCATE, this lets the plans be.
    for table in TABLES {
        place.run(&format!("DELETE FROM {{}}.{table}")).await;
    }
    place.run("SELECT setval('{}.arrival', 1000)").await;
    place.fill(ROWS).await;
    for (n, (what, query, session)) in (1..).zip(&sessions) {
        // New keys for inserts; for the others, rows from all over the table.
        let first = if ["reserve", "insert", "insert_told", "promise"].contains(what) {
            3 * ROWS + n * BATCH
        } else {
            n * 10_000
        };
        // A key is settled once.
        if *what == "settle" {
            place
                .run(&format!("DELETE FROM {{}}.answer WHERE seq BETWEEN {first} AND {first} + {BATCH}"))
                .await;
        }
        let plan =
            explain(session, "ANALYZE, BUFFERS, COSTS OFF, TIMING OFF", what, &bound(what, query, first))
                .await;
        is_by_index(what, &plan);
        // About ten for each row, or for each of a page of notes; the table alone has 30,000.
        let blocks = blocks(&plan);
        assert!(blocks < 40 * BATCH, "{what} looked at {blocks} blocks:\n{plan}");
    }
    all_are_by_index(&place).await;
    few_among_many_are_by_index(&place).await;
    place.run("ANALYZE {}.record, {}.mark, {}.answer, {}.note, {}.entry, {}.apart, {}.job").await;
    all_are_by_index(&place).await;
    few_among_many_are_by_index(&place).await;
    place.gone().await;
}

/// Webhooks come by a reference, and every node counts what is unknown again and again: neither must look at every record.
async fn few_among_many_are_by_index(place: &Place) {
    let Statements { select, by_reference, by_doubt, .. } = &place.statements;
    let by_reference = by_reference.replace('?', "'\\x0102'");
    for (condition, index) in [(&by_reference, "mark_reference"), (by_doubt, "mark_doubt_since")] {
        let session = place.session(SETUP_PAGES).await;
        let text = format!("EXPLAIN (COSTS OFF) {select} WHERE {condition} ORDER BY r.seq DESC LIMIT 11");
        let rows = session.query_once(&text, &[]).await.unwrap();
        let plan = rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>().join("\n");
        for expected in [index, "Index Cond: (seq = ANY ("] {
            assert!(plan.contains(expected), "it lacks {expected:?}:\n{plan}");
        }
        assert!(!plan.contains("Seq Scan"), "{plan}");
    }
}

/// The types of parameters come from the casts.
#[test]
fn every_parameter_is_cast_where_it_first_occurs_and_nowhere_to_another_type() {
    let all = Statements::new(&Schema::new("any").unwrap());
    let all = [
        &all.reserve,
        &all.insert,
        &all.lock,
        &all.settle,
        &all.settle_over,
        &all.move_on,
        &all.remove,
        &all.read,
        &all.read_by_seq,
        &all.page,
        &all.tidy,
        &all.noted,
        &all.looked,
        &all.lines,
        &all.of_lines,
        &all.backlog,
        &all.doubts,
        &all.pending,
        &all.clock,
        &all.counts,
        &all.insert_told,
        &all.settle_told,
        &all.move_on_told,
        &all.remove_told,
        &all.doubted_except,
        &all.trail.tell,
        &all.trail.story,
        &all.trail.drop_entries,
        &all.removed.removed,
        &all.removed.drop,
        &all.trail.keep_apart,
        &all.trail.apart,
        &all.trail.drop_apart,
        &all.outbox.promise,
        &all.outbox.claim,
        &all.outbox.report,
        &all.outbox.one,
        &all.outbox.of_record,
        &all.outbox.parked,
        &all.outbox.unpark,
        &all.outbox.withdraw,
        &all.outbox.depth,
        &all.outbox.drop_jobs,
        &all.history.beat,
        &all.history.leave,
        &all.history.declare,
        &all.history.quarantines,
        &all.history.release,
    ];
    let numbers: BTreeSet<_> = all.iter().map(|query| query.number).collect();
    assert_eq!(numbers, (0..QUERIES).collect(), "all of them, each in its place");
    for Query { text, types, .. } in all {
        let mut casts = BTreeMap::new();
        for (number, cast) in placeholders(text) {
            let first = *casts.entry(number).or_insert(cast);
            assert!(first.is_some(), "${number} is not cast where it first occurs: {text}");
            assert!(cast.is_none() || cast == first, "${number} is cast to {first:?} and {cast:?}: {text}");
        }
        assert_eq!(casts.len(), types.len(), "a number is left out: {text}");
        assert!(!types.contains(&Type::UNKNOWN), "a cast to a type that is not known here: {text}");
    }
}

async fn setting(session: &Session, name: &str) -> String {
    session.query_once(&format!("SELECT current_setting('{name}')"), &[]).await.unwrap()[0].get(0)
}

/// Whatever the default is, a commit of ours is durable; and one that waits for more is left to.
#[tokio::test]
async fn a_session_that_writes_commits_durably() {
    let url = shared::postgres_url();
    let separator = if url.contains('?') { '&' } else { '?' };
    for (default, expected) in
        [("off", "on"), ("on", "on"), ("local", "local"), ("remote_apply", "remote_apply")]
    {
        let url = format!("{url}{separator}options=-c%20synchronous_commit%3D{default}");
        let settings = PostgresOptions::new(&url).unwrap().settings;
        let session = Session::open(&settings, SETUP_WRITE).await.unwrap();
        assert_eq!(setting(&session, "synchronous_commit").await, expected);
        let session = Session::open(&settings, "").await.unwrap();
        session.run(&format!("BEGIN; {SETUP_WRITE_LOCAL}")).await.unwrap();
        assert_eq!(setting(&session, "synchronous_commit").await, expected, "for one transaction");
        session.run("COMMIT").await.unwrap();
        assert_eq!(setting(&session, "synchronous_commit").await, default, "and no longer");
    }
}

#[tokio::test]
async fn a_pooled_transaction_is_set_up_as_a_session_of_our_own() {
    let settings = PostgresOptions::new(&shared::postgres_url()).unwrap().settings;
    let session = Session::open(&settings, SETUP_WRITE).await.unwrap();
    let transaction = Session::open(&settings, "").await.unwrap();
    transaction.run(&format!("BEGIN; {SETUP_WRITE_LOCAL}")).await.unwrap();
    let text = "SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings WHERE source = 'session'";
    let [one, other] = [&session, &transaction].map(|session| session.query_once(text, &[]));
    let [one, other] = [one.await.unwrap(), other.await.unwrap()].map(|rows| rows[0].get::<_, String>(0));
    assert!(one.contains("enable_seqscan=off"), "{one}");
    assert_eq!(one, other);
}
