//! Inner services that fail without an answer: around a hyper service, for axum's handlers cannot.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use oncegate_core::classify::Failure;
use oncegate_core::policy::Profile;
use oncegate_engine::{Engine, Options};
use oncegate_store::memory::MemoryStore;
use oncegate_tower::{BoxError, Failed, Idempotency, Routes, scope};
use tokio::net::TcpListener;
use tower_layer::Layer as _;
use tower_service::Service;

use crate::client::Call;

/// Fails as told, then answers `charged`.
#[derive(Clone)]
struct Failing(Arc<Mutex<VecDeque<BoxError>>>);

impl<B> Service<Request<B>> for Failing {
    type Response = Response<Full<Bytes>>;
    type Error = BoxError;
    type Future = std::future::Ready<Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        let error = self.0.lock().unwrap().pop_front();
        std::future::ready(match error {
            Some(error) => Err(error),
            None => Ok(Response::new(Full::from("charged"))),
        })
    }
}

/// An error around another.
#[derive(Debug)]
struct Around(Failed);

impl fmt::Display for Around {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("could not charge")
    }
}

impl Error for Around {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

/// One connection's worth of hyper server, again and again.
async fn serve(errors: impl IntoIterator<Item = BoxError>) -> SocketAddr {
    let engine = Engine::start(MemoryStore::new(), Options::default()).await.unwrap();
    let layer = Idempotency::new(engine, scope::one("acme"), Routes::all(Profile::Ietf).unwrap());
    let service = layer.layer(Failing(Arc::new(Mutex::new(errors.into_iter().collect()))));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = service.clone();
            let service = hyper::service::service_fn(move |request| service.clone().call(request));
            let serving = hyper::server::conn::http1::Builder::new();
            tokio::spawn(serving.serve_connection(TokioIo::new(stream), service));
        }
    });
    addr
}

#[tokio::test]
async fn what_proves_that_nothing_was_sent_frees_the_key() {
    let unreachable = (502, "upstream_unreachable");
    let proofs = [
        (Failure::ConnectionRefused, unreachable),
        (Failure::ConnectTimeout, unreachable),
        (Failure::NameNotFound, unreachable),
        (Failure::TlsHandshake, unreachable),
        // It is there, and busy.
        (Failure::QueueFull, (503, "overloaded")),
    ];
    for (failure, (status, code)) in proofs {
        let addr = serve([Failed(failure).into(), Around(Failed(failure)).into()]).await;
        let call = Call::post("/").key("one");
        for _direct_and_wrapped in 0..2 {
            let reply = call.send(addr).await;
            let problem = reply.expect_problem(status, code);
            assert!(problem["detail"].as_str().unwrap().contains("same key"), "{problem}");
            assert!(reply.header("retry-after").is_some());
        }
        call.send(addr).await.expect_first(200, "charged");
        call.send(addr).await.expect_replay(200, "charged");
    }
}

#[tokio::test]
async fn every_other_error_is_a_doubt() {
    let doubts: [BoxError; 6] = [
        Failed(Failure::Timeout).into(),
        Failed(Failure::Reset).into(),
        Failed(Failure::Protocol).into(),
        Around(Failed(Failure::Timeout)).into(),
        std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into(),
        "connection refused".into(),
    ];
    for error in doubts {
        let words = error.to_string();
        let addr = serve([error]).await;
        let call = Call::post("/").key("one");
        call.send(addr).await.expect_problem(504, "outcome_unknown");
        // It would answer now, if it were asked.
        let retry = call.send(addr).await;
        assert_eq!((retry.status, retry.code().as_deref()), (409, Some("outcome_unknown")), "{words}");
    }
}

/// Of a request that nobody protects the error is the server's to handle: hyper closes the connection.
#[tokio::test]
async fn an_error_of_an_unprotected_request_is_passed_on() {
    let addr = serve([Failed(Failure::ConnectionRefused).into()]).await;
    let mut client = Call::anonymous("GET", "/").open(addr).await;
    assert!(client.reply().await.is_err());
    assert_eq!(Call::anonymous("GET", "/").send(addr).await.body, b"charged");
}
