//! HTTP/2 in and out, with prior knowledge or over TLS.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::client::within;
use crate::reply::Reply;

/// A client's body.
#[derive(Debug)]
pub(crate) struct Sent(pub(crate) Full<Bytes>);

impl From<Empty<Bytes>> for Sent {
    fn from(_: Empty<Bytes>) -> Self {
        Self(Full::default())
    }
}

impl From<&'static str> for Sent {
    fn from(text: &'static str) -> Self {
        Self(Full::from(text))
    }
}

pub(crate) type Client = SendRequest<Full<Bytes>>;

/// A connection with prior knowledge.
pub(crate) async fn connect(to: SocketAddr) -> Client {
    over(within(TcpStream::connect(to)).await.unwrap()).await
}

/// A connection over a stream that is there.
pub(crate) async fn over<T>(stream: T) -> Client
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let shaking = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (client, connection) = within(shaking).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Asks, and reads the whole reply.
pub(crate) async fn ask(client: &mut Client, request: Request<Sent>) -> Reply {
    let response = within(client.send_request(request.map(|body| body.0))).await.unwrap();
    assert_eq!(response.version(), Version::HTTP_2);
    reply(response).await
}

/// What came.
pub(crate) async fn reply(response: Response<Incoming>) -> Reply {
    let (head, body) = response.into_parts();
    let headers = head.headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()));
    let headers = headers.collect();
    let body = within(body.collect()).await.unwrap().to_bytes().to_vec();
    Reply { status: head.status.as_u16(), headers, body }
}

/// An upstream that speaks both versions, and TLS if it is told how. It says which run it is.
/// Trailers of a request are in the extensions of its head.
#[derive(Clone, Debug)]
pub(crate) struct Both {
    pub(crate) addr: SocketAddr,
    seen: Arc<Mutex<Vec<(http::request::Parts, Bytes)>>>,
    connections: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl Both {
    pub(crate) async fn start(tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let both =
            Self { addr: listener.local_addr().unwrap(), seen: Arc::default(), connections: Arc::default() };
        let running = both.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (running, tls) = (running.clone(), tls.clone());
                let connections = Arc::clone(&running.connections);
                let serving = tokio::spawn(async move {
                    match tls {
                        None => running.serve(stream).await,
                        Some(tls) => {
                            // A client that does not trust us ends it here.
                            if let Ok(stream) = tls.accept(stream).await {
                                running.serve(stream).await;
                            }
                        }
                    }
                });
                connections.lock().unwrap().push(serving);
            }
        });
        both
    }

    async fn serve<T>(self, stream: T)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let seen = Arc::clone(&self.seen);
            async move {
                let (mut head, body) = request.into_parts();
                let body = body.collect().await.unwrap();
                if let Some(trailers) = body.trailers() {
                    head.extensions.insert(trailers.clone());
                }
                let mut seen = seen.lock().unwrap();
                seen.push((head, body.to_bytes()));
                let words = format!("run {}", seen.len());
                Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from(words))))
            }
        });
        let server = auto::Builder::new(TokioExecutor::new());
        let _ = server.serve_connection(TokioIo::new(stream), service).await;
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.lock().unwrap().len()
    }

    /// Ends all connections, and waits until they have ended.
    pub(crate) async fn hang_up(&self) {
        let mut connections: Vec<_> = self.connections.lock().unwrap().drain(..).collect();
        for connection in &mut connections {
            connection.abort();
            let _ = connection.await;
        }
    }

    pub(crate) fn runs(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// All that it was asked.
    pub(crate) fn seen(&self) -> Vec<(http::request::Parts, Bytes)> {
        self.seen.lock().unwrap().clone()
    }

    /// The last that it was asked.
    pub(crate) fn last(&self) -> (http::request::Parts, Bytes) {
        self.seen.lock().unwrap().last().cloned().expect("it was asked something")
    }
}
