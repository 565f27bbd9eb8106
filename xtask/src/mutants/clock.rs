//! The mutants of the clock's rules: steps forward, steps back, and samples that are worse than
//! they look.

use super::list::Mutant;

const DECIDE: &str = "crates/core/src/decide.rs";
const ROWS: &str = "crates/core/src/decide/rows.rs";
const STEP: &str = "crates/engine/src/clock/step.rs";
const SAMPLED: &str = "crates/engine/src/clock/sampled.rs";
const REDIS: &str = "crates/store-redis/src/store.rs";
const AUDIT: &str = "crates/core/src/audit.rs";

/// A mutant that the tests of `decide` notice.
const fn core(name: &'static str, file: &'static str, rule: &'static str, without: &'static str) -> Mutant {
    Mutant { name, package: "oncegate-core", test: "decide", file, rule, without }
}

/// A mutant that the engine's tests of this target notice.
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
    core(
        "attack 20: the horizon counts from the lease's end only",
        DECIDE,
        "lease_end(record).max(doubt.since).max(steady_since)",
        "lease_end(record).max(steady_since)",
    ),
    core(
        "attack 20: the horizon does not count from a step forward",
        DECIDE,
        "lease_end(record).max(doubt.since).max(steady_since)",
        "lease_end(record).max(doubt.since)",
    ),
    core(
        "attack 20: the moment of a doubt leaves out the clock's error",
        ROWS,
        "let since = now.at.plus(now.error);",
        "let since = now.at;",
    ),
    core(
        "attack 20: accepted work is due by the clock of the node that accepted it",
        DECIDE,
        "            Step::put(queued(&next, now.earliest(), until, now), Decision::Accepted)\n",
        "            Step::put(queued(&next, now.at, until, now), Decision::Accepted)\n",
    ),
    core(
        "attack 20: a doubt is due by the clock of the node that recorded it",
        ROWS,
        "reconcile_after: now.earliest(), tries: 0, parked: false",
        "reconcile_after: now.at, tries: 0, parked: false",
    ),
    engine(
        "attack 20: a step of this host's clock alone is told as time that has passed",
        "lib",
        SAMPLED,
        "        now.error += ahead;\n",
        "        now.at = now.at.plus(ahead / 2);\n        now.error += ahead / 2;\n",
    ),
    engine("attack 20: an outage hides a step", "lib", SAMPLED, "            self.steps.begin(shown);\n", ""),
    engine(
        "attack 20: a node that starts counts horizons from before its start",
        "workers",
        "crates/engine/src/clock.rs",
        "clock.steps.begin(clock.now());",
        "",
    ),
    engine(
        "attack 20: a step forward is not remembered",
        "workers",
        STEP,
        "self.steady_since.fetch_max(steady_since.as_micros(), Ordering::AcqRel);",
        "let _ = steady_since;",
    ),
    engine(
        "attack 21: a clock that is set back claims no error",
        "workers",
        STEP,
        "now.error += latest.since(now.at);",
        "",
    ),
    engine(
        "attack 21: the Redis store hides that its clock was set back",
        "workers",
        REDIS,
        "Ok(Timestamp::from_micros(seconds.saturating_mul(1_000_000).saturating_add(micros)))",
        "static LATEST: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(0); \
         let told = seconds * 1_000_000 + micros; \
         Ok(Timestamp::from_micros(LATEST.fetch_max(told, std::sync::atomic::Ordering::SeqCst).max(told)))",
    ),
    engine(
        "attack 28: a round trip is measured by the monotonic clock alone",
        "lib",
        SAMPLED,
        "taken.0.saturating_duration_since(asked.0).max(by_wall)",
        "taken.0.saturating_duration_since(asked.0).max(by_wall * 0)",
    ),
    engine(
        "attack 28: a worse sample replaces a good one",
        "lib",
        SAMPLED,
        "if step.is_some() || new.error <= last.estimate(new.taken, new.wall).0.error {",
        "{",
    ),
    Mutant {
        name: "audit entries of one moment are taken for one",
        package: "oncegate-store-sql",
        test: "conformance",
        file: AUDIT,
        rule: "format!(\"{}#{hash:016x}\", self.node)",
        without: "format!(\"{}#{:016x}\", self.node, hash * 0)",
    },
];
