//! One job: sent, and what follows from it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use metrics::{counter, histogram};
use oncegate_core::codec::Malformed;
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

/// Why a job was put aside of which not all can be read.
pub(super) const UNREADABLE: &str = "unreadable";

impl<S: Jobs> Engine<S> {
    /// Sends a job, and says what became of it. What follows from an answer is [`Engine::follow`].
    pub(super) async fn attend(&self, effect: &dyn Effect, job: &Job) -> Became {
        let patience = effect.patience().within_limits();
        match self.is_still_wanted(job).await {
            Ok(true) => {}
            Ok(false) => return Became::Withdrawn(settled_otherwise()),
            Err(error) => {
                let after = pause(patience, job.tries, None);
                return Became::Later { after, why: Reason::new("store", error.to_string()) };
            }
        }
        // The last thing before the send. The claim or the read above may have taken long, or the host was suspended: another worker may have
        // claimed the job since, and may have sent it and what follows it in its line.
        let left = self.claim_left(job);
        if left.is_zero() {
            tracing::warn!(job = %job.id, "job not sent: its claim ended before the send; it will be claimed again");
            let words = "its claim ended before it could be sent; nothing was sent this time";
            return Became::Away { after: Duration::ZERO, why: Reason::new("claim_ended", words) };
        }
        // With this one. Who was claimed more often than it may be tried, and said nothing, may be what its workers died of.
        if job.tries > patience.park_after.max(1) {
            let words = "each try ended without a word: its worker died, or lost the store; nothing was sent this time";
            let given_up = Reason::new("tried_too_often", words);
            self.doubt_its_record(job, &given_up).await;
            return Became::Parked(given_up);
        }
        let sent = send(effect, job, patience.timeout.min(left)).await;
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
                let after = pause(patience, job.tries, after);
                return Became::Later { after, why: Reason::new("later", why) };
            }
            Sent::Unreachable { after, why } => {
                // The first of them count, so that pauses grow, and that one who comes late to an outage is not given up at once; not the
                // others: when somebody is there again, the job has tries left.
                if job.tries <= patience.park_after.max(2) / 2 {
                    let after = pause(patience, job.tries, after);
                    return Became::Later { after, why: Reason::new("unreachable", why) };
                }
                if self.now().at.since(job.created_at) < effect.outage() {
                    let after = pause(patience, job.tries, after);
                    return Became::Away { after, why: Reason::new("unreachable", why) };
                }
                let limit = effect.outage();
                Reason::new("unreachable_too_long", format!("{why} (promised over {limit:?} ago)"))
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

    /// A job of which not all can be read: nothing is done with it, and an operator is told.
    pub(super) async fn set_aside(&self, job: &Job, wrong: Malformed) -> Became {
        let words = format!(
            "{wrong}; nothing was sent this time. Of another release, or damaged: settle its record by what the provider says, and \
             withdraw the job"
        );
        let why = Reason::new(UNREADABLE, words);
        self.doubt_its_record(job, &why).await;
        Became::Parked(why)
    }

    /// Whether somebody still waits for what this job comes to, if anybody ever did.
    pub(super) async fn is_still_wanted(&self, job: &Job) -> Result<bool, Arc<oncegate_store::StoreError>> {
        let Some(holder) = job.answers else { return Ok(true) };
        Ok(self.read(job.record).await?.is_some_and(|row| is_open_under(&row, &holder)))
    }

    /// How long the claim surely lasts, by this node's clock and its error. A delivery is cut off at the end of it.
    fn claim_left(&self, job: &Job) -> Duration {
        let now = self.now();
        job.due_at.since(now.at.plus(now.error))
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

pub(super) fn settled_otherwise() -> Reason {
    Reason::new("not_held", "its record has been settled otherwise; nothing was sent")
}

/// The provider's own, or with full jitter: many that failed together are not tried together.
fn pause(patience: Patience, tries: u32, asked: Option<Duration>) -> Duration {
    let own = || patience.pause(tries.saturating_sub(1)).mul_f64(fraction());
    asked.map_or_else(own, |asked| asked.min(RETRY_AFTER_MAX))
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
