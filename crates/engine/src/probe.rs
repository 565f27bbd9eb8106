//! Asking what became of an attempt.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::duration::{DURATION_MAX, INTERVAL_MIN, InvalidDuration, check_max, check_positive};
use oncegate_core::record::Record;
use oncegate_core::response::Answer;
use oncegate_core::scope::Operation;

/// What a question gave.
#[derive(Clone, Debug)]
pub enum Found {
    /// The effect is there, and this is what its client shall be told. A refusal by the provider (a declined card) is one too.
    Happened {
        /// What is stored and replayed.
        answer: Arc<Answer>,
        /// The provider's name for the effect.
        reference: Option<Box<str>>,
    },
    /// There is no effect of this life. Believed only if the question was asked late enough: see the horizon of the route.
    DidNotHappen,
    /// Nobody could say, and why.
    NotKnown(Box<str>),
    /// There is nobody to ask: the record is put before an operator at once.
    NobodyToAsk,
}

/// Finds out what became of an attempt that ended in doubt.
///
/// It must ask about this *life* of the key, not only about scope and key: an effect of an earlier life must not settle a later
/// one. A downstream key that is derived from `record.life`, or a look at when the effect was made, does that.
pub trait Probe: Send + Sync + 'static {
    /// Asks. It is cut off after [`Patience::timeout`], which counts as not known.
    fn ask<'a>(&'a self, record: &'a Record) -> Asking<'a>;

    /// Whether the record's operation is one of this service's. What is not is left alone, neither asked about nor put before an operator:
    /// another service on the same store may know whom to ask, and nobody else's probe may speak of it. All are, by default; a service
    /// that shares its store says which, see [`OnlyOf`].
    fn knows(&self, _record: &Record) -> bool {
        true
    }

    /// How long, and how often.
    fn patience(&self, _record: &Record) -> Patience {
        Patience::default()
    }

    /// The largest body of an answer that is kept for this record. A probe keeps to it by itself; a message that proves more
    /// ([`Says::Happened`](crate::Says)) is kept without its bytes.
    fn answer_bytes_max(&self, _record: &Record) -> u64 {
        u64::MAX
    }
}

/// A question under way.
pub type Asking<'a> = Pin<Box<dyn Future<Output = Found> + Send + 'a>>;

/// How long, and how often it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// One question.
    pub timeout: Duration,
    /// The first pause, doubled after every question.
    pub backoff: Duration,
    /// The longest pause.
    pub backoff_max: Duration,
    /// After so many questions it is put before an operator.
    pub park_after: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            backoff: Duration::from_secs(5),
            backoff_max: Duration::from_mins(5),
            park_after: 20,
        }
    }
}

impl Patience {
    /// Refuses durations above 100 years, and zero where it has no meaning.
    pub fn check(&self) -> Result<(), InvalidDuration> {
        check_positive("timeout", self.timeout)?;
        check_max("backoff", self.backoff)?;
        check_max("backoff_max", self.backoff_max)
    }

    /// The same, with each duration in its range: it comes from code that is not the engine's.
    pub(crate) fn within_limits(self) -> Self {
        if let Err(error) = self.check() {
            tracing::error!(%error, "probe or effect patience is invalid; using the nearest allowed values");
        }
        Self {
            timeout: self.timeout.clamp(INTERVAL_MIN, DURATION_MAX),
            backoff: self.backoff.min(DURATION_MAX),
            backoff_max: self.backoff_max.min(DURATION_MAX),
            park_after: self.park_after,
        }
    }

    /// The pause after so many questions, without jitter.
    #[must_use]
    pub fn pause(&self, tries: u32) -> Duration {
        self.backoff.saturating_mul(1 << tries.min(20)).min(self.backoff_max)
    }
}

/// Nobody to ask: every doubt is put before an operator. Where others work on the same store, also theirs: see [`OnlyOf`].
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProbe;

impl Probe for NoProbe {
    fn ask<'a>(&'a self, _record: &'a Record) -> Asking<'a> {
        Box::pin(std::future::ready(Found::NobodyToAsk))
    }
}

/// A probe for the doubts of these operations. Those of others on the same store are left to the services whose they are.
///
/// ```
/// use oncegate_core::scope::Operation;
/// use oncegate_engine::{NoProbe, OnlyOf};
///
/// // A service beside a gateway: its own doubts are for operators, the gateway's for the gateway.
/// let probe = OnlyOf::new([Operation::new("POST /rides")?], NoProbe);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct OnlyOf<P> {
    operations: HashSet<Operation>,
    probe: P,
}

impl<P: Probe> OnlyOf<P> {
    /// Asks `probe` about these.
    pub fn new(operations: impl IntoIterator<Item = Operation>, probe: P) -> Self {
        Self { operations: operations.into_iter().collect(), probe }
    }
}

impl<P: Probe> Probe for OnlyOf<P> {
    fn ask<'a>(&'a self, record: &'a Record) -> Asking<'a> {
        self.probe.ask(record)
    }

    fn knows(&self, record: &Record) -> bool {
        self.operations.contains(&record.operation) && self.probe.knows(record)
    }

    fn patience(&self, record: &Record) -> Patience {
        self.probe.patience(record)
    }

    fn answer_bytes_max(&self, record: &Record) -> u64 {
        self.probe.answer_bytes_max(record)
    }
}
