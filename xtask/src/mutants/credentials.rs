//! The mutants of the credentials of deferred requests, and of callers that the upstream refuses.

use super::list::Mutant;

const CLASSIFY: &str = "crates/core/src/classify.rs";
const DECIDE: &str = "crates/core/src/decide.rs";
const ROWS: &str = "crates/core/src/decide/rows.rs";
const STORED: &str = "crates/tower/src/stored.rs";

/// A mutant that the tests of the rules notice.
const fn decide(name: &'static str, file: &'static str, rule: &'static str, without: &'static str) -> Mutant {
    Mutant { name, package: "oncegate-core", test: "decide", file, rule, without }
}

/// Every one of them.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "attack 33: deferred requests run without their caller's credentials",
        package: "oncegate-gateway",
        test: "gateway",
        file: STORED,
        rule: "Credentials::Kept => identity.contains(name) || is_in",
        without: "Credentials::Kept => is_in",
    },
    Mutant {
        name: "attack 33: a lost caller is not noticed",
        package: "oncegate-tower",
        test: "layer",
        file: STORED,
        rule: "if tenant.of(&as_stored) == tenant.of(head) {",
        without: "if true {",
    },
    decide(
        "attack 33: what an earlier release stored without credentials is run",
        DECIDE,
        "is_unstated && take.credentials == Credentials::Kept",
        "is_unstated && false && take.credentials == Credentials::Kept",
    ),
    decide(
        "attack 33: a caller that is refused is tried for a day",
        ROWS,
        "Execution::Deferred if is_refused_again(record, reason) => {",
        "Execution::Deferred if is_refused_again(record, reason) && false => {",
    ),
    decide(
        "a row whose caller was refused lives for the whole retention",
        ROWS,
        "next.expires_at = next.expires_at.map(|end| end.min(until));",
        "let _ = until;",
    ),
    Mutant {
        name: "attack 03: a row of which evidence may come lives for seconds",
        package: "oncegate-core",
        test: "lib",
        file: CLASSIFY,
        rule: "true if keeps_refused_callers(policy) => CALLER_REFUSED_KEPT,",
        without: "true if keeps_refused_callers(policy) => CALLER_REFUSED,",
    },
    decide(
        "attack 03: a refusal that is to be kept shortens the row",
        ROWS,
        "    reason.code() == CALLER_REFUSED\n        &&",
        "    is_refusal(reason)\n        &&",
    ),
    decide(
        "a life with another attempt is shortened by a refusal",
        ROWS,
        "&& record.last_error.as_ref().is_none_or(is_refusal)\n        && record.provider_reference",
        "&& record.provider_reference",
    ),
    decide(
        "a life with another attempt is shortened by the second refusal",
        ROWS,
        "Reason::new(UPSTREAMS_WORD, reason.detail())",
        "reason.clone()",
    ),
    decide(
        "a refused row ends before the clock has passed its fence",
        ROWS,
        "now.at.max(Timestamp::from_micros(numbers)).plus(REFUSED_CALLER_KEPT)",
        "{ let _ = numbers; now.at.plus(REFUSED_CALLER_KEPT) }",
    ),
    Mutant {
        name: "a 403 is a release like any other",
        package: "oncegate-gateway",
        test: "gateway",
        file: CLASSIFY,
        rule: "matches!(status, 401 | 403 | 407)",
        without: "matches!(status, 401 | 407)",
    },
];
