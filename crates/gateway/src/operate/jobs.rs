//! What operators do with a job that was given up.

use oncegate_engine::Engine;
use oncegate_store::jobs::{Job, JobId, Jobs, Stage};
use serde_json::{Value, json};

use super::{Bad, Refused, Verb, Wish, not_done};
use crate::job::for_operator;
use crate::record::Bodies;

/// Reads who wants something of a job, and why. A job has no version: what is parked changes only by an operator.
pub fn read_wish(json: &[u8]) -> Result<Wish, Bad> {
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
    let job = now(engine, id).await?;
    if !retried {
        return Err(not_parked(&job));
    }
    Ok(json!({
        "done": "The job is before the machine again, as if nobody had tried.",
        "next": format!("An outbox that has the effect {:?} delivers it within seconds.", job.effect),
        "job": for_operator(&job, Bodies::Counted),
    }))
}

/// Ends it, and says what the job is now: `done` and `next` are words, `job` is the job.
pub async fn withdraw_job<S: Jobs>(engine: &Engine<S>, id: JobId, wish: &Wish) -> Result<Value, Refused> {
    let withdrawn = engine.withdraw_job(id, &wish.operator).await.map_err(|error| not_done(&error))?;
    let job = now(engine, id).await?;
    if !withdrawn {
        return Err(not_parked(&job));
    }
    let next = match (&job.line, job.answers) {
        (_, Some(_)) => format!(
            "Its client waits for an answer all the same, unless the record is settled: oncegate dead show {}.",
            job.record
        ),
        (Some(_), None) => "What waits behind it in its line is next.".to_owned(),
        (None, None) => "Nobody waits for it.".to_owned(),
    };
    Ok(json!({
        "done": "The job is over: it is not sent any more.",
        "next": next,
        "job": for_operator(&job, Bodies::Counted),
    }))
}

async fn now<S: Jobs>(engine: &Engine<S>, id: JobId) -> Result<Job, Refused> {
    let job = engine.store().job(id).await.map_err(|error| not_done(&error.into()))?;
    job.ok_or_else(|| Refused::NotFound(no_job(id)))
}

fn not_parked(job: &Job) -> Refused {
    let why = match job.stage {
        Stage::Waiting => "it is being tried by itself",
        Stage::Delivered(_) => "it has been delivered, and only its end is still to be written",
        Stage::Done(_) => "it is over",
        Stage::Withdrawn => "it was withdrawn, and is over",
        Stage::Unreadable(_) => "this release cannot read it, and an outbox that finds it parks it",
        Stage::Parked => "somebody else was at it just now; do it again",
    };
    let words = format!("The job is not parked: {why}. Nothing was changed.");
    Refused::NotAllowed { words, record: Box::new(for_operator(job, Bodies::Counted)) }
}

/// There is none of this name.
#[must_use]
pub fn no_job(id: JobId) -> String {
    format!("There is no job {id}: it was never promised, or it has been over for long and was dropped.")
}
