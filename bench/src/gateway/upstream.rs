//! What is behind: reads a request, answers 201 with 200 bytes.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::Outcome;

const ANSWER: &[u8; 200] = &[b'x'; 200];

/// Starts it on a thread of its own, for as long as the process lives.
pub(crate) fn start() -> Outcome<SocketAddr> {
    serve("upstream", |request: Request<Incoming>| async move {
        drop(request.into_body().collect().await);
        let mut response = Response::new(Full::new(Bytes::from_static(ANSWER)));
        *response.status_mut() = StatusCode::CREATED;
        Ok::<_, Infallible>(response)
    })
}

/// A hyper server on a thread of its own.
pub(crate) fn serve<H, F, B, E>(name: &str, handler: H) -> Outcome<SocketAddr>
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Response<B>, E>> + 'static,
    B: http_body::Body<Data = Bytes> + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    E: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
{
    let socket = std::net::TcpListener::bind("127.0.0.1:0")?;
    socket.set_nonblocking(true)?;
    let address = socket.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        tokio::task::LocalSet::new().block_on(&runtime, async move {
            let Ok(listener) = TcpListener::from_std(socket) else { return };
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let handler = handler.clone();
                tokio::task::spawn_local(async move {
                    let service = service_fn(handler);
                    drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
                });
            }
        });
    })?;
    Ok(address)
}
