//! The mutants: rules, and what earlier drafts did instead.

/// One rule taken back.
pub(super) struct Mutant {
    /// Which rule; `attack NN` where ATTACKS.md has it.
    pub(super) name: &'static str,
    /// Whose tests must notice.
    pub(super) package: &'static str,
    /// Where the rule is.
    pub(super) file: &'static str,
    /// The rule, as it stands exactly once in the file.
    pub(super) rule: &'static str,
    /// What takes its place.
    pub(super) without: &'static str,
}

const CORE: &str = "oncegate-core";
const DECIDE: &str = "crates/core/src/decide.rs";

/// A mutant of `decide`.
const fn decide(name: &'static str, rule: &'static str, without: &'static str) -> Mutant {
    Mutant { name, package: CORE, file: DECIDE, rule, without }
}

/// Every mutant.
pub(super) const MUTANTS: &[Mutant] = &[
    decide(
        "attack 01: 'not found' is believed before the horizon",
        "named && record.terms.horizon.is_some_and(late_enough)",
        "{ let _ = late_enough; named }",
    ),
    decide(
        "attack 01: the horizon runs from the question, not from the lease's end",
        "asked.is_surely_past(lease_end(record).plus(horizon))",
        "asked.is_surely_past(record.created_at.plus(horizon))",
    ),
    decide(
        "attack 03: a completion bounces off failed_retryable",
        "State::Unknown(_) | State::FailedRetryable => {\n            Step::put(completed(",
        "State::FailedRetryable => Step::fenced(record),\n        State::Unknown(_) => {\n            Step::put(completed(",
    ),
    decide(
        "attack 03: a happened verdict bounces off failed_retryable",
        "State::FailedRetryable => settle().noting(Notice::WronglyReleased),",
        "State::FailedRetryable => Step::keep(Decision::Nothing),",
    ),
    decide(
        "attack 03: evidence under a newer grant is dropped",
        "let next = with_evidence(record, \"late holder\", answer, now);\n            Step { next: next.next,",
        "Step { next: Next::Keep,",
    ),
    decide(
        "attack 03: a release forgets the evidence",
        "if let Some(evidence) = &record.evidence {\n        return completed(record, Arc::clone(&evidence.answer), now);\n    }\n    let mut next = match record.execution {",
        "let mut next = match record.execution {",
    ),
    decide(
        "attack 04: a negative verdict need not name the attempt",
        "let named = record.version == *version && record.grant.is_some_and(|grant| grant.token == *token);",
        "let _ = (version, token);\n            let named = true;",
    ),
    decide(
        "attack 04: a final verdict about another attempt is believed",
        "Grounds::Final { fence } => record.fence == *fence,",
        "Grounds::Final { fence } => record.fence >= *fence,",
    ),
    decide(
        "attack 05: the first evidence always stands",
        "kept.answer.is_success() || !answer.is_success()",
        "{ let _ = (kept, answer); true }",
    ),
    decide(
        "attack 06: evidence is not applied on entering unknown",
        "if let Some(evidence) = &record.evidence {\n        return completed(record, Arc::clone(&evidence.answer), now);\n    }\n    let mut next = touched(record, now);\n    next.state = State::Unknown",
        "let mut next = touched(record, now);\n    next.state = State::Unknown",
    ),
    decide("attack 07: a verdict need not name the life", "if record.life != verdict.life {", "if false {"),
    decide(
        "attack 07: a completion need not be of this life",
        "if record.life != holder.life {\n        return Step::fenced(record);\n    }\n    let mine",
        "let mine",
    ),
    Mutant {
        name: "attack 08: identity is the fence alone",
        package: CORE,
        file: "crates/core/src/record.rs",
        rule: "self.fence == holder.fence && self.grant.is_some_and(|grant| grant.token == holder.token)",
        without: "self.fence == holder.fence",
    },
    Mutant {
        name: "attack 08: identity is the token alone",
        package: CORE,
        file: "crates/core/src/record.rs",
        rule: "self.fence == holder.fence && self.grant.is_some_and(|grant| grant.token == holder.token)",
        without: "self.grant.is_some_and(|grant| grant.token == holder.token)",
    },
    Mutant {
        name: "attack 09: versions restart",
        package: CORE,
        file: "crates/core/src/identity.rs",
        rule: "previous.map_or(now.as_micros(), |p| p.saturating_add(1).max(now.as_micros()))",
        without: "{ let _ = now; previous.map_or(1, |p| p.saturating_add(1)) }",
    },
    decide(
        "attack 10: my own reserve is busy",
        "grant.token == arrival.token && !now.may_be_past(grant.lease_until)",
        "{ let _ = (grant, arrival, now); false }",
    ),
    decide(
        "attack 10: a late acknowledgement grants",
        "grant.token == arrival.token && !now.may_be_past(grant.lease_until)",
        "{ let _ = now; grant.token == arrival.token }",
    ),
    decide(
        "attack 11: clean-up of an absent row only reads",
        "let Some(record) = record else {\n        let Next::Put(mut next)",
        "let Some(record) = record else {\n        if true { return Step::keep(Decision::Nothing); }\n        let Next::Put(mut next)",
    ),
    decide(
        "attack 11: clean-up of a doubted swap only reads",
        "_ if !mine && over == Some(record.version) => Step::put(touched(record, now), Decision::Done),",
        "_ if !mine && over == Some(record.version) => Step::keep(Decision::Nothing),",
    ),
    decide(
        "attack 12: the late holder's own bytes overwrite",
        "State::Completed(kept) if mine && kept == answer => Step::keep(Decision::Done),",
        "State::Completed(_) if mine => Step::keep(Decision::Done),",
    ),
    decide(
        "attack 14: a 410 row past retention is executable until it is reaped",
        "(State::Completed(_), AfterRetention::Gone { .. }) => record.is_past_retention(now),",
        "(State::Completed(_), AfterRetention::Gone { .. }) => false,",
    ),
    decide(
        "attack 14: under 410 the reaper deletes",
        "Step::put(buried(record, end.plus(tombstone), now), Decision::Done)",
        "{ let _ = (end, tombstone); Step::remove(grace) }",
    ),
    decide(
        "attack 14: another fingerprint of a tombstone is misuse",
        "if let Some(gone) = gone(record, now) {\n        return Step::keep(gone);\n    }\n    let misused",
        "let misused",
    ),
    decide(
        "attack 16: forget takes what is unsettled",
        "State::Completed(_) | State::FailedRetryable => {\n            let mut next = buried",
        "State::Completed(_) | State::FailedRetryable | State::InProgress | State::Unknown(_) => {\n            let mut next = buried",
    ),
    decide(
        "attack 16: a forgotten key is executable at once",
        "buried(record, now.at.plus(cache_age_max), now)",
        "{ let _ = cache_age_max; buried(record, now.at, now) }",
    ),
    decide(
        "attack 18: released deferred work waits for a client",
        "let next = settled(record, State::FailedRetryable, now);\n            waiting(next, now.at.plus(backoff))",
        "let _ = backoff;\n            settled(record, State::FailedRetryable, now)",
    ),
    decide(
        "attack 19: renewals reach past the deadline",
        "grant.lease_until.max(now.at.plus(lease)).min(grant.attempt_deadline)",
        "grant.lease_until.max(now.at.plus(lease))",
    ),
    decide(
        "a lease lapses for others by their own clock alone",
        "State::InProgress if record.is_lapsed(now) => arrive_lapsed(record, arrival, now),",
        "State::InProgress if now.at >= lease_end(record) => arrive_lapsed(record, arrival, now),",
    ),
    decide(
        "unknown is reaped",
        "(State::InProgress | State::Unknown(_), _) => Step::keep(Decision::Nothing),\n    }\n}\n\nfn forget",
        "(State::InProgress | State::Unknown(_), _) => Step::remove(grace),\n    }\n}\n\nfn forget",
    ),
    decide(
        "a lapsed lease is simply run again",
        "(CrashPolicy::Reconcile, _) => {\n            let next = enter_unknown(record, lapsed(), now);",
        "(CrashPolicy::Reconcile, _) if arrival.execution == Execution::Inline => rerun(record, arrival, now),\n        (CrashPolicy::Reconcile, _) => {\n            let next = enter_unknown(record, lapsed(), now);",
    ),
    decide(
        "a queued restart that runs out of time says 408",
        "let established = record.attempts == 0 || record.settled_at.is_some();",
        "let established = true;",
    ),
    decide(
        "an answer of another address is replayed",
        "if record.address != arrival.address {",
        "if false {",
    ),
];
