//! The same API with the layer in its own process: hyper's server around it.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use oncegate::{Engine, Idempotency, NoProbe, Options, Probe, Profile, Routes, WorkerOptions, scope};
use oncegate_tower::RequestBody;
use tokio::net::TcpListener;
use tower_layer::Layer as _;
use tower_service::Service;

use super::upstream::Answers;
use crate::Outcome;

pub(super) async fn serve(listener: TcpListener, store: &str) -> Outcome {
    let engine = Engine::start(oncegate::open(store).await?, Options::default()).await?;
    let probe: Arc<dyn Probe> = Arc::new(NoProbe);
    let _workers = engine.start_workers(&WorkerOptions::default(), &probe);
    let idempotency = Idempotency::new(engine, scope::authorization(), Routes::all(Profile::Ietf)?);
    let service = idempotency.layer(Api(Arc::new(Answers::new())));
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let service = service.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| service.clone().call(request));
            drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

/// Answers at once.
#[derive(Clone)]
struct Api(Arc<Answers>);

impl Service<Request<RequestBody<Incoming>>> for Api {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody<Incoming>>) -> Self::Future {
        ready(Ok(self.0.of(request.method(), request.uri().path())))
    }
}
