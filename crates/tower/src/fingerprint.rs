//! Step 5: what makes two requests the same.

use http::HeaderValue;
use http::header::HOST;
use http::request::Parts;
use oncegate_core::fingerprint::{self, Content, Fingerprints};
use oncegate_core::policy::Policy;
use oncegate_core::problem::{Code, Problem};

use crate::route;

/// The host that a request is for, where one service answers for several hosts. A server in front
/// of the layer puts it into the request's extensions, in one spelling; it is then part of the
/// fingerprint, in place of a header `host` that the policy names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetHost(pub Box<str>);

pub(crate) fn of(policy: &Policy, request: &Parts, body: &[u8]) -> Result<Fingerprints, Problem> {
    let content = content(request, body);
    if content.content_type.is_some_and(is_grpc) {
        let words = "gRPC calls cannot be protected here: their outcome is in trailers, which are not kept. Nothing was executed.";
        return Err(Problem::new(Code::RequestInvalid, words));
    }
    let values = |name: &str| request.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    let host = request.extensions.get::<TargetHost>().map(|TargetHost(host)| &**host);
    // The header may be another than the host of the address, and is in another spelling.
    let is_host = |name: &str| host.is_some() && name.eq_ignore_ascii_case(HOST.as_str());
    let names = policy.fingerprint_headers.iter().filter(|name| !is_host(name));
    let headers: Vec<_> = names.map(|name| (&**name, values(name))).collect();
    fingerprint::of_request(&policy.fingerprint, &content, &headers, host)
        .map_err(|error| Problem::new(Code::RequestInvalid, format!("{error}. Nothing was executed.")))
}

/// What of a request is compared.
pub(crate) fn content<'a>(request: &'a Parts, body: &'a [u8]) -> Content<'a> {
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
