//! A store that fails as real ones do, when a test tells it to.
//!
//! Faults are queued and met in order, one by each `apply`; reads can be made to fail or to be
//! slow too. Nothing here is random and nothing sleeps: a delay ends when the test opens it, a
//! late write lands when the test says so.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oncegate_core::audit::Entry;
use oncegate_core::identity::{RecordId, Token};
use oncegate_core::record::{Reason, Record};
use oncegate_core::scope::Operation;
use oncegate_core::time::Timestamp;
use tokio::sync::{Semaphore, watch};

use crate::apart::Apart;
use crate::clock::Clock;
use crate::error::{Effect, Kind, StoreError};
use crate::history::{History, Quarantine};
use crate::jobs::{Claim, Depth, Job, JobId, Jobs, Report};
use crate::query::{Counts, Cursor, Due, Filter, Moments, Page, Scan};
use crate::shared_cache::Realm;
use crate::signals::Signals;
use crate::trail::{EntryPage, EntryPlace, TimeSpan};
use crate::turns::{Backlog, Doubts, Turn, Waiting};
use crate::write::{Outcome, Write};
use crate::{Capability, Result, Store, Writing};

/// What goes wrong with one `apply`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// An error before anything was written, which says so.
    BeforeWrite,
    /// It lands; its acknowledgement is lost.
    AcknowledgementLost,
    /// The connection breaks before it lands; the caller cannot tell.
    ConnectionLost,
    /// The caller gets an error, and the write lands only when [`Faulty::land`] is called.
    LandsLate,
    /// It waits until [`Faulty::let_go`], then goes on as usual.
    Delayed,
    /// The store panics before the write.
    Panics,
    /// The store dies before the write: this and every later call fails until [`Faulty::revive`].
    CrashBefore,
    /// The store dies after the write landed.
    CrashAfter,
}

/// Wraps a store and injects faults.
#[derive(Clone, Debug)]
pub struct Faulty<S> {
    inner: S,
    writing: Writing,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    plan: Mutex<Plan>,
    gate: Semaphore,
    slow_gate: Semaphore,
    calls: watch::Sender<Calls>,
}

/// Where the calls of `apply` are, for tests to wait upon.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    begun: usize,
    ended: usize,
    delayed: usize,
    slow: usize,
}

#[derive(Debug, Default)]
struct Plan {
    faults: VecDeque<Fault>,
    late: VecDeque<Vec<Write>>,
    reads_to_fail: usize,
    slow_answers: usize,
    rejected: Vec<(RecordId, usize)>,
    clock_off_s: i64,
    skipped_max: Option<usize>,
    is_dead: bool,
}

impl<S: Store> Faulty<S> {
    /// Wraps `inner`; nothing fails yet.
    pub fn new(inner: S) -> Self {
        let shared = Shared {
            plan: Mutex::default(),
            gate: Semaphore::new(0),
            slow_gate: Semaphore::new(0),
            calls: watch::Sender::default(),
        };
        Self { writing: inner.capability().writing, inner, shared: Arc::new(shared) }
    }

    /// Says that it takes so many batches at once, as a store over the network does.
    #[must_use]
    pub fn taking_at_once(self, at_once: usize) -> Self {
        Self { writing: Writing::Awaits { at_once }, ..self }
    }

    /// The next `apply` that has no fault queued meets this one.
    pub fn queue(&self, fault: Fault) {
        self.plan().faults.push_back(fault);
    }

    /// The next `count` reads and scans fail.
    pub fn fail_reads(&self, count: usize) {
        self.plan().reads_to_fail = count;
    }

    /// The next `count` batches with a write of this record are rejected as a whole, as by a
    /// constraint of the database. A later call replaces an earlier one for the same record.
    pub fn reject(&self, id: RecordId, count: usize) {
        let mut plan = self.plan();
        plan.rejected.retain(|(other, _)| *other != id);
        plan.rejected.push((id, count));
    }

    /// From now on a scan that leaves out operations looks at no more than `count` rows.
    pub fn skip_at_most(&self, count: usize) {
        self.plan().skipped_max = Some(count);
    }

    /// Sets the store's clock off by so many seconds, for this handle and its clones.
    pub fn set_clock_off(&self, seconds: i64) {
        self.plan().clock_off_s = seconds;
    }

    /// The next `count` reads of rows and claims of jobs happen at once, but their answers wait
    /// for [`Faulty::answer`].
    pub fn slow_answers(&self, count: usize) {
        self.plan().slow_answers = count;
    }

    /// Lets one slow answer through.
    pub fn answer(&self) {
        self.shared.slow_gate.add_permits(1);
    }

    /// Returns when so many answers in all have been slow, or are.
    pub async fn until_slow(&self, count: usize) {
        self.until(|calls| calls.slow >= count).await;
    }

    /// Waits if this answer is to be slow.
    async fn be_slow(&self) {
        let is_slow = {
            let mut plan = self.plan();
            let is_slow = plan.slow_answers > 0;
            plan.slow_answers = plan.slow_answers.saturating_sub(1);
            is_slow
        };
        if is_slow {
            self.shared.calls.send_modify(|calls| calls.slow += 1);
            if let Ok(permit) = self.shared.slow_gate.acquire().await {
                permit.forget();
            }
        }
    }

    /// Lets the oldest late write land now; says whether there was one.
    pub async fn land(&self) -> Result<bool> {
        let late = self.plan().late.pop_front();
        match late {
            None => Ok(false),
            Some(batch) => self.inner.apply(&batch).await.map(|_| true),
        }
    }

    /// Lets one delayed write go on.
    pub fn let_go(&self) {
        self.shared.gate.add_permits(1);
    }

    /// How often `apply` was called.
    #[must_use]
    pub fn applies(&self) -> usize {
        self.shared.calls.borrow().begun
    }

    /// Returns when `apply` has ended so often, well or not.
    pub async fn until_applied(&self, count: usize) {
        self.until(|calls| calls.ended >= count).await;
    }

    /// Returns when so many writes wait to be let go.
    pub async fn until_delayed(&self, count: usize) {
        self.until(|calls| calls.delayed >= count).await;
    }

    async fn until(&self, is_so: impl Fn(&Calls) -> bool) {
        // The sender is here, so the channel is open.
        let _ = self.shared.calls.subscribe().wait_for(is_so).await;
    }

    /// Ends a crash.
    pub fn revive(&self) {
        self.plan().is_dead = false;
    }

    /// The store beneath, which never fails.
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.shared.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_fault(&self) -> Fault {
        let mut plan = self.plan();
        let fault = plan.faults.pop_front().unwrap_or(Fault::None);
        if plan.is_dead {
            return Fault::BeforeWrite;
        }
        plan.is_dead = matches!(fault, Fault::CrashBefore | Fault::CrashAfter);
        fault
    }

    /// Whether the database rejects this batch.
    fn rejects(&self, batch: &[Write]) -> bool {
        let mut plan = self.plan();
        let is_of = |id: &RecordId| batch.iter().any(|write| write.id() == *id);
        let Some(rejected) = plan.rejected.iter_mut().find(|(id, count)| *count > 0 && is_of(id)) else {
            return false;
        };
        rejected.1 -= 1;
        true
    }

    fn check_alive(&self, operation: &'static str) -> Result<()> {
        if self.plan().is_dead { Err(injected(Effect::None, operation)) } else { Ok(()) }
    }

    /// Of what is read in the background, at no certain moment: it uses up no failure that a test
    /// has meant for another read.
    fn check_background_read(&self, operation: &'static str) -> Result<()> {
        let plan = self.plan();
        if plan.is_dead || plan.reads_to_fail > 0 { Err(injected(Effect::None, operation)) } else { Ok(()) }
    }

    fn check_read(&self, operation: &'static str) -> Result<()> {
        let mut plan = self.plan();
        if plan.is_dead || plan.reads_to_fail > 0 {
            plan.reads_to_fail = plan.reads_to_fail.saturating_sub(1);
            return Err(injected(Effect::None, operation));
        }
        Ok(())
    }
}

/// An `apply` ends, also by a panic or because its future was dropped.
struct Ended<'c>(&'c watch::Sender<Calls>);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|calls| calls.ended += 1);
    }
}

/// A delay ends.
struct LetGo<'c>(&'c watch::Sender<Calls>);

impl Drop for LetGo<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|calls| calls.delayed -= 1);
    }
}

fn off_by(moment: Timestamp, seconds: i64) -> Timestamp {
    Timestamp::from_micros(moment.as_micros().saturating_add(seconds.saturating_mul(1_000_000)))
}

fn injected(effect: Effect, operation: &'static str) -> StoreError {
    StoreError::new(Kind::Unavailable, effect, operation).because("injected")
}

impl<S: Store> Store for Faulty<S> {
    fn capability(&self) -> Capability {
        Capability { writing: self.writing, ..self.inner.capability() }
    }

    async fn apply(&self, batch: &[Write]) -> Result<Vec<Outcome>> {
        self.shared.calls.send_modify(|calls| calls.begun += 1);
        let _ended = Ended(&self.shared.calls);
        match self.next_fault() {
            Fault::None if self.rejects(batch) => {
                Err(StoreError::new(Kind::Rejected, Effect::None, "apply").because("injected"))
            }
            Fault::None => self.inner.apply(batch).await,
            Fault::BeforeWrite => Err(injected(Effect::None, "apply")),
            Fault::ConnectionLost | Fault::CrashBefore => Err(injected(Effect::Unknown, "apply")),
            Fault::AcknowledgementLost | Fault::CrashAfter => {
                // An error of the store itself says more than ours would.
                self.inner.apply(batch).await?;
                Err(injected(Effect::Unknown, "apply"))
            }
            Fault::LandsLate => {
                self.plan().late.push_back(batch.to_vec());
                Err(injected(Effect::Unknown, "apply"))
            }
            #[expect(clippy::panic, reason = "what the test asked for")]
            Fault::Panics => panic!("injected"),
            Fault::Delayed => {
                self.shared.calls.send_modify(|calls| calls.delayed += 1);
                let _delayed = LetGo(&self.shared.calls);
                if let Ok(permit) = self.shared.gate.acquire().await {
                    permit.forget();
                }
                self.inner.apply(batch).await
            }
        }
    }

    async fn read(&self, ids: &[RecordId]) -> Result<Vec<Result<Option<Record>>>> {
        self.check_read("read")?;
        let rows = self.inner.read(ids).await;
        self.be_slow().await;
        rows
    }

    async fn due_in(&self, what: Due, moments: Moments, limit: usize) -> Result<Scan> {
        self.check_read("due")?;
        self.inner.due_in(what, moments, limit).await
    }

    async fn doubted_except(&self, except: &[Operation], moments: Moments, limit: usize) -> Result<Scan> {
        self.check_read("due")?;
        let skipped_max = self.plan().skipped_max;
        let Some(skipped_max) = skipped_max else {
            return self.inner.doubted_except(except, moments, limit).await;
        };
        let mut scan = self.inner.due_in(Due::Doubted, moments, skipped_max).await?;
        scan.skipped_until = scan.records.last().and_then(|row| Due::Doubted.moment(row));
        scan.skipped_until = scan.skipped_until.filter(|_| scan.is_cut);
        scan.records.retain(|row| !except.contains(&row.operation));
        Ok(scan)
    }

    async fn waiting(&self, turn: &Turn, now: Timestamp) -> Result<Waiting> {
        self.check_read("waiting")?;
        self.inner.waiting(turn, now).await
    }

    async fn backlog(&self) -> Result<Backlog> {
        self.check_read("backlog")?;
        self.inner.backlog().await
    }

    async fn doubts(&self) -> Result<Doubts> {
        self.check_read("doubts")?;
        self.inner.doubts().await
    }

    async fn browse(&self, filter: &Filter, after: Option<&Cursor>, limit: usize) -> Result<Page> {
        self.check_read("browse")?;
        self.inner.browse(filter, after, limit).await
    }

    async fn counts(&self) -> Result<Counts> {
        self.check_read("counts")?;
        self.inner.counts().await
    }

    async fn tell(&self, entries: &[Entry]) -> Result<()> {
        self.check_read("tell")?;
        self.inner.tell(entries).await
    }

    async fn story(&self, id: RecordId, limit: usize) -> Result<Vec<Entry>> {
        self.check_read("story")?;
        self.inner.story(id, limit).await
    }

    async fn drop_entries(&self, before: Timestamp, limit: usize) -> Result<usize> {
        self.check_read("drop_entries")?;
        self.inner.drop_entries(before, limit).await
    }

    async fn entries(&self, span: TimeSpan, after: Option<EntryPlace>, limit: usize) -> Result<EntryPage> {
        self.check_read("entries")?;
        self.inner.entries(span, after, limit).await
    }

    async fn removed(&self, ids: &[RecordId], since: Timestamp) -> Result<Vec<Option<Timestamp>>> {
        self.check_background_read("removed")?;
        self.inner.removed(ids, since).await
    }

    async fn drop_removed(&self, before: Timestamp, limit: usize) -> Result<usize> {
        self.check_read("drop_removed")?;
        self.inner.drop_removed(before, limit).await
    }

    async fn keep_apart(&self, apart: &Apart) -> Result<()> {
        self.check_read("keep_apart")?;
        self.inner.keep_apart(apart).await
    }

    async fn apart(&self, after: Option<&Apart>, limit: usize) -> Result<Vec<Apart>> {
        self.check_read("apart")?;
        self.inner.apart(after, limit).await
    }

    async fn drop_apart(&self, apart: &[Apart]) -> Result<()> {
        self.check_read("drop_apart")?;
        self.inner.drop_apart(apart).await
    }

    // Called in the background, at no certain moment: it takes no queued fault. A dead store is
    // dead for it too.

    async fn check_history(&self) -> Result<History> {
        self.check_alive("check_history")?;
        self.inner.check_history().await
    }

    async fn leave(&self) -> Result<()> {
        self.check_alive("leave")?;
        self.inner.leave().await
    }

    async fn quarantines(&self) -> Result<Vec<Quarantine>> {
        self.check_alive("quarantines")?;
        self.inner.quarantines().await
    }

    async fn declare_quarantine(&self, quarantine: &Quarantine) -> Result<()> {
        self.check_read("declare_quarantine")?;
        self.inner.declare_quarantine(quarantine).await
    }

    async fn release_quarantine(&self, id: &str, at: Timestamp) -> Result<bool> {
        self.check_read("release_quarantine")?;
        self.inner.release_quarantine(id, at).await
    }

    async fn clock(&self) -> Result<Timestamp> {
        self.check_read("clock")?;
        Ok(off_by(self.inner.clock().await?, self.plan().clock_off_s))
    }

    fn local_clock(&self) -> Option<Clock> {
        let (clock, shared) = (self.inner.local_clock()?, Arc::clone(&self.shared));
        Some(clock.set_to(move |now| {
            let plan = shared.plan.lock().unwrap_or_else(PoisonError::into_inner);
            off_by(now, plan.clock_off_s)
        }))
    }

    fn signals(&self) -> Option<Arc<dyn Signals>> {
        self.inner.signals()
    }

    fn realm(&self) -> Option<Realm> {
        self.inner.realm()
    }
}

impl<S: Jobs> Jobs for Faulty<S> {
    async fn promise(&self, jobs: &[Job]) -> Result<()> {
        self.check_read("promise")?;
        self.inner.promise(jobs).await
    }

    async fn claim(&self, claim: &Claim<'_>) -> Result<Vec<Job>> {
        self.check_read("claim")?;
        let jobs = self.inner.claim(claim).await;
        self.be_slow().await;
        jobs
    }

    async fn report(&self, token: Token, reports: &[Report]) -> Result<Vec<bool>> {
        self.check_read("report")?;
        self.inner.report(token, reports).await
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>> {
        self.check_read("job")?;
        self.inner.job(id).await
    }

    async fn jobs_of(&self, record: RecordId) -> Result<Vec<Job>> {
        self.check_read("jobs_of")?;
        self.inner.jobs_of(record).await
    }

    async fn parked(&self, after: Option<JobId>, limit: usize) -> Result<Vec<Job>> {
        self.check_read("parked")?;
        self.inner.parked(after, limit).await
    }

    async fn unpark(&self, id: JobId) -> Result<bool> {
        self.check_read("unpark")?;
        self.inner.unpark(id).await
    }

    async fn withdraw(&self, parked: &Job, why: &Reason) -> Result<bool> {
        self.check_read("withdraw")?;
        self.inner.withdraw(parked, why).await
    }

    async fn depth(&self) -> Result<Vec<Depth>> {
        self.check_read("depth")?;
        self.inner.depth().await
    }

    async fn drop_jobs(&self, before: Timestamp, limit: usize) -> Result<usize> {
        self.check_read("drop_jobs")?;
        self.inner.drop_jobs(before, limit).await
    }
}
