//! Handlers with recovery points: an operation in phases, carried across crashes one phase at a time.
//!
//! ```ignore
//! async fn ride(Phased(mut run): Phased<PgTransactions>, Json(order): Json<Order>) -> Result<Json<Ride>, Stopped> {
//!     let ride = run.atomic("ride_created", async |tx| create(tx, &order).await).await?;
//!     let charge = run.foreign("charge_created", Retry, async |key| charge(&ride, key).await).await?;
//!     run.atomic("receipt_written", async |tx| write_receipt(tx, &ride, &charge).await).await?;
//!     Ok(run.finish(Json(ride))?)
//! }
//! ```
//!
//! Set up: [`Idempotency::phases`](crate::Idempotency::phases) with the service's own pool, the route by
//! [`Routes::phased`](crate::Routes::phased), and [`Idempotency::start_completer`](crate::Idempotency::start_completer), which goes on with
//! what clients have left.
//!
//! Rules for handlers: effects in phases and nowhere else; the same phases in the same order for the same request; a name, a kind and
//! an output's type stay what they are while operations are in flight (the longest is the route's retention). A handler that breaks these
//! is found out: the operation is put before an operator, and its client gets 409 `outcome_unknown`.

use std::fmt;
use std::sync::Arc;

use http::Extensions;
use oncegate_core::scope::Scope;
use oncegate_engine::Held;
use oncegate_store::join::{Join, Transactions};

pub use oncegate_engine::JobError;
pub use oncegate_engine::phases::{
    DownstreamKey, Found, Park, PhaseError, Phases, Probe, Recovered, Recovery, Retry, Run,
};

/// The run of a handler's phases: an extractor. `T` is what was given to [`Idempotency::phases`](crate::Idempotency::phases).
#[derive(Debug)]
pub struct Phased<T>(pub Run<T>);

/// Among a request's extensions: it comes from the completer, and nobody waits for its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completing {
    /// Whose operation it is.
    pub scope: Scope,
}

/// Puts the phases of an attempt where its handler finds them.
pub(crate) type Offer<S> = Box<dyn Fn(&Held<S>, &mut Extensions) + Send + Sync>;

pub(crate) fn offer<S: Join, T: Transactions>(transactions: Arc<T>) -> Offer<S> {
    Box::new(move |held, extensions| {
        extensions.insert(Offered { phases: held.phases(), transactions: Arc::clone(&transactions) });
    })
}

struct Offered<T> {
    phases: Phases,
    transactions: Arc<T>,
}

impl<T> Clone for Offered<T> {
    fn clone(&self) -> Self {
        Self { phases: self.phases.clone(), transactions: Arc::clone(&self.transactions) }
    }
}

impl<T: Transactions> Phased<T> {
    /// The run of a request's phases, for services that have no extractors. Once an attempt.
    pub fn of(extensions: &Extensions) -> Result<Self, NoPhases> {
        let offered = extensions.get::<Offered<T>>().ok_or(NoPhases::NotOffered)?;
        offered.phases.run(Arc::clone(&offered.transactions)).map(Self).map_err(|_| NoPhases::AlreadyTaken)
    }
}

/// Why there is no run. Nothing was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPhases {
    /// The layer is not set up for them.
    NotOffered,
    /// The handler has asked for them before.
    AlreadyTaken,
}

impl fmt::Display for NoPhases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotOffered => {
                "the handler has phases, and this request offers none of this kind: declare its route with `Routes::phased`, and give the \
                 layer the same pool with `Idempotency::phases`"
            }
            Self::AlreadyTaken => "the handler asks for its phases twice: it can ask once",
        })
    }
}

impl std::error::Error for NoPhases {}

/// An attempt that stopped at a phase: what `?` makes of a [`PhaseError`]. As a response it leads to the right settlement, and the client
/// is told what the record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped(pub PhaseError);

impl From<PhaseError> for Stopped {
    fn from(error: PhaseError) -> Self {
        Self(error)
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Stopped {}

#[cfg(feature = "axum")]
mod with_axum {
    use axum::body::Body;
    use axum::extract::FromRequestParts;
    use axum::response::{IntoResponse, Response};
    use http::HeaderValue;
    use http::request::Parts;
    use oncegate_core::problem::{Code, Problem};
    use oncegate_store::join::Transactions;

    use super::{NoPhases, Phased, Stopped};
    use crate::{headers, refusal};

    impl<T: Transactions, St: Send + Sync> FromRequestParts<St> for Phased<T> {
        type Rejection = NoPhases;

        async fn from_request_parts(parts: &mut Parts, _: &St) -> Result<Self, NoPhases> {
            Self::of(&parts.extensions)
        }
    }

    impl IntoResponse for NoPhases {
        fn into_response(self) -> Response {
            tracing::error!("a handler has no phases: {self}");
            not_executed("The service is not set up for this operation.")
        }
    }

    impl IntoResponse for Stopped {
        /// Sent as it is only if nothing was executed at all; otherwise the client is answered from the record.
        fn into_response(self) -> Response {
            not_executed("The operation could not be begun.")
        }
    }

    fn not_executed(words: &str) -> Response {
        let words =
            format!("{words} Nothing was executed. Send the same request with the same key again later.");
        let mut response = refusal::<Body>(&Problem::new(Code::StoreUnavailable, words)).map(Body::new);
        response.headers_mut().insert(headers::OUTCOME, HeaderValue::from_static("not-executed"));
        response
    }
}
