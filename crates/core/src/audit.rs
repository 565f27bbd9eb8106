//! The audit trail: what is told of a step, to whoever asks long afterwards.
//!
//! Pure, as [`crate::decide`]: which steps are worth an entry, and what it says. **Invariant:** an
//! entry is written for everything that changes a row or needs attention, and for reused keys
//! (bounded per minute). None is written for replays, other refusals of clients, renewals, a source
//! that repeats what is recorded, or an attempt that runs and completes as it should (unless first
//! executions are wanted).
//! Not here: where entries are kept, and for how long (stores; they outlive the record).

use sha2::{Digest, Sha256};

use crate::codec::{Decoder, Encoder, Malformed};
use crate::decide::{Ask, Decision, Event, Finding, Next, Notice, Step};
use crate::identity::{Fence, RecordId, Token, Version};
use crate::record::{Reason, Record, StateKind};
use crate::time::{Now, Timestamp};

/// One line of a record's story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Whose story.
    pub id: RecordId,
    /// When it was decided, by the store's clock.
    pub at: Timestamp,
    /// The node that did it.
    pub node: Box<str>,
    /// What happened.
    pub act: Act,
    /// Scope and operation of the record, which may be gone when the entry is read; `None` in
    /// entries of earlier releases.
    pub subject: Option<Subject>,
    /// The life it happened to.
    pub life: Token,
    /// The state before; `None`: there was no row.
    pub from: Option<StateKind>,
    /// The state after; `None`: there is no row.
    pub to: Option<StateKind>,
    /// The row's version after it.
    pub version: Version,
    /// The fence of the last grant.
    pub fence: Fence,
    /// The attempt, from 1; 0: none yet.
    pub attempt: u32,
    /// Who said so: a probe, a webhook's name, an operator; `None`: this node by itself.
    pub source: Option<Box<str>>,
    /// Why.
    pub reason: Option<Reason>,
    /// What was off the happy path.
    pub notices: Vec<Notice>,
}

/// What an entry can be searched by when its record is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The scope, as stored.
    pub scope: Box<str>,
    /// The operation.
    pub operation: Box<str>,
}

impl Subject {
    /// Of a record.
    #[must_use]
    pub fn of(record: &Record) -> Self {
        Self { scope: record.address.scope.as_str().into(), operation: record.operation.as_str().into() }
    }
}

/// Who does something, and why, where the event itself does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// The node.
    pub node: Box<str>,
    /// The operator, or whoever else the node speaks for.
    pub name: Option<Box<str>>,
    /// The operator's reason.
    pub reason: Option<Reason>,
    /// Whether first executions are told too.
    pub tells_first_executions: bool,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    /// A first attempt was granted, or work was accepted.
    Began,
    /// A further attempt was granted.
    RanAgain,
    /// Found lapsed.
    Lapsed,
    /// Settled by its holder: it is over.
    Completed,
    /// Settled by its holder: nothing was executed.
    Released,
    /// Settled by its holder: something may have been.
    Doubted,
    /// A reserve in doubt was made sure of.
    CleanedUp,
    /// Somebody proved that it happened.
    Happened,
    /// Somebody says that it did not.
    DidNotHappen,
    /// Asked, and nobody could say.
    NotKnown,
    /// An operator had it asked again.
    AskedAgain,
    /// Something was heard that proves nothing, and the probe was woken.
    Woken,
    /// An operator dropped its answer.
    Forgotten,
    /// Accepted work that nobody ran in its time: answered with 408.
    GivenUp,
    /// Its owner took accepted work back before anybody ran it.
    Cancelled,
    /// A job that it had promised was given up, and is over: nobody keeps that promise any more.
    Withdrawn,
    /// The key came with another request, which was refused.
    KeyReused,
    /// The records were compared with a provider's export ([`Comparison`]).
    Compared,
    /// A new life began where an older one had ended, or where its row had been removed.
    RanAfterExpiry,
}

impl Act {
    /// All of them; a stored act is the place in this list, which only grows at its end.
    pub const ALL: [Self; 19] = [
        Self::Began,
        Self::RanAgain,
        Self::Lapsed,
        Self::Completed,
        Self::Released,
        Self::Doubted,
        Self::CleanedUp,
        Self::Happened,
        Self::DidNotHappen,
        Self::NotKnown,
        Self::AskedAgain,
        Self::Woken,
        Self::Forgotten,
        Self::GivenUp,
        Self::Cancelled,
        Self::Withdrawn,
        Self::KeyReused,
        Self::Compared,
        Self::RanAfterExpiry,
    ];

    /// The place in [`Act::ALL`], as it is stored.
    #[must_use]
    pub fn number(self) -> u8 {
        let place = Self::ALL.iter().position(|one| *one == self);
        place.and_then(|place| u8::try_from(place).ok()).unwrap_or(u8::MAX)
    }

    /// The name, for programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Began => "began",
            Self::RanAgain => "ran_again",
            Self::Lapsed => "lapsed",
            Self::Completed => "completed",
            Self::Released => "released",
            Self::Doubted => "doubted",
            Self::CleanedUp => "cleaned_up",
            Self::Happened => "happened",
            Self::DidNotHappen => "did_not_happen",
            Self::NotKnown => "not_known",
            Self::AskedAgain => "asked_again",
            Self::Woken => "woken",
            Self::Forgotten => "forgotten",
            Self::GivenUp => "given_up",
            Self::Cancelled => "cancelled",
            Self::Withdrawn => "withdrawn",
            Self::KeyReused => "key_reused",
            Self::Compared => "compared",
            Self::RanAfterExpiry => "ran_after_expiry",
        }
    }
}

/// What is told of a step that `event` made of `before`; `None`: nothing.
#[must_use]
pub fn entry(before: Option<&Record>, event: &Event, step: &Step, who: &Who, now: Now) -> Option<Entry> {
    let after = match &step.next {
        Next::Put(next) => Some(&**next),
        Next::Keep => before,
        Next::Remove { .. } => None,
    };
    let act = act(before, event, step, who)?;
    let shown = after.or(before)?;
    let last_error = || shown.last_error.clone();
    let (source, reason) = match event {
        Event::Verdict(verdict) => (Some(verdict.source.clone()), who.reason.clone()),
        Event::Forget { reason, .. } => (who.name.clone(), Some(reason.clone())),
        Event::Release { reason, .. } | Event::Doubt { reason, .. } => {
            (who.name.clone(), Some(reason.clone()))
        }
        Event::Ask(_) => (who.name.clone(), who.reason.clone()),
        _ => (who.name.clone(), who.reason.clone().or_else(last_error)),
    };
    Some(Entry {
        id: shown.id,
        at: now.at,
        node: who.node.clone(),
        act,
        subject: Some(Subject::of(shown)),
        life: shown.life,
        from: before.map(|record| record.state.kind()),
        to: after.map(|record| record.state.kind()),
        version: shown.version,
        fence: shown.fence,
        attempt: shown.attempts,
        source,
        reason,
        notices: step.notices.clone(),
    })
}

fn act(before: Option<&Record>, event: &Event, step: &Step, who: &Who) -> Option<Act> {
    let changes = step.next != Next::Keep;
    if !changes && step.notices.is_empty() {
        return None;
    }
    // A provider's webhook follows every payment. What a person does is told all the same.
    if step.notices == [Notice::Confirmed] && who.name.is_none() {
        return None;
    }
    match event {
        Event::Arrive(_) | Event::Take(_) => begun(before, step, who),
        Event::Complete { .. } => {
            let as_it_should = before.is_some_and(|row| row.state.kind() == StateKind::InProgress)
                && step.notices.is_empty();
            (!as_it_should).then_some(Act::Completed)
        }
        Event::Release { .. } => Some(Act::Released),
        Event::Doubt { .. } | Event::HoldBack { .. } => Some(Act::Doubted),
        Event::CleanUp { .. } => Some(Act::CleanedUp),
        Event::Sweep => Some(Act::Lapsed),
        Event::Ask(Ask::Soon) => Some(Act::Woken),
        Event::Ask(Ask::Again { .. }) => Some(Act::AskedAgain),
        Event::Verdict(verdict) => Some(match verdict.finding {
            Finding::Happened(_) | Finding::Found { .. } | Finding::Announced(_) => Act::Happened,
            Finding::DidNotHappen { .. } => Act::DidNotHappen,
            Finding::NotKnown { .. } => Act::NotKnown,
        }),
        Event::Forget { .. } => Some(Act::Forgotten),
        Event::Cancel => Some(Act::Cancelled),
        // Past retention is where every record ends.
        Event::Reap { .. } => {
            before.is_some_and(|row| row.state.kind() == StateKind::Pending).then_some(Act::GivenUp)
        }
        Event::Ask(Ask::Claim { .. })
        | Event::Postpone { .. }
        | Event::Advance { .. }
        | Event::Renew { .. }
        | Event::Entrust { .. } => None,
    }
}

/// What is told of a client that arrives, or of a worker that takes.
fn begun(before: Option<&Record>, step: &Step, who: &Who) -> Option<Act> {
    let Next::Put(next) = &step.next else { return None };
    // Of arrivals and takes only one that is quarantined is put before an operator at once.
    if step.notices.contains(&Notice::Parked) {
        return Some(Act::Doubted);
    }
    let first = who.tells_first_executions.then_some(Act::Began);
    let Some(row) = before else { return first };
    match &step.decision {
        // Accepted before, and taken up as it should be.
        Decision::Execute(lease) if lease.attempt == 1 && row.life == next.life => first,
        // One more client is promised what is under way already.
        Decision::Accepted if row.state == next.state => None,
        Decision::Execute(_) | Decision::Accepted if row.life != next.life => Some(Act::RanAfterExpiry),
        Decision::Execute(_) | Decision::Accepted => Some(Act::RanAgain),
        _ if step.notices.contains(&Notice::Zombie) => Some(Act::Lapsed),
        _ if row.state.kind() == StateKind::Pending => Some(Act::GivenUp),
        _ => None,
    }
}

const SCHEMA: u8 = 2;
/// Entries without scope and operation; read, and no longer written.
const SCHEMA_WITHOUT_SUBJECT: u8 = 1;

impl Entry {
    /// An entry about a record as it stands, which the act does not change.
    #[must_use]
    pub fn about(record: &Record, act: Act, at: Timestamp, node: &str) -> Self {
        let state = Some(record.state.kind());
        Self {
            id: record.id,
            at,
            node: node.into(),
            act,
            subject: Some(Subject::of(record)),
            life: record.life,
            from: state,
            to: state,
            version: record.version,
            fence: record.fence,
            attempt: record.attempts,
            source: None,
            reason: None,
            notices: Vec::new(),
        }
    }

    /// The bytes that a store keeps, beside the id and the moment, which it keeps in columns of their own.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let place = |all: usize| u8::try_from(all).unwrap_or(u8::MAX);
        let state = |kind: Option<StateKind>| {
            kind.and_then(|kind| StateKind::ALL.iter().position(|one| *one == kind)).map_or(u8::MAX, place)
        };
        let mut out = Encoder::new();
        out.u8(SCHEMA);
        out.text(&self.node);
        out.u8(self.act.number());
        out.bytes(self.life.as_bytes());
        out.u8(state(self.from));
        out.u8(state(self.to));
        out.i64(self.version.as_raw());
        out.i64(self.fence.as_raw());
        out.u32(self.attempt);
        out.optional(self.source.as_deref().map(str::as_bytes));
        out.optional(self.reason.as_ref().map(ToString::to_string).as_deref().map(str::as_bytes));
        out.u8(place(self.notices.len()));
        for notice in &self.notices {
            out.u8(Notice::ALL.iter().position(|one| one == notice).map_or(u8::MAX, place));
        }
        out.optional(self.subject.as_ref().map(|subject| subject.scope.as_bytes()));
        out.optional(self.subject.as_ref().map(|subject| subject.operation.as_bytes()));
        out.finish()
    }

    /// What a store tells this entry by from others of its record, moment and act: the node, and a
    /// hash of `bytes`, which are what [`Entry::encode`] gave. A clock that stands still gives
    /// several entries one moment, and all of them are kept; the very same entry, told again, is
    /// kept once.
    #[must_use]
    pub fn distinct_name(&self, bytes: &[u8]) -> String {
        let hash = Sha256::digest(bytes);
        let hash = hash.iter().take(8).fold(0_u64, |all, byte| (all << 8) | u64::from(*byte));
        format!("{}#{hash:016x}", self.node)
    }

    /// Reads back what [`Entry::encode`] wrote.
    pub fn decode(id: RecordId, at: Timestamp, bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = Decoder::new(bytes, "audit entry");
        let schema = input.u8()?;
        if ![SCHEMA, SCHEMA_WITHOUT_SUBJECT].contains(&schema) {
            return Err(input.malformed());
        }
        let node = input.text()?.into();
        let act = *Act::ALL.get(usize::from(input.u8()?)).ok_or_else(|| input.malformed())?;
        let life = input.bytes()?.try_into().map(Token::from_bytes).map_err(|_| input.malformed())?;
        let (from, to) = (state(&mut input)?, state(&mut input)?);
        let (version, fence) = (Version::from_raw(input.i64()?), Fence::from_raw(input.i64()?));
        let attempt = input.u32()?;
        let source = text(&mut input)?.map(Into::into);
        let reason = text(&mut input)?.map(Reason::from_stored);
        let mut notices = Vec::new();
        for _ in 0..input.u8()? {
            notices.push(*Notice::ALL.get(usize::from(input.u8()?)).ok_or_else(|| input.malformed())?);
        }
        let subject = if schema == SCHEMA { subject(&mut input)? } else { None };
        input.finish()?;
        Ok(Self {
            id,
            at,
            node,
            act,
            subject,
            life,
            from,
            to,
            version,
            fence,
            attempt,
            source,
            reason,
            notices,
        })
    }
}

fn state(input: &mut Decoder<'_>) -> Result<Option<StateKind>, Malformed> {
    match input.u8()? {
        u8::MAX => Ok(None),
        place => StateKind::ALL.get(usize::from(place)).copied().map(Some).ok_or_else(|| input.malformed()),
    }
}

fn subject(input: &mut Decoder<'_>) -> Result<Option<Subject>, Malformed> {
    match (text(input)?, text(input)?) {
        (Some(scope), Some(operation)) => {
            Ok(Some(Subject { scope: scope.into(), operation: operation.into() }))
        }
        (None, None) => Ok(None),
        _ => Err(input.malformed()),
    }
}

/// What a run of `oncegate compare` found: an entry of its own, under an id that no record has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// Tells it from other comparisons over the same records: a provider's name, say.
    pub name: Box<str>,
    /// Charges in the provider's export.
    pub charges: u64,
    /// Records of the same time.
    pub records: u64,
    /// Differences.
    pub differences: u64,
    /// Rows and records that could not be read, and so were not compared.
    pub unreadable: u64,
}

impl Comparison {
    /// Whose story all comparisons are.
    pub const ID: RecordId = RecordId::from_bytes([0; 16]);

    /// The name of a comparison that was given none.
    pub const UNNAMED: &str = "default";
    /// The longest name, in bytes.
    pub const NAME_BYTES_MAX: usize = 64;

    /// Whether a comparison may be called this: the name is a label of metrics.
    #[must_use]
    pub fn is_name(name: &str) -> bool {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        (1..=Self::NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain)
    }

    /// The entry of a run that has ended.
    #[must_use]
    pub fn entry(&self, at: Timestamp, node: &str) -> Entry {
        let Self { name, charges, records, differences, unreadable } = self;
        let code = if *differences + *unreadable == 0 { "agreed" } else { "different" };
        let detail = format!(
            "name={name} charges={charges} records={records} differences={differences} unreadable={unreadable}"
        );
        Entry {
            id: Self::ID,
            at,
            node: node.into(),
            act: Act::Compared,
            subject: None,
            life: Token::NOT_DRAWN,
            from: None,
            to: None,
            version: Version::from_raw(0),
            fence: Fence::from_raw(0),
            attempt: 0,
            source: Some("oncegate compare".into()),
            reason: Some(Reason::new(code, detail)),
            notices: Vec::new(),
        }
    }

    /// Reads back what [`Comparison::entry`] says.
    #[must_use]
    pub fn of(entry: &Entry) -> Option<Self> {
        let detail = entry.reason.as_ref().filter(|_| entry.act == Act::Compared)?.detail();
        let text = |name: &str| {
            let mut pairs = detail.split(' ').filter_map(|pair| pair.split_once('='));
            Some(pairs.find(|(found, _)| *found == name)?.1)
        };
        let number = |name: &str| text(name)?.parse().ok();
        Some(Self {
            name: text("name")?.into(),
            charges: number("charges")?,
            records: number("records")?,
            differences: number("differences")?,
            unreadable: number("unreadable")?,
        })
    }
}

fn text<'a>(input: &mut Decoder<'a>) -> Result<Option<&'a str>, Malformed> {
    let bytes = input.optional()?;
    bytes.map(|bytes| std::str::from_utf8(bytes).map_err(|_| input.malformed())).transpose()
}
