//! Accepted requests, run later: the stored request goes to the upstream as if its client had just sent it.
//!
//! What the proxy has to say of a client (who it is, by what it came, which host it asked for) is
//! stored beside the headers that the layer stores, with what a trusted proxy in front said of it,
//! and put back here.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Extensions, Request};
use oncegate::AnyStore;
use oncegate_core::record::Record;
use oncegate_engine::{Finisher, Finishing, Held, Left, Route, Runs};
use oncegate_tower::headers::connection_options;
use oncegate_tower::{AlsoKept, NoBody, RequestBody};
use tower_service::Service;

use crate::proxy::{Outgoing, Proxy, client_host};
use crate::public::{Peer, Public, Secure, is_of_proxies};

const PEER: HeaderName = HeaderName::from_static("oncegate-peer");
const PROTO: HeaderName = HeaderName::from_static("oncegate-proto");

/// What is known of a client, to be kept with its request.
pub(crate) fn of_client<B>(request: &Request<B>) -> AlsoKept {
    let mut kept = HeaderMap::new();
    if let Some(host) = client_host(request.uri(), request.headers()) {
        kept.insert(http::header::HOST, host);
    }
    let Peer(peer) = match request.extensions().get::<Peer>() {
        Some(peer) => *peer,
        None => return AlsoKept(kept),
    };
    if let Ok(peer) = HeaderValue::from_str(&peer.to_string()) {
        kept.insert(PEER, peer);
    }
    if request.extensions().get::<Secure>().is_some() {
        kept.insert(PROTO, HeaderValue::from_static("https"));
    }
    // What an untrusted peer said was removed when the request came.
    let headers = request.headers();
    let is_of_connection =
        |name: &str| connection_options(headers).any(|option| option.eq_ignore_ascii_case(name));
    let is_forwarded = |name: &str| is_of_proxies(name) && !is_of_connection(name);
    for (name, value) in headers.iter().filter(|(name, _)| is_forwarded(name.as_str())) {
        kept.append(name.clone(), value.clone());
    }
    AlsoKept(kept)
}

/// The same, as the proxy reads it.
fn put_back(headers: &mut HeaderMap, extensions: &mut Extensions) {
    let peer = headers.remove(PEER).and_then(|peer| peer.to_str().ok()?.parse().ok());
    if let Some(peer) = peer {
        extensions.insert(Peer(peer));
    }
    if headers.remove(PROTO).is_some() {
        extensions.insert(Secure);
    }
}

/// The proxy, for requests that have no client any more.
#[derive(Clone)]
pub(crate) struct Later(pub(crate) Proxy);

impl Service<Request<RequestBody<NoBody>>> for Later {
    type Response = <Proxy as Service<Outgoing>>::Response;
    type Error = <Proxy as Service<Outgoing>>::Error;
    type Future = <Proxy as Service<Outgoing>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<RequestBody<NoBody>>) -> Self::Future {
        let (mut head, body) = request.into_parts();
        put_back(&mut head.headers, &mut head.extensions);
        self.0.call(Outgoing::from_parts(head, body.for_clients()))
    }
}

/// Runs what was accepted by the routes as they are now.
pub(crate) struct Runner(pub(crate) Arc<Public>);

impl Finisher<AnyStore> for Runner {
    fn runs(&self) -> Runs {
        self.0.finisher().runs()
    }

    fn route(&self, record: &Record) -> Option<Route> {
        self.0.finisher().route(record)
    }

    fn finish(&self, held: Box<Held<AnyStore>>, left: Left) -> Finishing<'_> {
        let finisher = self.0.finisher();
        Box::pin(async move { finisher.finish(held, left).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_client_is_put_back() {
        let request = Request::post("http://shop.example/orders")
            .header("connection", "X-Forwarded-Port")
            .header("x-forwarded-port", "of this connection")
            .header("x-forwarded-for", "203.0.113.9")
            .header("x-forwarded-for", "10.0.0.3")
            .header("x-trace", "1");
        let mut request = request.body(()).unwrap();
        request.extensions_mut().insert(Peer("192.0.2.7:4711".parse().unwrap()));
        request.extensions_mut().insert(Secure);
        let AlsoKept(mut headers) = of_client(&request);
        let mut extensions = Extensions::new();
        put_back(&mut headers, &mut extensions);
        assert_eq!(extensions.get::<Peer>().unwrap().0.to_string(), "192.0.2.7:4711");
        assert!(extensions.get::<Secure>().is_some());
        assert_eq!(headers["host"], "shop.example");
        let hops: Vec<_> = headers.get_all("x-forwarded-for").iter().map(HeaderValue::as_bytes).collect();
        assert_eq!((hops, headers.len()), (vec![&b"203.0.113.9"[..], b"10.0.0.3"], 3));
        // By plain HTTP, from nobody that is known.
        let AlsoKept(mut headers) = of_client(&Request::post("/orders").body(()).unwrap());
        let mut extensions = Extensions::new();
        put_back(&mut headers, &mut extensions);
        assert!(headers.is_empty() && extensions.is_empty());
    }
}
