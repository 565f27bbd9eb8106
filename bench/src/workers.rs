//! What the workers cost: a sweeper's pass beside millions of answers, and requests beside a reaper that is behind.

pub(crate) mod reaper;
pub(crate) mod sweeper;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use oncegate_engine::{
    BackgroundWorkers, Engine, NoProbe, Options as EngineOptions, Pass, Worker, WorkerOptions,
};
use oncegate_store::{Store, Write};
use oncegate_store_sql::postgres::PostgresOptions;
use oncegate_store_sql::{PostgresStore, SqliteStore};
use oncegate_test_servers::Postgres;
use tokio::runtime::Runtime;

use crate::options::Options;
use crate::{Outcome, fill, postgres};

const SQLITE: &str = "SQLite";
const POSTGRES: &str = "PostgreSQL";

/// An engine, with the runtime that it runs on.
struct Node<S: Store> {
    runtime: Runtime,
    engine: Engine<S>,
}

impl<S: Store> Node<S> {
    fn start(store: S, runtime: Runtime) -> Outcome<Self> {
        let options = EngineOptions { workers: BackgroundWorkers::None, ..EngineOptions::default() };
        let engine = runtime.block_on(Engine::start(store, options))?;
        Ok(Self { runtime, engine })
    }

    /// Writes rows past the engine, all of which must be new.
    fn insert(&self, rows: Vec<oncegate_core::record::Record>) -> Outcome {
        let writes: Vec<_> = rows.into_iter().map(|row| Write::insert(Arc::new(row))).collect();
        crate::store::check(self.runtime.block_on(self.engine.store().apply(&writes))?)
    }

    fn pass(&self, worker: Worker, options: &WorkerOptions) -> Outcome<Pass> {
        Ok(self.runtime.block_on(self.engine.work(worker, options, &NoProbe))?)
    }
}

fn on_sqlite(file: &Path) -> Outcome<Node<SqliteStore>> {
    Node::start(SqliteStore::open(file)?, postgres::runtime()?)
}

fn on_postgres(server: &Postgres, schema: &str) -> Outcome<Node<PostgresStore>> {
    let runtime = postgres::runtime()?;
    let store = runtime.block_on(PostgresOptions::new(&server.url())?.schema(schema)?.open())?;
    Node::start(store, runtime)
}

/// A path at which no file exists any more.
fn no_file(options: &Options, name: &str) -> Outcome<PathBuf> {
    let path = options.dir.join(format!("{name}.db"));
    fill::remove(&path)?;
    Ok(path)
}
