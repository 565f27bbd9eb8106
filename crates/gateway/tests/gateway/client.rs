//! An HTTP/1.1 client that shows the bytes as they are on the wire.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};

use crate::reply::Reply;
use crate::wire;

/// Longer than anything here takes, also on a busy machine: past it something hangs.
const PATIENCE: Duration = Duration::from_mins(1);

/// Fails instead of hanging.
pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("in time")
}

/// A request, to be sent as often as one likes.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    head: Vec<u8>,
    body: Vec<u8>,
    is_chunked: bool,
    is_head: bool,
}

impl Call {
    /// Without credentials.
    pub(crate) fn anonymous(method: &str, path: &str) -> Self {
        Self::to_host(method, path, "api.test")
    }

    /// To an admin listener of this machine.
    pub(crate) fn operator(method: &str, path: &str) -> Self {
        Self::to_host(method, path, "localhost")
    }

    fn to_host(method: &str, path: &str, host: &str) -> Self {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n").into_bytes();
        Self { head, body: Vec::new(), is_chunked: false, is_head: method == "HEAD" }
    }

    /// A POST by the tenant `acme`, with this key and a small body.
    pub(crate) fn pay(key: &str) -> Self {
        Self::post("/payments").key(key).json(r#"{"amount":100}"#)
    }

    /// A POST by the tenant `acme`.
    pub(crate) fn post(path: &str) -> Self {
        Self::anonymous("POST", path).tenant("acme")
    }

    /// By the tenant `acme`.
    pub(crate) fn get(path: &str) -> Self {
        Self::anonymous("GET", path).tenant("acme")
    }

    pub(crate) fn tenant(self, tenant: &str) -> Self {
        self.header("authorization", format!("Bearer {tenant}").as_bytes())
    }

    pub(crate) fn key(self, key: &str) -> Self {
        self.header("idempotency-key", key.as_bytes())
    }

    pub(crate) fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        for part in [name.as_bytes(), b": ", value.as_ref(), b"\r\n"] {
            self.head.extend_from_slice(part);
        }
        self
    }

    pub(crate) fn json(self, body: &str) -> Self {
        self.header("content-type", "application/json").body(body)
    }

    pub(crate) fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body = body.as_ref().to_vec();
        self
    }

    /// The body goes in chunks, and its length is not said beforehand.
    pub(crate) fn chunked(mut self) -> Self {
        self.is_chunked = true;
        self
    }

    /// The head, with what says how the body is framed.
    pub(crate) fn head(&self) -> Vec<u8> {
        let framing = if self.is_chunked {
            "transfer-encoding: chunked\r\n\r\n".to_owned()
        } else if self.body.is_empty() && !self.head.starts_with(b"P") {
            "\r\n".to_owned()
        } else {
            format!("content-length: {}\r\n\r\n", self.body.len())
        };
        [&*self.head, framing.as_bytes()].concat()
    }

    /// Everything.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head();
        if self.is_chunked {
            self.body.chunks(16 << 10).for_each(|piece| bytes.extend_from_slice(&wire::chunk(piece)));
            bytes.extend_from_slice(b"0\r\n\r\n");
        } else {
            bytes.extend_from_slice(&self.body);
        }
        bytes
    }

    /// Sends it over a connection of its own.
    pub(crate) async fn open(&self, to: SocketAddr) -> Connection {
        let mut connection = Connection::to(to).await;
        connection.send(self).await;
        connection
    }

    /// Sends it over a connection of its own, and reads the reply.
    pub(crate) async fn send(&self, to: SocketAddr) -> Reply {
        self.open(to).await.reply_to(self).await
    }
}

/// A connection; dropped, the client has hung up.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) read: BufReader<OwnedReadHalf>,
    pub(crate) write: OwnedWriteHalf,
}

impl Connection {
    pub(crate) async fn to(addr: SocketAddr) -> Self {
        Self::of(within(TcpStream::connect(addr)).await.unwrap())
    }

    /// From an address of one's own.
    pub(crate) async fn from(own: IpAddr, addr: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(own, 0)).unwrap();
        Self::of(within(socket.connect(addr)).await.unwrap())
    }

    fn of(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        let (read, write) = stream.into_split();
        Self { read: BufReader::new(read), write }
    }

    /// Writes all of a request before anything is read.
    pub(crate) async fn send(&mut self, call: &Call) {
        self.write(&call.bytes()).await;
    }

    pub(crate) async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        within(self.write.write_all(bytes.as_ref())).await.unwrap();
    }

    /// Whether nothing has come yet.
    pub(crate) fn is_silent(&mut self) -> bool {
        let mut byte = [0];
        let read = self.read.get_mut().try_read(&mut byte);
        self.read.buffer().is_empty() && read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Whether nothing has come yet, and the other side has not closed. What has come can still be
    /// read.
    pub(crate) fn is_open_and_silent(&mut self) -> bool {
        let mut byte = [0];
        let peeked = tokio::task::unconstrained(self.read.get_mut().peek(&mut byte)).now_or_never();
        peeked.is_none() && self.read.buffer().is_empty()
    }

    /// Sends it and reads the reply.
    pub(crate) async fn ask(&mut self, call: &Call) -> Reply {
        self.send(call).await;
        self.reply_to(call).await
    }

    async fn reply_to(&mut self, call: &Call) -> Reply {
        if !call.is_head {
            return self.reply().await;
        }
        let (status, headers) = self.reply_head().await;
        Reply { status, headers, body: Vec::new() }
    }

    /// Reads one reply.
    pub(crate) async fn reply(&mut self) -> Reply {
        self.try_reply().await.unwrap()
    }

    pub(crate) async fn try_reply(&mut self) -> io::Result<Reply> {
        let (status, headers) = self.try_reply_head().await?;
        if matches!(status, 100..200 | 204 | 304) {
            return Ok(Reply { status, headers, body: Vec::new() });
        }
        let reading = async {
            if let Some(body) = wire::read_body(&mut self.read, &headers).await? {
                return Ok::<_, io::Error>(body);
            }
            let mut body = Vec::new();
            self.read.read_to_end(&mut body).await?;
            Ok(body)
        };
        let body = within(reading).await?;
        Ok(Reply { status, headers, body })
    }

    /// Reads the head of a reply, and leaves its body.
    pub(crate) async fn reply_head(&mut self) -> (u16, wire::Headers) {
        self.try_reply_head().await.unwrap()
    }

    async fn try_reply_head(&mut self) -> io::Result<(u16, wire::Headers)> {
        let (line, headers) = within(wire::read_head(&mut self.read)).await?;
        let status = line.strip_prefix("HTTP/1.1 ").expect("HTTP/1.1")[..3].parse().unwrap();
        Ok((status, headers))
    }

    /// Waits for the other side to close; nothing may come before.
    pub(crate) async fn closed(&mut self) {
        let rest = within(self.read.fill_buf()).await;
        // A reset is a way to close, too.
        if let Ok(rest) = rest {
            assert_eq!(rest, b"", "nothing more comes");
        }
    }
}

/// Sends bytes as they are, and reads one reply.
pub(crate) async fn send_raw(to: SocketAddr, bytes: impl AsRef<[u8]>) -> Reply {
    let mut connection = Connection::to(to).await;
    connection.write(bytes).await;
    connection.reply().await
}
