//! The statements of the audit trail, and of what is kept apart.
//!
//! **Invariant:** the entry of a write hangs on the row that the write's own statement changed. That a row has the right version
//! afterwards would prove nothing: two contenders may propose the same one.

use super::{Query, Schema, query, table};

/// All of them.
#[derive(Debug)]
pub(in crate::postgres) struct Trail {
    pub(in crate::postgres) tell: Query,
    pub(in crate::postgres) story: Query,
    /// Not prepared: a page for people is planned by what the table holds.
    pub(in crate::postgres) entries: String,
    pub(in crate::postgres) drop_entries: Query,
    pub(in crate::postgres) keep_apart: Query,
    pub(in crate::postgres) apart: Query,
    pub(in crate::postgres) drop_apart: Query,
}

impl Trail {
    /// The first has the number `first`.
    pub(super) fn new(schema: &Schema, first: usize) -> Self {
        let (entry, apart) = (table(schema, "entry"), table(schema, "apart"));
        Self {
            tell: query(first, format!("{} ON CONFLICT DO NOTHING", enter(schema, 1, ""))),
            story: query(
                first + 1,
                format!(
                    "SELECT at, bytes FROM (SELECT seq, at, bytes FROM {entry} WHERE id = $1::bytea \
                     ORDER BY seq DESC LIMIT $2::bigint) last ORDER BY seq"
                ),
            ),
            entries: format!(
                "SELECT id, at, seq, bytes FROM {entry} WHERE (at, seq) > ($1::bigint, $2::bigint) \
                 AND at < $3::bigint ORDER BY at, seq LIMIT $4::bigint"
            ),
            // Another node that does the same is not waited for.
            drop_entries: query(
                first + 2,
                format!(
                    "WITH dropped AS (DELETE FROM {entry} WHERE seq = ANY(ARRAY(SELECT seq FROM {entry} \
                     WHERE at < $1::bigint ORDER BY at, seq LIMIT $2::bigint FOR UPDATE SKIP LOCKED)) RETURNING seq) \
                     SELECT count(*) FROM dropped"
                ),
            ),
            keep_apart: query(
                first + 3,
                format!(
                    "INSERT INTO {apart} (name, at, until, bytes) \
                     VALUES ($1::bytea, $2::bigint, $3::bigint, $4::bytea) ON CONFLICT DO NOTHING"
                ),
            ),
            apart: query(
                first + 4,
                format!(
                    "SELECT name, at, until, bytes FROM {apart} WHERE at >= $1::bigint \
                     AND ($2::bytea IS NULL OR (at, name) > ($1, $2)) ORDER BY at, name LIMIT $3::bigint"
                ),
            ),
            drop_apart: query(
                first + 5,
                format!(
                    "DELETE FROM {apart} \
                     WHERE sha256(name) = ANY(ARRAY(SELECT sha256(old) FROM unnest($1::bytea[]) AS old))"
                ),
            ),
        }
    }
}

/// A part of a statement that writes: of the entries in the parameters from `$from` on, those whose record is among the `rows` that the
/// statement has changed.
pub(super) fn entered(schema: &Schema, rows: &str, from: usize) -> String {
    let condition = format!(" WHERE new.id IN (SELECT id FROM {rows})");
    format!("entered AS ({} ON CONFLICT DO NOTHING)", enter(schema, from, &condition))
}

fn enter(schema: &Schema, from: usize, condition: &str) -> String {
    let [id, at, act, node, bytes] = [0, 1, 2, 3, 4].map(|place| from + place);
    format!(
        "INSERT INTO {} (id, at, act, node, bytes) SELECT id, at, act, node, bytes \
         FROM unnest(${id}::bytea[], ${at}::bigint[], ${act}::smallint[], ${node}::bytea[], ${bytes}::bytea[]) \
         WITH ORDINALITY AS new (id, at, act, node, bytes, place){condition} ORDER BY place",
        table(schema, "entry")
    )
}
