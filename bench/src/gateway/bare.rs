//! A bare reverse proxy: hyper's server around hyper-util's pooled client, both bodies passed on.

use std::net::SocketAddr;

use http::{HeaderValue, Request, Uri, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;

use crate::Outcome;

/// Starts it on two threads of its own, as the gateway has them, for as long as the process lives.
pub(crate) fn start(upstream: SocketAddr) -> Outcome<SocketAddr> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    runtime.spawn(async move {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client: Client<_, Incoming> = Client::builder(TokioExecutor::new()).build(connector);
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            let client = client.clone();
            tokio::spawn(async move {
                let service = service_fn(move |mut request: Request<Incoming>| {
                    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
                    let uri = format!("http://{upstream}{path}").parse::<Uri>();
                    *request.uri_mut() = uri.unwrap_or_default();
                    request.headers_mut().remove(header::CONNECTION);
                    request.headers_mut().remove(header::HOST);
                    request.headers_mut().append(header::VIA, HeaderValue::from_static("1.1 bare"));
                    client.request(request)
                });
                let server = auto::Builder::new(TokioExecutor::new());
                drop(server.serve_connection(TokioIo::new(stream), service).await);
            });
        }
    });
    // Lives as long as the process.
    std::mem::forget(runtime);
    Ok(address)
}
