//! Step 5: what makes two requests the same.

use http::HeaderValue;
use http::request::Parts;
use oncegate_core::fingerprint::{self, Content, Fingerprint};
use oncegate_core::policy::Policy;
use oncegate_core::problem::{Code, Problem};

use crate::route;

pub(crate) fn of(policy: &Policy, request: &Parts, body: &[u8]) -> Result<Fingerprint, Problem> {
    let content_type = request.headers.get(http::header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if content_type.is_some_and(is_grpc) {
        let words = "gRPC calls cannot be protected here: their outcome is in trailers, which are not kept. Nothing was executed.";
        return Err(Problem::new(Code::RequestInvalid, words));
    }
    let address = route::address(&request.uri, &request.extensions);
    let content = Content {
        method: request.method.as_str(),
        path: address.path(),
        query: address.query(),
        content_type,
        body,
    };
    let fingerprint = fingerprint::of(&policy.fingerprint, &content)
        .map_err(|error| Problem::new(Code::RequestInvalid, format!("{error}. Nothing was executed.")))?;
    if policy.fingerprint_headers.is_empty() {
        return Ok(fingerprint);
    }
    let values = |name: &str| request.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    let headers: Vec<_> = policy.fingerprint_headers.iter().map(|name| (&**name, values(name))).collect();
    Ok(fingerprint.with_headers(&headers))
}

fn is_grpc(content_type: &[u8]) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    content_type.get(..GRPC.len()).is_some_and(|start| start.eq_ignore_ascii_case(GRPC))
}
