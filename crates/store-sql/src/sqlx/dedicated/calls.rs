//! The calls of a store's functions by which transactions begin and end, under names that a session has prepared.
//!
//! A simple query is parsed and planned each time. What it calls stays the same, so a session that serves one handler after the other prepares both calls once, and executes them by
//! name: the server has only their values to read.
//!
//! **Invariant:** a closing is executed by name only in a transaction whose opening was. Behind a pooler a session may be another one each time, but not within a
//! transaction; and the opening's name is prepared last, so where it is, the closing's is too. An opening whose name is not there has begun nothing, and is sent in full.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The two of them, as soon as both were met.
#[derive(Default)]
pub(super) struct Calls {
    opening: OnceLock<String>,
    closing: OnceLock<String>,
    /// Names do not last on the way to this server.
    is_off: AtomicBool,
}

impl Calls {
    /// Keeps in mind what it calls. All openings of a store call the same.
    pub(super) fn meet_opening(&self, opening: &str) {
        meet(&self.opening, opening);
    }

    pub(super) fn meet_closing(&self, closing: &str) {
        meet(&self.closing, closing);
    }

    pub(super) fn opening_by_name(&self, opening: &str) -> Option<String> {
        by_name(&self.opening, opening)
    }

    pub(super) fn closing_by_name(&self, closing: &str) -> Option<String> {
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

fn meet(known: &OnceLock<String>, statement: &str) {
    if known.get().is_none()
        && let Some((function, _)) = call(statement)
    {
        let _ = known.set(function.to_owned());
    }
}

fn by_name(known: &OnceLock<String>, statement: &str) -> Option<String> {
    let (function, values) = call(statement)?;
    let is_known = known.get().is_some_and(|known| known == function);
    is_known.then(|| ["EXECUTE ", name(function), values].concat())
}

/// `SELECT function(values)`: the function, and the values in their brackets.
fn call(statement: &str) -> Option<(&str, &str)> {
    let call = statement.strip_prefix("SELECT ")?;
    call.find('(').map(|at| call.split_at(at))
}

/// A function's name without its schema, which a store's functions have in their own.
fn name(function: &str) -> &str {
    function.rsplit('.').next().unwrap_or(function)
}

/// Also where an earlier one on this session has: then nothing is to be done, and nothing to be logged.
fn prepare(function: &str) -> String {
    let name = name(function);
    format!(
        "IF NOT EXISTS (SELECT FROM pg_catalog.pg_prepared_statements WHERE name = '{name}') THEN \
         EXECUTE 'PREPARE {name} AS SELECT {function}(' || (SELECT string_agg('$' || n, ', ' ORDER BY n) \
         FROM pg_catalog.pg_proc, generate_series(1, pronargs) n WHERE oid = '{function}'::regproc) || ')'; END IF;"
    )
}

#[cfg(test)]
mod tests {
    use super::Calls;

    #[test]
    fn a_call_keeps_its_values_and_has_its_functions_name() {
        let calls = Calls::default();
        calls.meet_opening(r#"SELECT "prod".oncegate_open_prod(E'\\x00', 1)"#);
        assert_eq!(
            calls.opening_by_name(r#"SELECT "prod".oncegate_open_prod(E'\\xff', (2)'; --)"#).as_deref(),
            Some(r"EXECUTE oncegate_open_prod(E'\\xff', (2)'; --)")
        );
    }

    #[test]
    fn what_is_no_call_or_another_functions_is_sent_as_it_is() {
        let calls = Calls::default();
        calls.meet_opening("SELECT 1");
        assert_eq!(calls.opening_by_name("SELECT 1"), None);
        calls.meet_opening("SELECT prod.open(1)");
        calls.meet_opening("SELECT test.open(1)");
        assert_eq!(calls.opening_by_name("SELECT test.open(1)"), None);
        assert_eq!(calls.opening_by_name("INSERT INTO a VALUES (1)"), None);
        assert_eq!(calls.closing_by_name("SELECT prod.open(1)"), None);
    }

    #[test]
    fn both_are_prepared_or_none_and_the_opening_last() {
        let calls = Calls::default();
        calls.meet_opening("SELECT prod.open(1)");
        assert_eq!(calls.preparing(), None);
        calls.meet_closing("SELECT prod.close(1)");
        let preparing = calls.preparing().unwrap_or_default();
        assert!(preparing.find("PREPARE close ") < preparing.find("PREPARE open "), "{preparing}");
        calls.turn_off();
        assert_eq!(calls.preparing(), None);
    }
}
