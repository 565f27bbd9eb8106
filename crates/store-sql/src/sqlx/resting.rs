//! Connections that wait for the next handler, for a moment, before they go back to their pool.
//!
//! **Invariant:** what rests for longer than a moment goes back to the pool, and so does what was held for long: its lifetime is the pool's to mind.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a connection rests for, unless it is said otherwise.
pub(super) const REST: Duration = Duration::from_millis(20);
/// After so long it goes back in any case.
const HELD_MAX: Duration = Duration::from_secs(10);

/// A connection that was taken out of its pool.
pub(super) trait Held: Send + 'static {
    /// Since when.
    fn since(&self) -> Instant;

    /// Gives it back, by a task.
    fn give_back(self);

    fn is_due_back(&self) -> bool {
        self.since().elapsed() > HELD_MAX
    }
}

/// Those of one pool.
pub(super) struct Resting<H: Held> {
    /// How long one waits for the next handler.
    rest: Duration,
    places: Mutex<Places<H>>,
}

struct Places<H> {
    /// The last is the one that came last.
    connections: Vec<(Instant, H)>,
    /// Whether a task sends back what has rested.
    is_watched: bool,
}

impl<H: Held> Resting<H> {
    pub(super) fn new(rest: Duration) -> Self {
        Self { rest, places: Mutex::new(Places { connections: Vec::new(), is_watched: false }) }
    }

    /// The connection that came back last. Those that are due back go there.
    pub(super) fn take(&self) -> Option<H> {
        let mut places = self.lock();
        let is_due = |(_, held): &mut (Instant, H)| held.is_due_back();
        places.connections.extract_if(.., is_due).for_each(|(_, held)| held.give_back());
        places.connections.pop().map(|(_, held)| held)
    }

    /// Keeps it for the next one, for a moment.
    pub(super) fn put(self: &Arc<Self>, held: H) {
        if held.is_due_back() {
            return held.give_back();
        }
        let mut places = self.lock();
        places.connections.push((Instant::now(), held));
        if !std::mem::replace(&mut places.is_watched, true) {
            drop(places);
            let mut watch = Watch { over: Arc::clone(self), is_done: false };
            tokio::spawn(async move {
                while !watch.is_done {
                    tokio::time::sleep(watch.over.rest.min(HELD_MAX)).await;
                    watch.is_done = !watch.over.give_back_rested();
                }
            });
        }
    }

    /// Gives the pool back what nobody has wanted for a while, or what is due. Whether something still rests.
    fn give_back_rested(&self) -> bool {
        let mut places = self.lock();
        let has_rested =
            |(since, held): &mut (Instant, H)| since.elapsed() >= self.rest || held.is_due_back();
        places.connections.extract_if(.., has_rested).for_each(|(_, held)| held.give_back());
        places.is_watched = !places.connections.is_empty();
        places.is_watched
    }

    fn lock(&self) -> MutexGuard<'_, Places<H>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whoever sends back what has rested. It may end with its runtime before it is done; then another will.
struct Watch<H: Held> {
    over: Arc<Resting<H>>,
    /// Nothing rested when it looked last, and it has said so.
    is_done: bool,
}

impl<H: Held> Drop for Watch<H> {
    fn drop(&mut self) {
        if !self.is_done {
            self.over.lock().is_watched = false;
        }
    }
}

impl<H: Held> Drop for Resting<H> {
    /// A connection goes back to its pool by a task. Without a runtime there are none, and nothing to go back to.
    fn drop(&mut self) {
        let places = self.places.get_mut().unwrap_or_else(PoisonError::into_inner);
        let rested = std::mem::take(&mut places.connections).into_iter().map(|(_, held)| held);
        match tokio::runtime::Handle::try_current() {
            Ok(_) => rested.for_each(Held::give_back),
            Err(_) => rested.for_each(std::mem::forget),
        }
    }
}
