//! What operators do to a record: read from JSON, checked, done, and told in words. The admin interface and the command line are
//! two ways to the same.
//!
//! **Invariants:** nothing is done without a reason, a name and the version that the operator looked at; an act that is refused
//! has changed nothing, and its refusal says what the record is now and what can be done.
//! Not here: the rules (core), the audit trail's entry (engine).

mod answer;
mod jobs;
mod wish;
mod words;

use std::sync::Arc;

use oncegate_core::decide::{Decision, Refusal};
use oncegate_core::identity::RecordId;
use oncegate_core::record::Record;
use oncegate_engine::Engine;
use oncegate_store::{Effect, Store, StoreError};
use serde_json::{Value, json};

use crate::record::{self, Bodies};

pub use answer::answer;
pub use jobs::{no_job, read_wish, retry_job, withdraw_job};
pub use wish::{Bad, Verb, WISH_BYTES_MAX, Wish};

/// Why nothing was done; or, of [`Refused::Store`], why that is not known.
#[derive(Debug)]
pub enum Refused {
    /// There is no such record.
    NotFound(String),
    /// It is not as the operator saw it.
    Changed {
        /// What is the matter, and what to do.
        words: String,
        /// The record as it is now.
        record: Box<Value>,
    },
    /// Its state does not allow it.
    NotAllowed {
        /// What is the matter, and what to do.
        words: String,
        /// The record as it is now.
        record: Box<Value>,
    },
    /// The store failed.
    Store(String),
}

/// Does it, and says what the record is now: `done` and `next` are words, `record` is the record.
pub async fn carry_out<S: Store>(engine: &Engine<S>, id: RecordId, wish: &Wish) -> Result<Value, Refused> {
    let acted = engine.operate(id, wish.version, wish.act.clone(), &wish.operator).await;
    let decision = acted.map_err(|error| not_done(&error))?;
    let now = engine.read(id).await.map_err(|error| not_seen(&decision, &error))?;
    match (decision, now) {
        (Decision::Done, now) => Ok(done(engine, wish, now.as_ref())),
        (_, None) => Err(Refused::NotFound(words::no_record(id))),
        (decision, Some(row)) => Err(refused(engine, wish, &decision, &row)),
    }
}

fn done<S: Store>(engine: &Engine<S>, wish: &Wish, row: Option<&Record>) -> Value {
    let (done, next) = words::done(&wish.act, wish.version, row);
    let shown = row.map(|row| record::for_operator(row, engine.now(), Bodies::Counted));
    json!({ "done": done, "next": next, "record": shown })
}

fn refused<S: Store>(engine: &Engine<S>, wish: &Wish, decision: &Decision, row: &Record) -> Refused {
    let shown = record::for_operator(row, engine.now(), Bodies::Counted);
    let state = shown["state"].as_str().unwrap_or_default();
    if *decision == Decision::Refused(Refusal::Changed) || row.version != wish.version {
        let words = words::changed(wish.version, row, state);
        return Refused::Changed { words, record: Box::new(shown) };
    }
    let words = words::not_allowed(&wish.act, row, state);
    Refused::NotAllowed { words, record: Box::new(shown) }
}

fn not_done(error: &Arc<StoreError>) -> Refused {
    Refused::Store(match error.effect() {
        Effect::None => {
            format!("The store did not take it ({error}). Nothing was changed. Do it again once it answers.")
        }
        Effect::Unknown => format!(
            "The store did not say whether it took it ({error}). Look at the record's story before you do it again: doing it \
             again with the same version is safe, and is refused if it was done."
        ),
    })
}

fn not_seen(decision: &Decision, error: &Arc<StoreError>) -> Refused {
    let happened = match decision {
        Decision::Done => "It was done, but the record could not be read afterwards",
        _ => "Nothing was changed, and the record could not be read to say why",
    };
    Refused::Store(format!("{happened} ({error}). Look at it again once the store answers."))
}
