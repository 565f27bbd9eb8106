//! A client of HTTP/1.1 that sends the bytes of a case.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Notify;

use crate::answer::{self, Answer};
use crate::notation::{self, Step};

/// How the bytes of a case are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// As the case says.
    Written,
    /// In pieces that end after every LF.
    Lines,
    /// One byte at a time.
    Bytes,
    /// As the case says, and then much more before anything is read.
    Flood,
}

/// What a client saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) answers: Vec<Answer>,
    /// Whether the gateway closed the connection before the client closed its side.
    pub(crate) is_closed: bool,
    /// How reading failed, if it did.
    pub(crate) error: Option<String>,
}

/// More than the buffers of a connection hold.
const FLOOD_BYTES: usize = 2 << 20;
/// Longer than anything here takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends a case, and reads until as many answers have come as it expects, or the end.
pub(crate) async fn send(
    to: SocketAddr,
    from: Option<IpAddr>,
    steps: Vec<Step>,
    pace: Pace,
    answers: usize,
    waits_for_close: bool,
) -> Seen {
    let (read, write) = connect(to, from).await.into_split();
    let enough = Arc::new(Notify::new());
    let running = async {
        if pace == Pace::Flood {
            let write = write_all(write, steps, pace).await;
            let seen = read_all(read, 1, true, &enough).await;
            drop(write);
            return seen;
        }
        let writing = async {
            let mut write = write_all(write, steps, pace).await;
            enough.notified().await;
            let _ = write.shutdown().await;
        };
        let ((), seen) = tokio::join!(writing, read_all(read, answers, waits_for_close, &enough));
        seen
    };
    match tokio::time::timeout(PATIENCE, running).await {
        Ok(seen) => seen,
        Err(_) => {
            Seen { error: Some("the gateway neither answered nor closed".to_owned()), ..Seen::default() }
        }
    }
}

pub(crate) async fn connect(to: SocketAddr, from: Option<IpAddr>) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(from.unwrap_or(Ipv4Addr::LOCALHOST.into()), 0)).unwrap();
    let stream = socket.connect(to).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Sends what can be sent: the gateway may close meanwhile.
pub(crate) async fn write_all(mut write: OwnedWriteHalf, steps: Vec<Step>, pace: Pace) -> OwnedWriteHalf {
    for step in steps {
        match step {
            Step::Pause => tokio::time::sleep(notation::PAUSE).await,
            Step::Close => drop(write.shutdown().await),
            Step::Send(bytes) => {
                let pieces: Vec<&[u8]> = match pace {
                    Pace::Written | Pace::Flood => vec![&bytes],
                    Pace::Lines => bytes.split_inclusive(|byte| *byte == b'\n').collect(),
                    // A long text in a thousand pieces.
                    Pace::Bytes => bytes.chunks(bytes.len() / 1_000 + 1).collect(),
                };
                for piece in pieces {
                    if write.write_all(piece).await.is_err() {
                        return write;
                    }
                    tokio::task::yield_now().await;
                }
            }
        }
    }
    if pace == Pace::Flood {
        let _ = write.write_all(&vec![b'x'; FLOOD_BYTES]).await;
    }
    write
}

/// Reads to the end. The client closes its side after so many answers, unless the gateway must
/// close first.
async fn read_all(mut read: OwnedReadHalf, answers: usize, waits_for_close: bool, enough: &Notify) -> Seen {
    let mut bytes = Vec::new();
    let mut seen = Seen { is_closed: true, ..Seen::default() };
    loop {
        match read.read_buf(&mut bytes).await {
            Ok(0) => break,
            Ok(_) if !waits_for_close && answer::answers(&bytes, false).len() >= answers => {
                seen.is_closed = false;
                enough.notify_one();
            }
            Ok(_) => {}
            Err(error) => {
                seen.error = Some(error.to_string());
                break;
            }
        }
    }
    enough.notify_one();
    seen.answers = answer::answers(&bytes, true);
    seen
}
