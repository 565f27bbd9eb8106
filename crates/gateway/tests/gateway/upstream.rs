//! An upstream on a port of its own, which does as it is told and remembers what it saw.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt as _;
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::client::within;
use crate::wire;

/// A request, as it was on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Which connection it came by, from 1.
    pub(crate) connection: usize,
    /// Which request it is, from 1.
    pub(crate) number: usize,
    /// Method, address and version.
    pub(crate) line: String,
    pub(crate) headers: wire::Headers,
    pub(crate) body: Vec<u8>,
}

impl Seen {
    /// The only value of a header.
    #[track_caller]
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let values = self.values(name);
        assert!(values.len() < 2, "{name} is repeated: {values:?}");
        values.first().copied()
    }

    pub(crate) fn values(&self, name: &str) -> Vec<&str> {
        let found = self.headers.iter().filter(|(n, _)| n == name);
        found.map(|(_, value)| str::from_utf8(value).unwrap()).collect()
    }
}

/// What it does with a request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Sends these bytes, and reads on.
    Answer(Vec<u8>),
    /// Sends these bytes, and closes.
    AnswerAndClose(Vec<u8>),
    /// Resets the connection.
    Reset,
}

/// An answer, as bytes.
pub(crate) fn answer(status: u16, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut bytes = format!("HTTP/1.1 {status} Status\r\n").into_bytes();
    for (name, value) in headers {
        bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    bytes.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
    [&bytes, body].concat()
}

/// 200, with this body.
pub(crate) fn ok(body: impl AsRef<[u8]>) -> Act {
    Act::Answer(answer(200, &[], body))
}

/// The one that is running.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    pub(crate) addr: SocketAddr,
    seen: watch::Sender<Vec<Seen>>,
    connections: Arc<AtomicUsize>,
}

impl Upstream {
    /// Does what `handler` says, request by request.
    pub(crate) async fn start<H, F>(handler: H) -> Self
    where
        H: Fn(Seen) -> F + Send + Sync + 'static,
        F: Future<Output = Act> + Send + 'static,
    {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), handler)
    }

    /// Says which run it is.
    pub(crate) async fn numbered() -> Self {
        Self::start(numbered).await
    }

    /// Stops at the gate, then says which run it is.
    pub(crate) async fn gated() -> (Gate, Self) {
        let gate = Gate::new();
        let at_gate = gate.clone();
        let handler = move |seen: Seen| {
            let gate = at_gate.clone();
            async move {
                gate.pass().await;
                numbered(seen).await
            }
        };
        (gate, Self::start(handler).await)
    }

    pub(crate) fn on<H, F>(listener: TcpListener, handler: H) -> Self
    where
        H: Fn(Seen) -> F + Send + Sync + 'static,
        F: Future<Output = Act> + Send + 'static,
    {
        let upstream = Self {
            addr: listener.local_addr().unwrap(),
            seen: watch::Sender::new(Vec::new()),
            connections: Arc::default(),
        };
        let (running, handler) = (upstream.clone(), Arc::new(handler));
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (running, handler) = (running.clone(), Arc::clone(&handler));
                tokio::spawn(async move { running.serve(stream, &*handler).await });
            }
        });
        upstream
    }

    async fn serve<F>(&self, stream: TcpStream, handler: &(impl Fn(Seen) -> F + Send + Sync))
    where
        F: Future<Output = Act> + Send,
    {
        let connection = self.connections.fetch_add(1, Ordering::SeqCst) + 1;
        stream.set_nodelay(true).unwrap();
        let mut stream = BufReader::new(stream);
        while let Ok((line, headers)) = wire::read_head(&mut stream).await {
            let Ok(body) = wire::read_body(&mut stream, &headers).await else { return };
            let seen = Seen { connection, number: 0, line, headers, body: body.unwrap_or_default() };
            match handler(self.note(seen)).await {
                Act::Answer(bytes) => {
                    if stream.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
                Act::AnswerAndClose(bytes) => {
                    let _ = stream.write_all(&bytes).await;
                    return;
                }
                Act::Reset => return stream.get_ref().set_zero_linger().unwrap(),
            }
        }
    }

    fn note(&self, mut seen: Seen) -> Seen {
        self.seen.send_modify(|all| {
            seen.number = all.len() + 1;
            all.push(seen.clone());
        });
        seen
    }

    /// Everything that it was asked.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.borrow().clone()
    }

    /// How often it was asked.
    pub(crate) fn runs(&self) -> usize {
        self.seen.borrow().len()
    }

    /// The last that it was asked.
    pub(crate) fn last(&self) -> Seen {
        self.seen.borrow().last().cloned().expect("it was asked something")
    }

    /// Waits until it was asked so often.
    pub(crate) async fn ran(&self, count: usize) {
        within(self.seen.subscribe().wait_for(|all| all.len() >= count)).await.unwrap();
    }

    /// How many connections there were.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// `run 1`, `run 2`, …
pub(crate) async fn numbered(seen: Seen) -> Act {
    ok(format!("run {}", seen.number))
}

/// A port that refuses connections until it is listened on.
#[derive(Debug)]
pub(crate) struct Refusing(TcpSocket);

impl Refusing {
    pub(crate) fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        Self(socket)
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    pub(crate) fn listen(self) -> TcpListener {
        self.0.listen(64).unwrap()
    }
}

/// Where an upstream stops until a test lets it go on.
#[derive(Clone, Debug)]
pub(crate) struct Gate(Arc<[Semaphore; 2]>);

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Arc::new([Semaphore::new(0), Semaphore::new(0)]))
    }

    /// The upstream's side. Who came first passes first: it stands in the queue before it says that it has entered.
    pub(crate) async fn pass(&self) {
        let [entered, open] = &*self.0;
        let mut opened = std::pin::pin!(open.acquire());
        let at_once = opened.as_mut().now_or_never();
        entered.add_permits(1);
        match at_once {
            Some(permit) => permit.unwrap().forget(),
            None => opened.await.unwrap().forget(),
        }
    }

    /// Waits until a request stands here.
    pub(crate) async fn entered(&self) {
        within(self.0[0].acquire()).await.unwrap().forget();
    }

    /// Lets one pass.
    pub(crate) fn open(&self) {
        self.0[1].add_permits(1);
    }
}
