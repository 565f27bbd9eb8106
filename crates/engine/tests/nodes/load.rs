//! Load that goes on while its database comes and goes, and the ledger that is drawn up afterwards.
//!
//! What an operation did is appended to a file, because the database may be down; what a client was told is said to the parent.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use oncegate_core::policy::Profile;
use oncegate_engine::{Arrived, Engine, Held, Options, Route, Settled};
use oncegate_store_sql::PostgresStore;
use tempfile::TempDir;
use tokio::time::{MissedTickBehavior, interval_at};

use crate::actor::{Actor, block_on, orders, say, var};
use crate::world::{Dice, complete, node, request, route, unique, words};

const URL: &str = "ONCEGATE_TEST_URL";
const NUMBER: &str = "ONCEGATE_TEST_NUMBER";
const EFFECTS: &str = "ONCEGATE_TEST_EFFECTS";

const CALLERS: u64 = 16;
/// How often a caller asks while it is told 503 or 409, and how long a drained node waits for what it has begun.
const BACKOFF: Duration = Duration::from_millis(10);
const DRAIN: Duration = Duration::from_mins(1);
/// Reached only by a test that fails.
const PATIENCE: Duration = Duration::from_mins(1);

fn payments() -> Route {
    route(Profile::Ietf, |_| ())
}

// ---- a process under load --------------------------------------------------------------------------------------------

struct Service {
    number: String,
    route: Route,
    engine: Engine<PostgresStore>,
    /// Opened for appending: a line is there whole.
    effects: File,
    /// Fresh keys come in the same order in every process, so that they meet.
    next: AtomicUsize,
    is_over: AtomicBool,
}

pub(crate) fn loader() {
    let mut orders = orders();
    block_on(async {
        let service = Arc::new(Service {
            number: var(NUMBER),
            route: payments(),
            engine: node(&var(URL), Options::default()).await,
            effects: File::options().create(true).append(true).open(var(EFFECTS)).unwrap(),
            next: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        });
        say("ready");
        orders.recv().await.unwrap();
        let callers: Vec<_> =
            (0..CALLERS).map(|caller| tokio::spawn(Arc::clone(&service).call(caller))).collect();
        while let Some(order) = orders.recv().await {
            match order.split_once(' ') {
                Some(("probe", key)) => {
                    let (service, key) = (Arc::clone(&service), key.to_owned());
                    tokio::spawn(async move {
                        service.until_answered(&key).await;
                        say(&format!("probed {key}"));
                    });
                }
                Some(("mark", _)) => say(&order),
                _ => break,
            }
        }
        service.is_over.store(true, Ordering::Release);
        for caller in callers {
            caller.await.unwrap();
        }
        say(&format!("drained {}", service.engine.drain(DRAIN).await));
    });
}

impl Service {
    /// Fresh keys, and now and then one that was sent before.
    async fn call(self: Arc<Self>, caller: u64) {
        let mut dice = Dice::new(caller);
        while !self.is_over.load(Ordering::Acquire) {
            let fresh = self.next.fetch_add(1, Ordering::Relaxed);
            self.until_answered(&format!("load-{fresh}")).await;
            if dice.below(4) == 0 {
                self.until_answered(&format!("load-{}", dice.below(fresh + 1))).await;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Sends a request as often as it takes, as a client does; but an attempt that runs is left to itself.
    async fn until_answered(self: &Arc<Self>, key: &str) {
        // Pacing, not synchronisation: this is how often a client asks. Nothing relies on how long that is.
        let mut pace = interval_at(tokio::time::Instant::now() + BACKOFF, BACKOFF);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            match self.engine.arrive(&self.route, request(&self.route, key)).await {
                Ok(Arrived::Execute(held)) => return self.execute(key, *held).await,
                Ok(Arrived::Replay { answer, .. }) => return say(&format!("ack {key} {}", words(&answer))),
                Ok(Arrived::Busy { .. }) => say("409"),
                Ok(Arrived::Unsettled { .. }) => return say(&format!("unsettled {key}")),
                Ok(other) => panic!("{key}: {other:?}"),
                Err(_) => say("503"),
            }
            if self.is_over.load(Ordering::Acquire) {
                return;
            }
            pace.tick().await;
        }
    }

    async fn execute(self: &Arc<Self>, key: &str, mut held: Held<PostgresStore>) {
        if held.begin().is_err() {
            return say("409");
        }
        let mine = unique(&format!("process-{}", self.number));
        (&self.effects).write_all(format!("{key} {mine}\n").as_bytes()).unwrap();
        let is_probe = key.starts_with("probe");
        let key = key.to_owned();
        let settling = tokio::spawn(async move {
            match held.settle(complete(&mine)).await {
                Settled::Done(_) => say(&format!("ack {key} {mine}")),
                Settled::Fenced(row) => say(&format!("fenced {key} {row:?}")),
            }
        });
        // While the database is down its client is told 504, and the caller goes on.
        if is_probe {
            settling.await.unwrap();
        }
    }
}

// ---- the parent's ledger ---------------------------------------------------------------------------------------------

/// Processes under load, and what their clients were told.
pub(crate) struct Load {
    nodes: Vec<Node>,
    folder: TempDir,
    probes: usize,
}

struct Node {
    actor: Actor,
    told: Told,
}

#[derive(Default)]
struct Told {
    /// Each answer that some client got.
    acks: HashMap<String, String>,
    answered: u64,
    busy: u64,
    unavailable: u64,
    unsettled: u64,
}

impl Load {
    /// Nodes on the database at `url`, already at work.
    pub(crate) fn start(url: &str, nodes: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let start = |number: usize| {
            let effects = effects_of(folder.path(), number);
            let environment =
                [(URL, url), (NUMBER, &number.to_string()), (EFFECTS, effects.to_str().unwrap())];
            Node { actor: Actor::start("loader", &environment), told: Told::default() }
        };
        let mut nodes: Vec<_> = (0..nodes).map(start).collect();
        for node in &mut nodes {
            assert_eq!(node.actor.hear(), "ready");
            node.actor.tell("go");
        }
        Self { nodes, folder, probes: 0 }
    }

    /// Until each node has given so many more answers from now on.
    pub(crate) fn until_answered(&mut self, answers: u64) {
        for node in &mut self.nodes {
            node.catch_up();
            let before = node.told.answered;
            node.hear_until(|told, _| told.answered >= before + answers);
        }
    }

    /// Until each node has told so many more clients 503 from now on.
    pub(crate) fn until_unavailable(&mut self, times: u64) {
        for node in &mut self.nodes {
            node.catch_up();
            let before = node.told.unavailable;
            node.hear_until(|told, _| told.unavailable >= before + times);
        }
    }

    /// Sends a fresh key to each node, again and again until it is completed; how long the slowest took.
    pub(crate) fn recovery(&mut self) -> Duration {
        self.probes += 1;
        let started = Instant::now();
        for (number, node) in self.nodes.iter_mut().enumerate() {
            node.actor.tell(&format!("probe probe-{}-{number}", self.probes));
        }
        for node in &mut self.nodes {
            node.hear_until(|_, line| line.starts_with("probed"));
        }
        started.elapsed()
    }

    /// Ends the load and draws up the ledger: at most one effect a key, and each answer that was given is kept in the database at
    /// `url`, byte for byte.
    pub(crate) fn check(mut self, url: &str) -> Ledger {
        let mut acks: HashMap<String, String> = HashMap::new();
        let mut ledger = Ledger::default();
        for node in &mut self.nodes {
            node.actor.tell("stop");
            node.hear_until(|_, line| line == "drained true");
            for (key, words) in std::mem::take(&mut node.told.acks) {
                let known = acks.entry(key.clone()).or_insert_with(|| words.clone());
                assert_eq!(*known, words, "{key} was answered in two ways");
            }
            ledger.busy += node.told.busy;
            ledger.unavailable += node.told.unavailable;
            ledger.unsettled += node.told.unsettled;
            ledger.answers += node.told.answered;
        }
        let effects = self.effects();
        for (key, words) in &acks {
            assert_eq!(effects.get(key), Some(words), "{key} was answered with what never happened");
        }
        ledger.keys = acks.len();
        ledger.effects = effects.len();
        block_on(async {
            let fresh = node(url, Options::default()).await;
            for (key, words_given) in &effects {
                match fresh.arrive(&payments(), request(&payments(), key)).await.unwrap() {
                    Arrived::Replay { answer, .. } => assert_eq!(words(&answer), *words_given, "{key}"),
                    // Nobody knows what it did, and nobody was told that it did anything.
                    Arrived::Unsettled { .. } if !acks.contains_key(key) => ledger.unknown += 1,
                    other => panic!("{key}: {other:?}; a client was told {:?}", acks.get(key)),
                }
            }
        });
        ledger
    }

    /// What has happened, by key; nothing twice.
    fn effects(&self) -> HashMap<String, String> {
        let mut effects = HashMap::new();
        for number in 0..self.nodes.len() {
            let text = std::fs::read_to_string(effects_of(self.folder.path(), number)).unwrap();
            for (key, words) in text.lines().filter_map(|line| line.split_once(' ')) {
                let earlier = effects.insert(key.to_owned(), words.to_owned());
                assert_eq!(earlier, None, "{key} ran twice, then by {words}");
            }
        }
        effects
    }
}

fn effects_of(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("effects-{number}"))
}

/// What became of the load.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Keys that a client got an answer to.
    pub(crate) keys: usize,
    /// Operations that ran; each once.
    pub(crate) effects: usize,
    /// Answers, replays among them.
    pub(crate) answers: u64,
    /// 409, for somebody else runs it.
    pub(crate) busy: u64,
    /// 409, for nobody knows.
    pub(crate) unsettled: u64,
    /// 503.
    pub(crate) unavailable: u64,
    /// Operations that ran and whose end nobody knows.
    pub(crate) unknown: u64,
}

impl Node {
    /// The next line, entered into the ledger.
    fn hear(&mut self) -> String {
        let line = self.actor.hear();
        let mut parts = line.split(' ');
        match parts.next().unwrap() {
            "ack" => {
                let (key, words) = (parts.next().unwrap(), parts.next().unwrap());
                let known = self.told.acks.entry(key.to_owned()).or_insert_with(|| words.to_owned());
                assert_eq!(known, words, "{key} was answered in two ways");
                self.told.answered += 1;
            }
            "409" => self.told.busy += 1,
            "503" => self.told.unavailable += 1,
            "unsettled" => self.told.unsettled += 1,
            "fenced" => panic!("{line}"),
            _ => {}
        }
        line
    }

    /// Hears all that was said until now.
    fn catch_up(&mut self) {
        self.actor.tell("mark here");
        self.hear_until(|_, line| line == "mark here");
    }

    fn hear_until(&mut self, is_so: impl Fn(&Told, &str) -> bool) {
        let started = Instant::now();
        loop {
            let line = self.hear();
            if is_so(&self.told, &line) {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "it never came to be; the last word was {line:?}");
        }
    }
}
