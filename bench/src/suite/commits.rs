//! A store's own commits, one row in each, one after the other: what a single request has to wait for at least, twice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oncegate::AnyStore;
use oncegate_store::{Store as _, Write};
use tokio::runtime::Runtime;

use super::load::Sample;
use crate::rows::RowMaker;
use crate::store::{check, reserved};
use crate::{Outcome, fill};

/// How long a turn lasts.
const TURN: Duration = Duration::from_millis(400);

pub(crate) struct Commits {
    runtime: Runtime,
    store: AnyStore,
    rows: RowMaker,
}

impl Commits {
    pub(crate) fn open(url: &str) -> Outcome<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let store = runtime.block_on(oncegate::open(url))?;
        Ok(Self { runtime, store, rows: fill::fresh_rows() })
    }

    pub(crate) fn turn(&mut self) -> Outcome<Sample> {
        let started = Instant::now();
        let mut sample = Sample::default();
        while started.elapsed() < TURN {
            let row = self.rows.batch(1).pop().ok_or("no row")?;
            let write = [Write::insert(Arc::new(reserved(&row)?))];
            let asked = Instant::now();
            check(self.runtime.block_on(self.store.apply(&write))?)?;
            sample.latencies.push(asked.elapsed());
            sample.requests += 1;
        }
        sample.seconds = started.elapsed().as_secs_f64();
        Ok(sample)
    }
}
