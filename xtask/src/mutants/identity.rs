//! The mutants of identity: what a key belongs to, what makes two requests the same, and when
//! lease tokens are drawn.

use super::list::Mutant;

const ROUTE: &str = "crates/engine/src/route.rs";
const FORMER: &str = "crates/tower/src/route/former.rs";
const ARRIVE: &str = "crates/engine/src/arrive.rs";

/// A mutant that the layer's tests notice.
const fn layer(name: &'static str, file: &'static str, rule: &'static str, without: &'static str) -> Mutant {
    Mutant { name, package: "oncegate-tower", test: "layer", file, rule, without }
}

/// A mutant that the engine's tests notice.
const fn engine(name: &'static str, file: &'static str, rule: &'static str, without: &'static str) -> Mutant {
    Mutant { name, package: "oncegate-engine", test: "engine", file, rule, without }
}

/// A mutant that the tests of this target of the core notice.
const fn core(
    name: &'static str,
    test: &'static str,
    file: &'static str,
    rule: &'static str,
    without: &'static str,
) -> Mutant {
    Mutant { name, package: "oncegate-core", test, file, rule, without }
}

/// Every one of them.
pub(super) const MUTANTS: &[Mutant] = &[
    layer(
        "attack 22: the pattern of a route is part of a key's identity",
        ROUTE,
        "Scope::tenant_and_request(tenant, method, path),\n        }",
        "Scope::tenant_and_operation(tenant, &self.0.operation),\n        }",
    ),
    layer(
        "attack 22: records of the release before are not looked for",
        ARRIVE,
        "if asked.may_be_elsewhere() {",
        "if false {",
    ),
    layer(
        "attack 22: a route of another width does not look where its record was",
        FORMER,
        "if let Some(scope) = &other_scope {",
        "if let Some(scope) = other_scope.as_ref().filter(|_| false) {",
    ),
    layer(
        "attack 22: a key in quotes is looked for as this route reads it only",
        FORMER,
        "if let Some(key) = other_key {",
        "if let Some(key) = other_key.filter(|_| false) {",
    ),
    layer(
        "attack 22: a key that another route reads otherwise is taken for that of any record",
        ROUTE,
        "Self::OfTheSameRequestBy(ReadBy::Only(routes)) => is_same() && routes.contains(&record.operation),",
        "Self::OfTheSameRequestBy(ReadBy::Only(_)) => is_same(),",
    ),
    layer(
        "attack 22: another request's record under another width is taken for this one's",
        ROUTE,
        "Self::OfTheSameRequest => is_same(),",
        "Self::OfTheSameRequest => is_same() || true,",
    ),
    layer(
        "attack 22: accepted work of a renamed route is left to wait",
        "crates/tower/src/route.rs",
        ".or_else(declared).or_else(renamed)",
        ".or_else(declared).or_else(|| renamed().filter(|_| false))",
    ),
    engine(
        "attack 22: a record is inserted at a former address",
        ARRIVE,
        "if self.is_former { Some(Box::pin(self.read_former()).await?) } else { None }",
        "None::<Arc<Record>>",
    ),
    core(
        "attack 23: an unchecked fingerprint matches every operation",
        "decide",
        "crates/core/src/decide.rs",
        "record.operation != arrival.operation || is_told_apart",
        "is_told_apart && false",
    ),
    core(
        "attack 23: an unchecked fingerprint names no operation",
        "fingerprint",
        "crates/core/src/fingerprint.rs",
        "frame::of_operation(content)",
        "[0; 32]",
    ),
    engine(
        "attack 24: lease tokens are drawn ahead",
        "crates/engine/src/token.rs",
        "self.0.options.randomness.fill(&mut bytes)",
        "[[0; 16]; 32].iter_mut().try_for_each(|ahead: &mut [u8; 16]| self.0.options.randomness.fill(ahead).map(|()| bytes = *ahead))",
    ),
    engine(
        "attack 24: a replay from the cache draws a token",
        ARRIVE,
        "Reserve::new(self, route, &asked.event, asked.id, look).by_cache()?",
        "Reserve::new(self, route, &asked.with_token(self.new_token().ok()?), asked.id, look).by_cache()?",
    ),
    engine(
        "a job's key may have any length",
        "crates/engine/src/once.rs",
        "Key::of_job(key, &route.policy().key)",
        "Key::from_text(key)",
    ),
];
