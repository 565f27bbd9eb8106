//! HTTP/1: a connection for each request, kept for a while in between.
//!
//! A connection has no task of its own: whoever has it moves it on, with each poll. So a request and its answer cross no channel between
//! threads and wake nobody but their own task; and a kept connection that has ended is found when it is taken, before anything is sent.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::{HeaderMap, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use oncegate_tower::RequestBody;

use super::Refused;
use crate::proxy::Outgoing;
use crate::public::ClientBody;

/// A connection, both of its ends.
pub(in crate::proxy) struct One {
    sender: http1::SendRequest<RequestBody<ClientBody>>,
    /// What reads and writes; `None` when it has ended.
    wire: Option<Driven>,
}

/// Reads and writes while it is polled; ends with its connection.
pub(in crate::proxy) type Driven = Pin<Box<dyn Future<Output = ()> + Send>>;

impl One {
    pub(in crate::proxy) fn new(
        sender: http1::SendRequest<RequestBody<ClientBody>>,
        wire: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        Self { sender, wire: Some(Box::pin(wire)) }
    }

    /// Reads and writes what it can; whoever polls is woken when there is more.
    fn drive(&mut self, cx: &mut Context<'_>) {
        if self.wire.as_mut().is_some_and(|wire| wire.as_mut().poll(cx).is_ready()) {
            self.wire = None;
        }
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        self.drive(cx);
        if self.wire.is_none() {
            return Poll::Ready(false);
        }
        self.sender.poll_ready(cx).map(|ready| ready.is_ok())
    }

    /// Whether it takes a request; waits until it does, or has ended.
    pub(super) async fn ready(&mut self) -> bool {
        poll_fn(|cx| self.poll_ready(cx)).await
    }

    /// Whether it takes a request now. One that its server has closed does not.
    pub(super) async fn is_ready(&mut self) -> bool {
        poll_fn(|cx| Poll::Ready(self.poll_ready(cx) == Poll::Ready(true))).await
    }
}

/// Idle connections, the last used first. Clones share them.
#[derive(Clone)]
pub(super) struct Idle {
    kept: Arc<Mutex<VecDeque<Kept>>>,
    most: usize,
    longest: Duration,
}

struct Kept {
    one: One,
    until: Instant,
}

impl Idle {
    pub(super) fn new(most: usize, longest: Duration) -> Self {
        let kept = Arc::default();
        tokio::spawn(let_go(Arc::downgrade(&kept)));
        Self { kept, most, longest }
    }

    pub(super) fn take(&self) -> Option<One> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // From the other end, those that are too old.
        while kept.front().is_some_and(|oldest| oldest.until <= now) {
            kept.pop_front();
        }
        while let Some(Kept { one, until }) = kept.pop_back() {
            if until > now {
                return Some(one);
            }
        }
        None
    }

    pub(super) fn lend(&self, one: One) -> LentOne {
        LentOne { one, idle: self.clone(), longest: self.longest }
    }

    fn put(&self, one: One, longest: Duration) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(Kept { one, until: Instant::now() + longest });
        if kept.len() > self.most {
            kept.pop_front();
        }
    }
}

/// Nobody reads from an idle connection, so nobody sees that its server has closed it: those that are too old go all the same.
async fn let_go(kept: Weak<Mutex<VecDeque<Kept>>>) {
    loop {
        tokio::time::sleep(LET_GO_EVERY).await;
        let Some(kept) = kept.upgrade() else { return };
        let now = Instant::now();
        kept.lock().unwrap_or_else(PoisonError::into_inner).retain(|kept| kept.until > now);
    }
}

const LET_GO_EVERY: Duration = Duration::from_secs(1);

/// A connection that an answer is still coming by.
pub(in crate::proxy) struct LentOne {
    one: One,
    idle: Idle,
    /// How long it may be idle afterwards.
    longest: Duration,
}

impl LentOne {
    /// A server may say how long it keeps an idle connection. One that is closed just as a request leaves by it is a doubt, so
    /// ours end well before.
    pub(super) fn told(mut self, headers: &HeaderMap) -> Self {
        let hint = headers.get("keep-alive").and_then(|value| {
            let mut parameters = value.to_str().ok()?.split(',');
            parameters.find_map(|parameter| parameter.trim().strip_prefix("timeout=")?.parse::<u64>().ok())
        });
        if let Some(seconds) = hint {
            self.longest = self.longest.min(Duration::from_secs(seconds).mul_f64(0.8));
        }
        self
    }

    /// Moves the answer on.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        self.one.drive(cx);
    }

    /// The answer has come whole.
    pub(super) fn give_back(self) {
        let Self { mut one, idle, longest } = self;
        if one.wire.is_some() && one.sender.is_ready() {
            idle.put(one, longest);
            return;
        }
        // It has not come round yet; it will, or the connection ends.
        tokio::spawn(async move {
            if one.ready().await {
                idle.put(one, longest);
            }
        });
    }

    /// Goes on by itself, whoever its bytes belong to from here on.
    pub(super) fn let_go(self) {
        if let Some(wire) = self.one.wire {
            tokio::spawn(wire);
        }
    }
}

/// Gives a request to a connection, and waits for the head of its answer. The connection comes back unless it has ended.
///
/// A request that is put into a connection's channel in the very moment in which the connection ends may stay there, neither taken nor
/// refused, for as long as there is a sender (hyperium/hyper#4122). So the sender goes when the connection has: then the request comes
/// back at once, and not as a timeout, which would be a doubt.
pub(super) async fn exchange(
    mut one: One,
    request: Outgoing,
) -> (Result<Response<Incoming>, Refused>, Option<One>) {
    let mut answer = std::pin::pin!(one.sender.try_send_request(request));
    let answered = poll_fn(|cx| {
        one.drive(cx);
        match answer.as_mut().poll(cx) {
            Poll::Ready(answered) => Poll::Ready(Some(answered)),
            Poll::Pending if one.wire.is_none() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    });
    if let Some(answered) = answered.await {
        let is_open = one.wire.is_some();
        return (answered, is_open.then_some(one));
    }
    drop(one);
    (answer.await, None)
}
