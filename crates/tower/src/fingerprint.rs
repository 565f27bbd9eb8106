//! Step 5: what makes two requests the same.

use http::request::Parts;
use oncegate_core::fingerprint::{self, Content, Fingerprint, Mode};
use oncegate_core::problem::{Code, Problem};

use crate::route;

pub(crate) fn of(mode: &Mode, request: &Parts, body: &[u8]) -> Result<Fingerprint, Problem> {
    let content_type = request.headers.get(http::header::CONTENT_TYPE).map(http::HeaderValue::as_bytes);
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
    fingerprint::of(mode, &content)
        .map_err(|error| Problem::new(Code::RequestInvalid, format!("{error}. Nothing was executed.")))
}

fn is_grpc(content_type: &[u8]) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    content_type.get(..GRPC.len()).is_some_and(|start| start.eq_ignore_ascii_case(GRPC))
}
