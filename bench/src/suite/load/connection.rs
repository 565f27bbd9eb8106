//! One kept connection: a request goes out, its answer comes in.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::{Kind, Load, wire};
use crate::Outcome;

/// How long an answer may take before the run is given up.
const PATIENCE: Duration = Duration::from_mins(1);

pub(super) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    filled: usize,
    /// When the request that is out was due.
    due: Instant,
    may_clash: bool,
    /// Length of head and of all of the last answer: the next is most likely the same, and then need not be read closely.
    last: (usize, usize),
}

/// How it was.
pub(super) enum Answered {
    /// With what was asked for, after so long.
    Well(Duration),
    /// With something else.
    Badly,
}

impl Connection {
    pub(super) fn open(address: SocketAddr, answer_bytes: usize) -> Outcome<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let buffer = vec![0; answer_bytes + 4096];
        Ok(Self { stream, buffer, filled: 0, due: Instant::now(), may_clash: false, last: (0, 0) })
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(super) fn send(&mut self, mut request: &[u8], due: Instant, may_clash: bool) -> Outcome {
        self.due = due;
        self.may_clash = may_clash;
        self.filled = 0;
        while !request.is_empty() {
            match self.stream.write(request) {
                Ok(0) => return Err("the connection takes nothing more".into()),
                Ok(written) => request = &request[written..],
                // A socket's buffer is larger than any of our requests: this is rare.
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads what is there, until the answer is whole.
    pub(super) fn read(&mut self, load: &Load) -> Outcome<Option<Answered>> {
        if self.filled == self.buffer.len() {
            self.buffer.resize(self.filled * 2, 0);
        }
        match self.stream.read(&mut self.buffer[self.filled..]) {
            Ok(0) => return Err("a connection was closed".into()),
            Ok(read) => self.filled += read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let text = &self.buffer[..self.filled];
        let (head, all) = self.last;
        let is_like_last = text.len() == all && text[..head].ends_with(b"\r\n\r\n") && !self.may_clash;
        if !is_like_last {
            let Some(answer) = wire::answer(text)? else { return Ok(None) };
            let is_good = matches!(answer.status, 200..=299) || (answer.status == 409 && self.may_clash);
            let is_as_marked = load.kind != Kind::Replay || !load.is_ours || answer.is_replayed;
            if !is_good && !load.is_ours {
                self.last = (0, 0);
                return Ok(Some(Answered::Badly));
            }
            if !is_good || !is_as_marked {
                return Err(String::from_utf8_lossy(text).into_owned().into());
            }
            self.last = (answer.head_bytes, self.filled);
        } else if !text.starts_with(b"HTTP/1.1 20") {
            return Err(String::from_utf8_lossy(text).into_owned().into());
        }
        Ok(Some(Answered::Well(self.due.elapsed())))
    }
}
