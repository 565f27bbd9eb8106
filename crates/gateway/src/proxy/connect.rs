//! A connection to the upstream. Whatever fails here, no request was sent.

use std::io;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use oncegate_core::classify::Failure;
use oncegate_tower::{Failed, RequestBody};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::tls::Tls;
use crate::config::{ConfigError, Http, Upstream};

/// Makes connections.
pub(super) struct Connector {
    host: String,
    port: u16,
    timeout: Duration,
    http: Http,
    tls: Option<Tls>,
}

/// A new connection.
pub(super) enum Connected {
    One(http1::SendRequest<RequestBody<Incoming>>),
    Two(http2::SendRequest<RequestBody<Incoming>>),
}

impl Connector {
    pub(super) fn new(upstream: &Upstream) -> Result<Self, ConfigError> {
        let host = upstream.authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let tls = if upstream.is_tls { Some(Tls::new(&host, upstream)?) } else { None };
        let port = upstream.authority.port_u16().unwrap_or(if upstream.is_tls { 443 } else { 80 });
        Ok(Self { host, port, timeout: upstream.connect_timeout, http: upstream.http, tls })
    }

    pub(super) async fn connect(&self) -> Result<Connected, Failed> {
        metrics::counter!("oncegate.gateway.upstream.connect.count").increment(1);
        let connecting = tokio::time::timeout(self.timeout, self.dial());
        connecting.await.unwrap_or(Err(Failed(Failure::ConnectTimeout)))
    }

    async fn dial(&self) -> Result<Connected, Failed> {
        let addresses = tokio::net::lookup_host((self.host.as_str(), self.port)).await;
        let addresses: Vec<_> = addresses.map_err(|_| Failed(Failure::NameNotFound))?.collect();
        if addresses.is_empty() {
            return Err(Failed(Failure::NameNotFound));
        }
        let stream = TcpStream::connect(&*addresses).await.map_err(|error| Failed(failure_of(&error)))?;
        stream.set_nodelay(true).map_err(|_| Failed(Failure::ConnectFailed))?;
        let Some(tls) = &self.tls else {
            return handshake(stream, self.http == Http::Two).await;
        };
        let stream = tls.connect(stream).await.map_err(|error| {
            tracing::warn!(%error, host = self.host, "the TLS handshake with the upstream failed");
            Failed(Failure::TlsHandshake)
        })?;
        let speaks_two = self.http == Http::Two || stream.get_ref().1.alpn_protocol() == Some(b"h2");
        handshake(stream, speaks_two).await
    }
}

async fn handshake<T>(stream: T, speaks_two: bool) -> Result<Connected, Failed>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let io = TokioIo::new(stream);
    if speaks_two {
        let shaken = http2::Builder::new(TokioExecutor::new()).timer(TokioTimer::new()).handshake(io).await;
        let (sender, connection) = shaken.map_err(|_| Failed(Failure::ConnectFailed))?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the upstream ended");
            }
        });
        return Ok(Connected::Two(sender));
    }
    let shaken = http1::Builder::new().handshake(io).await;
    let (sender, connection) = shaken.map_err(|_| Failed(Failure::ConnectFailed))?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to the upstream ended");
        }
    });
    Ok(Connected::One(sender))
}

fn failure_of(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Failure::ConnectionRefused,
        io::ErrorKind::TimedOut => Failure::ConnectTimeout,
        _ => Failure::ConnectFailed,
    }
}
