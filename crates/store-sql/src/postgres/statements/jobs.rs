//! The statements of the outbox.
//!
//! **Invariant:** in a line, what was promised later has the greater number *and* was committed later, because whoever promises into a
//! line holds its lock until the end of the transaction. So the first of a line that is not over cannot be preceded by one that
//! appears afterwards, and a claim that sees an older state of the line is only too careful.

use oncegate_store::jobs::PROMISED_OTHERWISE;

use super::{Query, Schema, query, table};
use crate::job::{COLUMNS, PROMISED, again};

/// All of them.
#[derive(Debug)]
pub(in crate::postgres) struct Outbox {
    /// In a caller's transaction, one job.
    pub(in crate::postgres) enqueue: String,
    pub(in crate::postgres) promise: Query,
    pub(in crate::postgres) claim: Query,
    pub(in crate::postgres) report: Query,
    pub(in crate::postgres) one: Query,
    pub(in crate::postgres) of_record: Query,
    pub(in crate::postgres) parked: Query,
    pub(in crate::postgres) unpark: Query,
    pub(in crate::postgres) withdraw: Query,
    pub(in crate::postgres) depth: Query,
    pub(in crate::postgres) drop_jobs: Query,
}

/// Asked once, before the rows: an index is then searched by it.
const NOW: &str = "(SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)";

impl Outbox {
    /// The first has the number `first`.
    pub(super) fn new(schema: &Schema, first: usize) -> Self {
        let job = table(schema, "job");
        let lock = |line: &str| {
            let name = format!("oncegate line of {}", schema.as_str());
            format!("pg_advisory_xact_lock(hashtextextended('{name} ' || encode({line}, 'hex'), 0))")
        };
        let select = |rest: &str| format!("SELECT {COLUMNS} FROM {job} {rest}");
        let again = again(&format!("nextval(pg_get_serial_sequence('{job}', 'seq'))"));
        Self {
            enqueue: format!(
                "INSERT INTO {job} AS job ({PROMISED}, tries, stage) SELECT $1::bytea, $2::text, $3::bytea, $4::bytea, \
                 $5::bytea, $6::bytea, $7::bytea, $8::bigint, $9::bigint, $10::bigint, 0, 0 FROM {} {again} \
                 RETURNING 1::bigint AS number",
                lock("$4::bytea")
            ),
            // All or none: a statement of its own is undone by an error, and a text that is no number is one.
            promise: query(
                first,
                format!(
                    "WITH new AS MATERIALIZED (SELECT * FROM unnest($1::bytea[], $2::text[], $3::bytea[], $4::bytea[], \
                     $5::bytea[], $6::bytea[], $7::bytea[], $8::bigint[], $9::bigint[], $10::bigint[]) \
                     WITH ORDINALITY AS new ({PROMISED}, place)), \
                     locked AS MATERIALIZED (SELECT {} FROM (SELECT DISTINCT line FROM new WHERE line IS NOT NULL \
                     ORDER BY line) lines), \
                     written AS (INSERT INTO {job} AS job ({PROMISED}, tries, stage) SELECT {PROMISED}, 0, 0 \
                     FROM new, (SELECT count(*) FROM locked) taken ORDER BY place {again} RETURNING id) \
                     SELECT (CASE WHEN (SELECT count(*) FROM written) = (SELECT count(*) FROM new) THEN '1' \
                     ELSE '{PROMISED_OTHERWISE}' END)::int",
                    lock("line")
                ),
            ),
            claim: query(first + 1, claim(&job)),
            report: query(first + 2, report(&job)),
            one: query(first + 3, select("WHERE id = $1::bytea")),
            of_record: query(first + 4, select("WHERE record = $1::bytea ORDER BY seq")),
            parked: query(
                first + 5,
                select(&format!(
                    "WHERE stage = 2 AND seq > coalesce((SELECT seq FROM {job} WHERE id = $1::bytea), 0) \
                     ORDER BY seq LIMIT $2::bigint"
                )),
            ),
            unpark: query(
                first + 6,
                format!(
                    "UPDATE {job} SET stage = 0, tries = 0, due_at = {NOW}, last_error = NULL \
                     WHERE id = $1::bytea AND stage + 0 = 2 RETURNING id"
                ),
            ),
            depth: query(
                first + 7,
                format!(
                    "SELECT effect, count(*) FILTER (WHERE stage < 2), count(*) FILTER (WHERE stage = 2), \
                     min(created_at) FILTER (WHERE stage < 2) FROM \
                     (SELECT effect, stage, created_at FROM {job} WHERE stage < 2 AND tries = 0 \
                     UNION ALL SELECT effect, stage, created_at FROM {job} WHERE stage < 2 AND tries > 0 \
                     UNION ALL SELECT effect, stage, created_at FROM {job} WHERE stage = 2) open GROUP BY effect ORDER BY effect"
                ),
            ),
            // As it was read: whoever tries it moves the end of its claim. It came after others, so its place is the last.
            withdraw: query(
                super::QUERIES - 1,
                format!(
                    "UPDATE {job} SET stage = 3, last_error = $2::bytea, over_at = {NOW} \
                     WHERE id = $1::bytea AND stage + 0 = 2 AND due_at = $3::bigint RETURNING id"
                ),
            ),
            // Another node that does the same is not waited for.
            drop_jobs: query(
                first + 8,
                format!(
                    "WITH dropped AS (DELETE FROM {job} WHERE seq = ANY(ARRAY(SELECT seq FROM {job} \
                     WHERE stage = 3 AND over_at < $1::bigint ORDER BY over_at, seq LIMIT $2::bigint \
                     FOR UPDATE SKIP LOCKED)) RETURNING seq) SELECT count(*) FROM dropped"
                ),
            ),
        }
    }
}

/// Effect by effect, because the indexes are ordered by time within each; and what was never claimed apart from what was, so that no
/// number of retries is read, or waited for, on the way to it. Those of others that are claimed meanwhile are passed over.
fn claim(job: &str) -> String {
    let found = |tries: &str, limit: &str| {
        format!(
            "(SELECT found.seq, found.due_at FROM unnest($2::text[]) AS wanted (effect), \
             LATERAL (SELECT j.seq, j.due_at FROM {job} j WHERE j.effect = wanted.effect AND j.stage < 2 AND j.{tries} \
             AND j.due_at <= {NOW} \
             AND (j.line IS NULL OR j.seq = (SELECT min(f.seq) FROM {job} f WHERE f.line = j.line AND f.stage < 3)) \
             ORDER BY j.due_at, j.seq LIMIT {limit}::bigint FOR UPDATE SKIP LOCKED) found \
             ORDER BY found.due_at, found.seq LIMIT {limit})"
        )
    };
    format!(
        "WITH due AS MATERIALIZED (SELECT found.seq, found.due_at FROM ({} UNION ALL {}) found \
         ORDER BY found.due_at, found.seq LIMIT $4), \
         taken AS (UPDATE {job} j SET token = $1::bytea, due_at = {NOW} + $3::bigint, tries = tries + 1 FROM due \
         WHERE j.seq = ANY(ARRAY(SELECT seq FROM due)) AND j.seq = due.seq RETURNING j.*, due.due_at AS was_due_at) \
         SELECT {COLUMNS} FROM taken ORDER BY was_due_at, seq",
        found("tries = 0", "$4"),
        found("tries > 0", "$5"),
    )
}

/// What is not said stays as it is; the error of the last try goes. (`+ 0`: an index of open jobs would tempt a plan that was made while
/// there were none, and then read all of it.)
fn report(job: &str) -> String {
    format!(
        "UPDATE {job} j SET stage = coalesce(new.stage, j.stage), token = CASE WHEN new.stage = 1 THEN j.token END, \
         due_at = coalesce({NOW} + new.after, j.due_at), tries = j.tries - new.given_back, \
         reference = CASE WHEN new.stage IN (1, 3) THEN new.reference ELSE j.reference END, \
         answer = CASE WHEN new.stage IN (1, 3) THEN new.answer ELSE j.answer END, \
         last_error = new.error, over_at = CASE WHEN new.stage = 3 THEN {NOW} END \
         FROM unnest($2::bytea[], $3::smallint[], $4::bigint[], $5::bytea[], $6::bytea[], $7::bytea[], $8::bigint[]) \
         AS new (id, stage, after, reference, answer, error, given_back) \
         WHERE j.id = ANY($2) AND j.id = new.id AND j.token = $1::bytea AND j.stage + 0 < 2 RETURNING j.id"
    )
}
