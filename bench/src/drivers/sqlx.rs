//! The chosen layout through sqlx: same file, same pragmas, same statements.
//!
//! sqlx runs SQLite on a thread of its own and sends it every statement through a channel; that is the
//! difference this measures. One `await` per row, as a store written with sqlx would have.

use std::path::Path;

use sqlx::query::Query;
use sqlx::sqlite::{
    Sqlite, SqliteArguments, SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Executor};
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::layouts::{Answer, Layout, SettleBy, Unique};
use crate::rows::{COMPLETED, IN_PROGRESS, Row};
use crate::traffic::Subject;

/// One sqlx connection and the runtime that waits for it.
pub(crate) struct Sqlx {
    runtime: Runtime,
    connection: SqliteConnection,
    layout: Layout,
    insert: &'static str,
    settle: &'static str,
}

impl Sqlx {
    /// Opens a file that has its tables already.
    pub(crate) fn open(path: &Path, layout: Layout) -> Outcome<Self> {
        if layout.unique == Unique::Hash64 {
            return Err("the look before the insert is only written for rusqlite".into());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .pragma("cache_size", format!("-{}", layout.cache_kib))
            .pragma("wal_autocheckpoint", layout.checkpoint_pages().to_string())
            .disable_statement_logging();
        let connection = runtime.block_on(options.connect())?;
        // Leaked on purpose: sqlx looks its cache up by the text, and a static text costs no copy per call.
        let (insert, settle) = (layout.insert_sql(1).leak(), layout.settle_sql().leak());
        Ok(Self { runtime, connection, layout, insert, settle })
    }
}

impl Subject for Sqlx {
    fn reserve(&mut self, rows: &mut [Row]) -> Outcome {
        let Self { runtime, connection, insert, .. } = self;
        runtime.block_on(async {
            connection.execute("BEGIN IMMEDIATE").await?;
            for row in rows {
                let done = bind_row(sqlx::query(*insert), row).execute(&mut *connection).await?;
                if done.rows_affected() != 1 {
                    return Err("a fresh key was already there".into());
                }
                row.seq = done.last_insert_rowid();
            }
            connection.execute("COMMIT").await?;
            Ok(())
        })
    }

    fn settle(&mut self, rows: &[Row]) -> Outcome {
        let Self { runtime, connection, settle, layout, .. } = self;
        runtime.block_on(async {
            connection.execute("BEGIN IMMEDIATE").await?;
            for row in rows {
                let done = bind_settle(sqlx::query(*settle), layout, row).execute(&mut *connection).await?;
                if done.rows_affected() != 1 {
                    return Err("the version had moved".into());
                }
                if layout.answer == Answer::Apart {
                    let insert = sqlx::query("INSERT INTO answer (seq, bytes) VALUES (?1, ?2)");
                    insert.bind(row.seq).bind(row.answer.as_slice()).execute(&mut *connection).await?;
                }
            }
            connection.execute("COMMIT").await?;
            Ok(())
        })
    }
}

type Bound<'q> = Query<'q, Sqlite, SqliteArguments>;

/// In the order of `layouts::INSERTED`.
fn bind_row<'q>(query: Bound<'q>, row: &'q Row) -> Bound<'q> {
    query
        .bind(row.id.as_slice())
        .bind(row.scope.as_str())
        .bind(row.key.as_str())
        .bind(row.life.as_slice())
        .bind("POST /payments")
        .bind(1)
        .bind(row.fingerprint.as_slice())
        .bind(IN_PROGRESS)
        .bind(row.version)
        .bind(row.version)
        .bind(row.token.as_slice())
        .bind(row.lease_until)
        .bind(row.attempt_deadline)
        .bind(1)
        .bind(row.lease_until)
        .bind(0)
        .bind(0)
        .bind(row.created_at)
        .bind(row.created_at)
        .bind(1)
        .bind(1)
        .bind(86_400)
        .bind(1)
}

/// In the order of `Layout::settle_sql`.
fn bind_settle<'q>(query: Bound<'q>, layout: &Layout, row: &'q Row) -> Bound<'q> {
    let mut query = query
        .bind(COMPLETED)
        .bind(row.settled_at)
        .bind(row.expires_at)
        .bind(row.settled_at)
        .bind(row.expires_at);
    if layout.answer == Answer::Inline {
        query = query.bind(row.answer.as_slice());
    }
    let query = match layout.settle_by {
        SettleBy::ScopeKey => query.bind(row.scope.as_str()).bind(row.key.as_str()),
        SettleBy::Id => query.bind(row.id.as_slice()),
        SettleBy::Hash64 => query.bind(row.hash64()).bind(row.id.as_slice()),
        SettleBy::Seq => query.bind(row.seq).bind(row.id.as_slice()),
    };
    query.bind(row.version)
}
