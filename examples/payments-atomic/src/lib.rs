#![doc = include_str!("../README.md")]

mod api;
mod charge;
mod payments;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use example_payments::Serving;
use oncegate::jobs::Jobs;
use oncegate::{Engine, Options as EngineOptions, Outbox, OutboxOptions};

pub use payments::Payment;
use payments::Payments;

/// How it is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Payments, keys and promises: `postgres://…`, or `sqlite:` and a file.
    pub database: String,
    /// The provider's host and port.
    pub provider: String,
    /// How long the provider may take.
    pub patience: Duration,
    /// How the promises are kept.
    pub outbox: OutboxOptions,
}

/// The running service: the API, and whoever keeps its promises.
pub struct Service {
    /// The API.
    pub serving: Serving,
    _outbox: Outbox,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Starts it. The engine brings the sweeper and the reaper.
pub async fn start(options: Options) -> io::Result<Service> {
    started(options).await.map_err(io::Error::other)
}

async fn started(options: Options) -> Result<Service, Error> {
    if let Some(path) = options.database.strip_prefix("sqlite:") {
        let (store, pool) = payments::sqlite(path).await?;
        let engine = Engine::start(store, EngineOptions::default()).await?;
        let outbox = keep_promises(&engine, &options, Payments::Sqlite(pool.clone()));
        let serving = Serving::start(options.listen, api::sqlite(engine, pool)?).await?;
        return Ok(Service { serving, _outbox: outbox });
    }
    let (store, pool) = payments::postgres(&options.database).await?;
    let engine = Engine::start(store, EngineOptions::default()).await?;
    let outbox = keep_promises(&engine, &options, Payments::Postgres(pool.clone()));
    let serving = Serving::start(options.listen, api::postgres(engine, pool)?).await?;
    Ok(Service { serving, _outbox: outbox })
}

/// The outbox may as well be worked off by another process.
fn keep_promises<S: Jobs>(engine: &Engine<S>, options: &Options, payments: Payments) -> Outbox {
    engine.start_outbox(&charge::effects(options, payments), &options.outbox)
}
