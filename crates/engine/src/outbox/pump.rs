//! The loop of one effect: claim into free places, deliver, report together what has ended together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use metrics::counter;
use oncegate_core::identity::Token;
use oncegate_store::jobs::{Became, Claim, Job, Jobs, Report, Stage};
use oncegate_store::{Effect as Landed, Kind, StoreError};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

use super::{Effect, OutboxOptions, WORKER};
use crate::engine::Engine;
use crate::meters::names;
use crate::workers::{FAILURE_PAUSE, Pass, jittered};

/// A report that the store would not take is made again so often.
const REPORT_TRIES: u32 = 8;

pub(super) struct Pump<S> {
    engine: Engine<S>,
    name: Box<str>,
    effect: Arc<dyn Effect>,
    every: Duration,
    at_once: usize,
    span: Duration,
    under_way: JoinSet<Ended>,
    /// Of those, how many were tried before.
    again: Arc<AtomicUsize>,
    /// The last claim got all that it asked for: of what was never tried, and of the rest.
    is_more: More,
    /// The first of a line is over: the next one may be due at once.
    has_followers: bool,
}

/// What may still be due.
#[derive(Clone, Copy, Default)]
struct More {
    fresh: bool,
    again: bool,
}

/// The place of a job that was tried before, until its task has ended, however that was.
struct Again(Arc<AtomicUsize>);

impl Again {
    fn of(job: &Job, again: &Arc<AtomicUsize>) -> Option<Self> {
        // With this one.
        (job.tries > 1).then(|| {
            again.fetch_add(1, Ordering::Relaxed);
            Self(Arc::clone(again))
        })
    }
}

impl Drop for Again {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A job of which something has become.
struct Ended {
    token: Token,
    job: Job,
    became: Became,
}

impl<S: Jobs> Pump<S> {
    pub(super) fn new(
        engine: &Engine<S>,
        name: &str,
        effect: &Arc<dyn Effect>,
        options: &OutboxOptions,
    ) -> Self {
        Self {
            engine: engine.clone(),
            name: name.into(),
            effect: Arc::clone(effect),
            every: options.every,
            at_once: options.at_once.max(1),
            span: effect.patience().within_limits().timeout.saturating_add(options.claim_slack),
            under_way: JoinSet::new(),
            again: Arc::default(),
            is_more: More::default(),
            has_followers: false,
        }
    }

    /// Until it is retired: then what is under way is seen to its end, and no more is claimed. Dropped, it ends what is under way.
    pub(super) async fn run(mut self, counts: watch::Sender<u64>, mut retired: watch::Receiver<bool>) {
        let mut promises = self.engine.0.promises.subscribe();
        let mut failures = 0;
        while !*retired.borrow() {
            promises.mark_unchanged();
            match self.claim().await {
                Ok(_) => failures = 0,
                Err(error) => {
                    self.failed(&error);
                    self.is_more = More::default();
                    failures += 1;
                }
            }
            self.until(self.pause(failures), &mut promises, &mut retired).await;
            counter!(names::WORKER_PASS, "worker" => WORKER).increment(1);
            counts.send_modify(|count| *count += 1);
        }
        self.see_to_the_end().await;
    }

    /// One claim, and what it gave seen to the end.
    pub(super) async fn once(mut self) -> Result<Pass, Arc<StoreError>> {
        let seen = self.claim().await?;
        let more = self.is_more.fresh || self.is_more.again;
        let changed = self.see_to_the_end().await;
        Ok(Pass { seen, changed, more })
    }

    /// What is under way; says of how many it was written what became of them.
    async fn see_to_the_end(&mut self) -> usize {
        let mut written = 0;
        while let Some(first) = self.under_way.join_next().await {
            written += self.report_ended(first).await;
        }
        written
    }

    fn pause(&self, failures: u32) -> Duration {
        match failures {
            0 => jittered(self.every),
            failures => jittered(self.every.min(FAILURE_PAUSE.saturating_mul(1 << (failures - 1).min(10)))),
        }
    }

    /// Sees deliveries to their end until it is time for the next claim, and there is room for one; or until there will be no next claim.
    async fn until(
        &mut self,
        pause: Duration,
        promises: &mut watch::Receiver<u64>,
        retired: &mut watch::Receiver<bool>,
    ) {
        let next = tokio::time::Instant::now() + pause;
        let (mut is_time, mut is_late) = (false, false);
        while !self.is_ready(is_time, is_late) {
            tokio::select! {
                Some(first) = self.under_way.join_next() => {
                    self.report_ended(first).await;
                    is_time |= std::mem::take(&mut self.has_followers);
                }
                () = tokio::time::sleep_until(next), if !is_late => (is_time, is_late) = (true, true),
                // The sender is the engine's own, and lives as long as this.
                _ = promises.changed(), if !is_time => is_time = true,
                _ = retired.changed() => return,
            }
        }
    }

    /// Whether to claim: half of the places are free that could be filled, so that claims stay few. Whoever has waited for long takes
    /// what there is: the others may hang.
    fn is_ready(&self, is_time: bool, is_late: bool) -> bool {
        let under_way = self.under_way.len();
        let again = self.again.load(Ordering::Relaxed).min(under_way);
        let has_room = under_way - again <= (self.at_once - again.min(self.at_once)) / 2;
        let has_room_again = again <= self.again_max() / 2;
        let is_wanted = (self.is_more.fresh && has_room)
            || (self.is_more.again && has_room_again)
            || (is_time && (has_room || is_late));
        is_wanted && under_way < self.at_once
    }

    /// The other half of the places is nobody's but those' that were never tried: jobs that hang are retries most of their lives.
    fn again_max(&self) -> usize {
        (self.at_once / 2).max(1)
    }

    /// Claims into the free places, and begins to deliver; says how many.
    async fn claim(&mut self) -> Result<usize, Arc<StoreError>> {
        // A store that was restored shows jobs as undelivered that were delivered since.
        if self.engine.is_restored() {
            self.is_more = More::default();
            return Ok(0);
        }
        // By this clock no claim surely lasts: the job would only be kept from other workers.
        if self.engine.now().error >= self.span {
            self.is_more = More::default();
            return Ok(0);
        }
        let limit = self.at_once.saturating_sub(self.under_way.len());
        let held = self.again.load(Ordering::Relaxed);
        let again = self.again_max().saturating_sub(held).min(limit);
        let token = new_token()?;
        let claim = Claim { token, effects: &[&self.name], span: self.span, limit, again };
        let jobs = self.engine.0.store.claim(&claim).await?;
        let seen = jobs.len();
        let tried = jobs.iter().filter(|job| job.tries > 1).count();
        // Where there was no room to ask for retries, nothing was learnt of them.
        let is_more_again = if again == 0 { self.is_more.again } else { tried == again };
        self.is_more = More { fresh: seen > 0 && seen == limit, again: is_more_again };
        for job in jobs {
            let (engine, effect) = (self.engine.clone(), Arc::clone(&self.effect));
            let place = Again::of(&job, &self.again);
            self.under_way.spawn(async move {
                let became = match &job.stage {
                    // Its claimer died after this: it is not delivered again.
                    Stage::Delivered(receipt) => engine.follow(&job, receipt.clone()).await,
                    Stage::Unreadable(wrong) => engine.set_aside(&job, *wrong).await,
                    _ => engine.attend(&*effect, &job).await,
                };
                drop(place);
                Ended { token, job, became }
            });
        }
        Ok(seen)
    }

    /// Writes what became of this one, and of all that have ended meanwhile; says of how many it was written.
    async fn report_ended(&mut self, first: Result<Ended, JoinError>) -> usize {
        let mut by_token: BTreeMap<Token, Vec<Ended>> = BTreeMap::new();
        let mut next = Some(first);
        while let Some(ended) = next {
            match ended {
                Ok(ended) => by_token.entry(ended.token).or_default().push(ended),
                Err(error) => {
                    tracing::error!(%error, "a job's task ended early; the job comes again when its claim ends");
                }
            }
            next = self.under_way.try_join_next();
        }
        let mut written = 0;
        for (token, ended) in by_token {
            written += self.report(token, ended).await;
        }
        written
    }

    async fn report(&mut self, token: Token, ended: Vec<Ended>) -> usize {
        let report = |ended: &Ended| Report { id: ended.job.id, became: ended.became.clone() };
        let reports: Vec<_> = ended.iter().map(report).collect();
        let Some(landed) = self.write(token, &reports).await else { return 0 };
        let written = landed.iter().filter(|landed| **landed).count();
        for (Ended { job, became, .. }, landed) in ended.into_iter().zip(landed) {
            if !landed {
                tracing::warn!(job = %job.id, "its claim had ended before it could be said what became of it; it comes again");
                continue;
            }
            match became {
                Became::Delivered(receipt) => {
                    let (engine, place) = (self.engine.clone(), Again::of(&job, &self.again));
                    self.under_way.spawn(async move {
                        let became = engine.follow(&job, receipt).await;
                        drop(place);
                        Ended { token, job, became }
                    });
                }
                Became::Parked(why) => {
                    counter!(names::OUTBOX_PARKED, "effect" => job.effect.to_string()).increment(1);
                    tracing::warn!(job = %job.id, record = %job.record, %why, "a job was put before an operator");
                }
                Became::Withdrawn(why) => {
                    self.has_followers |= job.line.is_some();
                    tracing::info!(job = %job.id, record = %job.record, %why, "a job is over, and was not sent");
                }
                Became::Done(_) => self.has_followers |= job.line.is_some(),
                Became::Later { .. } | Became::Away { .. } => {}
            }
        }
        written
    }

    /// Tries for a while. What could not be written is delivered once more when its claim ends, under the same downstream key.
    async fn write(&self, token: Token, reports: &[Report]) -> Option<Vec<bool>> {
        for tried in 0..REPORT_TRIES {
            match self.engine.0.store.report(token, reports).await {
                Ok(landed) => return Some(landed),
                Err(error) => self.failed(&error),
            }
            tokio::time::sleep(FAILURE_PAUSE.saturating_mul(1 << tried)).await;
        }
        None
    }

    fn failed(&self, error: &StoreError) {
        counter!(names::WORKER_ERROR, "worker" => WORKER).increment(1);
        tracing::warn!(worker = WORKER, effect = &*self.name, "the outbox failed, and goes on: {error}");
    }
}

fn new_token() -> Result<Token, StoreError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        StoreError::new(Kind::Other, Landed::None, "claim").because(format!("no randomness: {error}"))
    })?;
    Ok(Token::from_bytes(bytes))
}
