//! Connections from clients and operators: encrypted, and bounded in number and time.

mod client_stream;
mod socket;
mod stall;
mod tls;

use std::error::Error;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use crate::config::Listen;
use crate::public::{ConnectionPlace, Peer, PeerConnection, PeerUsage, Room, Secure};

use client_stream::{ClientStream, Heads};
use socket::Accepted;
use stall::Stalling;

pub(crate) use socket::Socket;
pub(crate) use tls::{ServerTls, Side};

/// Accepts connections until it is told to stop, then lets those that are there come to their end.
pub(crate) struct Listener<S> {
    pub(crate) socket: Socket,
    pub(crate) service: Arc<S>,
    pub(crate) settings: Listen,
    pub(crate) tls: Option<TlsAcceptor>,
}

/// Answers the requests that come to a listener.
pub(crate) trait HttpService: Send + Sync + 'static {
    /// What it answers with.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static;

    /// Counts a connection of this address, or of none on a Unix socket; `None`: it is to be
    /// closed.
    fn connect(&self, peer: Option<IpAddr>) -> Option<PeerConnection>;

    /// Answers a request of this connection; with it, its address has so many requests.
    fn answer(
        &self,
        request: Request<Incoming>,
        connection: &PeerConnection,
        peer_requests: usize,
    ) -> impl Future<Output = Response<Self::Body>> + Send;

    /// Counts a head that was refused before there was a request.
    fn count_malformed();
}

/// The most requests at once on one HTTP/2 connection.
const STREAMS_MAX: u32 = 100;
/// The most of an answer that is given to a connection at once.
const PIECE_BYTES: usize = 64 << 10;
/// Connections are looked at as often as their limits need, but not without a pause.
const LOOK_AT_MOST_EVERY: Duration = Duration::from_millis(10);
/// A pause after an error of `accept` that is not the peer's: out of file descriptors, mostly.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl<S: HttpService> Listener<S> {
    /// Returns when it has stopped accepting, with the connections that are left.
    pub(crate) async fn accept(self, mut stop: watch::Receiver<bool>) -> GracefulShutdown {
        let graceful = GracefulShutdown::new();
        let room = Arc::new(Semaphore::new(self.settings.connections_max));
        let mut http = Builder::new(TokioExecutor::new());
        http.http1()
            .timer(TokioTimer::new())
            // `ClientStream` limits it, and answers.
            .header_read_timeout(None)
            .max_buf_size(self.settings.header_bytes_max);
        let header_list = u32::try_from(self.settings.header_bytes_max).unwrap_or(u32::MAX);
        http.http2()
            .timer(TokioTimer::new())
            .max_header_list_size(header_list)
            .max_concurrent_streams(STREAMS_MAX)
            .keep_alive_interval(self.settings.idle_timeout);
        let http = Arc::new(http);
        let settings = Arc::new(self.settings.clone());
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
            let accepted = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "accept failed; retrying");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let peer = match &accepted {
                Accepted::Tcp(_, peer) => Some(Peer(*peer)),
                Accepted::Unix(_) => None,
            };
            let counted = self.service.connect(peer.map(|Peer(peer)| peer.ip()));
            let (Some(counted), Ok(permit)) = (counted, room) else { continue };
            let connection = Connection {
                http: Arc::clone(&http),
                service: Arc::clone(&self.service),
                peer,
                watcher: graceful.watcher(),
                room: Room(Arc::new(ConnectionPlace { peer: counted, _permit: permit })),
                settings: Arc::clone(&settings),
            };
            let tls = self.tls.clone();
            let shake_within = self.settings.header_timeout;
            let mut stop = stop.clone();
            tokio::spawn(async move {
                let stream = match accepted {
                    Accepted::Tcp(stream, _) => stream,
                    Accepted::Unix(stream) => return connection.serve(stream, None).await,
                };
                let Some(tls) = tls else { return connection.serve(stream, None).await };
                let shaken = tokio::select! {
                    biased;
                    // Nothing was asked yet, so a shutdown does not wait for it.
                    _ = stop.wait_for(|stop| *stop) => return,
                    shaken = tokio::time::timeout(shake_within, tls.accept(stream)) => shaken,
                };
                match shaken {
                    Ok(Ok(stream)) => connection.serve(stream, Some(Secure)).await,
                    Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                    Err(_) => tracing::debug!("TLS handshake timed out"),
                }
            });
        }
    }
}

struct Connection<S> {
    http: Arc<Builder<TokioExecutor>>,
    service: Arc<S>,
    /// `None` on a Unix socket.
    peer: Option<Peer>,
    watcher: Watcher,
    room: Room,
    settings: Arc<Listen>,
}

impl<S: HttpService> Connection<S> {
    async fn serve<T>(self, stream: T, secure: Option<Secure>)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Self { http, service, peer, watcher, room, settings } = self;
        let use_of_it = Arc::new(Use::new(Arc::clone(room.0.peer.usage())));
        let used = Arc::clone(&use_of_it);
        let service = service_fn(move |mut request: Request<Incoming>| {
            let (under_way, peer_requests) = used.begin();
            let under_way = Arc::new(under_way);
            request.extensions_mut().insert(InFlight { _request: Arc::clone(&under_way) });
            if let Some(peer) = peer {
                request.extensions_mut().insert(peer);
            }
            request.extensions_mut().insert(room.clone());
            if let Some(secure) = secure {
                request.extensions_mut().insert(secure);
            }
            let service = Arc::clone(&service);
            let used = Arc::clone(&used);
            let room = room.clone();
            async move {
                let answer = service.answer(request, &room.0.peer, peer_requests).await;
                if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
                    used.is_tunnel.store(true, Ordering::Relaxed);
                }
                Ok::<_, std::convert::Infallible>(answer.map(|body| Using {
                    body,
                    rest: Bytes::new(),
                    _under_way: under_way,
                }))
            }
        });
        let stream = Stalling::new(stream, settings.body_timeout);
        let is_stuck = stream.is_stuck();
        let heads = Heads { timeout: settings.header_timeout, count_malformed: S::count_malformed };
        let stream = ClientStream::new(stream, Arc::clone(&use_of_it), heads);
        let connection = http.serve_connection_with_upgrades(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(watcher.watch(connection.into_owned()));
        // A head that has begun has a limit of its own; this is for clients that say nothing.
        let look_every = settings.header_timeout.min(settings.idle_timeout).max(LOOK_AT_MOST_EVERY);
        let ended = loop {
            if let Ok(ended) = tokio::time::timeout(look_every, &mut connection).await {
                break ended;
            }
            if use_of_it.is_over(&settings) && !is_stuck.load(Ordering::Relaxed) {
                return tracing::debug!("closing idle client connection");
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "client connection failed");
        }
    }
}

/// What a connection is used for.
struct Use {
    used: Mutex<Used>,
    peer: Arc<PeerUsage>,
    is_tunnel: AtomicBool,
}

struct Used {
    begun: u64,
    under_way: usize,
    /// When it began, or when a request last began or ended.
    since: Instant,
    /// When the head began to come that is not whole yet.
    head_since: Option<Instant>,
}

impl Use {
    fn new(peer: Arc<PeerUsage>) -> Self {
        let used = Mutex::new(Used { begun: 0, under_way: 0, since: Instant::now(), head_since: None });
        Self { used, peer, is_tunnel: AtomicBool::new(false) }
    }

    /// Begins a request; how many its address has with it.
    fn begin(self: &Arc<Self>) -> (UnderWay, usize) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let peer_requests = self.peer.begin_request();
        let (begun, under_way) = (used.begun + 1, used.under_way + 1);
        *used = Used { begun, under_way, since: Instant::now(), head_since: None };
        (UnderWay(Arc::clone(self)), peer_requests)
    }

    /// Whether nothing was asked for as long as it may.
    fn is_over(&self, settings: &Listen) -> bool {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = if used.begun > 0 { settings.idle_timeout } else { settings.header_timeout };
        used.under_way == 0 && used.head_since.is_none() && used.since.elapsed() >= limit
    }

    /// Some of a head has come, unless it belongs to a request that is under way, or to a tunnel.
    fn receive_head(&self) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.under_way == 0 && used.head_since.is_none() && !self.is_tunnel() {
            used.head_since = Some(Instant::now());
        }
    }

    /// When the head began to come that is not whole yet.
    fn head_since(&self) -> Option<Instant> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).head_since
    }

    /// How many requests have begun, if none of them is under way.
    fn answered(&self) -> Option<u64> {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        (used.under_way == 0).then_some(used.begun)
    }

    /// Whether the connection was given to another protocol.
    fn is_tunnel(&self) -> bool {
        self.is_tunnel.load(Ordering::Relaxed)
    }
}

/// Counts a request against its address until it is dropped; in the request's extensions, because
/// an attempt goes on when its client hangs up.
#[derive(Clone)]
pub(crate) struct InFlight {
    _request: Arc<UnderWay>,
}

/// A request, until its answer has been taken.
struct UnderWay(Arc<Use>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut used = self.0.used.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.peer.end_request();
        used.under_way -= 1;
        used.since = Instant::now();
    }
}

pin_project! {
    /// An answer's body, by which its request is under way. It is given in pieces: HTTP/2 takes whatever it is given, and keeps it until
    /// the client wants it.
    struct Using<B> {
        #[pin]
        body: B,
        rest: Bytes,
        _under_way: Arc<UnderWay>,
    }
}

impl<B: Body<Data = Bytes>> Body for Using<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        if this.rest.is_empty() {
            match this.body.poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => *this.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                otherwise => return otherwise,
            }
        }
        let piece = this.rest.split_to(this.rest.len().min(PIECE_BYTES));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut whole = SizeHint::new();
        whole.set_lower(hint.lower().saturating_add(rest));
        if let Some(upper) = hint.upper() {
            whole.set_upper(upper.saturating_add(rest));
        }
        whole
    }
}
