//! What goes on without any request: leases that lapse, rows past retention, outcomes that nobody knows.
//!
//! One loop for all of them: a pass that is bounded, a pause with jitter, or none while there is more to do; reconciler and
//! completer are woken early where somebody knows that there is work; an error or a panic is counted, logged and followed by the next pass.
//!
//! **Several nodes** run the same workers over one store. What a row becomes is one conditional write, so two passes that meet
//! do nothing twice. What goes outside (a probe) is claimed before, by a write with an end: a node that dies delays it until then.

mod apart;
mod completer;
mod lines;
mod looked;
mod reaper;
mod reconciler;
mod sweeper;
mod watcher;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use metrics::counter;
use oncegate_core::duration::{DURATION_MAX, INTERVAL_MIN, InvalidDuration, check_max, check_positive};
use oncegate_store::{Store, StoreError};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::engine::{Engine, Inner};
use crate::meters::{self, Running, names};
use crate::probe::{NoProbe, Probe};

pub use apart::{About, Heard, Life, Message, Says};
pub use completer::{Finisher, Finishing, Left, Runs};

use completer::Completer;
use lines::Lines;
pub(crate) use looked::Looked;

/// How the workers work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerOptions {
    /// A lapsed lease is found within this time.
    pub sweep_every: Duration,
    /// Rows past retention are looked for so often.
    pub reap_every: Duration,
    /// Doubts whose moment has come are looked for so often; one that is put before the machine by a request is looked at at once.
    pub reconcile_every: Duration,
    /// What is kept apart is looked through so often.
    pub apart_every: Duration,
    /// How long a message about a key that was never seen is kept.
    pub apart_for: Duration,
    /// Doubts, dead letters and arrears are measured so often.
    pub watch_every: Duration,
    /// Rows of one scan, and writes of one commit.
    pub batch: usize,
    /// How much longer than its retention a row is left alone.
    pub reap_grace: Duration,
    /// Probes of one operation that are under way at the same time, on this node.
    pub probes_at_once: usize,
    /// How long the audit trail is kept.
    pub audit_retention: Duration,
    /// Operations that their client has left, and such as wait to be run, are looked for so often.
    pub complete_every: Duration,
    /// So many of them are run at the same time, on this node.
    pub completions_at_once: usize,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            sweep_every: Duration::from_secs(10),
            reap_every: Duration::from_secs(10),
            reconcile_every: Duration::from_secs(1),
            apart_every: Duration::from_secs(5),
            apart_for: Duration::from_hours(24),
            watch_every: Duration::from_secs(15),
            batch: 128,
            reap_grace: Duration::from_secs(1),
            probes_at_once: 8,
            audit_retention: Duration::from_hours(400 * 24),
            complete_every: Duration::from_secs(1),
            completions_at_once: 8,
        }
    }
}

impl WorkerOptions {
    /// Refuses durations above 100 years, and zero where it has no meaning.
    pub fn check(&self) -> Result<(), InvalidDuration> {
        check_positive("sweep_every", self.sweep_every)?;
        check_positive("reap_every", self.reap_every)?;
        check_positive("reconcile_every", self.reconcile_every)?;
        check_positive("apart_every", self.apart_every)?;
        check_max("apart_for", self.apart_for)?;
        check_positive("watch_every", self.watch_every)?;
        check_max("reap_grace", self.reap_grace)?;
        check_max("audit_retention", self.audit_retention)?;
        check_positive("complete_every", self.complete_every)
    }

    /// The same options, with each duration in its range, so that a worker's loop neither spins
    /// nor panics. What is outside is logged.
    fn within_limits(&self) -> Self {
        let mut options = self.clone();
        if let Err(error) = self.check() {
            tracing::error!(%error, "worker options are invalid; using the nearest allowed values");
            for every in [
                &mut options.sweep_every,
                &mut options.reap_every,
                &mut options.reconcile_every,
                &mut options.apart_every,
                &mut options.watch_every,
                &mut options.complete_every,
            ] {
                *every = (*every).clamp(INTERVAL_MIN, DURATION_MAX);
            }
            for span in [&mut options.apart_for, &mut options.reap_grace, &mut options.audit_retention] {
                *span = (*span).min(DURATION_MAX);
            }
        }
        options
    }

    const fn every(&self, worker: Worker) -> Duration {
        match worker {
            Worker::Sweeper => self.sweep_every,
            Worker::Reaper => self.reap_every,
            Worker::Reconciler => self.reconcile_every,
            Worker::Apart => self.apart_every,
            Worker::Watcher => self.watch_every,
            Worker::Completer => self.complete_every,
        }
    }

    /// So many doubts of one operation wait on this node to be asked about.
    fn line_max(&self) -> usize {
        self.batch.min(4 * self.probes_at_once.max(1)).max(1)
    }
}

/// The kinds of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Worker {
    /// Lapsed leases, by crash policy.
    Sweeper,
    /// Rows past retention.
    Reaper,
    /// Outcomes that nobody knows.
    Reconciler,
    /// Messages about records that were not there.
    Apart,
    /// Measures what is open.
    Watcher,
    /// Operations that their client has left; started by whoever can run them, see [`Engine::start_completer`].
    Completer,
}

impl Worker {
    /// Those that every engine can run by itself.
    pub const ALL: [Self; 5] = [Self::Sweeper, Self::Reaper, Self::Reconciler, Self::Apart, Self::Watcher];
    /// Those that an engine starts by itself, unless told otherwise.
    pub const DEFAULT: [Self; 2] = [Self::Sweeper, Self::Reaper];
    /// Every kind.
    pub const ALL_KINDS: [Self; 6] =
        [Self::Sweeper, Self::Reaper, Self::Reconciler, Self::Apart, Self::Watcher, Self::Completer];
    /// How many kinds there are.
    const KINDS: usize = Self::ALL_KINDS.len();

    /// The name, in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sweeper => "sweeper",
            Self::Reaper => "reaper",
            Self::Reconciler => "reconciler",
            Self::Apart => "apart",
            Self::Watcher => "watcher",
            Self::Completer => "completer",
        }
    }
}

/// What one pass came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// How many rows were looked at.
    pub seen: usize,
    /// How many of them it changed.
    pub changed: usize,
    /// There was more than a pass may take: the next one follows at once.
    pub more: bool,
}

/// The running workers. Dropped, they end where they are: whatever they had begun is found again.
#[derive(Debug)]
pub struct Workers {
    tasks: Vec<JoinHandle<()>>,
    passes: watch::Receiver<[u64; Worker::KINDS]>,
}

impl Workers {
    /// Returns when this worker has ended so many passes, well or not. For tests and for whoever must know that one has begun
    /// after a certain moment.
    pub async fn until_passes(&mut self, worker: Worker, count: u64) {
        // An error means that the workers have ended, and no more passes will come.
        let _ = self.passes.wait_for(|passes| passes[worker as usize] >= count).await;
    }

    /// Ends them, and returns when they have: what was under way is being cleaned up then, and counts as that ([`Engine::drain`]).
    pub async fn stop(mut self) {
        for task in std::mem::take(&mut self.tasks) {
            task.abort();
            // It was aborted, or has panicked, which was logged.
            let _ = task.await;
        }
    }

    /// How many passes this worker has ended.
    #[must_use]
    pub fn passes(&self, worker: Worker) -> u64 {
        self.passes.borrow()[worker as usize]
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl<S: Store> Engine<S> {
    /// Starts all workers except the completer, on the engine's runtime. They take over from the
    /// sweeper and the reaper that were started with the engine.
    ///
    /// A duration outside its range is replaced by the nearest allowed one, and an error is logged.
    /// [`WorkerOptions::check`] says so beforehand.
    #[must_use]
    pub fn start_workers(&self, options: &WorkerOptions, probe: &Arc<dyn Probe>) -> Workers {
        self.start_jobs(Job::of_engine(probe), options)
    }

    /// Starts the completer: operations that their client has left are finished by `finisher`. Dropped, it takes up nothing more; what it
    /// has taken up goes on.
    ///
    /// **It is not enough.** It takes what waits. If a process dies in the middle of a run, the
    /// sweeper, which is started with the engine, makes the record `unknown`. Then the reconciler
    /// examines it, which some node of the store must run too ([`Engine::start_workers`]).
    /// [`Engine::start_all_workers`] starts both.
    #[must_use]
    pub fn start_completer(&self, options: &WorkerOptions, finisher: Arc<dyn Finisher<S>>) -> Workers {
        self.start_jobs([Job::completer(finisher, options)], options)
    }

    /// All workers, the completer among them: what a service runs that accepts work for later.
    #[must_use]
    pub fn start_all_workers(
        &self,
        options: &WorkerOptions,
        probe: &Arc<dyn Probe>,
        finisher: Arc<dyn Finisher<S>>,
    ) -> Workers {
        let jobs = Job::of_engine(probe).into_iter().chain([Job::completer(finisher, options)]);
        self.start_jobs(jobs, options)
    }

    fn start_jobs(&self, jobs: impl IntoIterator<Item = Job<S>>, options: &WorkerOptions) -> Workers {
        let (counts, passes) = watch::channel([0; Worker::KINDS]);
        let options = Arc::new(options.within_limits());
        let tasks = jobs.into_iter().map(|job| {
            let worker = job.worker();
            if Worker::DEFAULT.contains(&worker) {
                self.end_default_workers();
            }
            meters::begin_worker_at_zero(worker.name());
            let (engine, options) = (self.clone(), Arc::clone(&options));
            self.0.runtime.spawn(Work { engine, options, job, counts: counts.clone() }.run())
        });
        Workers { tasks: tasks.collect(), passes }
    }

    /// Starts the sweeper and the reaper. They do not keep the engine alive: they end with its
    /// last handle.
    pub(crate) fn start_default_workers(&self, options: &WorkerOptions) {
        let (counts, passes) = watch::channel([0; Worker::KINDS]);
        let tasks = Worker::DEFAULT.map(|worker| {
            meters::begin_worker_at_zero(worker.name());
            let engine = Arc::downgrade(&self.0);
            self.0.runtime.spawn(run_default(engine, worker, options.clone(), counts.clone()))
        });
        tracing::info!(
            "started background workers: sweeper, reaper; not started: reconciler, apart and watcher (call \
             `start_workers`), completer (call `start_completer`)"
        );
        *self.default_workers() = Some(Workers { tasks: tasks.into(), passes });
    }

    /// Ends the sweeper and the reaper that were started with the engine, so that each runs once.
    fn end_default_workers(&self) {
        drop(self.default_workers().take());
    }

    fn default_workers(&self) -> MutexGuard<'_, Option<Workers>> {
        self.0.default_workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One pass of one worker, now. For services with schedulers of their own, and for tests.
    pub async fn work(
        &self,
        worker: Worker,
        options: &WorkerOptions,
        probe: &dyn Probe,
    ) -> Result<Pass, Arc<StoreError>> {
        // Nothing is decided over a store that has lost what this process knows.
        if self.is_restored() {
            return Ok(Pass::default());
        }
        match worker {
            Worker::Sweeper => self.sweep(options).await,
            Worker::Reaper => self.reap(options).await,
            Worker::Reconciler => self.reconcile(options, probe).await,
            Worker::Apart => self.hear_apart(probe).await,
            Worker::Watcher => self.watch(options).await,
            // It needs somebody who can run them: see `complete`.
            Worker::Completer => Ok(Pass::default()),
        }
    }
}

struct Work<S: Store> {
    engine: Engine<S>,
    options: Arc<WorkerOptions>,
    job: Job<S>,
    counts: watch::Sender<[u64; Worker::KINDS]>,
}

/// What a loop does, and with whom.
enum Job<S: Store> {
    Engines { worker: Worker, probe: Arc<dyn Probe> },
    Reconciles(Lines),
    Completes(Completer<S>),
}

impl<S: Store> Job<S> {
    /// What every engine can do by itself.
    fn of_engine(probe: &Arc<dyn Probe>) -> [Self; Worker::ALL.len()] {
        Worker::ALL.map(|worker| match worker {
            Worker::Reconciler => Self::Reconciles(Lines::new(Arc::clone(probe))),
            worker => Self::Engines { worker, probe: Arc::clone(probe) },
        })
    }

    fn completer(finisher: Arc<dyn Finisher<S>>, options: &WorkerOptions) -> Self {
        Self::Completes(Completer::new(finisher, options.completions_at_once))
    }

    const fn worker(&self) -> Worker {
        match self {
            Self::Engines { worker, .. } => *worker,
            Self::Reconciles(_) => Worker::Reconciler,
            Self::Completes(_) => Worker::Completer,
        }
    }
}

/// After a failure the next pass comes after this, doubled with every further one, up to the worker's own pause.
pub(crate) const FAILURE_PAUSE: Duration = Duration::from_millis(200);

impl<S: Store> Work<S> {
    async fn run(self) {
        let worker = self.job.worker();
        let _running = Running::begin(worker);
        let mut failures = 0;
        // Only the reconciler has any: its questions go on through passes and pauses, and end with this loop.
        let mut questions = FuturesUnordered::new();
        loop {
            let passed = meanwhile(&mut questions, self.pass()).await;
            let more = has_more(worker, passed, &mut failures);
            if let Job::Reconciles(lines) = &self.job {
                let free = lines.free_places(self.options.probes_at_once.max(1));
                questions.extend(free.into_iter().map(|operation| lines.ask(&self.engine, operation)));
            }
            count_pass(worker, &self.counts);
            if more {
                meanwhile(&mut questions, tokio::task::yield_now()).await;
            } else {
                meanwhile(&mut questions, self.pause(failures)).await;
            }
        }
    }

    async fn pass(&self) -> Result<Pass, String> {
        // The same as in `Engine::work`, which not all of them go through.
        if self.engine.is_restored() {
            return Ok(Pass::default());
        }
        let pass = async {
            match &self.job {
                Job::Engines { worker, probe } => self.engine.work(*worker, &self.options, &**probe).await,
                Job::Reconciles(lines) => lines.fill(&self.engine, &self.options).await,
                Job::Completes(completer) => self.engine.complete_with(completer, &self.options).await,
            }
        };
        caught(pass).await
    }

    async fn pause(&self, failures: u32) {
        let pause = pause_after(failures, self.options.every(self.job.worker()));
        match self.job.worker() {
            // A permit that was left while a pass was under way ends the pause at once.
            Worker::Reconciler => {
                let _ = tokio::time::timeout(jittered(pause), self.engine.0.doubts.notified()).await;
            }
            // After a failure the store is spared.
            Worker::Completer if failures == 0 => {
                let _ = tokio::time::timeout(jittered(pause), self.engine.0.accepted.notified()).await;
            }
            _ => tokio::time::sleep(jittered(pause)).await,
        }
    }
}

/// The loop of a worker that was started with the engine. It holds the engine only during a pass.
async fn run_default<S: Store>(
    engine: Weak<Inner<S>>,
    worker: Worker,
    options: WorkerOptions,
    counts: watch::Sender<[u64; Worker::KINDS]>,
) {
    let _running = Running::begin(worker);
    let mut failures = 0;
    loop {
        let Some(inner) = engine.upgrade() else { return };
        let passed = caught(Engine(inner).work(worker, &options, &NoProbe)).await;
        let more = has_more(worker, passed, &mut failures);
        count_pass(worker, &counts);
        if more {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(jittered(pause_after(failures, options.every(worker)))).await;
        }
    }
}

/// A pass, whatever it does: an error and a panic are words.
async fn caught(pass: impl Future<Output = Result<Pass, Arc<StoreError>>>) -> Result<Pass, String> {
    match AssertUnwindSafe(pass).catch_unwind().await {
        Ok(passed) => passed.map_err(|error| error.to_string()),
        Err(_) => Err("it panicked".to_owned()),
    }
}

/// Whether the next pass follows at once. A failure is counted and logged.
fn has_more(worker: Worker, passed: Result<Pass, String>, failures: &mut u32) -> bool {
    match passed {
        Ok(pass) => {
            *failures = 0;
            pass.more
        }
        Err(words) => {
            counter!(names::WORKER_ERROR, "worker" => worker.name()).increment(1);
            tracing::warn!(worker = worker.name(), "a pass failed, and the next one follows: {words}");
            *failures += 1;
            false
        }
    }
}

fn count_pass(worker: Worker, counts: &watch::Sender<[u64; Worker::KINDS]>) {
    counter!(names::WORKER_PASS, "worker" => worker.name()).increment(1);
    counts.send_modify(|counts| counts[worker as usize] += 1);
}

/// The pause before the next pass, without jitter.
fn pause_after(failures: u32, every: Duration) -> Duration {
    match failures {
        0 => every,
        failures => every.min(FAILURE_PAUSE.saturating_mul(1 << (failures - 1).min(10))),
    }
}

/// Does this, while the questions go on.
async fn meanwhile<T>(
    questions: &mut FuturesUnordered<impl Future<Output = ()>>,
    other: impl Future<Output = T>,
) -> T {
    let mut other = pin!(other);
    loop {
        tokio::select! {
            done = &mut other => return done,
            Some(()) = questions.next(), if !questions.is_empty() => {}
        }
    }
}

/// Between a half and the whole of it, so that nodes that were started together do not work in step.
pub(crate) fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + 0.5 * fraction())
}

/// A number between 0 and 1; 1 if the system has no randomness to give.
pub(crate) fn fraction() -> f64 {
    let mut bytes = [0; 4];
    match getrandom::fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_be_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 1.0,
    }
}

/// So many scans a pass may take.
const SCANS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// A pause of zero is a loop that never rests; one of `Duration::MAX` cannot be added to a
    /// moment.
    #[test]
    fn options_outside_their_range_are_brought_into_it() {
        let (sweep_every, reap_every) = (Duration::ZERO, Duration::MAX);
        let options = WorkerOptions { sweep_every, reap_every, ..WorkerOptions::default() };
        assert!(options.check().is_err());
        let within = options.within_limits();
        assert_eq!((within.sweep_every, within.reap_every), (Duration::from_millis(1), DURATION_MAX));
        assert_eq!(within.check(), Ok(()));
        assert_eq!(WorkerOptions::default().within_limits(), WorkerOptions::default());
    }

    #[test]
    fn a_pause_is_between_a_half_and_the_whole_of_it() {
        let pause = Duration::from_secs(10);
        let pauses: Vec<_> = (0..1_000).map(|_| jittered(pause)).collect();
        assert!(pauses.iter().all(|one| (pause / 2..=pause).contains(one)), "{pauses:?}");
        let (shortest, longest) = (pauses.iter().min(), pauses.iter().max());
        assert!(
            shortest < Some(&(pause * 6 / 10)) && longest > Some(&(pause * 9 / 10)),
            "all over that span"
        );
    }
}
