//! The statements of watermarks and quarantines.

use super::{Query, Schema, query, table};

/// All of them.
#[derive(Debug)]
pub(in crate::postgres) struct History {
    /// Rewrites a watermark that is as it must be; counts the rows.
    pub(in crate::postgres) beat: Query,
    pub(in crate::postgres) leave: Query,
    pub(in crate::postgres) declare: Query,
    pub(in crate::postgres) quarantines: Query,
    pub(in crate::postgres) release: Query,
}

impl History {
    /// The first has the number `first`.
    pub(super) fn new(schema: &Schema, first: usize) -> Self {
        let (watermark, quarantine) = (table(schema, "watermark"), table(schema, "quarantine"));
        let now = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        Self {
            beat: query(
                first,
                format!(
                    "WITH old AS (DELETE FROM {watermark} WHERE $2::bigint IS NULL AND at < {now} - $4::bigint), \
                     kept AS (UPDATE {watermark} SET mark = $3::bigint, at = {now} \
                     WHERE node = $1::bigint AND mark IN ($2, $3) RETURNING node), \
                     added AS (INSERT INTO {watermark} (node, mark, at) SELECT $1, $3, {now} \
                     WHERE $2 IS NULL AND NOT EXISTS (SELECT FROM kept) ON CONFLICT DO NOTHING RETURNING node) \
                     SELECT (SELECT count(*) FROM kept) + (SELECT count(*) FROM added)"
                ),
            ),
            leave: query(first + 1, format!("DELETE FROM {watermark} WHERE node = $1::bigint")),
            declare: query(
                first + 2,
                format!(
                    "INSERT INTO {quarantine} (id, since, until, declared_at, released_at, reason) VALUES ($1::text, \
                     $2::bigint, $3::bigint, $4::bigint, $5::bigint, $6::bytea) ON CONFLICT DO NOTHING"
                ),
            ),
            quarantines: query(
                first + 3,
                format!(
                    "SELECT id, since, until, declared_at, released_at, reason FROM {quarantine} ORDER BY declared_at, id"
                ),
            ),
            release: query(
                first + 4,
                format!(
                    "WITH released AS (UPDATE {quarantine} SET released_at = $2::bigint \
                     WHERE id = $1::text AND released_at IS NULL RETURNING id) SELECT count(*) FROM released"
                ),
            ),
        }
    }
}
