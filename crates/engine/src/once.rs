//! Run this once for this key: jobs, queue consumers, anything that is not HTTP.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use futures_util::FutureExt as _;
use oncegate_core::fingerprint::{self, Content, Mode};
use oncegate_core::key::Key;
use oncegate_core::policy::{Policy, Profile};
use oncegate_core::record::{CrashPolicy, Execution, Reason, Record, State};
use oncegate_core::response::{Answer, Response};
use oncegate_core::scope::Operation;
use oncegate_store::Store;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::arrive::{Arrived, Unavailable};
use crate::engine::Engine;
use crate::held::Held;
use crate::route::Route;
use crate::settle::{Settled, Settlement, StillSettling};

/// What a job gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Once<T> {
    /// The first run's value.
    pub value: T,
    /// Whether it was run earlier, and not now.
    pub replayed: bool,
}

/// Why a job did not complete. Any other error becomes *unknown*: a failure is not a proof that nothing happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobError {
    pub(crate) reason: Reason,
    pub(crate) had_no_effect: bool,
}

impl JobError {
    /// It is certain that nothing took effect: the key may run again.
    #[must_use]
    pub fn not_executed(words: impl fmt::Display) -> Self {
        Self { reason: Reason::new("not_executed", words.to_string()), had_no_effect: true }
    }

    /// Something may have taken effect: the key is shut until somebody finds out.
    #[must_use]
    pub fn unknown(words: impl fmt::Display) -> Self {
        Self { reason: Reason::new("failed", words.to_string()), had_no_effect: false }
    }
}

impl<E: Error> From<E> for JobError {
    fn from(error: E) -> Self {
        Self::unknown(error)
    }
}

/// Why there is no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnceError {
    /// It is being run by somebody else. Ask again later.
    Busy,
    /// It may or may not have taken effect; somebody must find out. Never use another key instead.
    Unknown(Box<str>),
    /// It had no effect. Run it again with the same key.
    NotExecuted(Box<str>),
    /// The key was used for another payload.
    Mismatch,
    /// The key is past its retention.
    Expired,
    /// Nothing was executed: the store could not say yes.
    Unavailable(Unavailable),
    /// The scope, the key or the payload cannot be used, or a stored value cannot be read as this type. Nothing was executed.
    Invalid(Box<str>),
}

impl fmt::Display for OnceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("the job is being run by somebody else; ask again later"),
            Self::Unknown(words) => {
                write!(
                    f,
                    "the job may or may not have taken effect ({words}); find out before it is run again"
                )
            }
            Self::NotExecuted(words) => {
                write!(f, "the job had no effect ({words}); it may be run again with the same key")
            }
            Self::Mismatch => f.write_str("the key was used for another payload; nothing was executed"),
            Self::Expired => f.write_str("the key is past its retention; nothing was executed"),
            Self::Unavailable(unavailable) => unavailable.fmt(f),
            Self::Invalid(words) => write!(f, "{words}; nothing was executed"),
        }
    }
}

impl Error for OnceError {}

impl<S: Store> Engine<S> {
    /// Runs `job` once for `key` in `scope`, and gives its first value to everybody who asks again with the same payload.
    ///
    /// A key is printable ASCII and as long as an HTTP key may be: 255 characters under the
    /// default policy. A longer one is [`OnceError::Invalid`], and nothing runs.
    ///
    /// The job runs in a task of its own: dropping this future does not cancel it. A panic or an error is *unknown*
    /// unless it is a [`JobError::not_executed`]. The value is kept as JSON for 24 hours, then the key is a new one; all jobs of a scope
    /// share one space of keys, with its HTTP requests too. For more than the defaults (an operation's name, another policy) see
    /// [`Engine::job`].
    pub async fn once<T, F, R>(
        &self,
        scope: &str,
        key: &str,
        payload: &(impl Serialize + ?Sized),
        job: F,
    ) -> Result<Once<T>, OnceError>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        F: FnOnce() -> R + Send + 'static,
        R: Future<Output = Result<T, JobError>> + Send + 'static,
    {
        self.job("job", Profile::Ietf.policy()).once(scope, key, payload, job).await
    }

    /// A kind of job: its name, and its policy (lease, retention, waiting, crash policy).
    pub fn job(&self, operation: &str, policy: Policy) -> Runner<S> {
        let route = match (policy.execution, policy.crash) {
            (Execution::Deferred, _) => Err("a job runs now; deferred execution is not for it".into()),
            (_, CrashPolicy::Resume) => Err("a job has no recovery points to resume from".into()),
            (Execution::Inline, CrashPolicy::Reconcile | CrashPolicy::Restart) => {
                job_route(operation, policy)
            }
        };
        Runner { engine: self.clone(), route }
    }
}

fn job_route(operation: &str, policy: Policy) -> Result<Route, Box<str>> {
    policy.check().map_err(|error| error.to_string())?;
    let operation = Operation::new(operation).map_err(|error| error.to_string())?;
    Ok(Route::new("job", policy, operation))
}

/// Runs one kind of job. Clones are handles on the same engine.
#[derive(Debug)]
pub struct Runner<S> {
    engine: Engine<S>,
    route: Result<Route, Box<str>>,
}

impl<S> Clone for Runner<S> {
    fn clone(&self) -> Self {
        Self { engine: self.engine.clone(), route: self.route.clone() }
    }
}

impl<S: Store> Runner<S> {
    /// See [`Engine::once`].
    pub async fn once<T, F, R>(
        &self,
        scope: &str,
        key: &str,
        payload: &(impl Serialize + ?Sized),
        job: F,
    ) -> Result<Once<T>, OnceError>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        F: FnOnce() -> R + Send + 'static,
        R: Future<Output = Result<T, JobError>> + Send + 'static,
    {
        let route = self.route.as_ref().map_err(|words| OnceError::Invalid(words.clone()))?;
        let body = serde_json::to_vec(payload).map_err(invalid)?;
        let content = Content {
            method: "JOB",
            path: route.operation().as_str(),
            query: None,
            content_type: Some(b"application/json"),
            body: &body,
        };
        let fingerprint = fingerprint::of(&Mode::Json, &content).map_err(invalid)?;
        let (scope, key) =
            (route.scope(scope).map_err(invalid)?, Key::of_job(key, &route.policy().key).map_err(invalid)?);
        let arrival = route.arrival(scope, key, fingerprint, None);
        let arrived = self.engine.arrive_or_wait(route, arrival).await.map_err(OnceError::Unavailable)?;
        match arrived {
            Arrived::Execute(held) => {
                let running = self.engine.0.runtime.spawn(run(*held, job));
                running.await.map_err(|error| OnceError::Unknown(error.to_string().into()))?
            }
            Arrived::Replay { answer, .. } => value_of(&answer).map(|value| Once { value, replayed: true }),
            Arrived::Busy { .. } | Arrived::Accepted { .. } => Err(OnceError::Busy),
            Arrived::Unsettled { .. } => Err(OnceError::Unknown("an earlier attempt".into())),
            Arrived::Mismatch { .. } => Err(OnceError::Mismatch),
            Arrived::Gone { .. } => Err(OnceError::Expired),
        }
    }
}

async fn run<S, T, F, R>(mut held: Held<S>, job: F) -> Result<Once<T>, OnceError>
where
    S: Store,
    T: Serialize + DeserializeOwned,
    F: FnOnce() -> R,
    R: Future<Output = Result<T, JobError>>,
{
    if let Err(ended) = held.begin() {
        // If the store does not answer, the release goes on without the caller.
        let settlement = Settlement::released("not_sent", &ended.to_string());
        let patience = held.policy().patience;
        drop(held.settle_within(settlement, patience).await);
        return Err(OnceError::NotExecuted(ended.to_string().into()));
    }
    let job = std::panic::AssertUnwindSafe(async { job().await });
    let ended = held.run(job.catch_unwind()).await;
    let ended = ended.unwrap_or_else(|_| Err(JobError::unknown("the job panicked")));
    let (patience, bytes_max) = (held.policy().patience, held.policy().answer_bytes_max);
    let (settlement, result) = match ended.and_then(|value| Ok((answer_of(&value, bytes_max)?, value))) {
        Ok((answer, value)) => (Settlement::Complete(answer.into()), Ok(Once { value, replayed: false })),
        Err(JobError { reason, had_no_effect: true }) => {
            let error = OnceError::NotExecuted(reason.detail().into());
            (Settlement::Release { reason, backoff: Duration::ZERO }, Err(error))
        }
        Err(JobError { reason, had_no_effect: false }) => {
            let error = OnceError::Unknown(reason.detail().into());
            (Settlement::Doubt(reason), Err(error))
        }
    };
    match held.settle_within(settlement, patience).await {
        Ok(Settled::Done(_)) => result,
        Ok(Settled::Fenced(row)) => from_row(row.as_deref()),
        Err(StillSettling) => {
            Err(OnceError::Unknown("its end is not recorded yet: the store does not answer".into()))
        }
    }
}

/// The row says otherwise than the holder, and the row stands.
fn from_row<T: DeserializeOwned>(row: Option<&Record>) -> Result<Once<T>, OnceError> {
    match row.map(|row| &row.state) {
        Some(State::Completed(answer)) => value_of(answer).map(|value| Once { value, replayed: true }),
        _ => Err(OnceError::Unknown("another attempt was granted meanwhile".into())),
    }
}

/// A value that cannot be written down was produced all the same: that is doubt.
fn answer_of<T: Serialize>(value: &T, bytes_max: u64) -> Result<Answer, JobError> {
    let body = serde_json::to_vec(value)?;
    if body.len() as u64 > bytes_max {
        return Ok(Answer::NotKept { status: 200, location: None });
    }
    let headers = vec![("content-type".to_owned(), b"application/json".to_vec())];
    Ok(Answer::Kept(Response { status: 200, headers, body }))
}

fn value_of<T: DeserializeOwned>(answer: &Answer) -> Result<T, OnceError> {
    match answer {
        Answer::Kept(response) => serde_json::from_slice(&response.body).map_err(|error| {
            OnceError::Invalid(format!("the stored value is not of this type: {error}").into())
        }),
        Answer::NotKept { .. } => Err(OnceError::Invalid("the value was too large to keep".into())),
    }
}

fn invalid(error: impl fmt::Display) -> OnceError {
    OnceError::Invalid(error.to_string().into())
}
