//! Puts and removals, in the background, many in one trip.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::identity::RecordId;
use oncegate_store::shared_cache::Kept;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{Current, entry};
use crate::keys::Keys;

/// In one trip.
const CHANGES_MAX: usize = 64;
/// Larger entries would keep the gets behind them waiting for longer than their limit.
const ENTRY_BYTES_MAX: usize = 256 << 10;
const PATIENCE: Duration = Duration::from_secs(1);

/// What is to be done.
pub(super) enum Change {
    Put(Box<Kept>),
    Remove(RecordId),
}

/// See the module.
pub(super) struct Writer {
    pub(super) waiting: mpsc::Receiver<Change>,
    pub(super) current: Arc<Current>,
    pub(super) keys: Keys,
    pub(super) age: Duration,
}

impl Writer {
    /// Until the cache is dropped. What cannot be written now is not written.
    pub(super) async fn run(mut self) {
        let mut changes = Vec::new();
        while self.waiting.recv_many(&mut changes, CHANGES_MAX).await > 0 {
            let trip = self.trip(changes.drain(..));
            if let Some(mut connection) = self.current.get().filter(|_| !trip.is_empty()) {
                let _ = timeout(PATIENCE, trip.query_async::<()>(&mut connection)).await;
            }
        }
    }

    fn trip(&self, changes: impl Iterator<Item = Change>) -> redis::Pipeline {
        let mut trip = redis::pipe();
        for change in changes {
            match change {
                Change::Put(kept) => {
                    let bytes = entry::encode(&kept);
                    let name = self.keys.cached(kept.record.id);
                    if bytes.len() <= ENTRY_BYTES_MAX {
                        trip.cmd("SET").arg(name).arg(bytes).arg("PX").arg(self.age_ms()).ignore();
                    }
                }
                Change::Remove(id) => {
                    trip.cmd("DEL").arg(self.keys.cached(id)).ignore();
                }
            }
        }
        trip
    }

    /// Redis refuses a time to live of nothing, and one beyond its own numbers.
    fn age_ms(&self) -> u64 {
        u64::try_from(self.age.as_millis()).unwrap_or(u64::MAX).clamp(1, 1 << 40)
    }
}
