//! HTTP/1: a connection for each request, kept for a while in between.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::{HeaderMap, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use oncegate_tower::RequestBody;

use super::Refused;
use crate::proxy::Outgoing;
use crate::public::ClientBody;

pub(super) type One = http1::SendRequest<RequestBody<ClientBody>>;

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
        Self { kept: Arc::default(), most, longest }
    }

    pub(super) fn take(&self) -> Option<One> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // From the other end, those that are too old.
        while kept.front().is_some_and(|oldest| oldest.until <= now || oldest.one.is_closed()) {
            kept.pop_front();
        }
        while let Some(Kept { one, until }) = kept.pop_back() {
            if until > now && one.is_ready() {
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

    /// The answer has come whole.
    pub(super) fn give_back(self) {
        let Self { mut one, idle, longest } = self;
        if one.is_ready() {
            idle.put(one, longest);
            return;
        }
        // Its task has not come round yet; it will, or the connection ends.
        tokio::spawn(async move {
            if one.ready().await.is_ok() {
                idle.put(one, longest);
            }
        });
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
    let mut answer = std::pin::pin!(one.try_send_request(request));
    let ended = async {
        // It is ready for another before this one is answered: never, but then there is nothing to watch.
        if one.ready().await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    let answered = tokio::select! {
        biased;
        answered = &mut answer => Some(answered),
        () = ended => None,
    };
    if let Some(answered) = answered {
        return (answered, Some(one));
    }
    drop(one);
    (answer.await, None)
}
