//! The API behind: it knows nothing of idempotency, and writes down whatever it does.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use oncegate_test_servers::wait_until;
use tokio::sync::watch;

/// An upstream. Dropped, it is gone, and what it was doing with it.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    serving: tokio::task::JoinHandle<()>,
}

struct Shared {
    manners: Manners,
    ledger: Mutex<Ledger>,
    /// While it is shut, work that has begun does not end.
    gate: watch::Sender<bool>,
    waiting: watch::Sender<usize>,
}

/// What the upstream is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    /// How long an answer is.
    pub(crate) answer_bytes: usize,
    /// Whether it knows the keys that it has acted on, and acts once.
    pub(crate) dedupes: bool,
}

impl Default for Manners {
    fn default() -> Self {
        Self { answer_bytes: 100, dedupes: false }
    }
}

#[derive(Default)]
struct Ledger {
    effects: BTreeMap<String, usize>,
    requests: usize,
}

impl Upstream {
    pub(crate) async fn start() -> Self {
        Self::with(Manners::default()).await
    }

    pub(crate) async fn with(manners: Manners) -> Self {
        let shared = Arc::new(Shared {
            manners,
            ledger: Mutex::default(),
            gate: watch::Sender::new(true),
            waiting: watch::Sender::new(0),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new().fallback(act).with_state(Arc::clone(&shared));
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, shared, serving }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on work begins and does not end.
    pub(crate) fn shut(&self) {
        self.shared.gate.send_replace(false);
    }

    pub(crate) fn open(&self) {
        self.shared.gate.send_replace(true);
    }

    /// Waits until so many requests stand at the gate.
    pub(crate) fn wait_for_waiting(&self, count: usize) {
        wait_until(&format!("{count} requests are at work"), || *self.shared.waiting.borrow() == count);
    }

    /// How often it has acted on a key.
    pub(crate) fn acted(&self, key: &str) -> usize {
        self.shared.ledger.lock().unwrap().effects.get(key).copied().unwrap_or(0)
    }

    /// How often it has acted, by key.
    pub(crate) fn effects(&self) -> BTreeMap<String, usize> {
        self.shared.ledger.lock().unwrap().effects.clone()
    }

    /// How many requests have come.
    pub(crate) fn requests(&self) -> usize {
        self.shared.ledger.lock().unwrap().requests
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Acts first, and answers when the gate is open.
async fn act(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> (StatusCode, String) {
    let key = headers.get("idempotency-key").map_or("none", |key| key.to_str().unwrap()).to_owned();
    let number = {
        let mut ledger = shared.ledger.lock().unwrap();
        ledger.requests += 1;
        let number = ledger.requests;
        let times = ledger.effects.entry(key.clone()).or_default();
        if *times == 0 || !shared.manners.dedupes {
            *times += 1;
        }
        number
    };
    let standing = Standing::new(&shared.waiting);
    let mut gate = shared.gate.subscribe();
    gate.wait_for(|is_open| *is_open).await.unwrap();
    drop(standing);
    let number = if shared.manners.dedupes { 1 } else { number };
    let mut answer = format!("{key} by request {number} with {} bytes ", body.len());
    // Not the same byte throughout, so that a piece in the wrong place is seen.
    let more = shared.manners.answer_bytes.saturating_sub(answer.len());
    answer.extend((0..more).map(|at| char::from(b'a' + u8::try_from(at % 23).unwrap())));
    (StatusCode::CREATED, answer)
}

/// Counted while it stands there; also if its connection is cut.
struct Standing<'w>(&'w watch::Sender<usize>);

impl<'w> Standing<'w> {
    fn new(waiting: &'w watch::Sender<usize>) -> Self {
        waiting.send_modify(|count| *count += 1);
        Self(waiting)
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Accepts, and never says a word: connections to it are made, and no TLS handshake ends.
pub(crate) struct Mute(TcpListener);

impl Mute {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // So that a gateway which never comes fails the test.
        listener.set_nonblocking(true).unwrap();
        Self(listener)
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.0.local_addr().unwrap())
    }

    /// The next connection, once the gateway has spoken.
    pub(crate) fn accept(&self) -> TcpStream {
        let mut accepted = None;
        wait_until("the gateway connects", || {
            accepted = self.0.accept().ok();
            accepted.is_some()
        });
        let (stream, _) = accepted.unwrap();
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        assert_eq!(stream.peek(&mut [0]).unwrap(), 1, "the gateway speaks first");
        stream
    }
}
