//! What operators do with a job that was given up.

use oncegate_engine::Engine;
use oncegate_store::jobs::{JobId, Jobs, Stage};
use serde_json::{Value, json};

use super::{Bad, Refused, Verb, Wish, not_done};
use crate::job::for_operator;
use crate::record::Bodies;

/// Reads who wants a job to be tried again, and why. A job has no version: what is parked changes only by an operator.
pub fn read_retry(json: &[u8]) -> Result<Wish, Bad> {
    let mut typed: Value = serde_json::from_slice(json)
        .map_err(|error| Bad(format!("{error}; expected a JSON object of reason and operator.")))?;
    if let Some(typed) = typed.as_object_mut() {
        typed.insert("version".to_owned(), "0".into());
    }
    Wish::read(Verb::Retry, typed.to_string().as_bytes())
}

/// Has it tried again, and says what the job is now: `done` and `next` are words, `job` is the job.
pub async fn retry_job<S: Jobs>(engine: &Engine<S>, id: JobId, wish: &Wish) -> Result<Value, Refused> {
    let retried = engine.retry_job(id, &wish.operator).await.map_err(|error| not_done(&error))?;
    let job = engine.store().job(id).await.map_err(|error| not_done(&error.into()))?;
    let Some(job) = job else { return Err(Refused::NotFound(no_job(id))) };
    let shown = for_operator(&job, Bodies::Counted);
    if retried {
        return Ok(json!({
            "done": "The job is before the machine again, as if nobody had tried.",
            "next": format!("An outbox that has the effect {:?} delivers it within seconds.", job.effect),
            "job": shown,
        }));
    }
    let why = match job.stage {
        Stage::Waiting => "it is being tried by itself",
        Stage::Delivered(_) => "it has been delivered, and only its end is still to be written",
        Stage::Done(_) => "it is over",
        Stage::Parked => "somebody else was at it just now; do it again",
    };
    let words = format!("The job is not parked: {why}. Nothing was changed.");
    Err(Refused::NotAllowed { words, record: Box::new(shown) })
}

/// There is none of this name.
#[must_use]
pub fn no_job(id: JobId) -> String {
    format!("There is no job {id}: it was never promised, or it has been over for long and was dropped.")
}
