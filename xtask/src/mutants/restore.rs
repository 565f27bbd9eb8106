//! The mutants of restores under a running process, and of quarantines.

use super::list::Mutant;

const HISTORY: &str = "crates/engine/src/history.rs";
const ARRIVE: &str = "crates/engine/src/arrive.rs";

const fn engine(name: &'static str, file: &'static str, rule: &'static str, without: &'static str) -> Mutant {
    Mutant { name, package: "oncegate-engine", test: "engine", file, rule, without }
}

/// A mutant of `decide`.
const fn decide(name: &'static str, rule: &'static str, without: &'static str) -> Mutant {
    let file = "crates/core/src/decide.rs";
    Mutant { name, package: "oncegate-core", test: "decide", file, rule, without }
}

const fn store(name: &'static str, file: &'static str, rule: &'static str, without: &'static str) -> Mutant {
    Mutant { name, package: "oncegate-store-sql", test: "lib", file, rule, without }
}

/// Every one of them.
pub(super) const MUTANTS: &[Mutant] = &[
    store(
        "attack 29: a SQLite commit does not look at the watermark",
        "crates/store-sql/src/sqlite/history.rs",
        "    if !beat.follows(watermark(connection, beat.node)?) {\n",
        "    if false {\n",
    ),
    store(
        "attack 29: a read of a SQLite file does not look at the watermark",
        "crates/store-sql/src/sqlite/history.rs",
        "    Ok(process.judge(expected, watermark(connection, expected.node)?))",
        "    let _ = (process, connection, expected);\n    Ok(History::Intact)",
    ),
    store(
        "attack 29: a row that is joined to a restored SQLite file is written",
        "crates/store-sql/src/sqlite/join.rs",
        "CASE WHEN {is_intact} THEN ?{body} END",
        "CASE WHEN {is_intact} THEN ?{body} ELSE ?{body} END",
    ),
    engine(
        "attack 29: a watermark that is not what was written last says nothing",
        HISTORY,
        "Ok(History::Lost) => self.history.lose(),",
        "Ok(History::Lost) => {}",
    ),
    engine(
        "attack 29: the cache answers although the store was restored",
        ARRIVE,
        "        if self.is_restored() {\n            return None;\n        }\n",
        "",
    ),
    Mutant {
        name: "attack 29: atomic handlers go on after a restore",
        package: "oncegate-tower",
        test: "atomic",
        file: "crates/engine/src/atomic.rs",
        rule: "if self.is_restored() {",
        without: "if false {",
    },
    engine(
        "attack 29: released keys and accepted work run again after a restore",
        HISTORY,
        "self.hold_back(state, &quarantine, operator).await?;",
        "let _ = state;",
    ),
    Mutant {
        name: "attack 29: work in progress goes on after a restore, from a journal that is too old",
        package: "oncegate-engine",
        test: "phases",
        file: HISTORY,
        rule: "StateKind::Pending, StateKind::InProgress, StateKind::Unknown]",
        without: "StateKind::Pending, StateKind::Unknown]",
    },
    decide(
        "attack 29: work in progress that may run again is not held back",
        "            if record.terms.crash != CrashPolicy::Reconcile && lease_end(record) < Timestamp::NEVER =>",
        "            if record.terms.crash != CrashPolicy::Reconcile && record.is_lapsed(now) =>",
    ),
    decide(
        "attack 29: work that a job carries on is held back, and promised a second time",
        "&& lease_end(record) < Timestamp::NEVER =>",
        "=>",
    ),
    decide(
        "attack 29: a probe frees a doubt under resume after a restore",
        "if !doubt.parked && record.terms.crash == CrashPolicy::Resume =>",
        "if doubt.parked && record.life != record.life =>",
    ),
    decide(
        "attack 29: a probe that an operator had asked sends on what is held back",
        "            if names(grounds, record)\n                && is_held_back(record)",
        "            if names(grounds, record)\n                && !is_held_back(record)",
    ),
    decide(
        "attack 29: a live holder's release frees what is held back",
        "_ if !record.is_held_by(holder) || is_held_back(record) => Step::fenced(record),",
        "_ if !record.is_held_by(holder) => Step::fenced(record),",
    ),
    decide(
        "attack 29: a live holder's refusal settles what is held back",
        "State::Unknown(_) if is_held_back(record) && !answer.is_success() =>",
        "State::Unknown(_) if !mine && is_held_back(record) && !answer.is_success() =>",
    ),
    decide(
        "attack 29: a release forgets the recovery point that came back with the backup",
        "Grounds::Operator { .. } if is_held_back(record) => Account::Life,",
        "",
    ),
    engine("attack 29: a quarantine holds no key back", HISTORY, "if covering.is_empty() {", "if true {"),
    engine(
        "attack 29: a key without a time counts as outside of a quarantine",
        "crates/store/src/history.rs",
        "time.is_none_or(|time|",
        "time.is_some_and(|time|",
    ),
    engine(
        "attack 29: a quarantined key whose record is in doubt is freed by its clean-up",
        ARRIVE,
        "self.may_land = (!is_quarantined).then_some(over);",
        "self.may_land = Some(over);",
    ),
    engine(
        "attack 29: a release frees keys that another quarantine still holds back",
        HISTORY,
        "&& !ids.any(|one| active.contains(&one))",
        "",
    ),
    engine(
        "attack 29: workers go on over a store that was restored",
        "crates/engine/src/workers.rs",
        "if self.engine.is_restored() {",
        "if false {",
    ),
];
