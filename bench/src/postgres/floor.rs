//! What one would write by hand: no decisions, no cache, no waiting, no notes; the same rows in the same tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use oncegate_store_sql::postgres::PostgresOptions;
use tokio::runtime::Runtime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Statement};

use super::id;
use crate::Outcome;
use crate::cost::Turn;
use crate::engine::timed;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// What a row takes besides its columns, and an answer.
const REST: [u8; 160] = [7; 160];
const ANSWER: [u8; 300] = [9; 300];
const NOW: i64 = 1_767_225_600_000_000;

/// Keys are never used twice.
static KEYS: AtomicU64 = AtomicU64::new(0);

/// Connections of one's own to the tables of one schema.
pub(super) struct Floor {
    runtime: Runtime,
    connections: Vec<Arc<Connection>>,
}

struct Connection {
    client: Client,
    reserve: Statement,
    settle: Statement,
    reserve_one: Statement,
    settle_one: Statement,
}

impl Floor {
    /// The tables are made by the store itself.
    pub(super) fn open(url: &str, schema: &str, connections: usize) -> Outcome<Self> {
        let runtime = super::runtime()?;
        let connections = runtime.block_on(async {
            drop(PostgresOptions::new(url)?.schema(schema)?.open().await?);
            let mut opened = Vec::new();
            for _ in 0..connections {
                opened.push(Arc::new(Connection::open(url, schema).await?));
            }
            Outcome::Ok(opened)
        })?;
        Ok(Self { runtime, connections })
    }

    /// Each connection: reserve, commit, settle, commit, and the next; plain statements, no arrays.
    pub(super) fn two_commits(&self, requests: usize) -> Outcome<Turn> {
        self.share(requests, 1)
    }

    /// The same with so many rows in each commit.
    pub(super) fn batches(&self, requests: usize, rows: usize) -> Outcome<Turn> {
        self.share(requests, rows)
    }

    fn share(&self, requests: usize, rows: usize) -> Outcome<Turn> {
        let left = Arc::new(AtomicU64::new((requests / rows) as u64));
        timed(requests, || {
            let tasks: Vec<_> = self
                .connections
                .iter()
                .map(|connection| {
                    let (connection, left) = (Arc::clone(connection), Arc::clone(&left));
                    self.runtime.spawn(async move {
                        let take = |left: u64| left.checked_sub(1);
                        while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
                            connection.reserve_and_settle(rows).await?;
                        }
                        Ok::<_, Error>(())
                    })
                })
                .collect();
            for task in tasks {
                self.runtime.block_on(task)?.map_err(|error| error.to_string())?;
            }
            Ok(())
        })
    }
}

impl Connection {
    async fn open(url: &str, schema: &str) -> Outcome<Self> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        client
            .batch_execute("SET enable_seqscan = off; SET enable_nestloop = off; SET enable_mergejoin = off")
            .await?;
        let reserve = client
            .prepare(&format!(
                "INSERT INTO {schema}.record (seq, id, version, state, due_at, rest) SELECT seq, id, version, 1, due_at, rest \
                 FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bytea[]) \
                 AS new (seq, id, version, due_at, rest) ON CONFLICT (id) DO NOTHING"
            ))
            .await?;
        let settle = client
            .prepare(&format!(
                "WITH settled AS (UPDATE {schema}.record r SET version = new.version, state = 2, due_at = new.due_at, \
                 rest = new.rest \
                 FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bytea[], $6::bytea[]) \
                 AS new (id, expect, version, due_at, rest, answer) \
                 WHERE r.id = ANY($1) AND r.id = new.id AND r.version = new.expect \
                 RETURNING r.seq, new.answer) INSERT INTO {schema}.answer (seq, bytes) SELECT seq, answer FROM settled"
            ))
            .await?;
        let reserve_one = client
            .prepare(&format!(
                "INSERT INTO {schema}.record (seq, id, version, state, due_at, rest) VALUES ($1, $2, $3, 1, $4, $5) \
                 ON CONFLICT (id) DO NOTHING"
            ))
            .await?;
        let settle_one = client
            .prepare(&format!(
                "WITH settled AS (UPDATE {schema}.record SET version = $3, state = 2, due_at = $4, rest = $5 \
                 WHERE id = $1 AND version = $2 RETURNING seq) \
                 INSERT INTO {schema}.answer (seq, bytes) SELECT seq, $6::bytea FROM settled"
            ))
            .await?;
        Ok(Self { client, reserve, settle, reserve_one, settle_one })
    }

    async fn one(&self) -> Result<(), Error> {
        let seq = i64::try_from(KEYS.fetch_add(1, Ordering::Relaxed))?;
        let (id, rest) = (id(seq.unsigned_abs()), rest(seq));
        let (answer, due) = (&ANSWER[..], NOW + 60_000_000);
        let reserved: [&(dyn ToSql + Sync); 5] = [&seq, &id, &NOW, &due, &rest];
        let settled: [&(dyn ToSql + Sync); 6] = [&id, &NOW, &(NOW + 1), &due, &rest, &answer];
        let (reserved, settled) = (
            self.client.execute(&self.reserve_one, &reserved).await?,
            self.client.execute(&self.settle_one, &settled).await?,
        );
        if (reserved, settled) == (1, 1) { Ok(()) } else { Err("a row was refused".into()) }
    }

    async fn reserve_and_settle(&self, rows: usize) -> Result<(), Error> {
        if rows == 1 {
            return self.one().await;
        }
        let first = KEYS.fetch_add(rows as u64, Ordering::Relaxed);
        let numbers = first..first + rows as u64;
        let mut ids: Vec<(Vec<u8>, i64)> = numbers.map(|n| (id(n), i64::try_from(n).unwrap_or(0))).collect();
        ids.sort_unstable();
        let (ids, seqs): (Vec<_>, Vec<_>) = ids.into_iter().unzip();
        let rest: Vec<_> = seqs.iter().map(|seq| rest(*seq)).collect();
        let answer = vec![&ANSWER[..]; rows];
        let (versions, next, due) = (vec![NOW; rows], vec![NOW + 1; rows], vec![NOW + 60_000_000; rows]);
        let reserved: [&(dyn ToSql + Sync); 5] = [&seqs, &ids, &versions, &due, &rest];
        let settled: [&(dyn ToSql + Sync); 6] = [&ids, &versions, &next, &due, &rest, &answer];
        let (reserved, settled) = (
            self.client.execute(&self.reserve, &reserved).await?,
            self.client.execute(&self.settle, &settled).await?,
        );
        if (reserved, settled) == (rows as u64, rows as u64) {
            Ok(())
        } else {
            Err("a row was refused".into())
        }
    }
}

/// All else of a row, its names in front.
fn rest(seq: i64) -> Vec<u8> {
    let names = format!("tenant {seq:016x}-{seq:016x}-00 POST /payments");
    [names.as_bytes(), &REST].concat()
}
