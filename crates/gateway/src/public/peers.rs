//! What one address has at once: connections, requests, uploads.
//!
//! **Invariant:** no client can take all of what there is for all clients, however many connections
//! and streams it opens. IPv6 is counted per /64, because a client has all of one. Addresses that
//! the operator exempts, such as proxies in front, are not counted together.
//!
//! Requests cost no lock: a connection finds its address once, and counts in atomics.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use ipnet::IpNet;

use crate::config::Limits;

/// Refusals are logged no more often than this.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// All addresses that have a connection.
pub(crate) struct Peers {
    usages: Mutex<HashMap<IpAddr, Entry>>,
    connections_max: usize,
    requests_max: usize,
    exempt: Option<Vec<IpNet>>,
    log: Mutex<RefusalLog>,
}

struct Entry {
    connections: usize,
    usage: Arc<PeerUsage>,
}

/// What an address has at once.
#[derive(Debug, Default)]
pub(crate) struct PeerUsage {
    requests: AtomicUsize,
    uploads: AtomicUsize,
    /// No limit holds for it.
    is_exempt: bool,
}

/// A connection of an address; it counts until it is dropped.
pub(crate) struct PeerConnection {
    /// `None`: no limit holds for it.
    counted: Option<(Arc<Peers>, IpAddr)>,
    usage: Arc<PeerUsage>,
}

/// Why something of an address was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerLimit {
    Connections,
    Requests,
}

impl PeerLimit {
    /// As refusals are counted.
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::Connections => "peer_connections",
            Self::Requests => "peer_requests",
        }
    }

    const fn setting(self) -> &'static str {
        match self {
            Self::Connections => "limits.per_peer_connections_max",
            Self::Requests => "limits.per_peer_requests_max",
        }
    }
}

impl Peers {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            usages: Mutex::default(),
            connections_max: limits.per_peer_connections_max,
            requests_max: limits.per_peer_requests_max,
            exempt: limits.per_peer_exempt.clone(),
            log: Mutex::new(RefusalLog { refused: 0, last: None }),
        }
    }

    /// Counts a connection; `None`: its address has too many. `trusted` are exempt unless the
    /// operator names others.
    pub(crate) fn connect(self: &Arc<Self>, peer: IpAddr, trusted: &[IpNet]) -> Option<PeerConnection> {
        let address = peer.to_canonical();
        let exempt = self.exempt.as_deref().unwrap_or(trusted);
        if exempt.iter().any(|net| net.contains(&address)) {
            return Some(PeerConnection::uncounted());
        }
        let counted = counted_as(address);
        let mut usages = self.usages();
        let entry = usages.entry(counted).or_insert_with(|| Entry { connections: 0, usage: Arc::default() });
        if entry.connections >= self.connections_max {
            return None;
        }
        entry.connections += 1;
        let usage = Arc::clone(&entry.usage);
        drop(usages);
        Some(PeerConnection { counted: Some((Arc::clone(self), counted)), usage })
    }

    /// Logs a refusal, unless one was logged a moment ago.
    pub(crate) fn log(&self, peer: IpAddr, limit: PeerLimit) {
        // If another refusal is being logged, this one need not be.
        let mut log = match self.log.try_lock() {
            Ok(log) => log,
            Err(TryLockError::Poisoned(log)) => log.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        log.refused += 1;
        if log.last.is_none_or(|last| last.elapsed() >= LOG_EVERY) {
            let (refused, reason) = (log.refused, limit.reason());
            *log = RefusalLog { refused: 0, last: Some(Instant::now()) };
            drop(log);
            tracing::warn!(
                %peer,
                reason,
                refused_since_last_log = refused,
                "per-address limit reached; refusing. See {} and limits.per_peer_exempt",
                limit.setting()
            );
        }
    }

    fn usages(&self) -> MutexGuard<'_, HashMap<IpAddr, Entry>> {
        self.usages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct RefusalLog {
    /// Refusals of all addresses since the last line; a lower bound.
    refused: u64,
    last: Option<Instant>,
}

/// A client has a whole /64 of IPv6.
fn counted_as(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

impl PeerConnection {
    /// For which no limit holds.
    pub(crate) fn uncounted() -> Self {
        let usage = Arc::new(PeerUsage { is_exempt: true, ..PeerUsage::default() });
        Self { counted: None, usage }
    }

    pub(crate) fn usage(&self) -> &Arc<PeerUsage> {
        &self.usage
    }

    /// Whether the address may have so many requests.
    pub(crate) fn allows(&self, requests: usize) -> bool {
        self.counted.as_ref().is_none_or(|(peers, _)| requests <= peers.requests_max)
    }
}

impl Drop for PeerConnection {
    fn drop(&mut self) {
        let Some((peers, counted)) = &self.counted else { return };
        let mut usages = peers.usages();
        if let Some(entry) = usages.get_mut(counted) {
            entry.connections -= 1;
            if entry.connections == 0 {
                usages.remove(counted);
            }
        }
    }
}

impl PeerUsage {
    /// Counts a request; how many there are with it.
    pub(crate) fn begin_request(&self) -> usize {
        self.requests.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn end_request(&self) {
        self.requests.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts an upload, unless there are `max` of this address already.
    pub(crate) fn begin_upload(self: &Arc<Self>, max: usize) -> Option<PeerUpload> {
        let upload = PeerUpload(Arc::clone(self));
        let before = self.uploads.fetch_add(1, Ordering::Relaxed);
        (before < max || self.is_exempt).then_some(upload)
    }
}

/// An upload of an address; it counts until it is dropped.
#[derive(Debug)]
pub(crate) struct PeerUpload(Arc<PeerUsage>);

impl Drop for PeerUpload {
    fn drop(&mut self) {
        self.0.uploads.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(connections_max: usize, exempt: Option<&[&str]>) -> Arc<Peers> {
        let limits = Limits {
            requests_max: 9,
            executions_max: 9,
            queue_max: 9,
            queue_timeout: Duration::ZERO,
            per_peer_connections_max: connections_max,
            per_peer_requests_max: 1,
            per_peer_exempt: exempt.map(|nets| nets.iter().map(|net| net.parse().unwrap()).collect()),
        };
        Arc::new(Peers::new(&limits))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn connections_are_counted_per_address_and_per_64() {
        let peers = peers(1, None);
        let first = peers.connect(ip("192.0.2.1"), &[]).expect("room");
        assert!(peers.connect(ip("192.0.2.1"), &[]).is_none());
        assert!(peers.connect(ip("::ffff:192.0.2.1"), &[]).is_none(), "the same address");
        let _other = peers.connect(ip("192.0.2.2"), &[]).expect("another address");
        let _six = peers.connect(ip("2001:db8::1"), &[]).expect("room");
        assert!(peers.connect(ip("2001:db8::2:0:0:1"), &[]).is_none(), "the same /64");
        let _other = peers.connect(ip("2001:db8:0:1::1"), &[]).expect("another /64");
        drop(first);
        let _again = peers.connect(ip("192.0.2.1"), &[]).expect("given back");
    }

    #[test]
    fn nothing_is_kept_of_an_address_without_connections() {
        let peers = peers(1, None);
        drop(peers.connect(ip("192.0.2.1"), &[]));
        assert!(peers.usages().is_empty());
    }

    #[test]
    fn requests_of_all_connections_of_an_address_are_counted_together() {
        let peers = peers(2, None);
        let [one, two] = [ip("192.0.2.1"); 2].map(|ip| peers.connect(ip, &[]).expect("room"));
        assert!(one.allows(one.usage().begin_request()));
        assert!(!two.allows(two.usage().begin_request()));
        two.usage().end_request();
        one.usage().end_request();
        assert!(two.allows(two.usage().begin_request()));
    }

    #[test]
    fn exempt_are_the_trusted_peers_unless_others_are_named() {
        let trusted = ["10.0.0.0/8".parse().unwrap()];
        let open = |peers: &Arc<Peers>, text: &str| {
            let both = [ip(text); 2].map(|ip| peers.connect(ip, &trusted));
            both.iter().all(Option::is_some)
        };
        let by_scope = peers(1, None);
        assert!(open(&by_scope, "10.1.2.3") && !open(&by_scope, "192.0.2.1"));
        let named = peers(1, Some(&["192.0.2.0/24"]));
        assert!(open(&named, "192.0.2.1") && !open(&named, "10.1.2.3"));
        assert!(!open(&peers(1, Some(&[])), "10.1.2.3"), "none");
        let connection = named.connect(ip("192.0.2.1"), &[]).expect("exempt");
        assert!((0..9).all(|_| connection.allows(connection.usage().begin_request())));
        assert!(connection.usage().begin_upload(0).is_some());
    }

    #[test]
    fn uploads_are_given_back() {
        let usage = Arc::new(PeerUsage::default());
        let first = usage.begin_upload(1).expect("room");
        assert!(usage.begin_upload(1).is_none());
        drop(first);
        assert!(usage.begin_upload(1).is_some());
    }
}
