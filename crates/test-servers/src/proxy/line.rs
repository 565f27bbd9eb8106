//! One connection through the proxy: its two ends, and what has been seen on it.

use std::net::{Shutdown, TcpStream};
use std::sync::atomic::AtomicBool;
use std::sync::{Condvar, Mutex};

/// The two ends, and how far a cut after sending has come.
pub(super) struct Line {
    pub(super) client: TcpStream,
    pub(super) server: TcpStream,
    /// The client has spoken, and the server has not answered since.
    pub(super) asked: AtomicBool,
    phase: Mutex<Phase>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Answers are passed on.
    Open,
    /// Answers are swallowed; the bytes that they answer are being sent.
    Mute,
    /// Answers are swallowed; the bytes are sent.
    Sent,
}

impl Line {
    pub(super) fn new(client: TcpStream, server: TcpStream) -> std::io::Result<Self> {
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        Ok(Self {
            client,
            server,
            asked: AtomicBool::new(false),
            phase: Mutex::new(Phase::Open),
            changed: Condvar::new(),
        })
    }

    /// Closes both ends; whoever reads or writes there returns.
    pub(super) fn close(&self) {
        let _closed = self.client.shutdown(Shutdown::Both);
        let _closed = self.server.shutdown(Shutdown::Both);
    }

    pub(super) fn mute(&self) {
        self.set(Phase::Mute);
    }

    pub(super) fn sent(&self) {
        self.set(Phase::Sent);
    }

    pub(super) fn is_mute(&self) -> bool {
        *self.phase.lock().expect("no thread panicked") != Phase::Open
    }

    pub(super) fn wait_until_sent(&self) {
        let phase = self.phase.lock().expect("no thread panicked");
        drop(self.changed.wait_while(phase, |phase| *phase != Phase::Sent).expect("no thread panicked"));
    }

    fn set(&self, phase: Phase) {
        *self.phase.lock().expect("no thread panicked") = phase;
        self.changed.notify_all();
    }
}

/// The end of what a client has sent, so that a needle which arrives in parts is found.
#[derive(Default)]
pub(super) struct Seen(Vec<u8>);

impl Seen {
    /// Where in `bytes` each needle begins; at 0 if it began earlier.
    pub(super) fn find(&mut self, needle: &[u8], bytes: &[u8]) -> Vec<usize> {
        let before = self.0.len();
        self.0.extend_from_slice(bytes);
        let mut begins = Vec::new();
        let mut from = 0;
        while !needle.is_empty() {
            let next = self.0[from..].windows(needle.len()).position(|window| window == needle);
            let Some(at) = next else { break };
            begins.push((from + at).saturating_sub(before));
            from += at + needle.len();
        }
        // Kept: what may be a needle's first part, and not what was already counted.
        let keep = self.0.len().saturating_sub(needle.len().saturating_sub(1)).max(from);
        self.0.drain(..keep);
        begins
    }
}
