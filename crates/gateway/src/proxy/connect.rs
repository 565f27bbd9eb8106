//! A connection to the upstream. Whatever fails here, no request was sent.

use std::io;
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use oncegate_core::classify::Failure;
use oncegate_tower::{Failed, RequestBody};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::client::TlsStream;

use super::pool::One;
use super::tls::Tls;
use crate::config::{ConfigError, Http, Upstream};
use crate::public::ClientBody;

/// Makes connections.
pub(crate) struct Connector {
    host: String,
    port: u16,
    timeout: Duration,
    http: Http,
    tls: Option<Tls>,
}

/// A connection before its first word.
pub(crate) enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A new connection.
pub(super) enum Connected {
    One(One),
    /// And how many streams the upstream allows, as it says.
    Two(http2::SendRequest<RequestBody<ClientBody>>, watch::Receiver<usize>),
}

/// A connection that may have died is asked for a sign of life…
const PING_EVERY: Duration = Duration::from_secs(10);
/// …which has to come within this.
const PING_PATIENCE: Duration = Duration::from_secs(10);

impl Connector {
    pub(crate) fn new(upstream: &Upstream) -> Result<Self, ConfigError> {
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
        match self.wire().await? {
            Wire::Plain(stream) => handshake(stream, self.http == Http::Two).await,
            Wire::Tls(stream) => {
                let speaks_two = self.http == Http::Two || stream.get_ref().1.alpn_protocol() == Some(b"h2");
                handshake(stream, speaks_two).await
            }
        }
    }

    /// A connection by which nobody has said a word of HTTP yet. Whoever uses it bounds its time.
    pub(crate) async fn wire(&self) -> Result<Wire, Failed> {
        let addresses = tokio::net::lookup_host((self.host.as_str(), self.port)).await;
        let addresses: Vec<_> = addresses.map_err(|_| Failed(Failure::NameNotFound))?.collect();
        if addresses.is_empty() {
            return Err(Failed(Failure::NameNotFound));
        }
        let stream = TcpStream::connect(&*addresses).await.map_err(|error| Failed(failure_of(&error)))?;
        stream.set_nodelay(true).map_err(|_| Failed(Failure::ConnectFailed))?;
        let Some(tls) = &self.tls else { return Ok(Wire::Plain(stream)) };
        let stream = tls.connect(stream).await.map_err(|error| {
            tracing::warn!(%error, host = self.host, "the TLS handshake with the upstream failed");
            Failed(Failure::TlsHandshake)
        })?;
        Ok(Wire::Tls(Box::new(stream)))
    }
}

async fn handshake<T>(stream: T, speaks_two: bool) -> Result<Connected, Failed>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let io = TokioIo::new(stream);
    if speaks_two {
        let mut two = http2::Builder::new(TokioExecutor::new());
        two.timer(TokioTimer::new()).keep_alive_interval(PING_EVERY).keep_alive_timeout(PING_PATIENCE);
        // None until the upstream has said how many: a request beyond that would wait inside the connection, where no lease is
        // looked at any more.
        two.initial_max_send_streams(0);
        let (sender, connection) = two.handshake(io).await.map_err(|_| Failed(Failure::ConnectFailed))?;
        let (allows, mut allowed) = watch::channel(0);
        tokio::spawn(drive(connection, allows));
        allowed.wait_for(|allowed| *allowed > 0).await.map_err(|_| Failed(Failure::ConnectFailed))?;
        return Ok(Connected::Two(sender, allowed));
    }
    let shaken = http1::Builder::new().handshake(io).await;
    let (sender, connection) = shaken.map_err(|_| Failed(Failure::ConnectFailed))?;
    let wire = async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to the upstream ended");
        }
    };
    Ok(Connected::One(One::new(sender, wire)))
}

/// Keeps an HTTP/2 connection going, and tells how many streams its upstream allows.
///
/// hyper reads what the upstream says about it elsewhere and wakes nobody, so it is looked at now and then: often until it has been
/// said, which is the upstream's first word, and seldom afterwards.
async fn drive<T>(
    connection: http2::Connection<TokioIo<T>, RequestBody<ClientBody>, TokioExecutor>,
    allows: watch::Sender<usize>,
) where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut connection = std::pin::pin!(connection);
    loop {
        let said = connection.current_max_send_streams();
        allows.send_if_modified(|now| std::mem::replace(now, said) != said);
        let pause = if said == 0 { LOOK_OFTEN } else { LOOK_SELDOM };
        match tokio::time::timeout(pause, &mut connection).await {
            Err(_) => {}
            Ok(Ok(())) => return,
            Ok(Err(error)) => return tracing::debug!(%error, "a connection to the upstream ended"),
        }
    }
}

const LOOK_OFTEN: Duration = Duration::from_millis(1);
const LOOK_SELDOM: Duration = Duration::from_millis(100);

fn failure_of(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Failure::ConnectionRefused,
        io::ErrorKind::TimedOut => Failure::ConnectTimeout,
        _ => Failure::ConnectFailed,
    }
}
