//! The mutants of what goes on after the request: workers, webhooks, operators, the audit trail.

use super::list::Mutant;

/// A mutant of the workers.
const fn workers(
    name: &'static str,
    file: &'static str,
    rule: &'static str,
    without: &'static str,
) -> Mutant {
    Mutant { name, package: "oncegate-engine", test: "workers", file, rule, without }
}

/// A mutant of what a probe's answer and a provider's event mean.
const fn judge(name: &'static str, file: &'static str, rule: &'static str, without: &'static str) -> Mutant {
    Mutant { name, package: "oncegate-gateway", test: "reconcile", file, rule, without }
}

const APART: &str = "crates/engine/src/workers/apart.rs";
const REAPER: &str = "crates/engine/src/workers/reaper.rs";
const RECONCILER: &str = "crates/engine/src/workers/reconciler.rs";
const COMPLETER: &str = "crates/engine/src/workers/completer.rs";
const HELD: &str = "crates/engine/src/held.rs";
const DRIVE: &str = "crates/engine/src/drive.rs";
const OPERATE: &str = "crates/engine/src/operate.rs";
const PROBE: &str = "crates/gateway/src/reconcile/probe.rs";

/// Every one of them.
pub(super) const MUTANTS: &[Mutant] = &[
    workers(
        "a question is asked without a claim",
        RECONCILER,
        "            // Somebody else has it, or it is settled.\n            return Ok(false);",
        "            return Ok(true);",
    ),
    workers(
        "a claim that is given up half-way leaves a lease",
        COMPLETER,
        "let mut taking = Taking { engine: self, token, over: Arc::clone(row), may_land: true };",
        "let mut taking = Taking { engine: self, token, over: Arc::clone(row), may_land: false };",
    ),
    workers(
        "what is refused is run again at once",
        HELD,
        "Settlement::Release { reason, backoff: backoff.max(least) }",
        "{ let _ = least; Settlement::Release { reason, backoff } }",
    ),
    workers(
        "each turn begins with the same line",
        COMPLETER,
        "        *completer.turn() = waiting.next;\n",
        "",
    ),
    workers(
        "a free place waits for the next look",
        COMPLETER,
        "more: seen >= turn.limit || !waiting.is_round",
        "more: seen > turn.limit && !waiting.is_round",
    ),
    workers(
        "what is accepted waits for the next look",
        "crates/engine/src/arrive.rs",
        "self.engine.0.accepted.notify_one();",
        "",
    ),
    workers(
        "a claim ends before its question may",
        RECONCILER,
        "let until = self.now().at.plus(patience.timeout).plus(CLAIM_SLACK);",
        "let until = self.now().at;",
    ),
    workers(
        "'not found' before the horizon counts towards parking",
        "crates/core/src/decide.rs",
        "reconcile_after: otherwise.at, tries: 0, ..*doubt",
        "reconcile_after: otherwise.at, tries: doubt.tries + 1, ..*doubt",
    ),
    workers(
        "attack 06: an early webhook is acknowledged and dropped",
        APART,
        "        self.0.store.keep_apart(&apart).await?;\n",
        "",
    ),
    workers(
        "a record that appears while its message is kept never hears it",
        APART,
        "            Some(heard) => {\n                self.0.store.drop_apart(&[apart]).await?;\n                Ok(heard)\n            }\n            None => Ok(Heard::KeptApart),",
        "            _ => Ok(Heard::KeptApart),",
    ),
    workers(
        "attack 07: an event of an earlier life, by its moment, settles a later one",
        APART,
        "Life::MadeAt(moment) if *moment < row.created_at => NO_LIFE,",
        "Life::MadeAt(moment) if moment.plus(Duration::from_secs(5)) < row.created_at => NO_LIFE,",
    ),
    workers(
        "a pass over what is kept apart begins at the beginning every time",
        APART,
        "        *self.apart_from() = after;\n",
        "        drop(after);\n",
    ),
    workers(
        "the reaper does not keep up with the audit trail",
        REAPER,
        "more: reaped.more || has_more,",
        "more: reaped.more,",
    ),
    workers(
        "an operator's act is done to a record that he has not seen",
        DRIVE,
        "if row.version != version {",
        "if false {",
    ),
    workers(
        "an operator's act is told without his name",
        OPERATE,
        "            name: Some(format!(\"operator {}\", operator.name).into()),\n            reason",
        "            reason",
    ),
    workers(
        "what a step tells is not written with it",
        DRIVE,
        "        let write = write.telling(entry);\n",
        "        drop(entry);\n",
    ),
    judge(
        "attack 07: what is found by a key without a life completes a later one",
        PROBE,
        "if probe.proof == Proof::Name && !probe.names_life(about.forward_key) {",
        "if false {",
    ),
    judge(
        "attack 07: an effect of an earlier life, found by a probe, completes a later one",
        PROBE,
        "if !probe.proof.claim(&found)?.is_of(about) {",
        "if false {",
    ),
    judge(
        "a probe's answer over its limit is read",
        PROBE,
        "if u64::try_from(answer.body.len()).is_ok_and(|bytes| bytes > probe.body_bytes_max) {",
        "if false {",
    ),
    Mutant {
        name: "a machine that says what is recorded already is told",
        package: "oncegate-core",
        test: "decide",
        file: "crates/core/src/audit.rs",
        rule: "if step.notices == [Notice::Confirmed] && who.name.is_none() {",
        without: "if false {",
    },
    Mutant {
        name: "an operator who says what is recorded already is not told",
        package: "oncegate-core",
        test: "decide",
        file: "crates/core/src/audit.rs",
        rule: "if step.notices == [Notice::Confirmed] && who.name.is_none() {",
        without: "if step.notices == [Notice::Confirmed] {",
    },
    Mutant {
        name: "SQLite: a write that is refused tells all the same",
        package: "oncegate-store-sql",
        test: "conformance",
        file: "crates/store-sql/src/sqlite/apply.rs",
        rule: "    if is_applied {\n        if let Some(entry) = &write.entry {\n            trail::tell(connection, entry)?;\n        }\n",
        without: "    if let Some(entry) = &write.entry {\n        trail::tell(connection, entry)?;\n    }\n    if is_applied {\n",
    },
];
