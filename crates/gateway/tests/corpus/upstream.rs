//! An upstream that keeps every byte, and reads it strictly.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::strict::{self, Request};

/// What it received.
#[derive(Clone, Debug, Default)]
pub(crate) struct Received {
    pub(crate) requests: Vec<Request>,
    /// What had a second reading, with the bytes.
    pub(crate) violations: Vec<String>,
}

/// The one that is running.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    pub(crate) addr: SocketAddr,
    received: Arc<Mutex<Received>>,
}

impl Upstream {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = Self { addr: listener.local_addr().unwrap(), received: Arc::default() };
        let running = upstream.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let running = running.clone();
                tokio::spawn(async move { running.serve(stream).await });
            }
        });
        upstream
    }

    async fn serve(&self, mut stream: TcpStream) {
        stream.set_nodelay(true).unwrap();
        let mut bytes = Vec::new();
        loop {
            match strict::request(&bytes) {
                Ok(None) => {
                    if !matches!(stream.read_buf(&mut bytes).await, Ok(1..)) {
                        return;
                    }
                }
                Ok(Some((request, taken))) => {
                    bytes.drain(..taken);
                    self.change(|received| received.requests.push(request));
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
                }
                Err(what) => {
                    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(2_000)]).into_owned();
                    return self.change(|received| received.violations.push(format!("{what}, in {text:?}")));
                }
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut Received)) {
        change(&mut self.received.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// What has come since the last time.
    pub(crate) fn take(&self) -> Received {
        std::mem::take(&mut self.received.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
