//! A caller's own operations, by their id: how far one is, then its answer; and taking back what nobody has begun.
//!
//! **Invariants:** another tenant's operation is as absent as one that never was. What is shown here of accepted work is what a retry of the
//! same key gets; of what ran while its client waited, a description: nobody runs that again but its client, so it is never 202.

use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use oncegate_core::identity::RecordId;
use oncegate_core::policy::{AfterDoubt, Policy, Profile};
use oncegate_core::problem::{Code, Problem};
use oncegate_core::record::{AfterRetention, Execution, GoneStatus, Record, State};
use oncegate_engine::Cancelled;
use oncegate_store::Store;

use crate::answer::{self, About, Which};
use crate::authorize::Denied;
use crate::body::ResponseBody;
use crate::described;
use crate::layer::Idempotency;
use crate::prefer::Prefer;
use crate::service::Shared;

/// Who the audit trail says has cancelled.
const OWNER: &str = "owner";

impl<S: Store> Idempotency<S> {
    /// The operation with this id, if it belongs to whoever asks.
    pub async fn find_operation(&self, head: &Parts, id: RecordId) -> Result<Record, Box<Problem>> {
        self.0.find(head, id).await
    }

    /// Whether the caller may be shown this operation, or cancel it, as the layer's
    /// [`authorize`](Self::authorize) decides.
    pub async fn authorize_operation(&self, head: &Parts, row: &Record) -> Result<(), Denied> {
        self.0.authorize_operation(head, row).await
    }

    /// How far an accepted operation is, or its answer. Waits for the answer as long as the caller prefers, up to the route's limit. Of one
    /// that ran while its client waited: a description, at once.
    pub async fn show_operation<B>(&self, head: &Parts, row: Record) -> Response<ResponseBody<B>> {
        self.0.show(head, row).await
    }

    /// Takes back an operation that still waits to be run.
    pub async fn cancel_operation<B>(&self, row: &Record) -> Response<ResponseBody<B>> {
        self.0.cancel(row).await
    }
}

impl<S: Store> Shared<S> {
    /// Whether this is a request about an operation, which the layer answers by itself.
    pub(crate) fn is_about_operations(&self, path: &str) -> bool {
        self.serves_operations && self.operations.as_deref().is_some_and(|prefix| path.starts_with(prefix))
    }

    /// `GET` and `DELETE` of an operation; anything else beneath that path is absent.
    pub(crate) async fn operation<B>(&self, head: &Parts) -> Response<ResponseBody<B>> {
        let path = crate::route::address(&head.uri, &head.extensions).path();
        let id = self.operations.as_deref().and_then(|prefix| path.strip_prefix(prefix));
        let Some(Ok(id)) = id.map(str::parse::<RecordId>) else { return answer::refusal(&not_found()) };
        let row = match self.find(head, id).await {
            Ok(row) => row,
            Err(problem) => return answer::refusal(&problem),
        };
        if let Err(denied) = self.authorize_operation(head, &row).await {
            let mut refused = answer::refusal(&denied.problem);
            denied.challenge(refused.headers_mut());
            return refused;
        }
        match head.method {
            Method::GET | Method::HEAD => self.show(head, row).await,
            Method::DELETE => self.cancel(&row).await,
            _ => answer::refusal(&not_found()),
        }
    }

    async fn find(&self, head: &Parts, id: RecordId) -> Result<Record, Box<Problem>> {
        let Some(tenant) = self.tenant.of(head) else {
            let advice = self.tenant.advice(head);
            let words = format!(
                "Operations are shown to whom they belong, and this request does not say who asks. {advice}."
            );
            return Err(Box::new(Problem::new(Code::ScopeMissing, words)));
        };
        match self.engine.read(id).await {
            Ok(Some(row)) if row.address.scope.tenant_str() == tenant => Ok(row),
            Ok(_) => Err(Box::new(not_found())),
            Err(error) => {
                tracing::warn!(%error, "an operation could not be read");
                Err(Box::new(unreadable()))
            }
        }
    }

    /// By the route that serves the operation now. What the caller of one that is gone had to show
    /// is not known, so it is refused: any other rule may ask for less.
    async fn authorize_operation(&self, head: &Parts, row: &Record) -> Result<(), Denied> {
        let Some(authorize) = &self.authorize else { return Ok(()) };
        let Some(route) = self.routes.of_stored(row.operation.as_str()) else {
            return Err(Denied { problem: without_route(), challenges: Vec::new() });
        };
        match authorize.check(route, head) {
            Some(checking) => checking.await,
            None => Ok(()),
        }
    }

    async fn show<B>(&self, head: &Parts, row: Record) -> Response<ResponseBody<B>> {
        let mut response = match row.execution {
            Execution::Inline => self.described(&row),
            Execution::Deferred => {
                let policy = self.policy_of(&row);
                let hold = Prefer::of(&head.headers).hold(policy.wait_limit);
                let about = self.about(&policy, Which::Id(row.id));
                self.of_row(&self.held(row, hold).await, &about)
            }
        };
        // A caller's own, also where nothing in the request tells a cache so.
        let headers = response.headers_mut();
        if !headers.contains_key(header::CACHE_CONTROL) {
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        }
        response
    }

    fn described<B>(&self, row: &Record) -> Response<ResponseBody<B>> {
        let shown = described::for_owner(row, self.engine.now()).to_string();
        let mut response = Response::new(ResponseBody::whole(Bytes::from(shown)));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }

    /// The row once it is over, or as it is when the time is.
    async fn held(&self, row: Record, hold: Duration) -> Record {
        if hold.is_zero() {
            return row;
        }
        let seen = self.engine.until_over(row.id, hold).await;
        // Another life of the key is not what was asked for.
        seen.filter(|seen| seen.life == row.life).unwrap_or(row)
    }

    /// What is shown of accepted work: the same as a retry gets.
    pub(crate) fn of_row<B>(&self, row: &Record, about: &About<'_>) -> Response<ResponseBody<B>> {
        let is_over = row.is_past_retention(self.engine.now());
        match (&row.state, row.terms.after_retention) {
            (State::Completed(_), AfterRetention::Fresh) if is_over => answer::refusal(&not_found()),
            (State::Completed(_), AfterRetention::Gone { status, .. }) if is_over => gone(status),
            (State::Completed(answer), _) => answer::replay(answer, row.expires_at, about.policy),
            (State::Expired, AfterRetention::Gone { status, .. }) => gone(status),
            (State::Expired, AfterRetention::Fresh) => gone(GoneStatus::Gone),
            (State::Unknown(_), _) if about.policy.after_doubt != AfterDoubt::Accept => {
                answer::unsettled(about)
            }
            (state, _) => answer::accepted(state.kind(), about),
        }
    }

    async fn cancel<B>(&self, row: &Record) -> Response<ResponseBody<B>> {
        match self.engine.cancel(row.id, OWNER).await {
            Ok(Cancelled::Done) => {
                let mut response = Response::new(ResponseBody::whole(Bytes::new()));
                *response.status_mut() = StatusCode::NO_CONTENT;
                response
            }
            Ok(Cancelled::TooLate(row)) => answer::refusal(&too_late(&row)),
            Ok(Cancelled::Absent) => answer::refusal(&not_found()),
            Err(error) => {
                tracing::warn!(%error, record = %row.id, "an operation could not be cancelled");
                let words = "The operation could not be cancelled right now, or it is not known whether it was. Ask again later.";
                let problem = Problem::new(Code::StoreUnavailable, words);
                answer::refusal(&problem.retry_after(Duration::from_secs(5)))
            }
        }
    }

    /// By its route as it is now; of one that is gone, by the profile for such work.
    fn policy_of(&self, row: &Record) -> Policy {
        let route = self.routes.of_stored(row.operation.as_str());
        route.map_or_else(|| Profile::Accepted.policy(), |route| route.policy().clone())
    }
}

fn gone<B>(status: GoneStatus) -> Response<ResponseBody<B>> {
    answer::refusal(&Problem::key_expired(status))
}

fn too_late(row: &Record) -> Problem {
    let words = "The operation does not wait any more, so it was not cancelled, and nothing about it has changed. Ask for its answer; \
                 what it has done can only be undone by other means.";
    let problem = Problem::new(Code::NotCancellable, words).with("state", row.state.kind().name().into());
    problem.with("operation", row.id.to_string().into())
}

fn unreadable() -> Problem {
    let words = "The record could not be read right now. Ask again later.";
    Problem::new(Code::StoreUnavailable, words).retry_after(Duration::from_secs(5))
}

fn without_route() -> Problem {
    let words = "The route of this operation is not configured here any more, so it is not known who may see it. Nothing about it has \
                 changed. Operators: declare its old pattern in `formerly` of the route that serves it now.";
    Problem::new(Code::NotAuthorized, words).with_status(403)
}

fn not_found() -> Problem {
    Problem::new(Code::OperationNotFound, "There is no operation of yours with this id.")
}
