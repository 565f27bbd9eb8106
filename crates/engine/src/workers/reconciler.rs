//! Outcomes that nobody knows: claimed, asked about, settled; or asked about later; or put before an operator.
//!
//! **Invariants:** a question is claimed by a write before it is asked, so that nodes do not ask twice, and a claim has an end. A
//! verdict names the row as it was *before* the question, so that what became of it meanwhile stands. What is of an operation that is
//! not this service's is left to whoever knows it, and stands in nobody's way; nor do the questions of one operation in the way of another's:
//! each has places of its own, and the loop waits for none of them ([`super::lines`]).

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{FutureExt, StreamExt};
use metrics::counter;
use oncegate_core::audit::Who;
use oncegate_core::decide::{Ask, Decision, Event, Finding, Grounds, Next, Retry, Verdict, horizon_end};
use oncegate_core::record::{Reason, Record, State};
use oncegate_core::scope::Operation;
use oncegate_core::time::{Now, Timestamp};
use oncegate_store::{Due, Store, StoreError};

use super::looked::Looked;
use super::{Pass, WorkerOptions, fraction};
use crate::engine::Engine;
use crate::meters::names;
use crate::probe::{Found, Patience, Probe};

/// How much longer than its question a claim lasts: the verdict is to be written meanwhile.
const CLAIM_SLACK: Duration = Duration::from_secs(10);
/// Past a horizon by this much, so that no rounding makes a question too early.
const AFTER_HORIZON: Duration = Duration::from_secs(1);
/// So many scans a pass may take, each of twice as many rows as the one before.
const SCANS: u32 = 4;
/// Who says so, in the record's story.
const SOURCE: &str = "probe";

/// What became of a row that was offered to the line of its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offer {
    Taken,
    /// It waits there from an earlier pass.
    WaitsAlready,
    /// There is no room, or there is no line for its operation.
    LineFull,
}

impl<S: Store> Engine<S> {
    /// One pass that ends when all its questions have.
    pub(super) async fn reconcile(
        &self,
        options: &WorkerOptions,
        probe: &dyn Probe,
    ) -> Result<Pass, Arc<StoreError>> {
        let mut lines: HashMap<Operation, Vec<Record>> = HashMap::new();
        let limit = options.line_max();
        // Nobody is asked before the look is over, so it goes as far as it may: whoever waits behind one operation's has a part in this pass.
        let found = self.find_doubts(options, probe, usize::MAX, Vec::new(), |row| {
            let line = lines.entry(row.operation.clone()).or_default();
            if line.len() >= limit {
                return Offer::LineFull;
            }
            line.push(row);
            Offer::Taken
        });
        let found = found.await?;
        let asked = lines.into_values().map(|rows| self.ask_about_all(rows, options, probe));
        let mut changed = 0;
        for asked in join_all(asked).await {
            changed += asked?;
        }
        Ok(Pass { changed, more: found.more && changed > 0, ..found })
    }

    /// Offers what is due to `take`, until it has taken `enough` and refused none. What it does not take now is met again in the next
    /// round. The operations in `full`, and each whose line turns out to be full, are passed over: a line that is full of one
    /// operation's doubts, however many more of them are due, holds up no other.
    pub(super) async fn find_doubts(
        &self,
        options: &WorkerOptions,
        probe: &dyn Probe,
        enough: usize,
        full: Vec<Operation>,
        take: impl FnMut(Record) -> Offer + Send,
    ) -> Result<Pass, Arc<StoreError>> {
        let mut looked = std::mem::take(&mut *self.doubts_looked());
        let passed = self.find_doubts_from(&mut looked, options, probe, enough, full, take).await;
        // Also after an error: the next pass goes on behind what this one has looked at.
        *self.doubts_looked() = looked;
        passed
    }

    fn doubts_looked(&self) -> MutexGuard<'_, Looked> {
        self.0.doubts_looked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From where the last pass came to, until there is enough, or no more rows, or as far as a pass may look. After the last row the next one
    /// begins with the longest due again.
    async fn find_doubts_from(
        &self,
        looked: &mut Looked,
        options: &WorkerOptions,
        probe: &dyn Probe,
        enough: usize,
        mut full: Vec<Operation>,
        mut take: impl FnMut(Record) -> Offer + Send,
    ) -> Result<Pass, Arc<StoreError>> {
        let limit = options.line_max();
        let mut pass = Pass::default();
        let mut is_round = false;
        for scan in 0..SCANS {
            let ahead = looked.next_doubts(&*self.0.store, &full, self.now().at, limit << scan).await?;
            is_round = ahead.is_end;
            let mut is_all_taken = true;
            for row in ahead.rows {
                looked.at(Due::Doubted, &row);
                pass.seen += 1;
                let operation = row.operation.clone();
                let offer = if probe.knows(&row) {
                    take(row)
                } else {
                    tracing::debug!(record = %row.id, %operation, "operation of another service; leaving the record to it");
                    Offer::LineFull
                };
                match offer {
                    Offer::Taken => pass.changed += 1,
                    Offer::WaitsAlready => is_all_taken = false,
                    Offer::LineFull => {
                        is_all_taken = false;
                        if !full.contains(&operation) {
                            full.push(operation);
                        }
                    }
                }
            }
            if let Some(moment) = ahead.skipped_until {
                looked.skip_to(moment);
            }
            if is_round || (is_all_taken && pass.changed >= enough) {
                break;
            }
        }
        if is_round {
            *looked = Looked::default();
        }
        Ok(Pass { more: !is_round && pass.changed > 0, ..pass })
    }

    /// About rows of one operation. Says about how many of them anything came of it.
    async fn ask_about_all(
        &self,
        rows: Vec<Record>,
        options: &WorkerOptions,
        probe: &dyn Probe,
    ) -> Result<usize, Arc<StoreError>> {
        let asked = futures_util::stream::iter(rows)
            .map(|row| self.ask_about(row, probe))
            .buffer_unordered(options.probes_at_once.max(1));
        let asked: Vec<_> = asked.collect().await;
        let mut changed = 0;
        for asked in asked {
            changed += usize::from(asked?);
        }
        Ok(changed)
    }

    /// Asks about one record; says whether anything came of it.
    pub(super) async fn ask_about(&self, row: Record, probe: &dyn Probe) -> Result<bool, Arc<StoreError>> {
        let patience = probe.patience(&row).within_limits();
        let until = self.now().at.plus(patience.timeout).plus(CLAIM_SLACK);
        let claim = Event::Ask(Ask::Claim { version: row.version, until });
        let claimed = self.step(&claim, Some(Arc::new(row))).await?;
        let (Next::Put(_), Some(row)) = (&claimed.step.next, claimed.row) else {
            // Somebody else has it, or it is settled.
            return Ok(false);
        };
        let asked = self.now();
        let found = ask(probe, &row, patience.timeout).await;
        let found_word = word(&found);
        let why = match &found {
            Found::NotKnown(why) => Some(Reason::new("not_known", why.clone())),
            Found::NobodyToAsk => Some(Reason::new("nobody_to_ask", "no probe is configured for its route")),
            Found::Happened { .. } | Found::DidNotHappen => None,
        };
        let who = Who { reason: why, ..self.0.who.clone() };
        // Read after `asked`, so that a step that `asked` may have seen is among those that count.
        let steady_since = self.0.clock.steady_since();
        let verdict = verdict(&row, found, patience, ProbeTime { at: asked, steady_since }, self.now());
        let id = row.id;
        let stepped = self.step_as(&Event::Verdict(verdict), Some(row), &who).await;
        // Counted when the verdict is written, or is not to be: whoever sees the number sees what came of it.
        counter!(names::PROBE, "found" => found_word).increment(1);
        self.settled_by_worker(id);
        Ok(stepped?.step.decision == Decision::Done)
    }
}

/// One question, whatever the probe does: one that hangs or panics has found nothing out, and the other questions go on.
async fn ask(probe: &dyn Probe, row: &Record, limit: Duration) -> Found {
    let asking = AssertUnwindSafe(async { probe.ask(row).await }).catch_unwind();
    match tokio::time::timeout(limit, asking).await {
        Ok(Ok(found)) => found,
        Ok(Err(_)) => {
            tracing::error!(record = %row.id, "a probe panicked");
            Found::NotKnown("the probe panicked".into())
        }
        Err(_) => Found::NotKnown("no answer in time".into()),
    }
}

const fn word(found: &Found) -> &'static str {
    match found {
        Found::Happened { .. } => "happened",
        Found::DidNotHappen => "did_not_happen",
        Found::NotKnown(_) => "not_known",
        Found::NobodyToAsk => "nobody_to_ask",
    }
}

/// When a probe was asked, and since when the clock has run without a step.
#[derive(Clone, Copy)]
struct ProbeTime {
    at: Now,
    steady_since: Timestamp,
}

fn verdict(row: &Record, found: Found, patience: Patience, asked: ProbeTime, now: Now) -> Verdict {
    let tries = match &row.state {
        State::Unknown(doubt) => doubt.tries,
        _ => 0,
    };
    // Full jitter: many that fell into doubt together are not asked about together.
    let at = now.at.plus(patience.pause(tries).mul_f64(fraction()));
    let retry = Retry { at, park_after: patience.park_after.max(1) };
    let (finding, reference) = match found {
        Found::Happened { answer, reference } => {
            (Finding::Found { answer, attempt: row.grant.map(|grant| grant.token) }, reference)
        }
        Found::DidNotHappen => (did_not_happen(row, retry, patience, asked, now), None),
        Found::NotKnown(_) => (Finding::NotKnown { version: row.version, retry }, None),
        Found::NobodyToAsk => {
            (Finding::NotKnown { version: row.version, retry: Retry { at, park_after: 1 } }, None)
        }
    };
    Verdict { life: row.life, source: SOURCE.into(), reference, finding }
}

/// A "not found". Before the end of the horizon it proves nothing, and a late effect may still be
/// found: the probe is asked again after growing pauses, and once right after the horizon's end.
/// Such questions do not count towards parking, so the age of the doubt gives the pause.
fn did_not_happen(row: &Record, retry: Retry, patience: Patience, asked: ProbeTime, now: Now) -> Finding {
    let Some(grant) = row.grant else { return Finding::NotKnown { version: row.version, retry } };
    let otherwise = match (horizon_end(row, asked.steady_since), &row.state) {
        (Some(end), State::Unknown(doubt)) => {
            let proves = end.plus(2 * now.error).plus(AFTER_HORIZON);
            let pause = now.at.since(doubt.since).max(patience.backoff).min(patience.backoff_max);
            let at = now.at.plus(pause.mul_f64(fraction()));
            Retry { at: if now.at < proves { at.min(proves) } else { retry.at }, ..retry }
        }
        _ => retry,
    };
    let grounds = Grounds::Probe {
        token: grant.token,
        version: row.version,
        asked: asked.at,
        steady_since: asked.steady_since,
    };
    Finding::DidNotHappen { grounds, backoff: Duration::ZERO, otherwise }
}
