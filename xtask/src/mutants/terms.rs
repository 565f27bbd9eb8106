//! The mutants of what is frozen into a record, of limits on durations, and of turns and default workers.

use super::list::Mutant;

const GROUND: &str = "crates/engine/src/phases/ground.rs";
const SERVICE: &str = "crates/tower/src/service.rs";

/// Every one of them.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a phase waits for the horizon of today's policy",
        package: "oncegate-engine",
        test: "phases",
        file: GROUND,
        rule: "plus(record.terms.horizon?)",
        without: "plus(self.policy().horizon?)",
    },
    Mutant {
        name: "a handler without phases runs what was begun in phases",
        package: "oncegate-tower",
        test: "layer",
        file: SERVICE,
        rule: "if let Some(parked) = held.parked_without_phases() {",
        without: "if let Some(parked) = held.parked_without_phases().filter(|_| false) {",
    },
];
