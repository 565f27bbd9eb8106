//! The mutants of callers that the upstream refuses.

use super::list::Mutant;

const CLASSIFY: &str = "crates/core/src/classify.rs";
const ROWS: &str = "crates/core/src/decide/rows.rs";

/// A mutant that the tests of the rules notice.
const fn decide(name: &'static str, file: &'static str, rule: &'static str, without: &'static str) -> Mutant {
    Mutant { name, package: "oncegate-core", test: "decide", file, rule, without }
}

/// Every one of them.
pub(super) const MUTANTS: &[Mutant] = &[
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
