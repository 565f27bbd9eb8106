//! Step 3, after the scope: may this caller use the route now? Asked before the body is read.
//!
//! Without it, a credential that has been revoked still gets what is recorded under it: a replay
//! never reaches the handler that would
//! refuse it. A service that authenticates in a layer around this one needs none.

use std::future::Future;
use std::pin::Pin;

use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;
use oncegate_core::problem::Problem;
use oncegate_engine::Route;

/// Decides whether a caller may use a protected route, before anything is recorded or replayed.
pub trait Authorize: Send + Sync + 'static {
    /// Asks about a request of this route; `None`: nothing is to be asked.
    fn check<'a>(&'a self, route: &'a Route, request: &'a Parts) -> Option<Checking<'a>>;
}

/// A decision on its way.
pub type Checking<'a> = Pin<Box<dyn Future<Output = Result<(), Denied>> + Send + 'a>>;

/// The caller may not, or it could not be found out.
#[derive(Debug)]
pub struct Denied {
    /// What the caller is told.
    pub problem: Problem,
    /// The values of `WWW-Authenticate`.
    pub challenges: Vec<HeaderValue>,
}

impl Denied {
    /// Puts the challenges into the answer.
    pub fn challenge(&self, headers: &mut HeaderMap) {
        if self.challenges.is_empty() {
            return;
        }
        headers.remove(header::WWW_AUTHENTICATE);
        for challenge in &self.challenges {
            headers.append(header::WWW_AUTHENTICATE, challenge.clone());
        }
    }
}
