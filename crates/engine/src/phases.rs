//! Recovery points: an operation in phases, carried across crashes one phase at a time.
//!
//! A handler asks for its phases in order. One that is finished is never run again: its output is kept in the record and handed back.
//! An **atomic** phase is rows of the caller's own, in one transaction with the recovery point: it is there whole, or not at all. A
//! **foreign** phase is somebody else's effect: it is marked as begun before, and as finished after; one that was begun and never heard of
//! again is handled as it declares ([`Retry`], [`Probe`], [`Park`]).
//!
//! **Invariants:** a phase's output is handed back only if its effect is durable. A holder that was fenced changes nothing more: its
//! atomic phase is rolled back by the very statement that would have kept it. At most one foreign call is made in a phase and an attempt.
//!
//! What a handler does outside its phases is done again by every attempt: it may read and compute, and must have no effect.
//!
//! Not here: who runs an operation that its client has left (`workers/completer`), requests and answers (`tower`).

mod error;
mod foreign;
mod ground;
mod track;

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::record::{Journal, Phase, PhaseKind, Progress, Visit};
use oncegate_store::Effect;
use oncegate_store::join::{Transaction, Transactions};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::once::JobError;

pub use error::PhaseError;
pub use foreign::{DownstreamKey, Found, Park, Probe, Recovered, Recovery, Retry};
pub use ground::{AlreadyTaken, Phases};

use ground::{Ground, JoinFailed, NotKept, RowGuard};
pub(crate) use track::{Track, parked_without_phases};

/// The first pause before a write of a recovery point is tried again.
const BACKOFF_FIRST: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// What the caller's own statements are run on.
type InnerOf<T> = <<T as Transactions>::Transaction as Transaction>::Inner;

/// One attempt of an operation in phases.
pub struct Run<T> {
    ground: Arc<dyn Ground>,
    transactions: Arc<T>,
    journal: Journal,
    /// How many phases were asked for, but for one that has failed.
    position: usize,
    /// The last phase that was asked for, if it failed: to be asked for again in its place, or an outcome once another is.
    failed: Option<Phase>,
}

/// What is to be done about a phase.
enum Asked<R> {
    Run,
    Finished(R),
    Failed(PhaseError),
    Begun,
}

impl<T: Transactions> Run<T> {
    /// Runs `work` in a transaction of the caller's own pool, once: its rows and the recovery point are committed together.
    ///
    /// The recovery point is the transaction's last statement, so the record's row is locked only until the commit. If `work` fails,
    /// everything is rolled back, and the handler may go on, or end with an answer of its own. If it goes on to another phase, the failure is
    /// this one's outcome: every later attempt is handed the same error, and does not run it. A refusal is no failure: give it as the
    /// output. Call nobody else in here: the transaction would be held open for as long as they take, and what they do is not rolled back.
    pub async fn atomic<R, F>(&mut self, name: &str, work: F) -> Result<R, PhaseError>
    where
        R: Serialize + DeserializeOwned,
        F: AsyncFnOnce(&mut InnerOf<T>) -> Result<R, JobError>,
    {
        match self.ask(name, PhaseKind::Atomic)? {
            Asked::Finished(output) => return Ok(output),
            Asked::Failed(error) => return Err(error),
            // An atomic phase is never found begun; if it were, nothing of it is there.
            Asked::Run | Asked::Begun => {}
        }
        let ground = Arc::clone(&self.ground);
        let store = |error: &dyn std::fmt::Display| ground.interrupted(name, error);
        // Where the database has one writer, a renewal that holds the row would wait for this transaction, and this one for the row.
        let early = if ground.has_one_writer() { Some(ground.row().await) } else { None };
        let turn = ground.turn().await;
        let mut transaction = self.transactions.begin().await.map_err(|error| store(&error))?;
        let worked = work(&mut *transaction).await;
        let worked = worked.and_then(|value| Ok((serde_json::to_vec(&value)?, value)));
        let (output, value) = match worked {
            Ok(worked) => worked,
            Err(error) => {
                transaction.roll_back().await;
                return Err(self.has_failed(name, PhaseKind::Atomic, &error));
            }
        };
        let next = self.journal.with(phase(name, PhaseKind::Atomic, Progress::Finished(output)));
        let mut row = match early {
            Some(row) => row,
            None => ground.row().await,
        };
        match ground.join(&mut transaction, &mut row, next.point()).await {
            Ok(()) => {}
            Err(JoinFailed::Fenced) => {
                transaction.roll_back().await;
                return Err(ground.fenced(name));
            }
            Err(JoinFailed::Store(error)) => {
                transaction.roll_back().await;
                return Err(store(&error));
            }
        }
        match transaction.commit().await {
            Ok(()) => {}
            Err(error) if error.effect() == Effect::None => return Err(store(&error)),
            Err(error) => {
                tracing::warn!(%error, phase = name, "a commit is in doubt; reading what became of it");
                self.settle_commit(name, &mut row, &next).await?;
            }
        }
        drop((row, turn));
        self.advanced(next);
        Ok(value)
    }

    /// Reads what became of a commit in doubt, once it has surely ended.
    async fn settle_commit(
        &self,
        name: &str,
        row: &mut RowGuard<'_>,
        next: &Journal,
    ) -> Result<(), PhaseError> {
        let ground = &self.ground;
        let mut pause = BACKOFF_FIRST;
        loop {
            let tried = async {
                let mut transaction = self.transactions.begin().await?;
                let found = ground.read_after(&mut transaction).await;
                transaction.roll_back().await;
                found
            };
            let error = match tried.await {
                Ok(Some(found)) if ground.is_mine(&found) => {
                    let is_kept = found.recovery.as_ref() == Some(&next.point());
                    **row = found;
                    let lost = "the commit was lost, and nothing of it is there";
                    return if is_kept { Ok(()) } else { Err(ground.interrupted(name, &lost)) };
                }
                Ok(_) => return Err(ground.fenced(name)),
                Err(error) => error,
            };
            // Whoever goes on reads the journal, and it says.
            if ground.permit().check().is_err() {
                return Err(ground.interrupted(name, &error));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(BACKOFF_MAX);
        }
    }

    /// Makes `call` once, under a key that is the same in every attempt, and keeps what it gives.
    ///
    /// If an earlier attempt had begun it and was not heard of again, `recovery` says what to do. A refusal by whoever is called is an
    /// outcome: give it as the output. An error means that nobody knows, unless it is a [`JobError::not_executed`]: then nothing was
    /// sent, and the phase counts as not begun.
    pub async fn foreign<R, C, F>(&mut self, name: &str, recovery: C, call: F) -> Result<R, PhaseError>
    where
        R: Serialize + DeserializeOwned,
        C: Recovery<R>,
        F: AsyncFnOnce(DownstreamKey) -> Result<R, JobError>,
    {
        let is_ours = match self.ask(name, PhaseKind::Foreign)? {
            Asked::Finished(output) => return Ok(output),
            Asked::Failed(error) => return Err(error),
            Asked::Run => {
                self.keep(name, self.journal.with(begun(name))).await?;
                true
            }
            Asked::Begun => {
                if let Some(output) = self.recover(name, recovery).await? {
                    return self.finished(name, output).await;
                }
                false
            }
        };
        // Of what an earlier attempt had begun, this one's failure to send says nothing: then it stays begun.
        if let Err(ended) = self.ground.permit().check() {
            if is_ours {
                self.take_back(name).await;
            }
            return Err(self.ground.interrupted(name, &ended));
        }
        match call(self.key(name)).await {
            Ok(output) => self.finished(name, output).await,
            Err(error) if error.had_no_effect && is_ours => {
                self.keep(name, self.journal.without(name)).await?;
                Err(self.has_failed(name, PhaseKind::Foreign, &error))
            }
            Err(error) => Err(self.ground.interrupted(name, &error.reason.detail())),
        }
    }

    /// What came of a phase that an earlier attempt had begun; `None`: it is to be called again.
    async fn recover<R>(&self, name: &str, recovery: impl Recovery<R>) -> Result<Option<R>, PhaseError> {
        let ground = &self.ground;
        loop {
            // Before the question: what is sent after it cannot be found by it.
            let asked = ground.now();
            match recovery.recover(self.key(name)).await {
                Recovered::CallAgain => return Ok(None),
                Recovered::Found(Found::Happened(output)) => return Ok(Some(output)),
                Recovered::Found(Found::NotKnown(words)) => return Err(ground.interrupted(name, &words)),
                Recovered::Found(Found::DidNotHappen) => match ground.horizon_until() {
                    None => return Err(ground.parked(name, &track::no_horizon(name))),
                    Some(from) if asked.is_surely_past(from) => return Ok(None),
                    Some(from) if ground.is_beyond_deadline(from) => {
                        return Err(ground.parked(name, &track::horizon_too_far(name)));
                    }
                    // Too early: what was sent last may still be on its way.
                    Some(from) => tokio::time::sleep(ground.until_surely_past(from)).await,
                },
                Recovered::Park => return Err(ground.parked(name, &track::begun_and_parked(name))),
            }
        }
    }

    async fn finished<R: Serialize>(&mut self, name: &str, value: R) -> Result<R, PhaseError> {
        let output = match serde_json::to_vec(&value) {
            Ok(output) => output,
            Err(error) => return Err(self.ground.parked(name, &track::cannot_be_kept(name, &error))),
        };
        self.keep(name, self.journal.with(phase(name, PhaseKind::Foreign, Progress::Finished(output))))
            .await?;
        Ok(value)
    }

    /// Every phase was asked for, and this is the answer. A handler ends with this, so that one that was changed under an operation in
    /// flight is found out.
    pub fn finish<A>(self, answer: A) -> Result<A, PhaseError> {
        self.ground.is_whole()?;
        self.journal.leave(self.position).map_err(|changed| self.ground.changed(&changed))?;
        Ok(answer)
    }

    /// Nothing of the phase took effect. It may be asked for again, at the same place.
    fn has_failed(&mut self, name: &str, kind: PhaseKind, error: &JobError) -> PhaseError {
        self.position -= 1;
        self.failed = Some(phase(name, kind, Progress::Failed(error.reason.detail().into())));
        self.ground.failed(name, error)
    }

    /// What the journal says of the next phase.
    fn ask<R: DeserializeOwned>(&mut self, name: &str, kind: PhaseKind) -> Result<Asked<R>, PhaseError> {
        let ground = &self.ground;
        ground.is_whole()?;
        match self.failed.take() {
            // The handler goes on without it: an outcome, kept with whatever is kept next.
            Some(failed) if *failed.name != *name => {
                self.journal = self.journal.with(failed);
                self.position += 1;
            }
            // Asked for again in an attempt that was only told of it: what it was told, for the journal goes on behind.
            None => {
                let last = self.position.checked_sub(1).and_then(|last| self.journal.phases().get(last));
                if let Some(Phase { name: of, progress: Progress::Failed(words), .. }) = last
                    && **of == *name
                {
                    return Ok(Asked::Failed(failed_before(name, words)));
                }
            }
            Some(_) => {}
        }
        let visit =
            self.journal.visit(self.position, name, kind).map_err(|changed| ground.changed(&changed))?;
        let asked = match visit {
            Visit::Run => Asked::Run,
            Visit::Begun => Asked::Begun,
            Visit::Failed(words) => Asked::Failed(failed_before(name, words)),
            Visit::Finished(output) => Asked::Finished(
                serde_json::from_slice(output)
                    .map_err(|error| ground.changed(&track::unreadable(name, &error)))?,
            ),
        };
        self.position += 1;
        ground.visited(&self.journal, self.position);
        Ok(asked)
    }

    /// Keeps a journal, durably. Tries until the store answers, up to the attempt's deadline: what is known of an effect is not given up
    /// for a store that is away for a while.
    async fn keep(&mut self, name: &str, next: Journal) -> Result<(), PhaseError> {
        let mut pause = BACKOFF_FIRST;
        loop {
            let error = match self.ground.advance(next.point()).await {
                Ok(()) => break,
                Err(NotKept::Fenced) => return Err(self.ground.fenced(name)),
                Err(NotKept::Store(error)) => error,
            };
            if self.ground.is_past_deadline() {
                return Err(self.ground.interrupted(name, &error));
            }
            tracing::warn!(%error, phase = name, "a recovery point could not be kept yet; trying again in {pause:?}");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(BACKOFF_MAX);
        }
        self.advanced(next);
        Ok(())
    }

    /// Nothing was sent: if that cannot be kept, the phase is found begun, and handled as it declares.
    async fn take_back(&mut self, name: &str) {
        let next = self.journal.without(name);
        if self.ground.advance(next.point()).await.is_ok() {
            self.advanced(next);
        }
    }

    fn advanced(&mut self, next: Journal) {
        self.journal = next;
        self.ground.visited(&self.journal, self.position);
    }

    fn key(&self, name: &str) -> DownstreamKey {
        DownstreamKey::of(self.ground.life(), name)
    }
}

/// As the attempt was told in which it failed.
fn failed_before(name: &str, words: &str) -> PhaseError {
    PhaseError::Failed { phase: name.into(), words: words.into() }
}

fn phase(name: &str, kind: PhaseKind, progress: Progress) -> Phase {
    Phase { name: name.into(), kind, progress }
}

fn begun(name: &str) -> Phase {
    phase(name, PhaseKind::Foreign, Progress::Begun)
}

impl<T> std::fmt::Debug for Run<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run")
            .field("journal", &self.journal)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}
