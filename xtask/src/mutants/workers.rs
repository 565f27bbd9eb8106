//! The mutants of takes, claims and the workers that an engine runs by itself.

use super::list::Mutant;

const COMPLETER: &str = "crates/engine/src/workers/completer.rs";
const ATTEND: &str = "crates/engine/src/outbox/attend.rs";
const WRITE: &str = "crates/store/src/write.rs";
const AFTER_EXPIRY: &str = "crates/engine/src/after_expiry.rs";

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

/// Every one of them.
pub(super) const MUTANTS: &[Mutant] = &[
    engine(
        "attack 30: a take in doubt is cleaned up over the version that was first seen",
        "workers",
        COMPLETER,
        "(Arc::clone(&self.over), self.over.version)",
        "(Arc::clone(&self.over), oncegate_core::identity::Version::from_raw(1))",
    ),
    engine(
        "attack 32: the outbox sends under a claim that has ended",
        "outbox",
        ATTEND,
        "if left.is_zero() {",
        "if false {",
    ),
    engine(
        "attack 32: a delivery outlasts its claim",
        "outbox",
        ATTEND,
        "patience.timeout.min(left)",
        "patience.timeout",
    ),
    engine(
        "attack 32: a claim is believed to its last moment, whatever the clock's error",
        "outbox",
        ATTEND,
        "job.due_at.since(now.at.plus(now.error))",
        "job.due_at.since(now.at)",
    ),
    engine(
        "a key that runs again after its row was removed runs in silence",
        "workers",
        WRITE,
        "if may_have_run(current) { removal.remembered() } else { removal }",
        "{ let _ = may_have_run(current); removal }",
    ),
    engine(
        "a key that was released is told as one that runs again",
        "workers",
        WRITE,
        "record.attempts > 0 && record.state.kind() != StateKind::FailedRetryable",
        "record.attempts > 0 && record.state.kind() != StateKind::Unknown",
    ),
    engine(
        "the removal of a key's own row is taken for that of an earlier life",
        "workers",
        AFTER_EXPIRY,
        "if now.may_be_past(key.at.plus(key.route.policy().retention)) {",
        "if now.may_be_past(Timestamp::NEVER) {",
    ),
];
