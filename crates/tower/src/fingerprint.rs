//! Step 5: what makes two requests the same.

use http::HeaderValue;
use http::request::Parts;
use oncegate_core::fingerprint::{self, Content, Fingerprint};
use oncegate_core::policy::Policy;
use oncegate_core::problem::{Code, Problem};
use oncegate_core::record::Record;

use crate::route;

pub(crate) fn of(policy: &Policy, request: &Parts, body: &[u8]) -> Result<Fingerprint, Problem> {
    let content = content(request, body);
    if content.content_type.is_some_and(is_grpc) {
        let words = "gRPC calls cannot be protected here: their outcome is in trailers, which are not kept. Nothing was executed.";
        return Err(Problem::new(Code::RequestInvalid, words));
    }
    let values = |name: &str| request.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    let headers: Vec<_> = policy.fingerprint_headers.iter().map(|name| (&**name, values(name))).collect();
    fingerprint::of_request(&policy.fingerprint, &content, &headers)
        .map_err(|error| Problem::new(Code::RequestInvalid, format!("{error}. Nothing was executed.")))
}

/// The names of the members by which a request differs from the one that `record` is of.
pub(crate) fn differing(policy: &Policy, request: &Parts, body: &[u8], record: &Record) -> Vec<String> {
    let kept = record.fingerprint;
    fingerprint::differing_members(&policy.fingerprint, &content(request, body), kept)
}

fn content<'a>(request: &'a Parts, body: &'a [u8]) -> Content<'a> {
    let address = route::address(&request.uri, &request.extensions);
    Content {
        method: request.method.as_str(),
        path: address.path(),
        query: address.query(),
        content_type: request.headers.get(http::header::CONTENT_TYPE).map(HeaderValue::as_bytes),
        body,
    }
}

fn is_grpc(content_type: &[u8]) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    content_type.get(..GRPC.len()).is_some_and(|start| start.eq_ignore_ascii_case(GRPC))
}
