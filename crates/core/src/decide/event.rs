//! What can happen to a record.

use std::sync::Arc;
use std::time::Duration;

use crate::fingerprint::{Comparison, Fingerprint};
use crate::identity::{Fence, Token, Version};
use crate::policy::Credentials;
use crate::record::{Execution, Holder, Reason, RecoveryPoint, StoredRequest, Terms};
use crate::response::Answer;
use crate::scope::{Address, Operation};
use crate::time::{Now, Timestamp};

/// Everything that can happen to a record. Exhaustive on purpose.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "an arrival is by far the most frequent event; a box would cost it an allocation"
)]
pub enum Event {
    /// A client's request.
    Arrive(Arrival),
    /// A worker wants to run it.
    Take(Take),
    /// A worker that has come to its turn cannot run it; others behind it it can.
    Postpone {
        /// The version that the worker was shown: what was written since is somebody else's account.
        version: Version,
        /// When it is due again.
        until: Timestamp,
    },
    /// The holder reached a recovery point.
    Advance {
        /// Who says so.
        holder: Holder,
        /// How far it came.
        point: RecoveryPoint,
    },
    /// The holder has the answer.
    Complete {
        /// Who says so.
        holder: Holder,
        /// The answer.
        answer: Arc<Answer>,
        /// The provider's name for the effect, if the holder learnt it: webhooks name the record by it.
        reference: Option<Box<str>>,
    },
    /// The holder knows that nothing was executed.
    Release {
        /// Who says so.
        holder: Holder,
        /// Why.
        reason: Reason,
        /// How long deferred work waits before the next attempt; the caller adds the jitter.
        backoff: Duration,
    },
    /// The holder does not know whether it was executed.
    Doubt {
        /// Who says so.
        holder: Holder,
        /// Why.
        reason: Reason,
    },
    /// The holder needs more time.
    Renew {
        /// Who says so.
        holder: Holder,
        /// How much, from now.
        lease: Duration,
    },
    /// The holder has promised its effect to the outbox, in the same transaction: a job carries the lease on, for as long as it takes.
    Entrust {
        /// Who says so.
        holder: Holder,
    },
    /// The commit of a reserve is in doubt, and it is decided that nothing will run under its token.
    CleanUp {
        /// The reserve.
        reserve: Reserve,
        /// The version that the write was conditioned on; `None` for an insert.
        over: Option<Version>,
    },
    /// The sweeper looks at a lease.
    Sweep,
    /// When somebody is to be asked about a doubt changes; what is known of it does not.
    Ask(Ask),
    /// A probe, a webhook or an operator found something out.
    Verdict(Verdict),
    /// An operator drops a stored answer.
    Forget {
        /// The version that the operator looked at.
        version: Version,
        /// Why.
        reason: Reason,
        /// The longest time for which any node may still replay the answer from its cache.
        cache_age_max: Duration,
    },
    /// A part of the store's history was lost, and this record, which may run, may have run in that time.
    HoldBack {
        /// The quarantines, by id, with commas between them.
        windows: Box<str>,
    },
    /// Its owner does not want accepted work any more.
    Cancel,
    /// The reaper looks at a row past retention.
    Reap {
        /// How much longer than its retention a row is left alone.
        grace: Duration,
    },
}

/// A write that would have granted a lease, or accepted work.
#[derive(Clone, Debug)]
pub enum Reserve {
    /// A client's.
    Arrival(Box<Arrival>),
    /// A worker's.
    Take(Token),
}

impl Reserve {
    /// The token that it carried.
    #[must_use]
    pub fn token(&self) -> Token {
        match self {
            Self::Arrival(arrival) => arrival.token,
            Self::Take(token) => *token,
        }
    }
}

/// A client's request, as far as the rules care.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Scope and key.
    pub address: Address,
    /// The route's pattern, or a job's name.
    pub operation: Operation,
    /// What is asked for.
    pub fingerprint: Fingerprint,
    /// What an earlier release recorded for the same request, where that is another fingerprint.
    /// In a box because few requests have one.
    pub former_fingerprint: Option<Box<Fingerprint>>,
    /// Drawn when the reserve is made; until then [`Token::NOT_DRAWN`].
    pub token: Token,
    /// For a new life.
    pub terms: Terms,
    /// Run it now, or later.
    pub execution: Execution,
    /// How long a grant lasts.
    pub lease: Duration,
    /// How long the attempt may last with renewals.
    pub attempt_deadline: Duration,
    /// What another fingerprint under the same key is.
    pub misuse: Misuse,
    /// The request itself, where somebody else may have to run it.
    pub request: Option<StoredRequest>,
    /// When the client first sent the operation, where it says so: a quarantine goes by it.
    pub sent_at: Option<Timestamp>,
    /// Whether a key without a record may begin a life.
    pub admission: Admission,
}

impl Arrival {
    /// Compares the fingerprint of a record with those of this request.
    #[must_use]
    pub fn compare(&self, recorded: Fingerprint) -> Comparison {
        let former = self.former_fingerprint.as_ref().map(|former| recorded.compare(**former));
        if former == Some(Comparison::Same) { Comparison::Same } else { recorded.compare(self.fingerprint) }
    }
}

/// Whether a key without a record may begin a life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may: there never was a record.
    Open,
    /// It may not: its record may have been lost with a part of the store. An operator says what became of it.
    Quarantined {
        /// The windows that its time lies in, by id, with commas between them.
        windows: Box<str>,
    },
}

/// What another fingerprint under the same key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misuse {
    /// Refused.
    Refuse,
    /// Treated as the same request, and counted.
    Count,
}

/// A worker's wish to run a record.
#[derive(Clone, Copy, Debug)]
pub struct Take {
    /// Made for this take, before any write.
    pub token: Token,
    /// How long a grant lasts.
    pub lease: Duration,
    /// How long the attempt may last with renewals.
    pub attempt_deadline: Duration,
    /// What the route says now of its callers' credentials.
    pub credentials: Credentials,
}

/// Who is to ask about a doubt, and when.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    /// A reconciler takes the next question upon itself: until then nobody else asks. If it dies, another asks then.
    Claim {
        /// The version that it found due.
        version: Version,
        /// The end of the claim.
        until: Timestamp,
    },
    /// Something was heard that proves nothing: ask soon.
    Soon,
    /// An operator puts it before the machine again, as if nobody had asked yet.
    Again {
        /// The version that the operator looked at.
        version: Version,
    },
}

/// What somebody found out about an attempt.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The life it is about.
    pub life: Token,
    /// Who says so, for the record's story.
    pub source: Box<str>,
    /// The provider's name for the effect, if it was learnt.
    pub reference: Option<Box<str>>,
    /// What was found.
    pub finding: Finding,
}

/// What was found.
#[derive(Clone, Debug)]
pub enum Finding {
    /// It happened, and this is its answer, says a person who has looked at the row as it is. A refusal by the provider is one too.
    Happened(Arc<Answer>),
    /// The same, found by a probe. It shows the life as it was when the probe asked: a success speaks for the life whatever came after, a refusal
    /// only for what had been attempted by then.
    Found {
        /// What was found.
        answer: Arc<Answer>,
        /// The token of the last attempt, read before asking.
        attempt: Option<Token>,
    },
    /// The same, by an event of some attempt of the life, nobody knows of which: it may be older than the last one. A success speaks for the
    /// life all the same, a refusal only for the attempt that was refused.
    Announced(Arc<Answer>),
    /// It did not happen.
    DidNotHappen {
        /// Why that can be believed of this attempt.
        grounds: Grounds,
        /// How long deferred work waits before the next attempt.
        backoff: Duration,
        /// What to do where the grounds do not hold.
        otherwise: Retry,
    },
    /// Nobody could say. Of a row that has changed since, nothing was asked.
    NotKnown {
        /// The row's version, read before asking.
        version: Version,
        /// What then.
        retry: Retry,
    },
}

/// Why "it did not happen" can be believed.
#[derive(Clone, Copy, Debug)]
pub enum Grounds {
    /// A probe read this row, then asked, and found nothing. Believed only past the horizon.
    Probe {
        /// The attempt's token, read before asking.
        token: Token,
        /// The row's version, read before asking.
        version: Version,
        /// When it asked.
        asked: Now,
        /// Since when the asking node has seen the store's clock run without a step forward.
        steady_since: Timestamp,
    },
    /// The provider declared of this attempt that it failed for good, and the route believes such declarations.
    Final {
        /// The attempt's fence, which the upstream was given.
        fence: Fence,
    },
    /// A person says so, having looked at this version of the row.
    Operator {
        /// The version.
        version: Version,
    },
}

/// When to ask again, and when to stop.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// The next question; the caller adds the jitter.
    pub at: Timestamp,
    /// After so many questions the record is parked.
    pub park_after: u32,
}
