//! A webhook: what a provider's event says, and about which record.
//!
//! **Invariant:** only what was verified is read ([`Webhook::verify`] before [`read`]), and an event that does not name its record, or no
//! life of it, settles nothing.

use std::time::Duration;

use http::HeaderMap;
use oncegate_core::fingerprint::Pointer;
use oncegate_core::identity::{Fence, RecordId};
use oncegate_core::key::Key;
use oncegate_core::response::Answer;
use oncegate_core::scope::{Address, Operation, Scope, ScopeError};
use oncegate_core::time::Timestamp;

use super::answer::Build;
use super::condition::{Condition, Found, any};
use super::document::{Document, Part};
use super::life::{Claim, Proof};
use super::probe::reference;
use super::signature::{Scheme, SigningSecret, Unverified, verify};
use super::template::Inserted;
use super::why::Why;

/// How a provider's events are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// Its place under `/.oncegate/webhooks/`.
    pub name: String,
    /// How events are signed.
    pub scheme: Scheme,
    /// With what: one, or two while they rotate. Never empty.
    pub secrets: Vec<SigningSecret>,
    /// Where they come from, for people.
    pub secret_names: Vec<String>,
    /// How far an event's moment may be from now, either way.
    pub tolerance: Duration,
    /// The largest event.
    pub body_bytes_max: u64,
    /// Which record an event is about.
    pub record: RecordAt,
    /// How it is known which life it is about.
    pub proof: Proof,
    /// One of these holds: it happened.
    pub happened: Vec<Condition>,
    /// One of these holds, and none of the above: it did not happen.
    pub did_not_happen: Vec<Condition>,
    /// Where the fence of a negative that is final stands; `None`: a negative only wakes the probe.
    pub final_fence: Option<Pointer>,
    /// One of these holds, and none of the above: it is of no interest.
    pub ignored: Vec<Condition>,
    /// What is stored.
    pub answer: Option<Build>,
    /// Where the provider's own name for the effect stands.
    pub reference: Option<Pointer>,
}

/// Where an event names its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordAt {
    /// By its id, `op_…`.
    Id(Pointer),
    /// By the client's key and whose it is.
    Key {
        /// The key.
        key: Inserted,
        /// The tenant.
        scope: Inserted,
        /// The request's method and path, or the declared name of its operation, where the scope
        /// has it.
        operation: Option<Inserted>,
    },
    /// By the key that the gateway derived for the upstream, which names the life as well.
    ForwardedKey(Pointer),
    /// By the provider's own name, where a record has learnt it.
    Reference(Pointer),
}

/// Which record an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordName {
    /// The one with this id.
    Id(RecordId),
    /// The one with this scope and key.
    Address(Address),
    /// The one that has learnt this reference.
    Reference(Box<str>),
}

/// What an event is to the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// It says something about a record.
    Said(Said),
    /// The mapping says that it is of no interest.
    Ignored,
    /// The mapping does not cover it.
    NotUnderstood {
        /// Why.
        why: Why,
    },
}

/// What an event says about a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Which.
    pub record: RecordName,
    /// Which life of it: to be held against the record before anything is settled.
    pub life: Claim,
    /// The provider's name for the effect.
    pub reference: Option<Box<str>>,
    /// What became of it.
    pub finding: Told,
}

/// What became of a request, says the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It happened.
    Happened {
        /// What clients are told. Over the limit of the record's route its bytes are left out when it is applied.
        answer: Answer,
    },
    /// It did not.
    Negative {
        /// The attempt that this is the final word on; `None`: nothing is proved, and the probe is to ask.
        final_for: Option<Fence>,
    },
}

impl Webhook {
    /// Whether an event is the provider's own.
    pub fn verify(&self, headers: &HeaderMap, body: &[u8], now: Timestamp) -> Result<(), Unverified> {
        verify(self.scheme, &self.secrets, self.tolerance, headers, body, now)
    }
}

/// What an event says. It must have been verified.
#[must_use]
pub fn read(webhook: &Webhook, body: &[u8]) -> Reading {
    understood(webhook, body).unwrap_or_else(|why| Reading::NotUnderstood { why })
}

fn understood(webhook: &Webhook, body: &[u8]) -> Result<Reading, Why> {
    if u64::try_from(body.len()).is_ok_and(|bytes| bytes > webhook.body_bytes_max) {
        return Err(Why::TooLarge);
    }
    let found = Found {
        status: None,
        content_type: Some(b"application/json"),
        body,
        document: Ok(Document::read(body)?),
    };
    let finding = if any(&webhook.happened, &found)? {
        let build = webhook.answer.as_ref().ok_or(Why::NoCase)?;
        Told::Happened { answer: build.answer(&found)? }
    } else if any(&webhook.did_not_happen, &found)? {
        Told::Negative { final_for: fence(webhook.final_fence.as_ref(), &found)? }
    } else if any(&webhook.ignored, &found)? {
        return Ok(Reading::Ignored);
    } else {
        return Err(Why::Undecided);
    };
    let (record, named) = webhook.record.find(&found)?;
    let life = match named {
        Some(named) => named,
        None => webhook.proof.claim(&found)?,
    };
    let reference = reference(webhook.reference.as_ref(), &found)?;
    Ok(Reading::Said(Said { record, life, reference, finding }))
}

fn fence(pointer: Option<&Pointer>, found: &Found<'_>) -> Result<Option<Fence>, Why> {
    let Some(pointer) = pointer else { return Ok(None) };
    let name = found.document?.part(pointer)?.map(Part::name).transpose()?.flatten();
    Ok(name.and_then(|name| name.parse().ok()).map(Fence::from_raw))
}

impl RecordAt {
    /// The record, and its life where the name says that too.
    fn find(&self, found: &Found<'_>) -> Result<(RecordName, Option<Claim>), Why> {
        let text = |pointer: &Pointer| -> Result<String, Why> {
            let name = found.document?.part(pointer)?.map(Part::name).transpose()?.flatten();
            name.map(std::borrow::Cow::into_owned).ok_or(Why::NoRecord)
        };
        Ok(match self {
            Self::Id(pointer) => (RecordName::Id(text(pointer)?.parse().map_err(|_| Why::NoRecord)?), None),
            Self::ForwardedKey(pointer) => {
                let key = text(pointer)?;
                let (id, life) = RecordId::of_derived_key(&key).ok_or(Why::NoRecord)?;
                (RecordName::Id(id), Some(Claim::Named(life.to_owned())))
            }
            Self::Reference(pointer) => {
                let name = text(pointer)?;
                (
                    RecordName::Reference(
                        Some(name).filter(|name| !name.is_empty()).ok_or(Why::NoRecord)?.into(),
                    ),
                    None,
                )
            }
            Self::Key { key, scope, operation } => {
                let plain = |text: &Inserted| {
                    text.plain(found).map_err(|why| match why {
                        Why::NotThere(_) => Why::NoRecord,
                        why => why,
                    })
                };
                let (key, tenant) = (plain(key)?, plain(scope)?);
                let scope = match operation {
                    Some(operation) => scope_of(&tenant, &plain(operation)?),
                    None => Scope::tenant(&tenant),
                };
                let scope = scope.map_err(|_| Why::NoRecord)?;
                let key = Key::from_text(&key).map_err(|_| Why::NoRecord)?;
                (RecordName::Address(Address { scope, key }), None)
            }
        })
    }
}

/// A method and a path as requests have them; anything else is a name, or the pattern of a route,
/// which earlier releases put there.
fn scope_of(tenant: &str, operation: &str) -> Result<Scope, ScopeError> {
    match operation.split_once(' ') {
        Some((method, path)) if path.starts_with('/') && !path.contains(['{', '}']) => {
            Scope::tenant_and_request(tenant, method, path)
        }
        _ => Scope::tenant_and_operation(tenant, &Operation::new(operation)?),
    }
}
