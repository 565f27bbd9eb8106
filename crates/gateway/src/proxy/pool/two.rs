//! HTTP/2: a few connections carry all requests, each as many as its upstream allows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::client::conn::http2;
use oncegate_tower::RequestBody;
use tokio::sync::watch;

use crate::public::ClientBody;

pub(super) type Two = http2::SendRequest<RequestBody<ClientBody>>;

/// Connections without a stream that are kept: a burst may have made many.
const IDLE_MAX: usize = 4;

/// All of them.
#[derive(Default)]
pub(super) struct Links(Vec<Link>);

struct Link {
    sender: Two,
    /// As the upstream says it.
    allowed: watch::Receiver<usize>,
    taken: Arc<AtomicUsize>,
}

/// A stream that the upstream allows; given back when it is dropped.
pub(in crate::proxy) struct Stream {
    pub(super) sender: Two,
    taken: Arc<AtomicUsize>,
}

impl Links {
    /// A stream on a connection that has room for it.
    pub(super) fn stream(&mut self) -> Option<Stream> {
        let mut idle = 0;
        self.0.retain(|link| {
            let is_idle = link.taken.load(Ordering::Acquire) == 0;
            idle += usize::from(is_idle);
            !link.sender.is_closed() && (!is_idle || idle <= IDLE_MAX)
        });
        let has_room = |link: &&Link| link.taken.load(Ordering::Acquire) < *link.allowed.borrow();
        self.0.iter().find(has_room).map(Link::stream)
    }

    /// A new connection, and its first stream.
    pub(super) fn add(&mut self, sender: Two, allowed: watch::Receiver<usize>) -> Stream {
        let link = Link { sender, allowed, taken: Arc::default() };
        let stream = link.stream();
        self.0.push(link);
        stream
    }

    /// Nothing more goes by the connection of this stream; what is under way there goes on.
    pub(super) fn forget(&mut self, stream: &Stream) {
        self.0.retain(|link| !Arc::ptr_eq(&link.taken, &stream.taken));
    }
}

impl Link {
    /// Called with the lock on all of them, so that two do not take the last one.
    fn stream(&self) -> Stream {
        self.taken.fetch_add(1, Ordering::AcqRel);
        Stream { sender: self.sender.clone(), taken: Arc::clone(&self.taken) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::AcqRel);
    }
}
