//! Waiting until what a read has shown is on the synchronous standbys too.
//!
//! A commit waits for its synchronous standbys, and until then other sessions do not see it. If
//! that wait is cancelled, or its session terminated, the commit is visible at once, and only the
//! primary has it. An answer that is given from such a row would be lost with the primary.
//!
//! **Invariant:** where synchronous standbys are configured, a row is shown only after a later
//! commit of ours has waited for them: they have all that was written before it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Mutex;

use super::apply::attempt_text;
use super::error::Failure;
use super::link::Link;
use super::settings::Settings;
use super::statements::SETUP_WRITE;

/// Whether commits are to wait for a standby. A session whose `synchronous_commit` says otherwise
/// does not wait; a warning says so when the store is opened.
pub(super) const HAS_STANDBYS: &str = "current_setting('synchronous_standby_names') <> ''";

/// Writes a WAL record and changes nothing. A transaction without a WAL record does not wait for
/// standbys, even if it has an id.
const MARK: &str = "SELECT pg_catalog.pg_logical_emit_message(true, 'oncegate', '')";

/// Commits that are waited for, each on behalf of all who asked before it began.
#[derive(Debug)]
pub(super) struct Replication {
    has_standbys: AtomicBool,
    link: Link,
    /// How many have begun.
    begun: AtomicU64,
    /// The last of them that has succeeded. Held while one is under way.
    confirmed: Mutex<u64>,
}

impl Replication {
    pub(super) fn new(settings: &Arc<Settings>, has_standbys: bool) -> Self {
        Self {
            has_standbys: AtomicBool::new(has_standbys),
            link: Link::new(Arc::clone(settings), SETUP_WRITE),
            begun: AtomicU64::new(0),
            confirmed: Mutex::new(0),
        }
    }

    /// Takes note of [`HAS_STANDBYS`]: it may change while the server runs.
    pub(super) fn set_has_standbys(&self, has_standbys: bool) {
        self.has_standbys.store(has_standbys, Ordering::Release);
    }

    /// Returns when the standbys, if there are any to wait for, have all that is visible now.
    pub(super) async fn confirm(&self) -> Result<(), Failure> {
        if !self.has_standbys.load(Ordering::Acquire) {
            return Ok(());
        }
        let before = self.begun.load(Ordering::Acquire);
        let mut confirmed = self.confirmed.lock().await;
        if *confirmed > before {
            return Ok(());
        }
        let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        attempt_text(&self.link, MARK).await?;
        *confirmed = number;
        Ok(())
    }
}
