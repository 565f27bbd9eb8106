//! One history: clients, faults by the dice, and the judge.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use oncegate_core::identity::RecordId;
use oncegate_core::key::Key;
use oncegate_core::record::StateKind;
use oncegate_core::scope::Address;
use oncegate_store::faulty::Fault;
use oncegate_store::{Filter, Store as _};
use oncegate_test_servers::wait_until;
use tokio::runtime::Builder;

use crate::node::{Node, route};
use crate::places::Place;
use crate::provider::{LATE, Provider};

pub(crate) const KEYS: usize = 120;
const CLIENTS: usize = 8;
const NODES: usize = 2;
const TROUBLES: usize = 40;
/// Between two troubles, and between two tries of a client.
const PAUSE: Duration = Duration::from_millis(20);
/// After so long a history that does not end says what is open.
const SLOW: Duration = Duration::from_secs(40);
/// Far beyond every lease and horizon.
const STEP_S: i64 = 3_600;

/// A small generator, so that a seed gives the same troubles again.
struct Dice(u64);

impl Dice {
    fn new(seed: u64, who: usize) -> Self {
        Self((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(who as u64) | 1)
    }

    fn roll(&mut self) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap()
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.roll() % from.len()]
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    /// An acknowledgement, a connection or a write is lost or late.
    Store,
    /// The database rejects the writes of one key for a while.
    Rejection,
    /// The store's clock is set forward by an hour.
    ClockForward,
    /// The store's clock is set back by an hour.
    ClockBack,
    /// A node is killed and started again.
    Kill,
    /// A backup is taken, in place of the last one.
    Backup,
    /// The last backup is restored under the nodes that run. An operator declares what may be lost, restarts the
    /// nodes, and settles what they held back by the provider's ledger.
    Restore,
}

impl Trouble {
    const ALL: [Self; 12] = [
        Self::Store,
        Self::Store,
        Self::Store,
        Self::Store,
        Self::Rejection,
        Self::Rejection,
        Self::ClockForward,
        Self::ClockBack,
        Self::Kill,
        Self::Kill,
        Self::Backup,
        Self::Restore,
    ];
}

pub(crate) struct History<P: Place> {
    seed: u64,
    place: P,
    provider: Provider,
    nodes: [RwLock<Option<Node<P::Store>>>; NODES],
    requests: AtomicUsize,
}

/// What became of a history.
pub(crate) struct Summary {
    troubles: BTreeMap<Trouble, usize>,
    requests: usize,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { troubles, requests } = self;
        write!(f, "{KEYS} keys, {requests} requests, {troubles:?}: 0 duplicates, 0 lost, 0 open")
    }
}

impl<P: Place> History<P> {
    pub(crate) fn begin(seed: u64) -> Self {
        let (place, provider) = (P::new(), Provider::default());
        let nodes = std::array::from_fn(|_| RwLock::new(Some(Node::start(&place, &provider, 0))));
        Self { seed, place, provider, nodes, requests: AtomicUsize::new(0) }
    }

    /// Runs it to its end, and lets the ledger judge.
    pub(crate) fn run(self) -> Summary {
        let history = &self;
        let (told, troubles) = thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS).map(|n| scope.spawn(move || history.client(n))).collect();
            let troubles = self.make_trouble();
            let told = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
            (told, troubles)
        });
        self.judge(&told);
        Summary { troubles, requests: self.requests.into_inner() }
    }

    /// Sends each of its keys until it is told an outcome, and once more after that.
    fn client(&self, n: usize) -> Vec<(String, String)> {
        let mut dice = Dice::new(self.seed, n + 1);
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let mut told = Vec::new();
        for key in (n..KEYS).step_by(CLIENTS).map(key) {
            let first = runtime.block_on(self.until_told(&key, &mut dice));
            let second = runtime.block_on(self.until_told(&key, &mut dice));
            let story = || self.provider.story(&key);
            assert_eq!(first, second, "seed {}: {key} has two outcomes: {}", self.seed, story());
            told.push((key, first));
        }
        told
    }

    async fn until_told(&self, key: &str, dice: &mut Dice) -> String {
        loop {
            let node = dice.roll() % NODES;
            // Sent while the node is up; answered, or cut off when it is killed.
            let sent = self.nodes[node].read().unwrap().as_ref().map(|node| node.request(key, dice.roll()));
            if let Some(answered) = sent {
                self.requests.fetch_add(1, Ordering::SeqCst);
                if let Some(told) = answered.await {
                    return told;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// One trouble after another; then everything is put right.
    fn make_trouble(&self) -> BTreeMap<Trouble, usize> {
        let mut dice = Dice::new(self.seed, 0);
        let (mut troubles, mut clock_off_s, mut latest_off_s) = (BTreeMap::new(), 0, 0);
        self.back_up();
        for _ in 0..TROUBLES {
            let trouble = dice.pick(&Trouble::ALL);
            *troubles.entry(trouble).or_default() += 1;
            self.provider.note(format!("{trouble:?}, the clock is off by {clock_off_s} s"));
            let node = dice.roll() % NODES;
            match trouble {
                Trouble::Store => self.with(node, |node| {
                    node.store().queue(dice.pick(&[
                        Fault::BeforeWrite,
                        Fault::AcknowledgementLost,
                        Fault::ConnectionLost,
                        Fault::LandsLate,
                    ]));
                    // What an earlier trouble held back lands now.
                    node.land_late_writes();
                }),
                Trouble::Rejection => {
                    let id = id(&key(dice.roll() % KEYS));
                    self.with(node, |node| node.store().reject(id, dice.roll() % 8));
                }
                Trouble::ClockForward => clock_off_s += STEP_S,
                Trouble::ClockBack => clock_off_s -= STEP_S,
                Trouble::Kill => self.restart(node, clock_off_s),
                Trouble::Backup => self.back_up(),
                Trouble::Restore => self.restore(clock_off_s),
            }
            if matches!(trouble, Trouble::ClockForward | Trouble::ClockBack) {
                (0..NODES).for_each(|node| self.with(node, |node| node.store().set_clock_off(clock_off_s)));
            }
            latest_off_s = latest_off_s.max(clock_off_s);
            thread::sleep(PAUSE);
        }
        // The clock is right again: past all that was ever shown, so that every lease lapses.
        thread::sleep(2 * LATE);
        (0..NODES).for_each(|node| self.restart(node, latest_off_s + STEP_S));
        troubles
    }

    /// A backup that is restored is older than what every node has written into the store to recognise it by.
    fn back_up(&self) {
        self.place.back_up();
        (0..NODES).for_each(|node| self.with(node, Node::beat));
    }

    fn restore(&self, clock_off_s: i64) {
        self.place.restore();
        // What was in flight lands, and is in the ledger before the operator looks at it.
        thread::sleep(2 * LATE);
        // Declared before any node takes requests again. Keys here have no time, so the window covers them all.
        let mut nodes: Vec<_> = self.nodes.iter().map(|node| node.write().unwrap()).collect();
        for node in &mut nodes {
            node.take().unwrap().kill();
        }
        let desk = Node::start(&self.place, &self.provider, clock_off_s);
        desk.declare_loss();
        desk.kill();
        for node in &mut nodes {
            **node = Some(Node::start(&self.place, &self.provider, clock_off_s));
        }
    }

    fn with(&self, node: usize, act: impl FnOnce(&Node<P::Store>)) {
        act(self.nodes[node].read().unwrap().as_ref().unwrap());
    }

    fn restart(&self, node: usize, clock_off_s: i64) {
        let mut place = self.nodes[node].write().unwrap();
        let killed = place.take().unwrap();
        killed.land_late_writes();
        killed.kill();
        *place = Some(Node::start(&self.place, &self.provider, clock_off_s));
    }

    /// Ledger, records and clients agree on every key.
    fn judge(&self, told: &HashMap<String, String>) {
        let Self { seed, .. } = self;
        assert_eq!(told.len(), KEYS);
        thread::sleep(2 * LATE);
        for (key, told) in told {
            let charges = self.provider.charges(key);
            assert_eq!(
                charges.as_slice(),
                std::slice::from_ref(told),
                "seed {seed}: {key} was charged otherwise than told: {}",
                self.provider.story(key)
            );
        }
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let store = runtime.block_on(self.place.open());
        let started = Instant::now();
        wait_until("no record is open", || {
            self.with(0, Node::settle_held_back);
            let counts = runtime.block_on(store.counts()).unwrap();
            let is_over = counts.pending + counts.in_progress + counts.unknown == 0;
            if !is_over && started.elapsed() > SLOW {
                runtime.block_on(self.tell_what_is_open(&store));
            }
            is_over
        });
    }
}

impl<P: Place> History<P> {
    /// For the report about a history that does not end.
    async fn tell_what_is_open(&self, store: &P::Store) {
        for state in [StateKind::Pending, StateKind::InProgress, StateKind::Unknown] {
            let filter = Filter { state: Some(state), ..Filter::default() };
            let Ok(page) = store.browse(&filter, None, 1).await else { continue };
            for row in page.records {
                let told = self.provider.story(row.address.key.as_str());
                eprintln!("seed {}: still open: {row:?}: {told}", self.seed);
            }
        }
        for node in 0..NODES {
            self.with(node, |node| eprintln!("node {}", node.describe()));
        }
        thread::sleep(Duration::from_secs(5));
    }
}

fn key(n: usize) -> String {
    format!("history-{n:04}-payment")
}

fn id(key: &str) -> RecordId {
    RecordId::of(&Address { scope: route().scope("acme").unwrap(), key: Key::from_text(key).unwrap() })
}
