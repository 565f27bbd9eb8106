//! Clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::Outcome;
use crate::cost::Turn;
use crate::engine::timed;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A key that was never seen.
    Fresh,
    /// One of a few keys, over and over.
    Replay,
    /// What no route protects.
    Unprotected,
}

/// So many requests by so many connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) address: SocketAddr,
    pub(crate) kind: Kind,
    pub(crate) connections: usize,
    pub(crate) requests: usize,
}

/// Keys are never used twice, over all turns.
static KEYS: AtomicU64 = AtomicU64::new(0);
/// How many keys are replayed.
const REPLAYED: u64 = 64;
const BODY: &str =
    r#"{"amount": 100, "currency": "EUR", "to": "Ada Lovelace", "reference": "invoice 2026-0042"}"#;

impl Load {
    pub(crate) fn run(self) -> Outcome<Turn> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let connections = runtime.block_on(async {
            let mut connections = Vec::with_capacity(self.connections);
            for _ in 0..self.connections {
                let stream = TcpStream::connect(self.address).await?;
                stream.set_nodelay(true)?;
                connections.push(stream);
            }
            Outcome::Ok(connections)
        })?;
        timed(self.requests, || {
            runtime.block_on(async {
                let left = Arc::new(AtomicUsize::new(self.requests));
                let clients = connections.into_iter().map(|stream| {
                    let left = Arc::clone(&left);
                    tokio::spawn(async move {
                        client(stream, self.kind, &left).await.map_err(|error| error.to_string())
                    })
                });
                let clients: Vec<_> = clients.collect();
                for client in clients {
                    client.await??;
                }
                Ok(())
            })
        })
    }
}

async fn client(mut stream: TcpStream, kind: Kind, left: &AtomicUsize) -> Outcome {
    let mut buffer = vec![0; 4096];
    let mut request = String::new();
    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
        write_request(&mut request, kind);
        stream.write_all(request.as_bytes()).await?;
        answer(&mut stream, &mut buffer).await?;
    }
    Ok(())
}

fn write_request(request: &mut String, kind: Kind) {
    use std::fmt::Write as _;
    request.clear();
    let (path, key) = match kind {
        Kind::Fresh => ("/payments", KEYS.fetch_add(1, Ordering::Relaxed) + REPLAYED),
        Kind::Replay => ("/payments", KEYS.fetch_add(1, Ordering::Relaxed) % REPLAYED),
        Kind::Unprotected => ("/unprotected", 0),
    };
    let _ = write!(
        request,
        "POST {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer bench\r\nIdempotency-Key: \"payment-{key:012}\"\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
}

/// Reads one answer; it must be a 201.
async fn answer(stream: &mut TcpStream, buffer: &mut [u8]) -> Outcome {
    let mut filled = 0;
    loop {
        let read = stream.read(&mut buffer[filled..]).await?;
        if read == 0 {
            return Err("the connection was closed".into());
        }
        filled += read;
        let text = &buffer[..filled];
        let Some(head) = text.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        if !text.starts_with(b"HTTP/1.1 201") {
            return Err(String::from_utf8_lossy(text).into_owned().into());
        }
        let length = content_length(&text[..head]).ok_or("an answer without a length")?;
        if filled >= head + 4 + length {
            return Ok(());
        }
    }
}

fn content_length(head: &[u8]) -> Option<usize> {
    let head = std::str::from_utf8(head).ok()?;
    let mut lines = head.split("\r\n").filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(name, _)| name.eq_ignore_ascii_case("content-length"))?;
    value.trim().parse().ok()
}
