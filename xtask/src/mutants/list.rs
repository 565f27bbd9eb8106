//! The mutants: rules, and what earlier drafts did instead.

/// One rule taken back.
pub(super) struct Mutant {
    /// Which rule; `attack NN` where ATTACKS.md has it.
    pub(super) name: &'static str,
    /// Whose tests must notice.
    pub(super) package: &'static str,
    /// The test binary that must.
    pub(super) test: &'static str,
    /// Where the rule is.
    pub(super) file: &'static str,
    /// The rule, as it stands exactly once in the file.
    pub(super) rule: &'static str,
    /// What takes its place.
    pub(super) without: &'static str,
}

const CORE: &str = "oncegate-core";
const DECIDE: &str = "crates/core/src/decide.rs";
const ROWS: &str = "crates/core/src/decide/rows.rs";
const RECORD: &str = "crates/core/src/record.rs";

/// A mutant of `decide`.
const fn decide(name: &'static str, rule: &'static str, without: &'static str) -> Mutant {
    Mutant { name, package: CORE, test: "decide", file: DECIDE, rule, without }
}

/// A mutant of the next rows.
const fn rows(name: &'static str, rule: &'static str, without: &'static str) -> Mutant {
    Mutant { name, package: CORE, test: "decide", file: ROWS, rule, without }
}

/// Every mutant.
pub(super) const MUTANTS: &[Mutant] = &[
    decide(
        "attack 01: 'not found' is believed before the horizon",
        "horizon_end(record, *steady_since).is_some_and(|end| asked.is_surely_past(end))",
        "{ let _ = (asked, steady_since); true }",
    ),
    decide(
        "attack 01: the horizon runs from the life's beginning",
        "let last_send = lease_end(record).max(doubt.since).max(steady_since);",
        "let last_send = record.created_at.max(steady_since);",
    ),
    decide("attack 01: the horizon ignores clock error", "asked.is_surely_past(end)", "asked.at >= end"),
    decide(
        "attack 03: a completion bounces off failed_retryable",
        "State::Unknown(_) | State::FailedRetryable => settle().noting(Notice::WronglyReleased),\n        State::Pending",
        "State::FailedRetryable => Step::fenced(record),\n        State::Unknown(_) => settle().noting(Notice::WronglyReleased),\n        State::Pending",
    ),
    decide(
        "attack 03: a happened verdict bounces off failed_retryable",
        "State::FailedRetryable => settle().noting(Notice::WronglyReleased),\n        State::Pending { .. } if record.attempts > 0 => settle().noting(Notice::WronglyReleased),\n        State::Completed(kept) if kept",
        "State::FailedRetryable => Step::keep(Decision::Nothing),\n        State::Pending { .. } if record.attempts > 0 => settle().noting(Notice::WronglyReleased),\n        State::Completed(kept) if kept",
    ),
    decide(
        "attack 03: evidence under a newer grant is dropped",
        "Step { next: kept.next, ..Step::fenced(record) }",
        "{ let _ = kept; Step::fenced(record) }",
    ),
    rows(
        "attack 03: a release forgets the evidence",
        "    if let Some(evidence) = &record.evidence {\n        return completed(record, Arc::clone(&evidence.answer), now);\n    }\n    let is_accounted_for",
        "    let is_accounted_for",
    ),
    decide(
        "attack 03: deferred work queued again does not hear of its effect",
        "State::Pending { .. } if record.attempts > 0 => settle().noting(Notice::WronglyReleased),\n        State::Expired",
        "State::Expired",
    ),
    decide(
        "attack 04: a negative verdict need not name the attempt",
        "record.version == *version && record.grant.is_some_and(|grant| grant.token == *token)",
        "{ let _ = (version, token); true }",
    ),
    decide(
        "attack 04: a final verdict about another attempt is believed",
        "record.fence == *fence && !record.unaccounted && record.recovery.is_none()",
        "record.fence >= *fence && !record.unaccounted && record.recovery.is_none()",
    ),
    rows(
        "attack 05: the first evidence always stands",
        "kept.answer.is_success() || !answer.is_success()",
        "{ let _ = (kept, answer); true }",
    ),
    rows(
        "attack 06: evidence is not applied on entering unknown",
        "(evidence.answer.is_success() || record.attempts <= 1)",
        "evidence.answer.is_success() && false",
    ),
    decide("attack 07: a verdict need not name the life", "if record.life != verdict.life {", "if false {"),
    decide(
        "attack 07: a completion need not be of this life",
        "    if record.life != holder.life {\n        return Step::fenced(record);\n    }\n    let mine",
        "    let mine",
    ),
    Mutant {
        name: "attack 08: identity is the fence alone",
        package: CORE,
        test: "decide",
        file: RECORD,
        rule: "self.fence == holder.fence && self.grant.is_some_and(|grant| grant.token == holder.token)",
        without: "self.fence == holder.fence",
    },
    Mutant {
        name: "attack 08: identity is the token alone",
        package: CORE,
        test: "decide",
        file: RECORD,
        rule: "self.fence == holder.fence && self.grant.is_some_and(|grant| grant.token == holder.token)",
        without: "self.grant.is_some_and(|grant| grant.token == holder.token)",
    },
    Mutant {
        name: "a phase that failed, and was gone on after, is run again",
        package: CORE,
        test: "journal",
        file: "crates/core/src/record/journal.rs",
        rule: "Progress::Failed(words) => Visit::Failed(words),",
        without: "Progress::Failed(_) => Visit::Run,",
    },
    Mutant {
        name: "attack 09: versions restart",
        package: CORE,
        test: "decide",
        file: "crates/core/src/identity.rs",
        rule: "previous.map_or(now.as_micros(), |p| p.saturating_add(1).max(now.as_micros()))",
        without: "{ let _ = now; previous.map_or(1, |p| p.saturating_add(1)) }",
    },
    rows(
        "attack 09: a new life's version starts at its clock",
        "version: Version::next(previous.map(|p| p.version), now.at),",
        "version: Version::next(None, now.at),",
    ),
    rows(
        "attack 09: a new life's fence starts at its clock",
        "fence: Fence::next(previous.map(|p| p.fence), now.at),\n        grant: None",
        "fence: Fence::next(None, now.at),\n        grant: None",
    ),
    decide(
        "attack 10: my own reserve is busy",
        "grant.token == token && !now.may_be_past(grant.lease_until)",
        "{ let _ = (grant, token, now); false }",
    ),
    decide(
        "attack 10: a late acknowledgement grants",
        "grant.token == token && !now.may_be_past(grant.lease_until)",
        "{ let _ = now; grant.token == token }",
    ),
    decide(
        "attack 11: clean-up of an absent row only reads",
        "Step::put(refused_reserve(arrival, reason, now), Decision::Done)",
        "{ let _ = refused_reserve(arrival, reason, now); Step::keep(Decision::Nothing) }",
    ),
    decide(
        "attack 11: clean-up of a doubted swap only reads",
        "_ if !mine && over == Some(record.version) => Step::put(touched(record, now), Decision::Done),",
        "_ if !mine && over == Some(record.version) => Step::keep(Decision::Nothing),",
    ),
    decide(
        "attack 11: clean-up leaves a swept reserve to the operator",
        "State::InProgress | State::Unknown(_) if mine && !is_held_back(record) => {\n            Step::put(back_out",
        "State::InProgress if mine => {\n            Step::put(back_out",
    ),
    decide(
        "attack 12: the late holder's own bytes are acknowledged",
        "State::Completed(kept) if mine && kept == answer => Step::keep(Decision::Done),",
        "State::Completed(_) if mine => Step::keep(Decision::Done),",
    ),
    decide(
        "attack 14: a 410 row past retention is replayed until it is reaped",
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
        "    if let Some(gone) = gone(record, now) {\n        return Step::keep(gone);\n    }\n    let misused",
        "    let misused",
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
    rows(
        "attack 18: released deferred work waits for a client",
        "Execution::Deferred => queued(record, now.at.plus(backoff), waiting_end(record), now),",
        "Execution::Deferred if { let _ = backoff; true } => settled(record, State::FailedRetryable, now),\n        Execution::Deferred => queued(record, now.at.plus(backoff), waiting_end(record), now),",
    ),
    decide(
        "attack 19: renewals reach past the deadline",
        "grant.lease_until.max(now.at.plus(lease)).min(grant.attempt_deadline)",
        "grant.lease_until.max(now.at.plus(lease))",
    ),
    decide(
        "renewals shorten a lease",
        "grant.lease_until.max(now.at.plus(lease)).min(grant.attempt_deadline)",
        "now.at.plus(lease).min(grant.attempt_deadline)",
    ),
    decide(
        "a lease lapses for others by their own clock alone",
        "State::InProgress if record.is_lapsed(now) => arrive_lapsed(record, arrival, now),",
        "State::InProgress if now.at >= lease_end(record) => arrive_lapsed(record, arrival, now),",
    ),
    decide(
        "a new life begins by one clock alone",
        "end.is_some_and(|end| now.is_surely_past(end))",
        "end.is_some_and(|end| now.at >= end)",
    ),
    decide(
        "unknown is reaped",
        "(State::InProgress | State::Unknown(_), _) => Step::keep(Decision::Nothing),\n    }\n}\n\nfn forget",
        "(State::InProgress, _) => Step::keep(Decision::Nothing),\n        (State::Unknown(_), _) => Step::remove(grace),\n    }\n}\n\nfn forget",
    ),
    decide(
        "a lapsed lease is simply run again",
        "(CrashPolicy::Reconcile, _) => arrive_doubted(record, arrival, now),",
        "(CrashPolicy::Reconcile, Execution::Inline) => rerun(record, arrival, now),\n        (CrashPolicy::Reconcile, _) => arrive_doubted(record, arrival, now),",
    ),
    decide(
        "a happened under restart is run again by the sweep",
        "CrashPolicy::Restart if record.evidence.is_none() && may_be_queued => {",
        "CrashPolicy::Restart if may_be_queued => {",
    ),
    rows(
        "a release vouches for an earlier attempt",
        "Account::ThisAttempt => !may_have_acted(record),",
        "Account::ThisAttempt => true,",
    ),
    rows(
        "a release after a recovery point is no effect",
        "record.unaccounted || record.recovery.is_some()",
        "record.unaccounted",
    ),
    rows(
        "a 408 is told of an attempt that may have acted",
        "    if may_have_acted(record) {\n        return enter_unknown",
        "    if false {\n        return enter_unknown",
    ),
    decide(
        "a lapsed attempt that is run again is forgotten",
        "rerun(&Record { unaccounted: true, ..record.clone() }, arrival, now)",
        "rerun(record, arrival, now)",
    ),
    rows(
        "what is settled late is over at birth",
        "(RetentionFrom::Creation, State::InProgress)",
        "(RetentionFrom::Creation, _) => from_creation,\n        (RetentionFrom::Creation, State::InProgress)",
    ),
    decide(
        "a refusal outweighs a proved effect",
        "Some(evidence) if evidence.answer.is_success() && !answer.is_success() => {",
        "Some(evidence) if evidence.answer.is_success() && !answer.is_success() && false => {",
    ),
    decide(
        "a worker's doubted take is nobody's",
        "State::InProgress if is_own_grant(record, take.token, now) => {\n            Step::keep(Decision::Execute(Lease::of(record)))\n        }\n        // Without",
        "// Without",
    ),
    decide(
        "who releases over evidence says 'not executed'",
        "_ => Decision::Fenced(Some(Arc::new(next.clone()))),",
        "_ => Decision::Done,",
    ),
    decide(
        "accepted work is over before it began",
        "let next = Record { request, expires_at: Some(until), ..record.clone() };",
        "let until = record.created_at.plus(record.terms.retention);\n    let next = Record { request, expires_at: Some(until), ..record.clone() };",
    ),
    decide(
        "an accepted request is replaced",
        "record.request.clone().or_else(|| arrival.request.clone())",
        "arrival.request.clone().or_else(|| record.request.clone())",
    ),
    decide(
        "stale webhooks park a record",
        "(State::Unknown(_), Grounds::Final { .. }) => ask_soon(record, now).noting(Notice::NegativeDropped),",
        "(State::Unknown(_), Grounds::Final { .. }) => not_known(record, otherwise, now).noting(Notice::NegativeDropped),",
    ),
    decide(
        "a parked record is asked about again",
        "let parked = doubt.parked || tries >= retry.park_after;",
        "let parked = tries >= retry.park_after;",
    ),
    decide(
        "doubt does not end the lease",
        "grant.lease_until = grant.lease_until.min(now.at.plus(now.error));",
        "let _ = grant;",
    ),
    decide(
        "doubt ends the lease by one clock alone",
        "grant.lease_until = grant.lease_until.min(now.at.plus(now.error));",
        "grant.lease_until = grant.lease_until.min(now.at);",
    ),
    rows(
        "a completed record keeps its request",
        "    next.request = None;\n    next.recovery = None;\n    next\n}\n\nfn settled",
        "    next.recovery = None;\n    next\n}\n\nfn settled",
    ),
    rows(
        "a tombstone keeps its request",
        "    next.state = State::Expired;\n    next.evidence = None;\n    next.request = None;",
        "    next.state = State::Expired;\n    next.evidence = None;",
    ),
    decide(
        "two effects of one life are no alarm",
        "Step::fenced(record).noting(Notice::SecondEffect)",
        "Step::fenced(record)",
    ),
    decide(
        "an answer of another address is replayed",
        "if record.address != arrival.address {",
        "if false {",
    ),
    rows(
        "a refusal of an older attempt settles a newer one's doubt",
        "(evidence.answer.is_success() || record.attempts <= 1)",
        "(evidence.answer.is_success() || record.attempts <= 100)",
    ),
    decide(
        "a slow probe's refusal of an older attempt settles a newer one's doubt",
        "if !answer.is_success() && !is_last(*attempt, record) => {",
        "if !answer.is_success() && !is_last(*attempt, record) && false => {",
    ),
    decide(
        "a stale 'not known' is a question",
        "Finding::NotKnown { version, .. } if record.version != *version =>",
        "Finding::NotKnown { version, .. } if record.version != *version && false =>",
    ),
    rows(
        "a probe that finds nothing undoes a recovery point",
        "Account::Life => record.recovery.is_none(),",
        "Account::Life => true,",
    ),
    decide(
        "who is answered 202 over an inline attempt is not served",
        "Execution::Deferred => accept_too(record, arrival, Decision::Accepted, now),",
        "Execution::Deferred => Step::keep(Decision::Accepted),",
    ),
    decide(
        "who is answered 202 over a lapsed attempt is not served",
        "as_it_stands(if is_promised { deferred_by(next, arrival, now) } else { next })",
        "{ let _ = is_promised; as_it_stands(next) }",
    ),
    Mutant {
        name: "a fenced holder is answered 202 over an inline attempt",
        package: "oncegate-tower",
        test: "layer",
        file: "crates/tower/src/answer.rs",
        rule: "if about.policy.may_defer() && row.execution == Execution::Deferred =>",
        without: "if about.policy.may_defer() && row.version == row.version =>",
    },
    decide(
        "who is answered 202 over a lapsed attempt with recovery points is not served",
        "            accept_too(record, arrival, Decision::Accepted, now)\n        }",
        "            Step::keep(Decision::Accepted)\n        }",
    ),
    decide(
        "what somebody else has put aside is put aside again",
        "State::Pending { run_after } if record.version == version && now.at >= run_after => {",
        "State::Pending { run_after } if { let _ = version; now.at >= run_after } => {",
    ),
    decide(
        "what may have acted is cancelled",
        "State::Pending { .. } if !rows::may_have_acted(record) => Step::put(",
        "State::Pending { .. } => Step::put(",
    ),
    rows(
        "what was sent is said not to have been executed",
        "if record.attempts == 0 { Tried::Never }",
        "if record.attempts < 99 { Tried::Never }",
    ),
    decide(
        "a resume that only its client can go on with stays for ever",
        "CrashPolicy::Resume if record.request.is_some() || !nobody_came_back => Step::keep(Decision::Nothing),",
        "CrashPolicy::Resume => Step::keep(Decision::Nothing),",
    ),
];
