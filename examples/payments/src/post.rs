//! The smallest HTTP client that says of a failure whether anything was sent.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// What came back.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

impl Reply {
    /// The body as JSON; `null` if it is none.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// Why nothing came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoReply {
    /// No connection: nothing was sent.
    NotSent,
    /// The connection was closed without an answer.
    Closed,
    /// No answer in time.
    TimedOut,
}

impl fmt::Display for NoReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotSent => "cannot be reached",
            Self::Closed => "closed the connection without an answer",
            Self::TimedOut => "did not answer in time",
        })
    }
}

impl std::error::Error for NoReply {}

/// Sends a request to `address` (host and port), on a connection of its own.
pub async fn send(address: &str, request: Request<Bytes>, patience: Duration) -> Result<Reply, NoReply> {
    let sending = async {
        let stream = TcpStream::connect(address).await.map_err(|_| NoReply::NotSent)?;
        exchange(stream, request).await
    };
    tokio::time::timeout(patience, sending).await.unwrap_or(Err(NoReply::TimedOut))
}

/// Sends a request on a new connection, and closes it after the reply.
pub async fn exchange<T>(stream: T, request: Request<Bytes>) -> Result<Reply, NoReply>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let shaken = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(|_| NoReply::NotSent)?;
    // Ends with this future: a caller that gives up hangs up.
    let _connection = HangUp(tokio::spawn(async move { drop(connection.await) }));
    let response = sender.send_request(request.map(Full::new)).await.map_err(|_| NoReply::Closed)?;
    let (head, body) = response.into_parts();
    let body = body.collect().await.map_err(|_| NoReply::Closed)?.to_bytes();
    Ok(Reply { status: head.status, headers: head.headers, body })
}

struct HangUp(tokio::task::JoinHandle<()>);

impl Drop for HangUp {
    fn drop(&mut self) {
        self.0.abort();
    }
}
