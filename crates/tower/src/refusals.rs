//! Counts refusals: answers with a problem document of the boundary's own.
//!
//! Each is counted once, where the route is known: [`routed`](crate::service::routed) counts those
//! of protected routes, and a server around the layer counts its own.

use http::Response;
use oncegate_engine::Route;

/// Why a request was refused; in the extensions of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The problem's code; of a 503, what could not take the request.
    pub reason: &'static str,
}

/// Counts a response if it is a refusal. `route` is a declared pattern, never a path.
pub fn count_refusal<B>(response: &Response<B>, route: Option<&Route>) {
    if let Some(refusal) = response.extensions().get::<Refusal>() {
        oncegate_engine::count_refusal(refusal.reason, route);
    }
}
