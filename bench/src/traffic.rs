//! The order of writes: reserve a batch, then settle a batch that was reserved a little earlier.
//!
//! Real requests are settled after the upstream answered, when other keys have been inserted in between;
//! settling the batch just written would find all its pages hot and flatter every layout.
//! Only the calls into the subject are timed, never the making of rows.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::rows::{Row, RowMaker};

/// Batches between a row's reserve and its settle.
const LAG_BATCHES: usize = 4;

/// A store under test. Each call is one durable batch.
pub(crate) trait Subject {
    /// Gets ready for these rows, while the clock stands.
    fn ready_to_reserve(&mut self, _: &[Row]) -> Outcome {
        Ok(())
    }
    /// Gets ready for these rows, while the clock stands.
    fn ready_to_settle(&mut self, _: &[Row]) -> Outcome {
        Ok(())
    }
    /// Inserts every row that is absent, durably; an error if one is present. Fills `seq` if it has one.
    fn reserve(&mut self, rows: &mut [Row]) -> Outcome;
    /// Stores each row's answer if its version is still the reserved one, durably; an error otherwise.
    fn settle(&mut self, rows: &[Row]) -> Outcome;
    /// Called between two batches, inside the timed part. Checkpoint schemes hook in here.
    fn between(&mut self) -> Outcome {
        Ok(())
    }
}

/// What one run cost.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    /// Requests reserved and settled.
    pub(crate) requests: usize,
    /// Time of each batch, two per round: reserve and settle.
    pub(crate) commits: Vec<Duration>,
}

impl Sample {
    /// Requests per second of time spent in the subject.
    pub(crate) fn throughput(&self) -> f64 {
        let busy: Duration = self.commits.iter().sum();
        #[expect(clippy::cast_precision_loss, reason = "a count of requests is far below 2^52")]
        let requests = self.requests as f64;
        requests / busy.as_secs_f64()
    }
}

/// Sends `requests` requests through the subject, `batch` at a time.
pub(crate) fn run(subject: &mut dyn Subject, maker: &mut RowMaker, load: Load) -> Outcome<Sample> {
    let mut sample = Sample::default();
    let mut in_flight = VecDeque::new();
    while sample.requests < load.requests {
        let mut rows = maker.batch(load.batch);
        sample.requests += rows.len();
        subject.ready_to_reserve(&rows)?;
        sample.commits.push(timed(subject, |s| s.reserve(&mut rows))?);
        in_flight.push_back(rows);
        if in_flight.len() > LAG_BATCHES {
            settle_oldest(subject, &mut in_flight, &mut sample)?;
        }
    }
    while !in_flight.is_empty() {
        settle_oldest(subject, &mut in_flight, &mut sample)?;
    }
    Ok(sample)
}

/// How much traffic, in what portions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Rows per transaction.
    pub(crate) batch: usize,
    /// Requests in all.
    pub(crate) requests: usize,
}

fn settle_oldest(subject: &mut dyn Subject, queue: &mut VecDeque<Vec<Row>>, sample: &mut Sample) -> Outcome {
    if let Some(rows) = queue.pop_front() {
        subject.ready_to_settle(&rows)?;
        sample.commits.push(timed(subject, |s| s.settle(&rows))?);
    }
    Ok(())
}

fn timed(subject: &mut dyn Subject, call: impl FnOnce(&mut dyn Subject) -> Outcome) -> Outcome<Duration> {
    let start = Instant::now();
    call(subject)?;
    subject.between()?;
    Ok(start.elapsed())
}
