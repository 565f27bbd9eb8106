//! The mutants of what is frozen into a record, of limits on durations, and of turns and default workers.

use super::list::Mutant;

const GROUND: &str = "crates/engine/src/phases/ground.rs";
const ENGINE: &str = "crates/engine/src/engine.rs";
const RECONCILER: &str = "crates/engine/src/workers/reconciler.rs";
const SERVICE: &str = "crates/tower/src/service.rs";

/// Every one of them.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "attack 25: a phase waits for the horizon of today's policy",
        package: "oncegate-engine",
        test: "phases",
        file: GROUND,
        rule: "(record.last_run_at, record.terms.horizon)",
        without: "(record.last_run_at, self.policy().horizon)",
    },
    Mutant {
        name: "attack 25: a handler without phases runs what was begun in phases",
        package: "oncegate-tower",
        test: "layer",
        file: SERVICE,
        rule: "if let Some(parked) = held.parked_without_phases() {",
        without: "if let Some(parked) = held.parked_without_phases().filter(|_| false) {",
    },
    Mutant {
        name: "attack 25: an atomic handler runs what was begun in phases",
        package: "oncegate-tower",
        test: "atomic",
        file: "crates/engine/src/atomic.rs",
        rule: "if parked_without_phases(lease.recovery.as_ref()).is_some() {",
        without: "if parked_without_phases(lease.recovery.as_ref()).is_some_and(|_| false) {",
    },
    Mutant {
        name: "an engine that is only started runs no workers",
        package: "oncegate-engine",
        test: "workers",
        file: ENGINE,
        rule: "engine.start_default_workers(options);",
        without: "let _ = options;",
    },
    Mutant {
        name: "options outside their range are accepted",
        package: "oncegate-engine",
        test: "workers",
        file: ENGINE,
        rule: "options.check().map_err(StartError::Options)?;",
        without: "let _ = options.check().map_err(StartError::Options);",
    },
    Mutant {
        name: "the backlog of a route whose line is full stands in front of others",
        package: "oncegate-engine",
        test: "workers",
        file: RECONCILER,
        rule: "full.push(operation);",
        without: "drop(operation);",
    },
    Mutant {
        name: "a scan that skipped too many rows begins again at the first of them",
        package: "oncegate-engine",
        test: "workers",
        file: RECONCILER,
        rule: "looked.skip_to(moment);",
        without: "let _ = moment;",
    },
    Mutant {
        name: "Redis does not say how far a scan has skipped",
        package: "oncegate-store-redis",
        test: "server",
        file: "crates/store-redis/src/ask.rs",
        rule: "reached.filter(|_| is_far && scan.records.len() < limit);",
        without: "reached.filter(|_| is_far && scan.records.len() > limit);",
    },
];
