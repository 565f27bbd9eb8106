//! What others say of an attempt: a provider's webhook. And what was said of a record before there was one.
//!
//! **Invariants:** *happened* is applied, kept as evidence, or kept apart; never acknowledged and dropped. A negative settles only
//! what the provider declares final of the very attempt, and is not acknowledged while that attempt runs; otherwise it wakes the probe. About a
//! record that is not there it is kept apart too, and then goes by the same rules: final it names its attempt, so it settles none that began later.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::counter;
use oncegate_core::audit::Who;
use oncegate_core::codec::{Decoder, Encoder, Malformed};
use oncegate_core::decide::{Ask, Decision, Event, Finding, Grounds, Next, Notice, Retry, Verdict};
use oncegate_core::identity::{Fence, RecordId, Token};
use oncegate_core::record::Record;
use oncegate_core::response::Answer;
use oncegate_core::time::Timestamp;
use oncegate_store::{Apart, Filter, Kind, Store, StoreError};

use super::Pass;
use crate::engine::Engine;
use crate::meters::names;
use crate::probe::Probe;

/// A message about an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Names the delivery: the same one again has the same name.
    pub name: Box<str>,
    /// The record it is about.
    pub about: About,
    /// The life it is about.
    pub life: Life,
    /// Who says so, in the record's story.
    pub source: Box<str>,
    /// The provider's name for the effect.
    pub reference: Option<Box<str>>,
    /// What is said.
    pub says: Says,
}

/// Which record a message is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// This one.
    Record(RecordId),
    /// The one whose attempt has learnt that the provider calls its effect so. Nobody may have, yet.
    Reference(Box<str>),
}

/// Which life of the key a message is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// This one.
    Named(Token),
    /// The one of this name, or mark: see [`Token::life_name`].
    Called(Box<str>),
    /// The one in which the effect was made: at this moment at the latest, by the store's clock. How far the provider's clock may be
    /// behind is for whoever knows the provider to add.
    MadeAt(Timestamp),
    /// Whichever there is: the operator declares that keys are never used again. Or the one that has learnt the reference.
    Any,
}

/// What is said of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Says {
    /// It happened; this is what its client is told.
    Happened(Arc<Answer>),
    /// It did not, and of this attempt that is final.
    FailedForGood(Fence),
    /// It did not, so far.
    Failed,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It settled the record.
    Settled,
    /// Kept with the record, which is still in progress: applied if its attempt ends in doubt.
    KeptAsEvidence,
    /// The probe will ask soon.
    Woken,
    /// There is no such record yet, or none that has learnt the reference: kept for a while.
    KeptApart,
    /// It is about another life of the key.
    AnotherLife,
    /// The last word on an attempt that is still in progress: nothing is kept of it. Do not acknowledge it; told again when the attempt has
    /// ended, it settles the record.
    TooEarly,
    /// The record says so already.
    Confirmed,
    /// It changes nothing any more; what contradicts the record is in its story.
    Nothing,
}

/// The life of no record.
const NO_LIFE: Token = Token::from_bytes([0; 16]);
const PAGE: usize = 64;
/// So many references a pass may look for: each is a question of its own.
const REFERENCES_MAX: usize = 256;
/// So many pages a pass may take.
const PAGES_MAX: usize = 64;

impl<S: Store> Engine<S> {
    /// Hears a message, whose answer is kept as far as `probe` would keep one. When this returns, it is durable: acknowledge it then,
    /// and not before.
    pub async fn hear(
        &self,
        message: &Message,
        keep_for: Duration,
        probe: &dyn Probe,
    ) -> Result<Heard, Arc<StoreError>> {
        if let Some(heard) = self.hear_now(message, probe).await? {
            return Ok(heard);
        }
        let at = self.now().at;
        let apart =
            Apart { name: message.name.clone(), at, until: at.plus(keep_for), bytes: encode(message) };
        self.0.store.keep_apart(&apart).await?;
        counter!(names::APART_KEPT).increment(1);
        // It may have appeared meanwhile, and nobody has seen the message then.
        match self.hear_now(message, probe).await? {
            Some(heard) => {
                self.0.store.drop_apart(&[apart]).await?;
                Ok(heard)
            }
            None => Ok(Heard::KeptApart),
        }
    }

    /// Looks whether records have appeared for what was kept apart. Where there is more than a pass may take, the next one goes on
    /// from there: a provider may tell of much that never comes by here.
    pub(super) async fn hear_apart(&self, probe: &dyn Probe) -> Result<Pass, Arc<StoreError>> {
        let mut after = self.apart_from().take();
        let passed = self.hear_after(&mut after, probe).await;
        // Also after an error: the next pass goes on behind the message that failed, so that it hides none.
        *self.apart_from() = after;
        passed
    }

    /// From there on, as far as a pass may go; where it comes to the end, the next one begins anew.
    async fn hear_after(
        &self,
        after: &mut Option<Apart>,
        probe: &dyn Probe,
    ) -> Result<Pass, Arc<StoreError>> {
        let mut pass = Pass::default();
        let mut references = 0;
        for _ in 0..PAGES_MAX {
            let page = self.0.store.apart(after.as_ref(), PAGE).await?;
            let heard = self.hear_page(&page, after, probe).await?;
            pass.seen += page.len();
            pass.changed += heard.done;
            references += heard.references;
            if page.len() < PAGE {
                *after = None;
                return Ok(pass);
            }
            if references >= REFERENCES_MAX {
                break;
            }
        }
        Ok(Pass { more: pass.changed > 0, ..pass })
    }

    fn apart_from(&self) -> MutexGuard<'_, Option<Apart>> {
        self.0.apart_from.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hears a page, as far as nothing fails; `after` is then what was looked at last.
    async fn hear_page(
        &self,
        page: &[Apart],
        after: &mut Option<Apart>,
        probe: &dyn Probe,
    ) -> Result<HeardPage, Arc<StoreError>> {
        let messages: Vec<_> = page.iter().map(|apart| decode(&apart.name, &apart.bytes)).collect();
        let ids: Vec<_> = messages.iter().flatten().filter_map(Message::record).collect();
        // All at once: mostly there is none of them.
        let mut rows = self.0.store.read(&ids).await?.into_iter();
        let mut done = Vec::new();
        let mut references = 0;
        let mut failed = None;
        for (apart, message) in page.iter().zip(&messages) {
            *after = Some(Apart { bytes: Vec::new(), ..apart.clone() });
            let is_applied = match message {
                Ok(message) if message.record().is_none() => {
                    references += 1;
                    self.is_applied(message, probe).await
                }
                Ok(message) => match rows.next() {
                    None | Some(Ok(None)) => Ok(false),
                    Some(_) => self.is_applied(message, probe).await,
                },
                Err(error) => {
                    tracing::error!(name = %apart.name, %error, "a message that was kept apart cannot be read; it is dropped at its end");
                    Ok(false)
                }
            };
            match is_applied {
                Ok(true) => done.push(apart.clone()),
                Ok(false) if self.now().at >= apart.until => {
                    tell_of_end(apart, message.as_ref().ok());
                    done.push(apart.clone());
                }
                Ok(_) => {}
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        if !done.is_empty() {
            self.0.store.drop_apart(&done).await?;
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(HeardPage { done: done.len(), references }),
        }
    }

    async fn is_applied(&self, message: &Message, probe: &dyn Probe) -> Result<bool, Arc<StoreError>> {
        match self.hear_now(message, probe).await {
            // The last word on an attempt that still runs is kept until it holds.
            Ok(heard) => Ok(heard.is_some_and(|heard| heard != Heard::TooEarly)),
            // What comes after it is not to wait for somebody to mend the row.
            Err(error) if error.kind() == Kind::Unreadable => {
                tracing::error!(about = ?message.about, %error, "a message cannot be applied: its record cannot be read");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// `None`: there is no record, or none that has learnt the reference.
    async fn hear_now(&self, message: &Message, probe: &dyn Probe) -> Result<Option<Heard>, Arc<StoreError>> {
        let (id, learnt_in) = match &message.about {
            About::Record(id) => (*id, None),
            About::Reference(reference) => match self.find_reference(reference).await? {
                Some((id, life)) => (id, Some(life)),
                None => return Ok(None),
            },
        };
        let life = match (learnt_in, &message.life) {
            // The key may have another life by the time that it is written.
            (Some(life), Life::Any) => Life::Named(life),
            (_, life) => life.clone(),
        };
        self.apply_message(id, &life, message, probe).await
    }

    async fn find_reference(&self, reference: &str) -> Result<Option<(RecordId, Token)>, Arc<StoreError>> {
        let filter = Filter { reference: Some(reference.to_owned()), ..Filter::default() };
        let page = self.0.store.browse(&filter, None, 1).await?;
        Ok(page.records.first().map(|row| (row.id, row.life)))
    }

    async fn apply_message(
        &self,
        id: RecordId,
        life: &Life,
        message: &Message,
        probe: &dyn Probe,
    ) -> Result<Option<Heard>, Arc<StoreError>> {
        let Some(row) = self.read(id).await? else { return Ok(None) };
        let event = self.event(message, life, &row, probe.answer_bytes_max(&row));
        // What only wakes the probe is no verdict, and says nothing of its source by itself.
        let name = matches!(event, Event::Ask(_)).then(|| message.source.clone());
        let who = Who { name, ..self.0.who.clone() };
        let stepped = self.step_as(&event, Some(Arc::new(row)), &who).await?;
        self.settled_by_worker(id);
        if matches!(message.says, Says::Happened(_)) && stepped.step.next != Next::Keep {
            // It may have been replayed as something else before.
            self.0.let_go(id);
        }
        self.0.doubts.notify_one();
        let notices = &stepped.step.notices;
        let is_changed = stepped.step.next != Next::Keep;
        Ok(Some(match stepped.step.decision {
            Decision::KeepApart => return Ok(None),
            Decision::Busy { .. } => Heard::TooEarly,
            _ if notices.contains(&Notice::AnotherLife) => Heard::AnotherLife,
            _ if notices.contains(&Notice::EvidenceKept) => Heard::KeptAsEvidence,
            _ if notices.contains(&Notice::Confirmed) => Heard::Confirmed,
            _ if !is_changed => Heard::Nothing,
            _ if matches!(message.says, Says::Failed) || notices.contains(&Notice::NegativeDropped) => {
                Heard::Woken
            }
            _ => Heard::Settled,
        }))
    }

    fn event(&self, message: &Message, life: &Life, row: &Record, bytes_max: u64) -> Event {
        let life = match life {
            Life::Named(life) => *life,
            Life::Called(name) if !row.life.is_called(name) => NO_LIFE,
            Life::MadeAt(moment) if *moment < row.created_at => NO_LIFE,
            Life::Called(_) | Life::MadeAt(_) | Life::Any => row.life,
        };
        let finding = match &message.says {
            Says::Happened(answer) => Finding::Announced(Arc::new(Answer::clone(answer).bounded(bytes_max))),
            Says::FailedForGood(fence) => Finding::DidNotHappen {
                grounds: Grounds::Final { fence: *fence },
                backoff: Duration::ZERO,
                otherwise: Retry { at: self.now().at, park_after: u32::MAX },
            },
            // Of another life it wakes nobody.
            Says::Failed if life == row.life => return Event::Ask(Ask::Soon),
            Says::Failed => Finding::NotKnown {
                version: row.version,
                retry: Retry { at: self.now().at, park_after: u32::MAX },
            },
        };
        Event::Verdict(Verdict {
            life,
            source: message.source.clone(),
            reference: message.reference.clone(),
            finding,
        })
    }
}

/// Nobody missed an effect that is said not to have happened: only of the others somebody must hear.
fn tell_of_end(apart: &Apart, message: Option<&Message>) {
    if message.is_none_or(|message| matches!(message.says, Says::Happened(_))) {
        counter!(names::APART_EXPIRED).increment(1);
        tracing::warn!(name = %apart.name, "a message about a key or a reference that was never seen has come to its end");
    } else {
        tracing::debug!(name = %apart.name, "a negative about a key or a reference that was never seen has come to its end");
    }
}

/// What became of a page of messages.
struct HeardPage {
    /// So many are done with.
    done: usize,
    /// So many had to be looked for by their references.
    references: usize,
}

impl Message {
    fn record(&self) -> Option<RecordId> {
        match self.about {
            About::Record(id) => Some(id),
            About::Reference(_) => None,
        }
    }
}

/// About a record.
const OF_RECORD: u8 = 1;
/// About a reference.
const OF_REFERENCE: u8 = 2;

fn encode(message: &Message) -> Vec<u8> {
    let mut out = Encoder::new();
    match &message.about {
        About::Record(id) => {
            out.u8(OF_RECORD);
            out.bytes(id.as_bytes());
        }
        About::Reference(reference) => {
            out.u8(OF_REFERENCE);
            out.text(reference);
        }
    }
    match &message.life {
        Life::Called(name) => {
            out.u8(3);
            out.text(name);
        }
        Life::Named(life) => {
            out.u8(0);
            out.bytes(life.as_bytes());
        }
        Life::MadeAt(moment) => {
            out.u8(1);
            out.i64(moment.as_micros());
        }
        Life::Any => out.u8(2),
    }
    out.text(&message.source);
    out.optional(message.reference.as_deref().map(str::as_bytes));
    match &message.says {
        Says::Happened(answer) => {
            out.u8(0);
            out.bytes(&answer.encode());
        }
        Says::FailedForGood(fence) => {
            out.u8(1);
            out.i64(fence.as_raw());
        }
        Says::Failed => out.u8(2),
    }
    out.finish()
}

fn decode(name: &str, bytes: &[u8]) -> Result<Message, Malformed> {
    let mut input = Decoder::new(bytes, "message");
    let about = match input.u8()? {
        OF_RECORD => {
            let id = input.bytes()?.try_into().map(RecordId::from_bytes);
            About::Record(id.map_err(|_| input.malformed())?)
        }
        OF_REFERENCE => About::Reference(input.text()?.into()),
        _ => return Err(input.malformed()),
    };
    let life = match input.u8()? {
        0 => Life::Named(input.bytes()?.try_into().map(Token::from_bytes).map_err(|_| input.malformed())?),
        1 => Life::MadeAt(Timestamp::from_micros(input.i64()?)),
        2 => Life::Any,
        3 => Life::Called(input.text()?.into()),
        _ => return Err(input.malformed()),
    };
    let source = input.text()?.into();
    let reference = input.optional()?;
    let reference = reference.map(std::str::from_utf8).transpose().map_err(|_| input.malformed())?;
    let reference = reference.map(Into::into);
    let says = match input.u8()? {
        0 => Says::Happened(Arc::new(Answer::decode(input.bytes()?)?)),
        1 => Says::FailedForGood(Fence::from_raw(input.i64()?)),
        2 => Says::Failed,
        _ => return Err(input.malformed()),
    };
    input.finish()?;
    Ok(Message { name: name.into(), about, life, source, reference, says })
}
