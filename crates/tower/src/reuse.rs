//! A key that came with another request: what the client is told, and what is logged.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Response, request};
use oncegate_core::fingerprint::{Difference, RecordedOperation};
use oncegate_core::policy::{Mismatch, MismatchStatus, Policy};
use oncegate_core::problem::Problem;
use oncegate_core::record::Record;
use oncegate_engine::{Engine, KeyReuse, Route};
use oncegate_store::Store;

use crate::answer::About;
use crate::body::ResponseBody;
use crate::fingerprint;
use crate::route::Routes;
use crate::scope::Tenant;

/// Who sent a request. A server in front of the layer puts it into the request's extensions; it is
/// told in the log and in the audit trail, and decides nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// A request whose key belongs to another.
pub(crate) struct Misused<'a> {
    pub(crate) head: &'a request::Parts,
    pub(crate) body: &'a Bytes,
    pub(crate) route: &'a Route,
    /// The record of the request that the key belongs to, where there is one.
    pub(crate) record: Option<&'a Record>,
}

/// Refuses a request whose key belongs to another. Its client is told how the two differ, unless
/// it shares its tenant with strangers, or has been told about this record several times just now:
/// then it could be guessing the first request, member by member.
pub(crate) fn refuse<S: Store, B>(
    engine: &Engine<S>,
    routes: &Routes,
    tenant: &dyn Tenant,
    request: &Misused<'_>,
    about: &About<'_>,
) -> Response<ResponseBody<B>> {
    let refusal =
        |difference: &Difference| about.refusal(Problem::key_reused(status(about.policy), difference));
    let Some(record) = request.record else { return refusal(&Difference::default()) };
    let content = fingerprint::content(request.head, request.body);
    let operation = recorded_operation(record, routes, request.route);
    let difference = Difference::of(&about.policy.fingerprint, &content, record.fingerprint, operation);
    let peer = request.head.extensions.get::<Peer>().map(|Peer(address)| address.ip().to_canonical());
    let reuse = KeyReuse { peer, difference };
    let may_name = engine.tell_reuse(record, &reuse);
    if may_name && !tenant.is_shared(request.head) {
        refusal(&reuse.difference)
    } else {
        refusal(&Difference::default())
    }
}

/// Which operation a record is of, seen from a route.
fn recorded_operation(record: &Record, routes: &Routes, route: &Route) -> RecordedOperation {
    match routes.of_stored(record.operation.as_str()) {
        None => RecordedOperation::Unknown,
        Some(stored) if stored.operation() != route.operation() => RecordedOperation::Other,
        Some(_) if route.operation().is_pattern() => RecordedOperation::SamePattern,
        Some(_) => RecordedOperation::Same,
    }
}

/// Which status the policy wants.
pub(crate) const fn status(policy: &Policy) -> MismatchStatus {
    match policy.mismatch {
        Mismatch::Refuse(status) => status,
        Mismatch::Replay => MismatchStatus::Unprocessable,
    }
}
