//! The service behind the layer: answers at once, with 200 bytes.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use oncegate_tower::RequestBody;
use tower_service::Service;

/// A body of 200 bytes.
pub(super) const BODY: &[u8] = &[b'x'; 200];

#[derive(Clone)]
pub(super) struct Upstream;

impl Service<Request<RequestBody<Full<Bytes>>>> for Upstream {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<RequestBody<Full<Bytes>>>) -> Self::Future {
        let mut response = Response::new(Full::new(Bytes::from_static(BODY)));
        *response.status_mut() = StatusCode::CREATED;
        let json = http::HeaderValue::from_static("application/json");
        response.headers_mut().insert(http::header::CONTENT_TYPE, json);
        ready(Ok(response))
    }
}
