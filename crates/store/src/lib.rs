#![doc = include_str!("../README.md")]
//!
//! # Beyond rows
//!
//! - **Joining a caller's transaction** (atomic handlers): [`join`], for stores that are a database of the caller's too.
//! - **The outbox**, written in that transaction: [`jobs`].

pub mod apart;
pub mod check;
pub mod clock;
pub mod drive;
pub mod error;
pub mod faulty;
pub mod history;
pub mod jobs;
pub mod join;
pub mod memory;
pub mod outlive;
pub mod query;
pub mod removed;
pub mod row;
pub mod shared_cache;
pub mod signals;
pub mod trail;
pub mod turns;
pub mod write;

use std::future::Future;
use std::sync::Arc;

use oncegate_core::audit::Entry;
use oncegate_core::identity::RecordId;
use oncegate_core::record::Record;
use oncegate_core::scope::Operation;
use oncegate_core::time::Timestamp;

use clock::Clock;
use shared_cache::Realm;
use signals::Signals;

pub use apart::Apart;
pub use check::{Check, CheckedPart, Problem, ProblemKind};
pub use error::{Effect, Kind, StoreError};
pub use history::{History, Quarantine};
pub use query::{Counts, Cursor, Due, Filter, Moments, Page, SCAN_BYTES_MAX, Scan};
pub use trail::{EntryPage, EntryPlace, TimeSpan};
pub use turns::{Backlog, Doubts, Turn, Waiting};
pub use write::{Change, Outcome, Write};

/// What every verb of a store gives.
pub type Result<T> = std::result::Result<T, StoreError>;

/// Keeps rows. Every method may be called from many tasks at once.
///
/// Each bullet under *Contract* names the conformance test that proves it; a store is one when it passes them all.
pub trait Store: Send + Sync + 'static {
    /// What this store can do beyond the contract; selects conformance tests.
    fn capability(&self) -> Capability;

    /// Applies each conditional write on its own, in order, and returns one outcome per write.
    ///
    /// Dropping the future does not take the write back: it may land all the same.
    ///
    /// # Contract
    /// - Every write whose outcome is returned is durable. (`applied_writes_survive_a_reopening`)
    /// - Of racing inserts of one key, exactly one is applied. (`racing_inserts_admit_one`)
    /// - … also through two handles on the same rows. (`two_handles_are_one_store`)
    /// - An insert that clashes changes nothing and returns the row that is there. (`a_clash_returns_the_winner`)
    /// - A swap against an old version changes nothing and returns the current row. (`a_stale_swap_is_refused`)
    /// - Of racing swaps over one version, exactly one is applied. (`racing_swaps_admit_one`)
    /// - A swap or removal of an absent row is refused and returns none. (`what_is_absent_cannot_change`)
    /// - Outcomes come in the order of the writes; one refusal does not hinder the others. (`each_write_stands_alone`)
    /// - Two writes of one key in a batch take effect in order. (`one_key_twice_in_a_batch`)
    /// - A removal needs the version, a settled state, and retention over by the store's own clock.
    ///   (`removal_spares_what_lives`)
    /// - Every field comes back as it was written. (`every_field_comes_back`)
    /// - Keys of different scopes never meet. (`scopes_never_meet`)
    /// - A batch may be empty, or large. (`batches_may_be_empty_or_large`)
    ///
    /// A row that cannot be read back (damaged, or of a newer release) refuses the writes that are about it, and no others:
    /// see [`Outcome::Unreadable`].
    fn apply(&self, batch: &[Write]) -> impl Future<Output = Result<Vec<Outcome>>> + Send;

    /// Reads rows by id; one place per id, in order. A row that cannot be read is an error in its place, not of the others.
    ///
    /// # Contract
    /// - A read after a write's outcome sees that write or a later one, through any handle. (`reads_follow_writes`)
    fn read(&self, ids: &[RecordId]) -> impl Future<Output = Result<Vec<Result<Option<Record>>>>> + Send;

    /// Rows whose moment is one of these, the longest due first, at most `limit`; fewer if they are large.
    ///
    /// # Contract
    /// - Each kind finds exactly its rows, oldest first, up to the limit. (`due_finds_what_is_due`)
    /// - What is due before the first moment stands in nobody's way. (`due_goes_on_from_a_moment`)
    /// - A parked record is never due. (`parked_is_never_due`)
    /// - A scan that stops before the end, at its limit or because of what it has read, says so; one that came to the end does not.
    ///   (`a_scan_says_whether_it_came_to_the_end`)
    fn due_in(&self, what: Due, moments: Moments, limit: usize) -> impl Future<Output = Result<Scan>> + Send;

    /// Due doubts, except those of some operations: the longest due first, at most `limit`. A
    /// store may stop after it has skipped many thousands. Then it sets `is_cut`, and says in
    /// `skipped_until` where the next scan is to begin.
    ///
    /// # Contract
    /// - Doubts of other operations are found behind hundreds of excepted ones.
    ///   (`excepted_operations_hide_no_other`)
    fn doubted_except(
        &self,
        except: &[Operation],
        moments: Moments,
        limit: usize,
    ) -> impl Future<Output = Result<Scan>> + Send;

    /// The same of all whose moment has come by `now`.
    fn due(&self, what: Due, now: Timestamp, limit: usize) -> impl Future<Output = Result<Scan>> + Send {
        self.due_in(what, Moments::by(now), limit)
    }

    /// Pending rows whose moment has come by `now`, in [turns]: fair to those who have little of it.
    ///
    /// # Contract
    /// - Each line's rows oldest first, one of each line before a second of any. (`lines_take_turns`)
    /// - Every line has its turn, however many there are and however long some are. (`no_line_is_passed_over`)
    /// - What is not due, of an operation that was not asked for, or not pending any more is not given.
    ///   (`only_what_waits_is_called`)
    fn waiting(&self, turn: &Turn, now: Timestamp) -> impl Future<Output = Result<Waiting>> + Send;

    /// How much is pending, and since when.
    ///
    /// # Contract
    /// - It is what the rows say. (`the_backlog_is_true`)
    fn backlog(&self) -> impl Future<Output = Result<Backlog>> + Send;

    /// How much is unknown, and since when. Quick, however much it is: every node asks again and again.
    ///
    /// # Contract
    /// - It is what the rows say. (`the_doubts_are_true`)
    fn doubts(&self) -> impl Future<Output = Result<Doubts>> + Send;

    /// Rows for people, newest first, a page at a time.
    ///
    /// # Contract
    /// - Every filter narrows, all together. (`browsing_filters`)
    /// - Pages show each row once, also while rows are added. (`browsing_pages_show_each_row_once`)
    fn browse(
        &self,
        filter: &Filter,
        after: Option<&Cursor>,
        limit: usize,
    ) -> impl Future<Output = Result<Page>> + Send;

    /// How many rows are in each state.
    ///
    /// # Contract
    /// - The counts are those of the rows. (`counts_are_true`)
    fn counts(&self) -> impl Future<Output = Result<Counts>> + Send;

    /// Adds to the audit trail what no write tells: of verdicts that changed nothing, say. The
    /// same entry again is kept once; entries that differ in anything are all kept.
    ///
    /// # Contract
    /// - An entry comes with its write, or not at all. (`an_entry_comes_with_its_write`)
    /// - Of racing writes only the one that is applied tells. (`only_the_winner_tells`)
    /// - Entries outlive their record. (`a_story_outlives_its_record`)
    fn tell(&self, entries: &[Entry]) -> impl Future<Output = Result<()>> + Send;

    /// The audit trail of one record, oldest first: the last `limit` entries.
    ///
    /// # Contract
    /// - In the order in which they came, also within one moment. (`a_story_is_told_in_order`)
    /// - All of them, also those of one moment, act and node.
    ///   (`entries_of_one_moment_are_all_kept`)
    fn story(&self, id: RecordId, limit: usize) -> impl Future<Output = Result<Vec<Entry>>> + Send;

    /// Drops at most `limit` entries that are older than this; says how many.
    ///
    /// # Contract
    /// - Exactly those, the oldest first. (`old_entries_are_dropped`)
    fn drop_entries(&self, before: Timestamp, limit: usize) -> impl Future<Output = Result<usize>> + Send;

    /// The audit trail of all records, oldest first, a page of at most `limit` entries at a time.
    ///
    /// # Contract
    /// - Those of the span of time, in order, each on one page, also those of one moment.
    ///   (`pages_of_the_trail_show_each_entry_once`)
    fn entries(
        &self,
        span: TimeSpan,
        after: Option<EntryPlace>,
        limit: usize,
    ) -> impl Future<Output = Result<EntryPage>> + Send;

    /// When the row of each of these ids was last removed, as the start of that day; one place per
    /// id, in order. `None`: not since `since`, or it is not remembered any more.
    ///
    /// It informs, and nothing is decided by it.
    ///
    /// # Contract
    /// - A removal that says so is remembered if it is applied, in the same commit, and no other
    ///   is.
    ///   (`a_removal_is_remembered`)
    fn removed(
        &self,
        ids: &[RecordId],
        since: Timestamp,
    ) -> impl Future<Output = Result<Vec<Option<Timestamp>>>> + Send;

    /// Forgets removals of days that ended by this moment; says how many. A store may forget more
    /// than `limit` at once where that is as cheap.
    ///
    /// # Contract
    /// - Exactly those. (`old_removals_are_forgotten`)
    fn drop_removed(&self, before: Timestamp, limit: usize) -> impl Future<Output = Result<usize>> + Send;

    /// Keeps a message about a record that is not there yet. Under a name that is taken, the first stays.
    ///
    /// # Contract
    /// - What is kept apart comes back as it was, once each, oldest first. (`what_is_kept_apart_comes_back`)
    fn keep_apart(&self, apart: &Apart) -> impl Future<Output = Result<()>> + Send;

    /// What is kept apart, in the order in which it came, after this one; at most `limit`.
    fn apart(&self, after: Option<&Apart>, limit: usize) -> impl Future<Output = Result<Vec<Apart>>> + Send;

    /// Lets go of messages that are kept apart.
    fn drop_apart(&self, apart: &[Apart]) -> impl Future<Output = Result<()>> + Send;

    /// Rewrites this handle's [watermark](history), and says whether the store had what was
    /// written last. The first call also removes the watermarks of processes that ended long ago.
    ///
    /// # Contract
    /// - It is intact however often it is asked, through any handle.
    ///   (`a_history_is_intact_while_nothing_is_lost`)
    /// - A watermark that is gone means that it is lost, for good, and through this handle alone.
    ///   (`a_watermark_that_is_gone_is_noticed`)
    fn check_history(&self) -> impl Future<Output = Result<History>> + Send;

    /// Removes this handle's watermark: the process ends, and asks no more.
    fn leave(&self) -> impl Future<Output = Result<()>> + Send;

    /// Keeps a window of keys that may have been lost. Under an id that is taken, the first stays.
    ///
    /// # Contract
    /// - It is there until it is released, and afterwards as released; for every handle.
    ///   (`quarantines_are_kept`)
    fn declare_quarantine(&self, quarantine: &Quarantine) -> impl Future<Output = Result<()>> + Send;

    /// All of them, the first declared first.
    fn quarantines(&self) -> impl Future<Output = Result<Vec<Quarantine>>> + Send;

    /// Ends one; says whether it was active.
    fn release_quarantine(&self, id: &str, at: Timestamp) -> impl Future<Output = Result<bool>> + Send;

    /// The store's clock, which all nodes go by.
    ///
    /// # Contract
    /// - It goes on, and runs backwards only when the machine's clock is set back, which the
    ///   engine notices: a store hides no step. (`the_clock_never_runs_backwards`)
    fn clock(&self) -> impl Future<Output = Result<Timestamp>> + Send;

    /// That clock itself, where it is in this process: then it is read, and not sampled.
    fn local_clock(&self) -> Option<Clock>;

    /// A channel to the other nodes that share the rows, where there is one. It carries hints: waiters are right without it.
    fn signals(&self) -> Option<Arc<dyn Signals>>;

    /// Which rows these are, where nodes may share a cache of them; `None`: they may not.
    fn realm(&self) -> Option<Realm>;
}

/// What a store can do beyond the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// What survives a crash of the process.
    pub durability: Durability,
    /// Who else can open the same rows.
    pub sharing: Sharing,
    /// What [`Store::apply`] does with the thread that polls it.
    pub writing: Writing,
}

/// What [`Store::apply`] does with the thread that polls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    /// Gives it back while it waits, as futures do; and so many batches may be on their way at once.
    Awaits {
        /// At least one.
        at_once: usize,
    },
    /// Keeps it until the batch is durable, because a hand-over to another thread and back would cost more than the write.
    /// Whoever calls it often gives it a thread of its own, as the engine's writer does.
    Blocks,
}

/// What survives a crash of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Nothing: rows live in this process.
    None,
    /// Every write whose outcome was returned.
    Durable,
}

/// Who else can open the same rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Handles within this process.
    Process,
    /// Other processes on this machine.
    Machine,
    /// Any node.
    Network,
}
