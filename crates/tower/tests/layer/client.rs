//! An HTTP/1.1 client that shows the bytes as they are on the wire.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::reply::Reply;

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
}

impl Call {
    /// By nobody.
    pub(crate) fn anonymous(method: &str, path: &str) -> Self {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\n").into_bytes();
        Self { head, body: Vec::new(), is_chunked: false }
    }

    /// By the tenant `acme`.
    pub(crate) fn post(path: &str) -> Self {
        Self::anonymous("POST", path).tenant("acme")
    }

    pub(crate) fn tenant(self, tenant: &str) -> Self {
        self.header("x-tenant", tenant.as_bytes())
    }

    pub(crate) fn key(self, key: &str) -> Self {
        self.header("idempotency-key", key.as_bytes())
    }

    pub(crate) fn header(mut self, name: &str, value: &[u8]) -> Self {
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            self.head.extend_from_slice(part);
        }
        self
    }

    pub(crate) fn json(self, body: &str) -> Self {
        self.header("content-type", b"application/json").body(body.as_bytes())
    }

    pub(crate) fn body(mut self, body: &[u8]) -> Self {
        self.body = body.to_vec();
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
        } else {
            format!("content-length: {}\r\n\r\n", self.body.len())
        };
        [&*self.head, framing.as_bytes()].concat()
    }

    /// Everything.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head();
        if self.is_chunked {
            for chunk in self.body.chunks(16 << 10) {
                bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                bytes.extend_from_slice(chunk);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
        } else {
            bytes.extend_from_slice(&self.body);
        }
        bytes
    }

    /// Sends it over a connection of its own.
    pub(crate) async fn open(&self, to: SocketAddr) -> Connection {
        let mut connection = Connection::to(to).await.unwrap();
        connection.send(self).await.unwrap();
        connection
    }

    /// Sends it over a connection of its own, and reads the reply.
    pub(crate) async fn send(&self, to: SocketAddr) -> Reply {
        self.open(to).await.reply().await.unwrap()
    }

    /// Sends it again, as a client does, until it is no longer in progress.
    pub(crate) async fn send_until_settled(&self, to: SocketAddr) -> Reply {
        let sending = async {
            loop {
                let reply = self.send(to).await;
                if reply.code().as_deref() != Some("in_progress") {
                    return reply;
                }
            }
        };
        within(sending).await
    }
}

/// A connection; dropped, the client has hung up.
#[derive(Debug)]
pub(crate) struct Connection {
    read: Replies,
    write: OwnedWriteHalf,
}

impl Connection {
    pub(crate) async fn to(addr: SocketAddr) -> io::Result<Self> {
        let stream = within(TcpStream::connect(addr)).await?;
        stream.set_nodelay(true)?;
        let (read, write) = stream.into_split();
        Ok(Self { read: Replies(BufReader::new(read)), write })
    }

    /// Writes all of a request before anything is read.
    pub(crate) async fn send(&mut self, call: &Call) -> io::Result<()> {
        self.write(&call.bytes()).await
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        within(self.write.write_all(bytes)).await
    }

    /// Writes on and on until a reply comes; says how often.
    pub(crate) async fn write_until_reply(&mut self, bytes: &[u8]) -> io::Result<(Reply, usize)> {
        let mut count = 0;
        let writing = async {
            while self.write.write_all(bytes).await.is_ok() {
                count += 1;
            }
            std::future::pending::<()>().await;
        };
        let reply = tokio::select! {
            reply = within(self.read.reply()) => reply?,
            () = writing => unreachable!("it never ends"),
        };
        Ok((reply, count))
    }

    /// Waits for the first byte of a reply, and leaves it there.
    pub(crate) async fn first_byte(&mut self) -> u8 {
        within(self.read.0.fill_buf()).await.unwrap()[0]
    }

    /// Whether nothing has come yet.
    pub(crate) fn is_silent(&mut self) -> bool {
        let mut byte = [0];
        let read = self.read.0.get_mut().try_read(&mut byte);
        self.read.0.buffer().is_empty() && read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Reads one reply.
    pub(crate) async fn reply(&mut self) -> io::Result<Reply> {
        within(self.read.reply()).await
    }
}

#[derive(Debug)]
struct Replies(BufReader<OwnedReadHalf>);

impl Replies {
    async fn reply(&mut self) -> io::Result<Reply> {
        let (status, headers) = self.read_head().await?;
        let mut reply = Reply { status, headers, body: Vec::new() };
        if matches!(status, 204 | 304) {
            return Ok(reply);
        }
        if reply.header("transfer-encoding").is_some() {
            loop {
                let size = self.read_line().await?;
                let size = usize::from_str_radix(str::from_utf8(&size).unwrap(), 16).unwrap();
                let start = reply.body.len();
                reply.body.resize(start + size + 2, 0);
                self.0.read_exact(&mut reply.body[start..]).await?;
                reply.body.truncate(start + size);
                if size == 0 {
                    return Ok(reply);
                }
            }
        }
        let length = reply.header("content-length").expect("a length").parse().unwrap();
        reply.body.resize(length, 0);
        self.0.read_exact(&mut reply.body).await?;
        Ok(reply)
    }

    async fn read_head(&mut self) -> io::Result<(u16, Vec<(String, Vec<u8>)>)> {
        let line = self.read_line().await?;
        let line = String::from_utf8(line).unwrap();
        let status = line.strip_prefix("HTTP/1.1 ").expect("HTTP/1.1")[..3].parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.read_line().await?;
            if line.is_empty() {
                return Ok((status, headers));
            }
            let colon = line.iter().position(|byte| *byte == b':').unwrap();
            let name = String::from_utf8(line[..colon].to_vec()).unwrap();
            headers.push((name, line[colon + 2..].to_vec()));
        }
    }

    /// Without its end.
    async fn read_line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line).await?;
        match line.strip_suffix(b"\r\n") {
            Some(line) => Ok(line.to_vec()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
