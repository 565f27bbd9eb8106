//! The mutants of stores that fail: rejected writes, standbys that are behind, files that are moved or damaged.

use super::list::Mutant;

const WRITER: &str = "crates/engine/src/writer.rs";
const REAPER: &str = "crates/engine/src/workers/reaper.rs";
const REPLICATION: &str = "crates/store-sql/src/postgres/replication.rs";

/// A mutant that the tests of this target of the engine notice.
const fn engine(
    name: &'static str,
    test: &'static str,
    file: &'static str,
    rule: &'static str,
    without: &'static str,
) -> Mutant {
    Mutant { name, package: "oncegate-engine", test, file, rule, without }
}

/// A mutant that the tests of this target of the layer notice.
const fn tower(
    name: &'static str,
    test: &'static str,
    file: &'static str,
    rule: &'static str,
    without: &'static str,
) -> Mutant {
    Mutant { name, package: "oncegate-tower", test, file, rule, without }
}

/// Every one of them.
pub(super) const MUTANTS: &[Mutant] = &[
    engine(
        "attack 31: a rejected write fails its whole batch",
        "engine",
        WRITER,
        "Err(error) if error.is_rejection() && writes.len() > 1 => {",
        "Err(error) if error.is_rejection() && writes.len() > 1 << 20 => {",
    ),
    engine(
        "attack 31: a rejected write counts towards the breaker",
        "engine",
        WRITER,
        "let answered = if error.is_rejection() {",
        "let answered = if error.is_rejection() && writes.len() > 1 {",
    ),
    Mutant {
        name: "attack 31: a corrupt row fails its whole batch",
        package: "oncegate-engine",
        test: "nodes",
        file: "crates/store/src/error.rs",
        rule: "matches!(self.kind, Kind::Rejected | Kind::Unreadable)",
        without: "matches!(self.kind, Kind::Rejected)",
    },
    engine(
        "attack 31: the reaper meets the rows that it cannot remove again and again",
        "workers",
        REAPER,
        "looked.at(Due::Expired, &row);",
        "let _ = (&mut *looked, &row);",
    ),
    engine(
        "attack 31: a constraint that the commit of PostgreSQL rejects leaves the batch in doubt",
        "nodes",
        "crates/store-sql/src/postgres/apply.rs",
        "if failure.is_rejection() { Self::none(failure) } else { Self::unknown(failure) }",
        "Self::unknown(failure)",
    ),
    engine(
        "attack 26: a row is shown that only the primary has",
        "nodes",
        REPLICATION,
        "if !self.has_standbys.load(Ordering::Acquire) {",
        "if true {",
    ),
    engine(
        "attack 26: the wait for the standbys has nothing to wait for",
        "nodes",
        REPLICATION,
        "SELECT pg_catalog.pg_logical_emit_message(true, 'oncegate', '')",
        "SELECT pg_catalog.pg_current_xact_id()",
    ),
    tower(
        "attack 26: the commit of an atomic handler is not waited for on the standbys",
        "atomic",
        "crates/engine/src/atomic.rs",
        "                self.confirm(patience).await\n",
        "                Ok(())\n",
    ),
    tower(
        "attack 27: an atomic handler commits into a file that was moved",
        "atomic",
        "crates/store-sql/src/sqlite/writer.rs",
        "    pub(super) fn check_file(&self) -> Result<()> {\n        self.file.check()",
        "    pub(super) fn check_file(&self) -> Result<()> {\n        Ok(())",
    ),
    tower(
        "a doubt about what ran inline is promised to be run",
        "layer",
        "crates/tower/src/answer.rs",
        "Arrived::Unsettled { execution: Execution::Deferred, .. }",
        "Arrived::Unsettled { .. }",
    ),
    Mutant {
        name: "attack 31: a row that an access rule of Redis forbids fails its whole batch",
        package: "oncegate-store-redis",
        test: "server",
        file: "crates/store-redis/src/error.rs",
        rule: "(Kind::Rejected, Some(Effect::None))",
        without: "(Kind::Misconfigured, Some(Effect::None))",
    },
    Mutant {
        name: "a duration beyond the maximum is accepted",
        package: "oncegate-tower",
        test: "lib",
        file: "crates/core/src/duration.rs",
        rule: "if value.as_nanos() > DURATION_MAX.as_nanos() {",
        without: "if value.as_nanos() > Duration::MAX.as_nanos() {",
    },
    tower(
        "a date beyond the year 9999 is written as it is",
        "lib",
        "crates/tower/src/answer.rs",
        ".min(LAST_DATE);",
        ";",
    ),
];
