//! A TCP proxy between a client and a server, which cuts, stalls, cuts at a chosen byte, and counts round trips.
//!
//! It knows no protocol: it looks for bytes. So it sees nothing inside TLS.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::place::authority;
use crate::wait::PATIENCE;

mod line;

use line::{Line, Seen};

/// Where a connection is cut, relative to the bytes that were waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// They never reach the server: what came before them does, then both sides are closed.
    BeforeSending,
    /// They reach the server, with what the client sends after them before the server answers. Its answer is read to its end,
    /// so that the server has done what it was asked; the client gets no byte of it, and is cut off then.
    AfterSending,
}

/// A proxy on a port of its own. Dropped, it closes all its connections.
pub struct TcpProxy {
    address: SocketAddr,
    state: Arc<State>,
    accepting: Option<JoinHandle<()>>,
}

impl TcpProxy {
    /// A proxy to a server: `127.0.0.1:5432`, or a URL with such a part.
    #[must_use]
    pub fn start(target: &str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port can be listened on");
        let address = listener.local_addr().expect("a listener has an address");
        let state = Arc::new(State::default());
        let target = authority(target).to_owned();
        let accepting = std::thread::spawn({
            let state = Arc::clone(&state);
            move || accept(&listener, &target, &state)
        });
        Self { address, state, accepting: Some(accepting) }
    }

    /// Where clients connect to.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// The same URL through this proxy.
    #[must_use]
    pub fn url_of(&self, url: &str) -> String {
        url.replacen(authority(url), &self.address.to_string(), 1)
    }

    /// How many connections it has let through to the server.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.state.lock().accepted
    }

    /// Closes all connections, and each new one as it comes, until [`mend`](Self::mend).
    pub fn cut(&self) {
        self.state.shut(Gate::Cut);
    }

    /// Lets connections through again.
    pub fn mend(&self) {
        self.state.change(|inner| inner.gate = Gate::Open);
    }

    /// Forwards no more bytes, in either direction, while connections stay open.
    pub fn stall(&self) {
        self.state.change(|inner| inner.stalled = true);
    }

    /// Forwards again, first what has been held back.
    pub fn flow(&self) {
        self.state.change(|inner| inner.stalled = false);
    }

    /// Cuts one connection, once: the one whose client sends `needle` for the `nth` time from now on, counted from 1 over all
    /// connections. Replaces a cut that was asked for earlier.
    ///
    /// A needle that arrives in parts is found; with [`Cut::BeforeSending`] its first part has been forwarded by then.
    pub fn cut_at(&self, needle: &[u8], nth: u32, cut: Cut) {
        self.arm(needle, nth, cut, After::OthersGoOn);
    }

    /// The same; and from these bytes on no other connection is let through either, until [`mend`](Self::mend).
    pub fn cut_off_at(&self, needle: &[u8], nth: u32, cut: Cut) {
        self.arm(needle, nth, cut, After::AllAreCut);
    }

    fn arm(&self, needle: &[u8], nth: u32, cut: Cut, after: After) {
        assert!(!needle.is_empty() && nth > 0, "there must be something to wait for");
        let armed = Armed { needle: needle.to_vec(), left: nth, cut, after };
        self.state.change(|inner| (inner.armed, inner.fired) = (Some(armed), false));
    }

    /// Whether the cut that was asked for last has been made.
    #[must_use]
    pub fn has_fired(&self) -> bool {
        self.state.lock().fired
    }

    /// Waits until it has been made: both sides are closed by then.
    pub fn fired(&self) {
        self.state
            .wait_until("the bytes at which to cut never came, or their answer did not", |inner| inner.fired);
    }

    /// How often, over all connections, the server has answered after the client had spoken. What a client sends in one go, and what
    /// it is answered before it speaks again, is one round trip, however many messages there are.
    ///
    /// An answer is counted before it is passed on. A client that sends in several goes may be answered in between: then it
    /// depends on the two of them how many there are.
    #[must_use]
    pub fn round_trips(&self) -> u64 {
        self.state.lock().round_trips
    }

    /// How many connections it has refused, because it was [`cut`](Self::cut) or [cut off](Self::cut_off_at).
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.state.lock().refused
    }

    /// Waits until it has refused so many, counted from its start. Blocks: what is to connect must run elsewhere.
    pub fn wait_until_refused(&self, count: u64) {
        self.state.wait_until("nobody tries to connect any more", |inner| inner.refused >= count);
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.state.shut(Gate::Over);
        // Wakes the thread that accepts, which sees that it is over.
        let _woken = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ended = accepting.join();
        }
    }
}

fn accept(listener: &TcpListener, target: &str, state: &Arc<State>) {
    while let Ok((client, _)) = listener.accept() {
        let gate = state.lock().gate;
        match gate {
            Gate::Open => {}
            Gate::Cut => {
                drop(client);
                state.change(|inner| inner.refused += 1);
                continue;
            }
            Gate::Over => return,
        }
        let Ok(server) = TcpStream::connect(target) else { continue };
        let Ok(line) = Line::new(client, server).map(Arc::new) else { continue };
        let mut inner = state.lock();
        if inner.gate != Gate::Open {
            drop(inner);
            line.close();
            state.change(|inner| inner.refused += 1);
            continue;
        }
        inner.accepted += 1;
        inner.lines.push(Arc::clone(&line));
        drop(inner);
        let (to_server, to_client) = (Arc::clone(state), Arc::clone(state));
        let other = Arc::clone(&line);
        std::thread::spawn(move || forward_to_server(&other, &to_server));
        std::thread::spawn(move || {
            forward_to_client(&line, &to_client);
            line.close();
            to_client.lock().lines.retain(|other| !Arc::ptr_eq(other, &line));
        });
    }
}

/// Forwards what a client sends, until it ends or is cut.
fn forward_to_server(line: &Line, state: &State) {
    let mut buffer = vec![0; 64 * 1024];
    let mut seen = Seen::default();
    while let Ok(read @ 1..) = (&line.client).read(&mut buffer) {
        state.wait_while_stalled();
        line.asked.store(true, Ordering::Release);
        let bytes = &buffer[..read];
        let found = state.find(line, &mut seen, bytes);
        match found {
            None => {}
            Some((at, Cut::BeforeSending)) => {
                let _sent = (&line.server).write_all(&bytes[..at]);
                line.close();
                state.change(|inner| inner.fired = true);
                return;
            }
            // From here on the other direction swallows what it reads.
            Some((_, Cut::AfterSending)) => line.mute(),
        }
        let sent = (&line.server).write_all(bytes);
        if found.is_some() {
            line.sent();
        }
        if sent.is_err() {
            break;
        }
    }
    let _ended = line.server.shutdown(Shutdown::Write);
}

/// Forwards what a server answers, until it ends or the line is mute.
fn forward_to_client(line: &Line, state: &State) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = (&line.server).read(&mut buffer) {
        state.wait_while_stalled();
        if line.asked.swap(false, Ordering::AcqRel) {
            state.lock().round_trips += 1;
        }
        if line.is_mute() {
            // The answer has begun. The server is told that nobody asks any more, and reads that after all that was sent: when
            // it closes, it has worked through it.
            line.wait_until_sent();
            let _ended = line.server.shutdown(Shutdown::Write);
            while let Ok(1..) = (&line.server).read(&mut buffer) {}
            break;
        }
        if (&line.client).write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    // Also if the server was gone before it could answer.
    line.close();
    if line.is_mute() {
        state.change(|inner| inner.fired = true);
    }
}

/// What the controls and all connections share.
#[derive(Default)]
struct State {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    gate: Gate,
    stalled: bool,
    armed: Option<Armed>,
    fired: bool,
    accepted: u64,
    refused: u64,
    round_trips: u64,
    lines: Vec<Arc<Line>>,
}

/// Whether connections are let through.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Gate {
    #[default]
    Open,
    Cut,
    /// The proxy is being dropped.
    Over,
}

struct Armed {
    needle: Vec<u8>,
    left: u32,
    cut: Cut,
    after: After,
}

/// What becomes of the other connections.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    OthersGoOn,
    AllAreCut,
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no thread panicked")
    }

    fn change(&self, change: impl FnOnce(&mut Inner)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until something holds; panics in these words if it never does.
    fn wait_until(&self, otherwise: &str, holds: impl Fn(&Inner) -> bool) {
        let end = Instant::now() + PATIENCE;
        let mut inner = self.lock();
        while !holds(&inner) {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{otherwise}");
            inner = self.changed.wait_timeout(inner, left).expect("no thread panicked").0;
        }
    }

    /// Closes all connections, and lets no more through.
    fn shut(&self, gate: Gate) {
        self.change(|inner| {
            inner.gate = gate;
            for line in inner.lines.drain(..) {
                line.close();
            }
        });
    }

    /// A cut ends the wait too: what was held back is written to a closed connection then.
    fn wait_while_stalled(&self) {
        let wait = self.changed.wait_while(self.lock(), |inner| inner.stalled && inner.gate == Gate::Open);
        drop(wait.expect("no thread panicked"));
    }

    /// Counts the needle in further bytes of a client. When that was the last one to wait for: where in them it begins.
    fn find(&self, line: &Line, seen: &mut Seen, bytes: &[u8]) -> Option<(usize, Cut)> {
        let mut inner = self.lock();
        let armed = inner.armed.as_mut();
        let needle = armed.as_ref().map_or(&[][..], |armed| &armed.needle);
        let begins = seen.find(needle, bytes);
        let armed = armed?;
        for at in begins {
            armed.left -= 1;
            if armed.left == 0 {
                let (cut, after) = (armed.cut, armed.after);
                inner.armed = None;
                if after == After::AllAreCut {
                    inner.gate = Gate::Cut;
                    // This one has its own end.
                    inner
                        .lines
                        .iter()
                        .filter(|other| !std::ptr::eq(Arc::as_ptr(other), line))
                        .for_each(|other| other.close());
                }
                return Some((at, cut));
            }
        }
        None
    }
}
