//! What is done outside.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use oncegate_core::identity::RecordId;
use oncegate_core::response::Answer;
use oncegate_store::jobs::JobId;
use tokio::time::Instant;

use crate::probe::Patience;

/// Brings about one kind of effect.
///
/// It may be asked to do the same job more than once: after a crash, or where an answer was lost. Each time the downstream key is the
/// same, and the provider is to dedupe by it.
pub trait Effect: Send + Sync + 'static {
    /// Delivers one job. It is cut off at the deadline, which counts as [`Sent::Later`].
    fn deliver<'a>(&'a self, delivery: &'a Delivery<'a>) -> Delivering<'a>;

    /// How long one delivery may take, how long the pauses are, and after how many tries a job is put before an operator.
    fn patience(&self) -> Patience {
        Patience::default()
    }

    /// How old a job becomes, while its provider [cannot be reached](Sent::Unreachable), before it is put before an operator.
    fn outage(&self) -> Duration {
        OUTAGE
    }
}

/// A day: an outage of a night is nobody's work in the morning.
pub const OUTAGE: Duration = Duration::from_hours(24);

/// A delivery under way.
pub type Delivering<'a> = Pin<Box<dyn Future<Output = Sent> + Send + 'a>>;

/// What is to be delivered.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// The job, for logs.
    pub job: JobId,
    /// The record whose request promised it.
    pub record: RecordId,
    /// What was promised: JSON, as a rule.
    pub payload: &'a [u8],
    /// What the provider dedupes by; the same at every try.
    pub downstream_key: &'a str,
    /// How often it was tried, with this one.
    pub tries: u32,
    /// When it is cut off.
    pub deadline: Instant,
}

/// How a delivery ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The provider has done it.
    Delivered {
        /// The provider's name for it.
        reference: Option<Box<str>>,
        /// What the client of the request is told, where the job's answer is the record's.
        answer: Option<Box<Answer>>,
    },
    /// Not now, or nobody knows: it is tried again.
    Later {
        /// Not before this has passed: the provider's `Retry-After`.
        after: Option<Duration>,
        /// Why.
        why: Box<str>,
    },
    /// Nobody was there: the connection was refused, or the provider said that it is out of order (503). It is tried again, and as that says
    /// nothing of the job, most of these tries do not count: see [`Effect::outage`].
    Unreachable {
        /// Not before this has passed: the provider's `Retry-After`.
        after: Option<Duration>,
        /// Why.
        why: Box<str>,
    },
    /// The provider will not do it, however often it is asked: it is put before an operator at once.
    Refused(Box<str>),
}

impl Sent {
    /// The word, in metrics.
    pub(super) const fn word(&self) -> &'static str {
        match self {
            Self::Delivered { .. } => "delivered",
            Self::Later { .. } => "later",
            Self::Unreachable { .. } => "unreachable",
            Self::Refused(_) => "refused",
        }
    }
}
