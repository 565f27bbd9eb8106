//! A bare reverse proxy: hyper's server around hyper-util's pooled client, both bodies buffered, as one that keeps answers must.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;

use crate::Outcome;

type Pool = Client<HttpConnector, Full<Bytes>>;
type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Starts it on two threads of its own, as the gateway has them, for as long as the process lives.
pub(crate) fn start(upstream: SocketAddr) -> Outcome<SocketAddr> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    runtime.spawn(async move { drop(serve(listener, upstream).await.map_err(|error| error.to_string())) });
    // Lives as long as the process.
    std::mem::forget(runtime);
    Ok(address)
}

/// Passes on whatever comes.
pub(crate) async fn serve(listener: TcpListener, upstream: SocketAddr) -> Outcome {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let pool: Pool = Client::builder(TokioExecutor::new()).build(connector);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let pool = pool.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| pass_on(pool.clone(), upstream, request));
            let server = auto::Builder::new(TokioExecutor::new());
            drop(server.serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

async fn pass_on(
    pool: Pool,
    upstream: SocketAddr,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Failed> {
    let (mut head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    head.uri = format!("http://{upstream}{path}").parse::<Uri>()?;
    head.headers.remove(header::CONNECTION);
    head.headers.remove(header::HOST);
    head.headers.append(header::VIA, HeaderValue::from_static("1.1 bare"));
    let (head, body) = pool.request(Request::from_parts(head, Full::new(body))).await?.into_parts();
    Ok(Response::from_parts(head, Full::new(body.collect().await?.to_bytes())))
}
