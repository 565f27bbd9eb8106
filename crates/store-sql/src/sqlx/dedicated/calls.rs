//! What a store's transactions begin and end with, under names that a session has prepared.
//!
//! A simple query is parsed and planned each time. What it does stays the same, so a session that serves one handler after the other prepares both once, and executes them by
//! name: the server has only their values to read. Until then it calls the functions that do the same.
//!
//! **Invariant:** a closing is executed by name only in a transaction whose opening was. Behind a pooler a session may be another one each time, but not within a
//! transaction; and the opening's name is prepared last, so where it is, the closing's is too. An opening whose name is not there has begun nothing, and is sent in full.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use oncegate_store::join::{Call, Routine};

/// The two of them, as soon as both were met.
#[derive(Default)]
pub(super) struct Calls {
    opening: OnceLock<Arc<Routine>>,
    closing: OnceLock<Arc<Routine>>,
    /// Names do not last on the way to this server.
    is_off: AtomicBool,
}

impl Calls {
    /// Keeps in mind what it calls. All openings of a store call the same.
    pub(super) fn meet_opening(&self, opening: &Call) {
        meet(&self.opening, opening);
    }

    pub(super) fn meet_closing(&self, closing: &Call) {
        meet(&self.closing, closing);
    }

    pub(super) fn opening_by_name(&self, opening: &Call) -> Option<String> {
        by_name(&self.opening, opening)
    }

    pub(super) fn closing_by_name(&self, closing: &Call) -> Option<String> {
        by_name(&self.closing, closing)
    }

    /// From now on nothing is prepared.
    pub(super) fn turn_off(&self) {
        tracing::debug!(
            "calls are sent in full from now on: a session has lost, or not been able to prepare, them"
        );
        self.is_off.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_off(&self) -> bool {
        self.is_off.load(Ordering::Relaxed)
    }

    /// Whether both were met, and names last.
    pub(super) fn are_known(&self) -> bool {
        self.opening.get().is_some() && self.closing.get().is_some() && !self.is_off()
    }

    /// A statement that prepares both, where they are not.
    pub(super) fn preparing(&self) -> Option<String> {
        if !self.are_known() {
            return None;
        }
        let (closing, opening) = (prepare(self.closing.get()?), prepare(self.opening.get()?));
        Some(format!("DO $oncegate$ BEGIN {closing} {opening} END $oncegate$"))
    }
}

fn meet(known: &OnceLock<Arc<Routine>>, call: &Call) {
    if known.get().is_none() {
        let _ = known.set(Arc::clone(&call.routine));
    }
}

/// Another store's routines are not these.
fn by_name(known: &OnceLock<Arc<Routine>>, call: &Call) -> Option<String> {
    known.get().filter(|known| **known == call.routine).map(|_| call.by_name())
}

/// Also where an earlier one on this session has: then nothing is to be done, and nothing to be logged.
fn prepare(Routine { name, statement, .. }: &Routine) -> String {
    format!(
        "IF NOT EXISTS (SELECT FROM pg_catalog.pg_prepared_statements WHERE name = '{name}') THEN \
         EXECUTE $statement$PREPARE {name} AS {statement}$statement$; END IF;"
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use oncegate_store::join::{Call, Routine};

    use super::Calls;

    fn call(schema: &str, what: &str) -> Call {
        let (function, name) = (format!("{schema}.{what}"), format!("{what}_{schema}"));
        let statement = format!("SELECT {function}($1)");
        Call::new(Arc::new(Routine { function, name, statement }), "(1)".to_owned())
    }

    #[test]
    fn a_call_keeps_its_values_and_has_its_routines_name() {
        let calls = Calls::default();
        calls.meet_opening(&call("prod", "open"));
        let opening = call("prod", "open");
        assert_eq!(calls.opening_by_name(&opening).as_deref(), Some("EXECUTE open_prod(1)"));
        assert_eq!(opening.in_full(), "SELECT prod.open(1)");
    }

    #[test]
    fn what_is_another_routines_is_sent_as_it_is() {
        let calls = Calls::default();
        assert_eq!(calls.opening_by_name(&call("prod", "open")), None);
        calls.meet_opening(&call("prod", "open"));
        calls.meet_opening(&call("test", "open"));
        assert_eq!(calls.opening_by_name(&call("test", "open")), None);
        assert_eq!(calls.closing_by_name(&call("prod", "open")), None);
    }

    #[test]
    fn both_are_prepared_or_none_and_the_opening_last() {
        let calls = Calls::default();
        calls.meet_opening(&call("prod", "open"));
        assert_eq!(calls.preparing(), None);
        calls.meet_closing(&call("prod", "close"));
        let preparing = calls.preparing().unwrap_or_default();
        assert!(preparing.find("PREPARE close_prod ") < preparing.find("PREPARE open_prod "), "{preparing}");
        calls.turn_off();
        assert_eq!(calls.preparing(), None);
    }
}
