//! A key that came with another request: what the client is told, and what is logged.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Response, request};
use oncegate_core::policy::{Mismatch, MismatchStatus, Policy};
use oncegate_core::problem::Problem;
use oncegate_core::record::Record;
use oncegate_engine::{Engine, KeyReuse};
use oncegate_store::Store;

use crate::answer::About;
use crate::body::ResponseBody;
use crate::fingerprint;

/// Who sent a request. A server in front of the layer puts it into the request's extensions; it is
/// told in the log and in the audit trail, and decides nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// Refuses a request whose key belongs to another, which `record` is of.
pub(crate) fn refuse<S: Store, B>(
    engine: &Engine<S>,
    record: Option<&Record>,
    head: &request::Parts,
    body: &Bytes,
    about: &About<'_>,
) -> Response<ResponseBody<B>> {
    let members = record.map(|record| fingerprint::differing(about.policy, head, body, record));
    let members = members.unwrap_or_default();
    let problem = Problem::key_reused(status(about.policy), &members);
    if let Some(record) = record {
        let peer = head.extensions.get::<Peer>().map(|Peer(address)| address.ip().to_canonical());
        engine.tell_reuse(record, &KeyReuse { peer, members });
    }
    about.refusal(problem)
}

/// Which status the policy wants.
pub(crate) const fn status(policy: &Policy) -> MismatchStatus {
    match policy.mismatch {
        Mismatch::Refuse(status) => status,
        Mismatch::Replay => MismatchStatus::Unprocessable,
    }
}
