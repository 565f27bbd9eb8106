//! The connection to the server: one, shared by all calls, made again when it is lost.
//!
//! **Invariant:** a call that fails before anything was sent says so, and every other failure of a write leaves it in doubt.
//! A call ends within its limit, whatever the server does. What a call gave up on is given up with its connection, so that the next
//! one does not wait behind it.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncegate_store::{Effect, Kind, Result, StoreError};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep, timeout_at};

use crate::address::Address;
use crate::error::{self, Nature};
use crate::io;

/// A handle on a connection; clones share it.
pub(crate) type Connection = MultiplexedConnection;

/// How a new connection is looked over before it is used.
pub(crate) trait LookOver: Send + Sync + 'static {
    fn look_over(&self, connection: &mut Connection) -> impl Future<Output = Result<()>> + Send;
}

/// See the module.
pub(crate) struct Link<L> {
    on: Handle,
    address: Address,
    limit: Duration,
    look_over: L,
    current: Mutex<Option<Live>>,
}

#[derive(Clone)]
struct Live {
    connection: Connection,
    state: Arc<LiveState>,
}

#[derive(Default)]
struct LiveState {
    is_over: AtomicBool,
    given_up: Notify,
}

impl LiveState {
    /// No further call uses it.
    fn give_up(&self) {
        self.is_over.store(true, Ordering::Release);
        self.given_up.notify_one();
    }
}

/// A connection that is given up unless it is taken out of here.
struct Unproven<'a>(Option<&'a LiveState>);

impl Drop for Unproven<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.0 {
            state.give_up();
        }
    }
}

impl<L: LookOver> Link<L> {
    pub(crate) fn new(on: Handle, address: Address, limit: Duration, look_over: L) -> Self {
        Self { on, address, limit, look_over, current: Mutex::new(None) }
    }

    pub(crate) const fn look_over(&self) -> &L {
        &self.look_over
    }

    /// Connects, if there is no connection.
    pub(crate) async fn connect(self: &Arc<Self>) -> Result<()> {
        self.call("open", Nature::Reads, |_| async { Ok(()) }).await
    }

    /// Runs `job` with the connection, within the limit; it goes on if the caller does not wait for it.
    pub(crate) async fn call<T, F>(
        self: &Arc<Self>,
        operation: &'static str,
        nature: Nature,
        job: impl FnOnce(Connection) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = RedisResult<T>> + Send + 'static,
    {
        let link = Arc::clone(self);
        let ran = io::run(&self.on, async move { link.within_limit(operation, nature, job).await }).await;
        let ended = || StoreError::new(Kind::Unavailable, nature.effect(), operation);
        ran.unwrap_or_else(|| Err(ended().because("the store is being closed")))
    }

    async fn within_limit<T, F>(
        &self,
        operation: &'static str,
        nature: Nature,
        job: impl FnOnce(Connection) -> F,
    ) -> Result<T>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let until = Instant::now() + self.limit;
        let live = match timeout_at(until, self.live(operation)).await {
            Ok(live) => live?,
            Err(_) => return Err(self.took_too_long(Effect::None, operation)),
        };
        match timeout_at(until, job(live.connection.clone())).await {
            Ok(Ok(answered)) => Ok(answered),
            Ok(Err(error)) => Err(error::of_call(error, operation, nature)),
            Err(_) => {
                live.state.give_up();
                Err(self.took_too_long(nature.effect(), operation))
            }
        }
    }

    fn took_too_long(&self, effect: Effect, operation: &'static str) -> StoreError {
        let why = format!("{:?} did not answer within {:?}", self.address, self.limit);
        StoreError::new(Kind::Unavailable, effect, operation).because(why)
    }

    /// The connection; a new one if there is none or it is known to be over.
    async fn live(&self, operation: &'static str) -> Result<Live> {
        let mut current = self.current.lock().await;
        if let Some(live) = current.as_ref().filter(|live| !live.state.is_over.load(Ordering::Acquire)) {
            return Ok(live.clone());
        }
        *current = None;
        let live =
            self.dial().await.map_err(|error| error::of_connecting(&error, operation, &self.address))?;
        // A caller who stops waiting here drops this future, and the connection must end with it.
        let mut unproven = Unproven(Some(&live.state));
        self.look_over.look_over(&mut live.connection.clone()).await?;
        unproven.0 = None;
        drop(unproven);
        Ok(current.insert(live).clone())
    }

    async fn dial(&self) -> std::result::Result<Live, RedisError> {
        let (connection, driver) = shake_hands(&self.address).await?;
        let state = Arc::new(LiveState::default());
        let (watched, limit) = (Arc::clone(&state), self.limit);
        self.on.spawn(async move {
            tokio::select! {
                () = driver => {}
                // Others may still be answered on it, within their own limits.
                () = async { watched.given_up.notified().await; sleep(limit).await } => {}
            }
            watched.is_over.store(true, Ordering::Release);
        });
        Ok(Live { connection, state })
    }
}

/// A connection, and what drives it until it ends.
pub(crate) async fn shake_hands(
    address: &Address,
) -> std::result::Result<(Connection, impl Future<Output = ()> + Send + 'static), RedisError> {
    // Limits of time are ours; the library's would not say whether anything was sent.
    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    MultiplexedConnection::new_with_config(&address.handshake, dial(address).await?, config).await
}

/// What the library speaks over.
pub(crate) type Stream = Box<dyn AsyncStream>;

/// A TCP connection, or TLS over one.
pub(crate) trait AsyncStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> AsyncStream for T {}

/// A connection to the server, encrypted if the URL says so.
pub(crate) async fn dial(address: &Address) -> std::io::Result<Stream> {
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    stream.set_nodelay(true)?;
    Ok(match &address.tls {
        Some(tls) => Box::new(tls.connect(stream).await?),
        None => Box::new(stream),
    })
}
