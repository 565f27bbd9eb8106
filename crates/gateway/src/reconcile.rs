//! What became of a request whose outcome nobody knows: the little language of probes and webhooks; and of the outbox's effects.
//!
//! Pure: a question is made of a record, a judgement of an answer, a reading of an event, and a signature is checked, without a clock, a
//! socket or a store. Whoever asks and whoever settles is elsewhere.
//!
//! **Invariants:** what cannot be read with certainty is *not known*, never *did not happen*. A *happened* names the life it is about, or
//! the operator has declared that keys are never used again. No input makes it panic, and work is bounded by the size of a body.

mod about;
mod answer;
mod condition;
mod document;
mod effect;
mod life;
mod moment;
mod probe;
mod signature;
mod template;
mod webhook;
mod why;

pub use about::{About, forwarded_key};
pub use answer::{Body, Build, Case};
pub use condition::{Condition, Expected, Scalar, Statuses, Test};
pub use document::NotJson;
pub use effect::HttpEffect;
pub use life::{Claim, Proof};
pub use moment::Moment;
pub use probe::{Judgement, Method, Probe, ProbeAnswer, Question, Target, Unaskable, judge};
pub use signature::{Scheme, SigningSecret, Unverified, verify};
pub use template::{HeaderTemplate, Inserted, TemplateError, UrlTemplate, Variable};
pub use webhook::{Reading, RecordAt, RecordName, Said, Told, Webhook, read};
pub use why::Why;
