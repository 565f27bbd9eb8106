//! Connections from clients.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use crate::config::{ConfigError, Listen};
use crate::public::{Peer, Public, Room, Secure};

/// Accepts connections until it is told to stop, then lets those that are there come to their end.
pub(crate) struct Listener {
    pub(crate) socket: TcpListener,
    pub(crate) public: Arc<Public>,
    pub(crate) settings: Listen,
    pub(crate) tls: Option<TlsAcceptor>,
}

/// A pause after an error of `accept` that is not the peer's: out of file descriptors, mostly.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl Listener {
    /// Returns when it has stopped accepting, with the connections that are left.
    pub(crate) async fn accept(self, mut stop: watch::Receiver<bool>) -> GracefulShutdown {
        let graceful = GracefulShutdown::new();
        let room = Arc::new(Semaphore::new(self.settings.connections_max));
        let mut http = Builder::new(TokioExecutor::new());
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.settings.header_timeout)
            .max_buf_size(self.settings.header_bytes_max);
        let header_list = u32::try_from(self.settings.header_bytes_max).unwrap_or(u32::MAX);
        http.http2().timer(TokioTimer::new()).max_header_list_size(header_list);
        let http = Arc::new(http);
        loop {
            let accepted = async {
                let room = Arc::clone(&room).acquire_owned().await;
                (self.socket.accept().await, room)
            };
            let (accepted, room) = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return graceful,
                accepted = accepted => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let _ = stream.set_nodelay(true);
            let connection = Connection {
                http: Arc::clone(&http),
                public: Arc::clone(&self.public),
                peer: Peer(peer),
                watcher: graceful.watcher(),
                room: room.ok().map(|room| Room(Arc::new(room))),
                begin_within: self.settings.header_timeout,
            };
            let tls = self.tls.clone();
            let shake_within = self.settings.header_timeout;
            let mut stop = stop.clone();
            tokio::spawn(async move {
                let Some(tls) = tls else { return connection.serve(stream, None).await };
                let shaken = tokio::select! {
                    biased;
                    // Nothing was asked yet, so a shutdown does not wait for it.
                    _ = stop.wait_for(|stop| *stop) => return,
                    shaken = tokio::time::timeout(shake_within, tls.accept(stream)) => shaken,
                };
                match shaken {
                    Ok(Ok(stream)) => connection.serve(stream, Some(Secure)).await,
                    Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                    Err(_) => tracing::debug!("a TLS handshake took too long"),
                }
            });
        }
    }
}

struct Connection {
    http: Arc<Builder<TokioExecutor>>,
    public: Arc<Public>,
    peer: Peer,
    watcher: Watcher,
    room: Option<Room>,
    begin_within: Duration,
}

impl Connection {
    async fn serve<T>(self, stream: T, secure: Option<Secure>)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Self { http, public, peer, watcher, room, begin_within } = self;
        let has_begun = Arc::new(AtomicBool::new(false));
        let begun = Arc::clone(&has_begun);
        let service = service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
            begun.store(true, Ordering::Relaxed);
            request.extensions_mut().insert(peer);
            if let Some(room) = &room {
                request.extensions_mut().insert(room.clone());
            }
            if let Some(secure) = secure {
                request.extensions_mut().insert(secure);
            }
            let public = Arc::clone(&public);
            async move { Ok::<_, std::convert::Infallible>(public.answer(request).await) }
        });
        let connection = http.serve_connection_with_upgrades(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(watcher.watch(connection.into_owned()));
        // hyper's own limit on a head begins when it knows which version it reads, so whoever says nothing would never end.
        let ended = match tokio::time::timeout(begin_within, &mut connection).await {
            Ok(ended) => ended,
            Err(_) if has_begun.load(Ordering::Relaxed) => connection.await,
            Err(_) => return tracing::debug!("a client's connection said nothing"),
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a client's connection ended");
        }
    }
}

/// TLS towards clients.
pub(crate) fn tls(settings: &Listen) -> Result<Option<TlsAcceptor>, ConfigError> {
    let Some((certificate, key)) = &settings.tls else { return Ok(None) };
    let wrong =
        |path: &Path, message: String| ConfigError::of("listen", format!("{}: {message}", path.display()));
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| wrong(certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(wrong(certificate, "holds no certificate; expected PEM".to_owned()));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, error.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, secret));
    let mut config = config.map_err(|error| wrong(certificate, error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

/// Binds a socket; the error says which and why.
pub(crate) async fn bind(address: std::net::SocketAddr, flag: &str) -> Result<TcpListener, ConfigError> {
    let bound: io::Result<TcpListener> = TcpListener::bind(address).await;
    bound.map_err(|error| {
        let advice = match error.kind() {
            io::ErrorKind::AddrInUse => "; another process has it: stop that one, or choose another port",
            io::ErrorKind::PermissionDenied => "; ports under 1024 need a privilege: choose another port",
            _ => "",
        };
        ConfigError::of(flag, format!("{address} cannot be listened on: {error}{advice}"))
    })
}
