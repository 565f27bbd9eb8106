//! The named sets of choices: DESIGN.md's table of profiles, column by column.

use std::fmt;
use std::str::FromStr;

use super::{
    AfterDoubt, Credentials, DAY, EmptyKey, ForwardKey, GONE_FOR_30_DAYS, HOUR, KeyForm, KeyPolicy,
    KeySyntax, MINUTE, Mismatch, MismatchStatus, OnServerError, OnUnavailable, Policy, Reconcile, SECOND,
    ScopeWidth, StoredStatuses, WhileInProgress,
};
use crate::fingerprint::Mode;
use crate::record::{AfterRetention, CrashPolicy, Execution, RetentionFrom};

/// A named set of policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Profile {
    /// The IETF draft; the default.
    Ietf,
    /// The draft with only the structured key form.
    IetfStrict,
    /// As Stripe's API behaves: optional opaque keys, every answer kept.
    Stripe,
    /// Money: nothing is taken on an upstream's word, tombstones after retention.
    Payments,
    /// Recovery points: as `payments`, resumed after a crash.
    Resume,
    /// Answer 202 and run it later.
    Accepted,
    /// For clients one cannot change: duplicates wait, misuse is only counted.
    Lenient,
    /// Pass through; the header is not used.
    Off,
}

impl Profile {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Ietf,
        Self::IetfStrict,
        Self::Stripe,
        Self::Payments,
        Self::Resume,
        Self::Accepted,
        Self::Lenient,
        Self::Off,
    ];

    /// As it is written in a configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ietf => "ietf",
            Self::IetfStrict => "ietf-strict",
            Self::Stripe => "stripe",
            Self::Payments => "payments",
            Self::Resume => "resume",
            Self::Accepted => "accepted",
            Self::Lenient => "lenient",
            Self::Off => "off",
        }
    }

    /// The policies that it names.
    #[must_use]
    pub fn policy(self) -> Policy {
        match self {
            Self::Ietf => ietf(),
            Self::IetfStrict => {
                let ietf = ietf();
                Policy { key: KeyPolicy { syntax: KeySyntax::Structured, ..ietf.key }, ..ietf }
            }
            Self::Stripe => stripe(),
            Self::Payments => payments(),
            Self::Resume => Policy { crash: CrashPolicy::Resume, lease: 90 * SECOND, ..payments() },
            Self::Accepted => accepted(),
            Self::Lenient => lenient(),
            Self::Off => Policy { methods: Vec::new(), ..ietf() },
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No profile has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownProfile(String);

impl fmt::Display for UnknownProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = Profile::ALL.iter().map(|profile| profile.name()).collect();
        write!(f, "there is no profile {:?}; the profiles are {}", self.0, names.join(", "))
    }
}

impl std::error::Error for UnknownProfile {}

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, UnknownProfile> {
        let found = Self::ALL.into_iter().find(|profile| profile.name() == name);
        found.ok_or_else(|| UnknownProfile(name.to_owned()))
    }
}

fn ietf() -> Policy {
    Policy {
        methods: vec!["POST", "PATCH"],
        execution: Execution::Inline,
        respond_async: false,
        key: KeyPolicy {
            required: true,
            empty: EmptyKey::Refused,
            syntax: KeySyntax::Either,
            chars_min: 1,
            chars_max: 255,
            form: KeyForm::Any,
        },
        scope: ScopeWidth::Tenant,
        fingerprint: Mode::Json,
        fingerprint_headers: Vec::new(),
        mismatch: Mismatch::Refuse(MismatchStatus::Unprocessable),
        in_progress: WhileInProgress::Reject,
        after_doubt: AfterDoubt::Reject,
        stored: StoredStatuses::SuccessesAndClientErrors,
        server_error: OnServerError::Release,
        unavailable: OnUnavailable::Release,
        crash: CrashPolicy::Reconcile,
        lease: MINUTE,
        attempt_deadline: 15 * MINUTE,
        retention: 24 * HOUR,
        retention_from: RetentionFrom::Settlement,
        after_retention: AfterRetention::Fresh,
        horizon: None,
        expects_evidence: false,
        wait_limit: 10 * SECOND,
        patience: 10 * SECOND,
        forward_key: ForwardKey::AsIs,
        replayed_header: "idempotency-replayed",
        body_bytes_max: 1 << 20,
        answer_bytes_max: 1 << 20,
        keeps_cookies: false,
        request_headers: vec!["content-type".into()],
        credentials: Credentials::Kept,
        retry_in_progress: SECOND,
        retry_unknown: 5 * SECOND,
        reconcile: Reconcile { backoff_first: 5 * SECOND, backoff_max: 5 * MINUTE, park_after: 20 },
    }
}

fn stripe() -> Policy {
    let ietf = ietf();
    Policy {
        methods: vec!["POST"],
        key: KeyPolicy { required: false, syntax: KeySyntax::Opaque, ..ietf.key },
        mismatch: Mismatch::Refuse(MismatchStatus::BadRequest),
        stored: StoredStatuses::All,
        server_error: OnServerError::Store,
        replayed_header: "idempotent-replayed",
        ..ietf
    }
}

fn payments() -> Policy {
    let ietf = ietf();
    Policy {
        key: KeyPolicy { chars_min: 16, ..ietf.key },
        server_error: OnServerError::Doubt,
        unavailable: OnUnavailable::Doubt,
        lease: 5 * MINUTE,
        retention: 2 * DAY,
        after_retention: GONE_FOR_30_DAYS,
        expects_evidence: true,
        ..ietf
    }
}

fn accepted() -> Policy {
    Policy {
        execution: Execution::Deferred,
        scope: ScopeWidth::TenantAndOperation,
        in_progress: WhileInProgress::Accept,
        after_doubt: AfterDoubt::Accept,
        lease: 5 * MINUTE,
        after_retention: GONE_FOR_30_DAYS,
        ..ietf()
    }
}

fn lenient() -> Policy {
    let ietf = ietf();
    Policy {
        methods: vec!["POST"],
        key: KeyPolicy { required: false, empty: EmptyKey::Absent, syntax: KeySyntax::Opaque, ..ietf.key },
        scope: ScopeWidth::TenantAndOperation,
        mismatch: Mismatch::Replay,
        in_progress: WhileInProgress::Wait,
        after_doubt: AfterDoubt::WaitThenReject,
        stored: StoredStatuses::Successes,
        ..ietf
    }
}
