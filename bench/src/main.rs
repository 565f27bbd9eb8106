//! What the product costs: all of it (`suite`, without a name), one thing at a time (`store`,
//! `engine`, `gateway`, `slow-senders`, `sqlite-rows`, `postgres`, `atomic`, `outbox`, `sweeper`,
//! `reaper`), and measurements that settled a decision, kept so that they can be run again.

#[cfg(feature = "atomic")]
mod atomic;
mod bare;
mod checkpoint;
mod compare;
mod cost;
mod drivers;
mod engine;
mod fill;
mod gateway;
mod layouts;
mod measure;
mod options;
mod outbox;
mod postgres;
mod rows;
mod slow_senders;
mod sqlite_rows;
mod store;
mod suite;
mod traffic;
mod workers;

use std::error::Error;

use crate::compare::Growth;
use crate::options::Options;

/// Experiments have one answer to every error: stop and say so.
type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1).peekable();
    let Some(experiment) = arguments.next_if(|first| !first.starts_with("--")) else {
        return suite::run(arguments);
    };
    if experiment == "role" {
        return suite::role::run(arguments);
    }
    let options = Options::parse(arguments)?;
    match experiment.as_str() {
        "store" => store::run(&options),
        "engine" => engine::run(&options),
        "gateway" => gateway::run(&options),
        "slow-senders" => slow_senders::run(&options),
        "sqlite-rows" => sqlite_rows::run(&options),
        #[cfg(feature = "atomic")]
        "atomic" => atomic::run(&options),
        "outbox" => outbox::run(&options),
        "postgres" => postgres::run(&options),
        "sweeper" => workers::sweeper::run(&options),
        "reaper" => workers::reaper::run(&options),
        "postgres-layouts" => postgres::layouts::run(&options),
        "layouts" => compare::run(&options, layouts::LAYOUTS, Growth::Measured),
        "variants" => compare::run(&options, layouts::VARIANTS, Growth::Skipped),
        "checkpoints" => checkpoint::run(&options),
        "headline" => checkpoint::headline(&options),
        "drivers" => drivers::run(&options),
        _ => Err(options::USAGE.into()),
    }
}
