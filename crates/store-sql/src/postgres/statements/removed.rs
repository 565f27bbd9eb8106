//! The statements of what is remembered of removed rows.

use super::{Query, Schema, query, table};

/// All of them.
#[derive(Debug)]
pub(in crate::postgres) struct Removed {
    pub(in crate::postgres) removed: Query,
    pub(in crate::postgres) drop: Query,
}

impl Removed {
    /// The first has the number `first`.
    pub(super) fn new(schema: &Schema, first: usize) -> Self {
        let removed = table(schema, "removed_id");
        Self {
            removed: query(
                first,
                format!(
                    "SELECT digest, max(day) FROM {removed} WHERE digest = ANY($1::bigint[]) GROUP BY digest"
                ),
            ),
            // Another node that does the same is not waited for.
            drop: query(
                first + 1,
                format!(
                    "WITH dropped AS (DELETE FROM {removed} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {removed} \
                     WHERE day < $1::integer ORDER BY day LIMIT $2::bigint FOR UPDATE SKIP LOCKED)) \
                     RETURNING day) SELECT count(*) FROM dropped"
                ),
            ),
        }
    }
}

/// A part of the statement that removes rows: the ids of those that say so are remembered. In
/// order, so that two nodes that remove the same keys wait for each other in one direction only.
pub(super) fn remembered(schema: &Schema, rows: &str, now: &str) -> String {
    format!(
        "remembered AS (INSERT INTO {} (digest, day) \
         SELECT ('x' || encode(substring(id FOR 8), 'hex'))::bit(64)::bigint, ({now} / 86400000000)::integer \
         FROM {rows} WHERE is_remembered ORDER BY 1 ON CONFLICT DO NOTHING)",
        table(schema, "removed_id")
    )
}
