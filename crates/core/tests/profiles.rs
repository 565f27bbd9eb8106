//! DESIGN.md's table of profiles, cell by cell.

use std::time::Duration;

use oncegate_core::fingerprint::Mode;
use oncegate_core::policy::{
    AfterDoubt, EmptyKey, KeyForm, KeySyntax, Mismatch, MismatchStatus, OnServerError, OnUnavailable, Policy,
    Profile, ScopeWidth, StoredStatuses, WhileInProgress,
};
use oncegate_core::record::{AfterRetention, CrashPolicy, Execution, GoneStatus, RetentionFrom};

fn words(policy: &Policy) -> Vec<String> {
    let key = &policy.key;
    let after_retention = match policy.after_retention {
        AfterRetention::Fresh => "fresh".to_owned(),
        AfterRetention::Gone { status, tombstone } => {
            assert!(matches!(status, GoneStatus::Gone | GoneStatus::NotFound));
            format!("{} for {}", status.code(), span(tombstone))
        }
    };
    vec![
        policy.methods.join(" "),
        match policy.execution {
            Execution::Inline => "inline",
            Execution::Deferred => "deferred",
        }
        .to_owned(),
        if key.required { "yes" } else { "no" }.to_owned(),
        format!("{:?}{}", key.syntax, if key.empty == EmptyKey::Absent { ", empty = absent" } else { "" }),
        format!("{}–{}", key.chars_min, key.chars_max),
        match policy.scope {
            ScopeWidth::Tenant => "tenant",
            ScopeWidth::TenantAndOperation => "tenant+operation",
        }
        .to_owned(),
        match policy.fingerprint {
            Mode::Json => "json",
            Mode::Raw => "raw",
            Mode::Fields(_) => "fields",
            Mode::None => "none",
        }
        .to_owned(),
        match policy.mismatch {
            Mismatch::Refuse(status) => status.code().to_string(),
            Mismatch::Replay => "replay".to_owned(),
        },
        match policy.in_progress {
            WhileInProgress::Reject => "409",
            WhileInProgress::Accept => "202",
            WhileInProgress::Wait => "wait",
        }
        .to_owned(),
        match policy.after_doubt {
            AfterDoubt::Reject => "409",
            AfterDoubt::Accept => "202",
            AfterDoubt::WaitThenReject => "wait, 409",
        }
        .to_owned(),
        match policy.stored {
            StoredStatuses::Successes => "2 3",
            StoredStatuses::SuccessesAndClientErrors => "2 3 4",
            StoredStatuses::All => "all",
        }
        .to_owned(),
        match policy.server_error {
            OnServerError::Release => "release",
            OnServerError::Store => "store",
            OnServerError::Doubt => "doubt",
        }
        .to_owned(),
        match policy.unavailable {
            OnUnavailable::Release => "release",
            OnUnavailable::Doubt => "doubt",
        }
        .to_owned(),
        match policy.crash {
            CrashPolicy::Reconcile => "reconcile",
            CrashPolicy::Resume => "resume",
            CrashPolicy::Restart => "restart",
        }
        .to_owned(),
        span(policy.lease),
        span(policy.retention),
        after_retention,
    ]
}

fn span(span: Duration) -> String {
    match span.as_secs() {
        s if s % 86_400 == 0 && s > 2 * 86_400 => format!("{} d", s / 86_400),
        s if s % 3_600 == 0 => format!("{} h", s / 3_600),
        s if s % 60 == 0 && s > 60 => format!("{} min", s / 60),
        s => format!("{s} s"),
    }
}

#[test]
fn every_cell_of_the_table_of_profiles() {
    let rows: [(&str, [&str; 5]); 17] = [
        ("methods", ["POST PATCH", "POST", "POST PATCH", "POST PATCH", "POST"]),
        ("execution", ["inline", "inline", "inline", "deferred", "inline"]),
        ("key required", ["yes", "no", "yes", "yes", "no"]),
        ("key syntax", ["Either", "Opaque", "Either", "Either", "Opaque, empty = absent"]),
        ("key length", ["1–255", "1–255", "16–255", "1–255", "1–255"]),
        ("scope", ["tenant", "tenant", "tenant", "tenant+operation", "tenant+operation"]),
        ("fingerprint", ["json", "json", "json", "json", "json"]),
        ("mismatch", ["422", "400", "422", "422", "replay"]),
        ("while in progress", ["409", "409", "409", "202", "wait"]),
        ("after doubt", ["409", "409", "409", "202", "wait, 409"]),
        ("stored answers", ["2 3 4", "all", "2 3 4", "2 3 4", "2 3"]),
        ("a 500 answer", ["release", "store", "doubt", "release", "release"]),
        ("a 503 answer", ["release", "release", "doubt", "release", "release"]),
        ("crash policy", ["reconcile", "reconcile", "reconcile", "reconcile", "reconcile"]),
        ("lease", ["60 s", "60 s", "5 min", "5 min", "60 s"]),
        ("retention", ["24 h", "24 h", "48 h", "24 h", "24 h"]),
        ("after retention", ["fresh", "fresh", "410 for 30 d", "410 for 30 d", "fresh"]),
    ];
    let profiles = [Profile::Ietf, Profile::Stripe, Profile::Payments, Profile::Accepted, Profile::Lenient];
    let columns = profiles.map(|profile| words(&profile.policy()));
    for (n, (name, expected)) in rows.iter().enumerate() {
        for (profile, (column, expected)) in profiles.iter().zip(columns.iter().zip(expected)) {
            assert_eq!(column[n], *expected, "{name} of {profile}");
        }
    }
}

#[test]
fn the_other_profiles_are_variations() {
    let strict = Profile::IetfStrict.policy();
    assert_eq!(strict.key.syntax, KeySyntax::Structured);
    let mut relaxed = strict;
    relaxed.key.syntax = KeySyntax::Either;
    assert_eq!(relaxed, Profile::Ietf.policy());

    let resume = Profile::Resume.policy();
    assert_eq!((resume.crash, resume.lease), (CrashPolicy::Resume, Duration::from_secs(90)));
    let payments = Policy { crash: CrashPolicy::Reconcile, lease: Duration::from_mins(5), ..resume };
    assert_eq!(payments, Profile::Payments.policy());

    let off = Profile::Off.policy();
    assert!(["GET", "POST", "PUT", "PATCH", "DELETE"].iter().all(|method| !off.protects(method)));
}

#[test]
fn defaults_where_nothing_else_is_said() {
    for profile in Profile::ALL {
        let policy = profile.policy();
        assert_eq!(policy.horizon, None, "{profile}: a horizon must be declared");
        assert_eq!(policy.retention_from, RetentionFrom::Settlement);
        assert_eq!(policy.attempt_deadline, Duration::from_mins(15));
        assert_eq!(
            (policy.retry_in_progress, policy.retry_unknown),
            (Duration::from_secs(1), Duration::from_secs(5))
        );
        assert_eq!(policy.reconcile.park_after, 20);
        assert_eq!(policy.reconcile.backoff_first, Duration::from_secs(5));
        assert_eq!(policy.reconcile.backoff_max, Duration::from_mins(5));
        assert_eq!((policy.body_bytes_max, policy.answer_bytes_max), (1 << 20, 1 << 20));
        assert_eq!(policy.key.form, KeyForm::Any);
        assert_eq!(policy.wait_limit, Duration::from_secs(10));
        let replayed =
            if profile == Profile::Stripe { "idempotent-replayed" } else { "idempotency-replayed" };
        assert_eq!(policy.replayed_header, replayed);
    }
}

#[test]
fn profiles_are_found_by_name() {
    for profile in Profile::ALL {
        assert_eq!(profile.name().parse(), Ok(profile));
    }
    let Err(error) = "strip".parse::<Profile>() else { unreachable!("no such profile") };
    assert_eq!(
        error.to_string(),
        "there is no profile \"strip\"; the profiles are ietf, ietf-strict, stripe, payments, resume, accepted, lenient, off"
    );
    assert_eq!(MismatchStatus::Conflict.code(), 409);
}
