//! One job: sent, and what follows from it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use metrics::{counter, histogram};
use oncegate_core::decide::Event;
use oncegate_core::record::{Holder, Reason, Record, StateKind};
use oncegate_store::jobs::{Became, Job, Jobs, Receipt};

use super::effect::{Delivery, Effect, Sent};
use crate::engine::Engine;
use crate::meters::names;
use crate::probe::Patience;
use crate::settle::{Awaited, Settled};
use crate::workers::fraction;

/// A provider that asks for more patience than this is asked again after it: nobody should have to wait for a slip of its clock.
const RETRY_AFTER_MAX: Duration = Duration::from_hours(24);

impl<S: Jobs> Engine<S> {
    /// Sends a job, and says what became of it. What follows from an answer is [`Engine::follow`].
    pub(super) async fn attend(&self, effect: &dyn Effect, job: &Job) -> Became {
        let patience = effect.patience();
        match self.is_still_wanted(job).await {
            Ok(true) => {}
            Ok(false) => {
                let words = "its record has been settled otherwise; nothing was sent";
                return Became::Parked(Reason::new("not_held", words));
            }
            Err(error) => return again(patience, job.tries, Reason::new("store", error.to_string())),
        }
        // With this one. Who was claimed more often than it may be tried, and said nothing, may be what its workers died of.
        if job.tries > patience.park_after.max(1) {
            let words = "each try ended without a word: its worker died, or lost the store; nothing was sent this time";
            let given_up = Reason::new("tried_too_often", words);
            self.doubt_its_record(job, &given_up).await;
            return Became::Parked(given_up);
        }
        let sent = send(effect, job, patience.timeout).await;
        counter!(names::OUTBOX_DELIVERY, "effect" => job.effect.to_string(), "result" => sent.word())
            .increment(1);
        let given_up = match sent {
            Sent::Delivered { reference, answer } => {
                let receipt = Receipt { reference, answer: answer.filter(|_| job.answers.is_some()) };
                // Nobody waits for it: one write says all.
                return if job.answers.is_some() {
                    Became::Delivered(receipt)
                } else {
                    Became::Done(receipt)
                };
            }
            Sent::Refused(why) => Reason::new("refused", why),
            Sent::Later { why, .. } if job.tries >= patience.park_after.max(1) => {
                Reason::new("tried_too_often", format!("{why} (tried {} times)", job.tries))
            }
            Sent::Later { after, why } => {
                let why = Reason::new("later", why);
                return match after {
                    Some(after) => Became::Later { after: after.min(RETRY_AFTER_MAX), why },
                    None => again(patience, job.tries, why),
                };
            }
        };
        self.doubt_its_record(job, &given_up).await;
        Became::Parked(given_up)
    }

    /// What follows from an answer: the record is completed with it, and only then the job is over.
    pub(super) async fn follow(&self, job: &Job, receipt: Receipt) -> Became {
        let Receipt { reference, answer } = receipt;
        let (Some(holder), Some(answer)) = (job.answers, answer) else {
            let why =
                Reason::new("no_answer", "it was delivered, but its effect gave no answer for the record");
            self.doubt_its_record(job, &why).await;
            return Became::Parked(why);
        };
        let event = Event::Complete { holder, answer: Arc::from(answer), reference: reference.clone() };
        if let Some(settled) = self.end(job, &event).await
            && matches!(settled, Settled::Fenced(_))
        {
            tracing::error!(job = %job.id, record = %job.record, ?reference, "delivered, but its record was settled otherwise meanwhile");
        }
        // The answer is the record's now.
        Became::Done(Receipt { reference, answer: None })
    }

    async fn is_still_wanted(&self, job: &Job) -> Result<bool, Arc<oncegate_store::StoreError>> {
        let Some(holder) = job.answers else { return Ok(true) };
        Ok(self.read(job.record).await?.is_some_and(|row| is_open_under(&row, &holder)))
    }

    /// Put before an operator together: a record that is said to be in progress while nobody works on it would be a hidden failure.
    async fn doubt_its_record(&self, job: &Job, why: &Reason) {
        let Some(holder) = job.answers else { return };
        let _ = self.end(job, &Event::Doubt { holder, reason: why.clone() }).await;
    }

    /// As often as it takes.
    async fn end(&self, job: &Job, event: &Event) -> Option<Settled> {
        let row = loop {
            match self.read(job.record).await {
                Ok(row) => break row?,
                Err(error) => {
                    tracing::warn!(%error, job = %job.id, "its record cannot be read yet; trying again");
                    tokio::time::sleep(READ_AGAIN).await;
                }
            }
        };
        Some(self.settle_until_done(event, Arc::new(row), Awaited::Elsewhere).await)
    }
}

const READ_AGAIN: Duration = Duration::from_millis(500);

/// The attempt is not over, or nobody knows how it ended: what this job comes to is news.
fn is_open_under(row: &Record, holder: &Holder) -> bool {
    let is_open = matches!(row.state.kind(), StateKind::InProgress | StateKind::Unknown);
    is_open && row.life == holder.life && row.is_held_by(holder)
}

/// Full jitter: many that failed together are not tried together.
fn again(patience: Patience, tries: u32, why: Reason) -> Became {
    Became::Later { after: patience.pause(tries.saturating_sub(1)).mul_f64(fraction()), why }
}

/// One delivery, whatever the effect does: one that hangs or panics is tried again, and the others go on.
async fn send(effect: &dyn Effect, job: &Job, limit: Duration) -> Sent {
    let (started, downstream_key) = (Instant::now(), job.downstream_key());
    let delivery = Delivery {
        job: job.id,
        record: job.record,
        payload: &job.payload,
        downstream_key: &downstream_key,
        tries: job.tries,
        deadline: tokio::time::Instant::now() + limit,
    };
    let delivering = AssertUnwindSafe(async { effect.deliver(&delivery).await }).catch_unwind();
    let sent = match tokio::time::timeout(limit, delivering).await {
        Ok(Ok(sent)) => sent,
        Ok(Err(_)) => {
            tracing::error!(job = %job.id, effect = &*job.effect, "an effect panicked");
            Sent::Later { after: None, why: "the effect panicked".into() }
        }
        Err(_) => Sent::Later { after: None, why: "no answer in time".into() },
    };
    histogram!(names::OUTBOX_SECONDS, "effect" => job.effect.to_string()).record(started.elapsed());
    sent
}
