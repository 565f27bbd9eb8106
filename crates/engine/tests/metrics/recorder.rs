//! A recorder that a test can read: how often each counter and histogram was used, since the test began; and what gauges show.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// All that `counts.are` compares; the rest has tests of its own.
const RESERVES_AND_RECONCILIATION: &[&str] = &[
    oncegate_engine::names::CREATED,
    oncegate_engine::names::REPLAY,
    oncegate_engine::names::IN_PROGRESS,
    oncegate_engine::names::KEY_MISUSE,
    oncegate_engine::names::FAILED_RETRY,
    oncegate_engine::names::UNKNOWN,
    oncegate_engine::names::AFTER_EXPIRY,
    oncegate_engine::names::STORE_ERROR,
    oncegate_engine::names::ZOMBIE_KEY,
    oncegate_engine::names::RECONCILE_SCHEDULED,
    oncegate_engine::names::RECONCILE_RESOLVED,
    oncegate_engine::names::RECONCILE_FAILED,
];

#[derive(Clone, Default)]
struct Shared {
    used: Cells,
    /// The bits of what each shows.
    gauges: Cells,
}

type Cells = Arc<Mutex<BTreeMap<Key, Arc<AtomicU64>>>>;

fn cell(cells: &Cells, key: &Key) -> Arc<AtomicU64> {
    Arc::clone(cells.lock().unwrap().entry(key.clone()).or_default())
}

impl Shared {
    fn used(&self, key: &Key) -> Arc<AtomicU64> {
        cell(&self.used, key)
    }

    fn values(&self) -> BTreeMap<Key, u64> {
        let all = self.used.lock().unwrap();
        all.iter().map(|(key, used)| (key.clone(), used.load(Ordering::SeqCst))).collect()
    }
}

/// What was counted since the test began. Tests in one process take turns.
pub(crate) struct Counts {
    shared: Shared,
    before: BTreeMap<Key, u64>,
    _turn: tokio::sync::MutexGuard<'static, ()>,
}

impl Counts {
    pub(crate) async fn start() -> Self {
        static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        static SHARED: OnceLock<Shared> = OnceLock::new();
        let turn = TURN.lock().await;
        let shared = SHARED.get_or_init(|| {
            let shared = Shared::default();
            assert!(metrics::set_global_recorder(shared.clone()).is_ok(), "there is another recorder");
            shared
        });
        Self { shared: shared.clone(), before: shared.values(), _turn: turn }
    }

    /// These counts, and nothing else of this kind.
    pub(crate) fn are(&self, expected: &[(&str, u64)]) {
        for name in RESERVES_AND_RECONCILIATION {
            let expected = expected.iter().find(|(of, _)| of == name).map_or(0, |(_, count)| *count);
            assert_eq!(self.of(name), expected, "{name}");
        }
    }

    /// Whatever the labels.
    pub(crate) fn of(&self, name: &str) -> u64 {
        self.since().filter(|(key, _)| key.name() == name).map(|(_, count)| count).sum()
    }

    pub(crate) fn labelled(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        self.since().filter(|(key, _)| is_labelled(key, name, labels)).map(|(_, count)| count).sum()
    }

    /// What a gauge shows; `None`: it was never set.
    pub(crate) fn gauge(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let gauges = self.shared.gauges.lock().unwrap();
        let shown = gauges.iter().find(|(key, _)| is_labelled(key, name, labels));
        shown.map(|(_, bits)| f64::from_bits(bits.load(Ordering::SeqCst)))
    }

    fn since(&self) -> impl Iterator<Item = (Key, u64)> {
        self.shared.values().into_iter().map(|(key, count)| {
            let before = self.before.get(&key).copied().unwrap_or(0);
            (key, count - before)
        })
    }
}

fn is_labelled(key: &Key, name: &str, labels: &[(&str, &str)]) -> bool {
    let found: Vec<_> = key.labels().map(|label| (label.key(), label.value())).collect();
    key.name() == name && found == labels
}

impl Recorder for Shared {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.used(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(cell(&self.gauges, key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Measured(self.used(key))))
    }
}

/// Counts measurements, whatever was measured.
struct Measured(Arc<AtomicU64>);

impl HistogramFn for Measured {
    fn record(&self, _: f64) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}
