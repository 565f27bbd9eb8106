//! The statements, for one schema.
//!
//! **Invariant:** no plan of a write or of a read by id can flip, whatever the tables hold. Rows are reached by `id = ANY(…)`, which
//! only the unique index answers, and what is joined to them is bounded by the batch; so a plan made on an empty table is as
//! good on ten million rows. `tests.rs` holds that against the server.

use tokio_postgres::types::Type;

use super::replication::HAS_STANDBYS;
use super::row::Name;
use super::settings::Schema;
use history::History;
use jobs::Outbox;
use removed::Removed;
use trail::Trail;

pub(super) mod history;
pub(super) mod jobs;
pub(super) mod removed;
pub(super) mod trail;
pub(super) mod types;

/// How many there are.
pub(super) const QUERIES: usize = 47;

/// A statement, the types of its parameters (as it casts them), and its place among a session's prepared ones.
#[derive(Debug)]
pub(super) struct Query {
    pub(super) number: usize,
    pub(super) text: String,
    pub(super) types: Vec<Type>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Statements {
    /// New leases, and nothing else.
    pub(super) reserve: Query,
    /// Any new rows.
    pub(super) insert: Query,
    /// Waits for each of these rows, in order, and has it until the transaction ends. As an update does: whoever refers to a row, and has not ended, is in the way of removals alone.
    pub(super) lock: Query,
    /// Answers of rows that had none, which expire when they usually do.
    pub(super) settle: Query,
    /// Any answers.
    pub(super) settle_over: Query,
    pub(super) move_on: Query,
    pub(super) remove: Query,
    pub(super) read: Query,
    pub(super) read_by_seq: Query,
    pub(super) page: Query,
    pub(super) tidy: Query,
    pub(super) noted: Query,
    /// What one worker looks for that no note says anything of, see [`super::row::Look`].
    pub(super) looked: Query,
    /// Doubts, but for those of some operations.
    pub(super) doubted_except: Query,
    /// Heads of the lines that wait, and the first rows of some.
    pub(super) lines: Query,
    pub(super) of_lines: Query,
    pub(super) backlog: Query,
    /// How many outcomes are unknown, and since when; the same of those that are parked.
    pub(super) doubts: Query,
    /// All that waits, the longest due first: for whoever can afford to look at all of it.
    pub(super) pending: Query,
    pub(super) clock: Query,
    pub(super) counts: Query,
    /// The audit trail, and what is kept apart.
    pub(super) trail: Trail,
    pub(super) outbox: Outbox,
    pub(super) removed: Removed,
    /// Watermarks and quarantines.
    pub(super) history: History,
    /// The same as above, where some of the writes tell something.
    pub(super) insert_told: Query,
    pub(super) settle_told: Query,
    pub(super) move_on_told: Query,
    pub(super) remove_told: Query,
    /// `SELECT` of whole records, up to its conditions.
    pub(super) select: String,
    /// The condition that a record has the reference `?`: looked for by itself first, because a plan that walks from the newest on until
    /// it has a page full looks tempting, and walks over all of them.
    pub(super) by_reference: String,
    /// The condition that a record is `unknown`, for the same reason: there are few of them among many. A range, because a planner
    /// without statistics takes `IS NOT NULL` for nearly all rows.
    pub(super) by_doubt: String,
}

/// For writes: an index is always used, and a batch is always hashed to its rows; a commit is never less than durable, whatever the
/// database's default. `$is_local`: for one transaction.
macro_rules! setup_write {
    ($is_local:literal) => {
        concat!(
            "SELECT set_config(name, value, ",
            $is_local,
            ") FROM (VALUES ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'), ('enable_mergejoin', 'off'), \
             ('enable_nestloop', 'off'), ('jit', 'off'), ('statement_timeout', '5s'), \
             ('idle_in_transaction_session_timeout', '5s'), ('synchronous_commit', 'on')) AS new (name, value) \
             WHERE name <> 'synchronous_commit' OR current_setting(name) = 'off'"
        )
    };
}

/// For sessions that write.
pub(super) const SETUP_WRITE: &str = setup_write!(false);
/// The same for one transaction, where a session is not ours to set up.
pub(super) const SETUP_WRITE_LOCAL: &str = setup_write!(true);
/// For sessions that read by id, or scan what is due.
pub(super) const SETUP_READ: &str = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_mergejoin = off; \
     SET enable_hashjoin = off; SET jit = off; SET statement_timeout = '30s'";
/// For pages and counts, which may have to look at every row.
pub(super) const SETUP_PAGES: &str = "SET jit = off; SET statement_timeout = '60s'";

/// The most writes in one batch: the order of arrival has room for no more.
pub(super) const BATCH_MAX: usize = 1 << 16;

/// At most so many notes are looked at in one short transaction.
pub(super) const NOTES_AT_ONCE: i64 = 128;

/// What an insert binds, in order, after the place.
const INSERTED: &str = "id, version, state, due_at, look_at, rest";
/// What only few rows are found by, see [`super::row::Mark`].
pub(super) const MARKED: &str = "line, waits_since, operation, doubt_since, parked_since, reference";
/// Whether a row has any of it.
pub(super) const IS_MARKED: &str = "num_nonnulls(line, doubt_since, reference) > 0";

impl Statements {
    #[expect(clippy::too_many_lines, reason = "a list of statements, one after the other")]
    pub(super) fn new(schema: &Schema) -> Self {
        let (record, answer, note) =
            (table(schema, "record"), table(schema, "answer"), table(schema, "note"));
        let mark = table(schema, "mark");
        // `row::decode` reads them in this order.
        let select = format!("SELECT r.id, r.rest, {} AS answer, r.seq FROM {record} r", answer_of(schema));
        let quoted = schema.quoted();
        let last = BATCH_MAX - 1;
        let batch =
            format!("batch AS MATERIALIZED (SELECT nextval('{quoted}.arrival') * {BATCH_MAX} AS first)");
        let noted = |due: &str| {
            format!(
                "noted AS (INSERT INTO {note} (about, due_at, first, last) SELECT 1, {due}, first, first + {last} FROM batch \
                 WHERE EXISTS (SELECT FROM inserted))"
            )
        };
        // Mostly all of them; which ones, only if not.
        let told = |rows: &str| {
            format!(
                "SELECT count(*), CASE WHEN count(*) < cardinality($1) THEN array_agg(id) END FROM {rows}"
            )
        };
        // The rows of the batch, found by the index and changed where the version is still the one that was decided upon.
        let found = "r.id = ANY($1::bytea[]) AND r.id = new.id AND r.version = new.expect";
        let swapped = |answers: bool| {
            format!(
                "swapped AS (UPDATE {record} r SET version = new.version, state = new.state, due_at = new.due_at, \
                 look_at = new.look_at, rest = new.rest, answer = NULL FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], \
                 $4::smallint[], $5::bigint[], $6::bigint[], $7::bytea[], $8::bigint[], $9::bigint[], $10::text[], \
                 $11::bigint[], $12::bigint[], $13::bytea[]{types}) \
                 AS new (id, expect, version, state, due_at, look_at, rest, {MARKED}{names}) \
                 WHERE {found} RETURNING r.id, r.seq, r.state, r.due_at, {MARKED}{returned})",
                types = if answers { ", $14::bytea[]" } else { "" },
                names = if answers { ", answer" } else { "" },
                returned = if answers { ", new.answer" } else { "" },
            )
        };
        let marked = marked(schema, "swapped");
        // A note of its own for each: that of its batch may be put off beyond its moment, or be of the other kind.
        let alone = |state: i16| {
            format!(
                "INSERT INTO {note} (about, due_at, first, last) SELECT {state}, due_at, seq, seq FROM swapped \
                 WHERE due_at IS NOT NULL AND state & 15 = {state}"
            )
        };
        // And one of a batch for what may have none, see `is_first`.
        let with_batch = format!(
            "UNION ALL SELECT 1, due_at, seq, seq + {last} FROM swapped WHERE due_at IS NOT NULL AND state & 15 = 1 AND {}",
            is_first("seq")
        );
        let now = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        // Each of these with nothing beside it, or with the entries of those of its rows that were changed.
        let insert = |entered: &str| {
            format!(
                "WITH {batch}, inserted AS (INSERT INTO {record} (seq, {INSERTED}) \
                 SELECT (SELECT first FROM batch) + place, {INSERTED} FROM unnest($1::integer[], $2::bytea[], \
                 $3::bigint[], $4::smallint[], $5::bigint[], $6::bigint[], $7::bytea[]) AS new (place, {INSERTED}) \
                 ON CONFLICT (id) DO NOTHING RETURNING id, seq), {}, \
                 kept AS (INSERT INTO {answer} (seq, bytes) SELECT inserted.seq, new.answer FROM inserted \
                 JOIN unnest($2::bytea[], $8::bytea[]) AS new (id, answer) ON new.id = inserted.id \
                 WHERE new.answer IS NOT NULL), \
                 marked AS (INSERT INTO {mark} (seq, {MARKED}) SELECT inserted.seq, {MARKED} FROM inserted \
                 JOIN unnest($2::bytea[], $9::bigint[], $10::bigint[], $11::text[], $12::bigint[], $13::bigint[], $14::bytea[]) \
                 AS new (id, {MARKED}) ON new.id = inserted.id WHERE {IS_MARKED}){entered} {}",
                noted("$15::bigint"),
                told("inserted")
            )
        };
        let settle_over = |entered: &str| {
            format!(
                "WITH {}, {}, {marked}, kept AS (INSERT INTO {answer} (seq, bytes) SELECT seq, answer FROM swapped \
                 ON CONFLICT (seq) DO UPDATE SET bytes = excluded.bytes){entered} {}",
                swapped(true),
                format_args!("noted AS ({})", alone(2)),
                told("swapped")
            )
        };
        let move_on = |entered: &str| {
            format!(
                "WITH {}, {}, {marked}, dropped AS (DELETE FROM {answer} WHERE seq = ANY(ARRAY(SELECT seq FROM swapped))){entered} {}",
                swapped(false),
                format_args!("noted AS ({} {with_batch})", alone(1)),
                told("swapped")
            )
        };
        // Settled states only, past retention by this server's own clock. What is settled is due when it expires.
        let remove = |entered: &str| {
            format!(
                "WITH removed AS (DELETE FROM {record} r \
                 USING unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::boolean[]) \
                 AS old (id, expect, grace, is_remembered) \
                 WHERE r.id = ANY($1::bytea[]) AND r.id = old.id AND r.version = old.expect \
                 AND r.state IN (2, 3, 5) AND r.due_at <= {now} - old.grace RETURNING r.id, r.seq, old.is_remembered), \
                 dropped AS (DELETE FROM {answer} WHERE seq = ANY(ARRAY(SELECT seq FROM removed))), \
                 {}, {}{entered} {}",
                unmarked(schema, "removed"),
                removed::remembered(schema, "removed", now),
                told("removed")
            )
        };
        let entered = |rows: &str, from: usize| format!(", {}", trail::entered(schema, rows, from));
        Self {
            reserve: query(
                0,
                format!(
                    "WITH {batch}, inserted AS (INSERT INTO {record} (seq, id, version, state, due_at, rest) \
                     SELECT (SELECT first FROM batch) + place, id, version, 1, due_at, rest \
                     FROM unnest($1::integer[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bytea[]) \
                     AS new (place, id, version, due_at, rest) \
                     ON CONFLICT (id) DO NOTHING RETURNING id), {} {}",
                    noted("$6::bigint"),
                    told("inserted")
                ),
            ),
            insert: query(1, insert("")),
            insert_told: query(14, insert(&entered("inserted", 16))),
            lock: query(
                38,
                format!("SELECT FROM {record} WHERE id = ANY($1::bytea[]) ORDER BY id FOR NO KEY UPDATE"),
            ),
            settle: query(
                2,
                format!(
                    "WITH swapped AS (UPDATE {record} r SET version = new.version, state = 2, due_at = new.due_at, \
                     look_at = NULL, rest = new.rest, answer = NULL FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], \
                     $4::bigint[], $5::bytea[], $6::bytea[]) AS new (id, expect, version, due_at, rest, answer) \
                     WHERE {found} RETURNING r.id, r.seq, new.answer), {}, \
                     kept AS (INSERT INTO {answer} (seq, bytes) SELECT seq, answer FROM swapped) {}",
                    unmarked(schema, "swapped"),
                    told("swapped")
                ),
            ),
            settle_over: query(12, settle_over("")),
            settle_told: query(15, settle_over(&entered("swapped", 15))),
            move_on: query(3, move_on("")),
            move_on_told: query(16, move_on(&entered("swapped", 14))),
            remove: query(4, remove("")),
            remove_told: query(17, remove(&entered("removed", 5))),
            read: query(5, format!("{select} WHERE r.id = ANY($1::bytea[])")),
            read_by_seq: query(6, format!("{select} WHERE r.seq = ANY($1::bigint[])")),
            page: query(
                13,
                format!(
                    "SELECT count(*), max(due_at), (array_agg(no ORDER BY due_at DESC, no DESC))[1], {now} \
                     FROM (SELECT due_at, no FROM {note} WHERE about = $1::smallint AND due_at <= $2::bigint \
                     AND (due_at, no) > ($3::bigint, $4::bigint) \
                     ORDER BY due_at, no LIMIT $5::bigint) n"
                ),
            ),
            tidy: query(7, tidy(&record, &note)),
            noted: query(8, noted_rows(schema, &record, &note)),
            looked: query(
                9,
                format!(
                    "SELECT seq, look_at, CASE WHEN state = 2 THEN {} ELSE 0 END FROM {record} r \
                     WHERE look_at BETWEEN $1::bigint AND $2::bigint ORDER BY look_at, seq LIMIT $3::bigint",
                    bytes_of_answer(schema, "octet_length(r.answer)")
                ),
            ),
            doubted_except: query(
                44,
                format!(
                    "SELECT seq, look_at FROM {record} r WHERE look_at BETWEEN $1::bigint AND $2::bigint \
                     AND NOT EXISTS (SELECT FROM unnest($4::bytea[]) AS excepted (name) WHERE {}) \
                     ORDER BY look_at, seq LIMIT $3::bigint",
                    Name::Operation.is("r.rest").replace('?', "excepted.name")
                ),
            ),
            lines: query(33, lines(&mark)),
            of_lines: query(
                34,
                format!(
                    "SELECT l.place, r.seq FROM unnest($1::bigint[]) WITH ORDINALITY AS l (line, place), \
                     LATERAL (SELECT seq, waits_since FROM {mark} WHERE line = l.line AND waits_since <= $2::bigint \
                     AND operation = ANY($3::text[]) ORDER BY waits_since, seq LIMIT $4::bigint) r \
                     ORDER BY l.place, r.waits_since, r.seq"
                ),
            ),
            backlog: query(
                35,
                format!(
                    "SELECT count(*), min(waits_since) FROM (SELECT waits_since FROM {mark} \
                     WHERE line BETWEEN {} AND {} LIMIT $1::bigint) r",
                    i64::MIN + 1,
                    i64::MAX
                ),
            ),
            doubts: query(37, doubts(&mark)),
            pending: query(
                36,
                format!(
                    "SELECT seq, waits_since FROM {mark} WHERE line BETWEEN {} AND {} AND waits_since BETWEEN $3::bigint AND $1::bigint \
                     ORDER BY waits_since, seq LIMIT $2::bigint",
                    i64::MIN + 1,
                    i64::MAX
                ),
            ),
            clock: query(10, format!("SELECT {now}, {HAS_STANDBYS}")),
            counts: query(
                11,
                format!(
                    "SELECT state, count(*), count(*) FILTER (WHERE state = 4 AND due_at IS NULL) FROM {record} \
                     GROUP BY state"
                ),
            ),
            trail: Trail::new(schema, 18),
            removed: Removed::new(schema, 45),
            outbox: Outbox::new(schema, 24),
            history: History::new(schema, 39),
            by_reference: format!("r.seq = ANY(ARRAY(SELECT seq FROM {mark} WHERE reference = ?))"),
            by_doubt: format!(
                "r.seq = ANY(ARRAY(SELECT seq FROM {mark} WHERE doubt_since BETWEEN {} AND {}))",
                i64::MIN + 1,
                i64::MAX
            ),
            select,
        }
    }
}

/// Counts no more than `$1` of each; both the count and the oldest through an index that knows of nothing else.
fn doubts(mark: &str) -> String {
    let of = |column: &str| {
        let all = format!("FROM {mark} WHERE {column} BETWEEN {} AND {}", i64::MIN + 1, i64::MAX);
        format!(
            "(SELECT count(*) FROM (SELECT {column} {all} LIMIT $1::bigint) r), \
             (SELECT {column} {all} ORDER BY {column} LIMIT 1)"
        )
    };
    format!("SELECT {}, {}", of("doubt_since"), of("parked_since"))
}

/// The heads of the lines after `$1`, at most `$2`: from one to the next through the index, however long each is.
fn lines(mark: &str) -> String {
    let next = |after: &str| {
        format!(
            "SELECT line, waits_since, operation FROM {mark} WHERE line > {after} ORDER BY line, waits_since, seq LIMIT 1"
        )
    };
    format!(
        "WITH RECURSIVE head AS (({}) UNION ALL SELECT n.line, n.waits_since, n.operation FROM head h, LATERAL ({}) n) \
         SELECT line, waits_since, operation FROM head LIMIT $2::bigint",
        next("$1::bigint"),
        next("h.line")
    )
}

/// The notes of kind `$1` after the one that was due at `$2` and has the number `$3`, up to the one of `$4` and `$5`: a page, and
/// what others have put there since it was read.
const ON_PAGE: &str = "about = $1::smallint AND (due_at, no) > ($2::bigint, $3::bigint) AND (due_at, no) <= ($4::bigint, $5::bigint)";

/// Looks at the notes of a page, and puts each off until the first of its rows is due, or until `$6` for rows that an index finds; one
/// that has no rows any more goes. One of leases becomes one of answers when none of its rows is in progress. A note of one row
/// stays while it says of what kind the row is and when it is due, and of several that say the same the last one does.
/// Another node that does the same is not waited for.
///
/// Nothing is lost to writes that this cannot see yet: a row that goes into progress, also in the same state as before, brings a note,
/// which this cannot see either. So does an answer that expires soon; and `$6` is within the hour, while others expire later than
/// [`super::batch::EXPIRES_LATE`].
fn tidy(record: &str, note: &str) -> String {
    format!(
        "WITH due AS MATERIALIZED (SELECT no, due_at, first, last FROM {note} WHERE {ON_PAGE} \
         ORDER BY due_at, no LIMIT {NOTES_AT_ONCE} FOR UPDATE SKIP LOCKED), \
         looked AS MATERIALIZED (SELECT due.no, r.moment, r.about, r.rows = 0 \
         OR lead(due.no) OVER (PARTITION BY due.first, due.last, due.due_at ORDER BY due.no) IS NOT NULL AS is_over \
         FROM due, LATERAL (SELECT count(*) AS rows, CASE WHEN bool_or(state & 15 = 1) THEN $1 ELSE 2 END AS about, \
         min(CASE WHEN state & 15 IN ($1, 2) THEN coalesce(due_at, $6::bigint) ELSE $6 END) AS moment FROM {record} \
         WHERE seq BETWEEN due.first AND due.last \
         AND (due.first < due.last OR (state & 15 = $1 AND due_at = due.due_at))) r), \
         gone AS (DELETE FROM {note} WHERE no = ANY(ARRAY(SELECT no FROM looked WHERE is_over))) \
         UPDATE {note} n SET about = looked.about, due_at = greatest(looked.moment, n.due_at) FROM looked \
         WHERE n.no = ANY(ARRAY(SELECT no FROM looked WHERE NOT is_over)) AND n.no = looked.no \
         AND (looked.about <> n.about OR looked.moment > n.due_at)"
    )
}

/// The rows under the notes of a page that have `$6` for their state and are due from `$9` until `$7`, the longest first, at most `$8`, with the size of
/// their answers.
fn noted_rows(schema: &Schema, record: &str, note: &str) -> String {
    format!(
        "SELECT r.seq, r.due_at, {} FROM (SELECT DISTINCT r.seq, r.due_at, r.bytes \
         FROM (SELECT first, last FROM {note} WHERE {ON_PAGE}) n, \
         LATERAL (SELECT seq, due_at, octet_length(answer) AS bytes FROM {record} WHERE seq BETWEEN n.first AND n.last AND state = $6::smallint \
         AND due_at BETWEEN $9::bigint AND $7::bigint OFFSET 0) r \
         ORDER BY r.due_at, r.seq LIMIT $8::bigint) r ORDER BY r.due_at, r.seq",
        bytes_of_answer(schema, "r.bytes")
    )
}

/// The answer of the record `r`: in its row, or in the table of its own.
pub(super) fn answer_of(schema: &Schema) -> String {
    format!("coalesce(r.answer, (SELECT bytes FROM {} WHERE seq = r.seq))", table(schema, "answer"))
}

/// How long that is; `in_row` says how long the one in the row is.
fn bytes_of_answer(schema: &Schema, in_row: &str) -> String {
    let answer = table(schema, "answer");
    format!("coalesce({in_row}, (SELECT octet_length(bytes) FROM {answer} a WHERE a.seq = r.seq), 0)")
}

/// Writes what those of the changed `rows` are found by that are found by anything, whatever it was before, and removes what the others were.
pub(super) fn marked(schema: &Schema, rows: &str) -> String {
    let new: Vec<_> = MARKED.split(", ").map(|column| format!("excluded.{column}")).collect();
    format!(
        "marked AS (INSERT INTO {} (seq, {MARKED}) SELECT seq, {MARKED} FROM {rows} WHERE {IS_MARKED} \
         ON CONFLICT (seq) DO UPDATE SET ({MARKED}) = ROW({})), {}",
        table(schema, "mark"),
        new.join(", "),
        unmarked(schema, &format!("{rows} WHERE NOT {IS_MARKED}"))
    )
}

/// Removes what these rows were found by.
fn unmarked(schema: &Schema, rows: &str) -> String {
    format!(
        "unmarked AS (DELETE FROM {} WHERE seq = ANY(ARRAY(SELECT seq FROM {rows})))",
        table(schema, "mark")
    )
}

/// Whether a row is the first of its batch, in SQL. One that was written in a caller's transaction is the only one of its own, and if it was settled there, that batch has no note: whoever puts such a row into
/// progress leaves one, by which its next answer is found when it expires. (Another batch's first row has one already. Each is put off until the row is due, and of those that are due at one moment one stays: a lease that is renewed again and again has a few, not more and more.)
pub(super) fn is_first(seq: &str) -> String {
    format!("{seq} & {} = 0", BATCH_MAX - 1)
}

fn table(schema: &Schema, name: &str) -> String {
    format!("{}.{name}", schema.quoted())
}

fn query(number: usize, text: String) -> Query {
    Query { number, types: types::of(&text), text }
}
