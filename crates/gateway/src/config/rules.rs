//! A profile, and what is otherwise than it says: one policy.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use http::header::HOST;
use oncegate_core::policy::{
    AfterDoubt, Credentials, KeyForm, KeyPattern, Policy, Profile, ScopeWidth, WhileInProgress,
};
use oncegate_core::record::{AfterRetention, CrashPolicy, GoneStatus, StoredRequest};
use oncegate_tower::headers::HOP_BY_HOP;
use oncegate_tower::{Named, Routes};
use toml::Spanned;

use super::check::Source;
use super::error::ConfigError;
use super::file::{self, After, Rules};
use super::reconcile;
use super::trust;
use crate::preauthorize::Preauthorize;
use crate::reconcile::Probe;

/// How one kind of request is treated.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Method and path; `*` where no route matches.
    pub pattern: String,
    /// The declared name of its operation: under `scope = "tenant+operation"`, what tells its
    /// keys apart.
    pub name: Option<String>,
    /// Patterns and names that it had before.
    pub formerly: Vec<String>,
    /// The profile that it starts from.
    pub profile: Profile,
    /// All in all.
    pub policy: Policy,
    /// How long clients go on retrying, as far as the operator knows.
    pub client_retry: Duration,
    /// How to find out what became of a request, if it can be asked over HTTP.
    pub probe: Option<Arc<Probe>>,
    /// Who is asked before a request is recorded or replayed.
    pub preauthorize: Option<Arc<Preauthorize>>,
}

impl Rule {
    pub(super) fn named(&self) -> Named {
        let named = Named::new(self.profile.name(), self.policy.clone()).formerly(self.formerly.clone());
        match &self.name {
            Some(name) => named.operation(name.as_str()),
            None => named,
        }
    }

    /// What a route of the layer does, as a rule.
    pub(crate) fn of(route: &oncegate_engine::Route) -> Self {
        Self {
            pattern: route.operation().to_string(),
            name: None,
            formerly: Vec::new(),
            profile: route.profile().parse().unwrap_or(Profile::Ietf),
            policy: route.policy().clone(),
            client_retry: CLIENT_RETRY,
            probe: None,
            preauthorize: None,
        }
    }

    /// Whether it protects anything.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.policy.methods.is_empty()
    }
}

/// How long clients go on retrying if nobody says otherwise.
const CLIENT_RETRY: Duration = Duration::from_hours(1);
/// A tombstone where a route asks for 410 or 404, and its profile keeps none.
const TOMBSTONE: Duration = Duration::from_hours(720);

/// Methods that may be protected.
pub(super) const METHODS: [&str; 4] = ["POST", "PATCH", "PUT", "DELETE"];

/// Methods that change nothing, by RFC 9110 and RFC 10008; CONNECT is never forwarded.
const SAFE: [&str; 6] = ["GET", "HEAD", "OPTIONS", "QUERY", "TRACE", "CONNECT"];

const OFF_WITH_MORE: &str = "the profile \"off\" lets requests pass untouched, so no other setting has an effect; drop them, or choose another profile";

/// The rule for what no route matches.
pub(super) fn otherwise(
    rules: &Rules,
    given: Option<Profile>,
    source: &Source<'_>,
) -> Result<Rule, ConfigError> {
    if let Some(pattern) = &rules.pattern {
        return Err(source.error(
            &pattern.span(),
            "`match` belongs to a [[route]]; [defaults] holds wherever none matches",
        ));
    }
    if let Some(name) = &rules.name {
        let words = "`name` is only for a [[route]]: in [defaults] it would make all paths one operation";
        return Err(source.error(&name.span(), words));
    }
    let profile = given.or(rules.profile.as_ref().map(|name| name.get_ref().0)).unwrap_or(Profile::Ietf);
    let mut rule = Rule {
        pattern: "*".to_owned(),
        name: None,
        formerly: formerly(rules, source)?,
        profile,
        policy: profile.policy(),
        client_retry: rules.client_retry.map_or(CLIENT_RETRY, |span| span.0),
        probe: None,
        // For the routes too, also where the defaults are off.
        preauthorize: preauthorize(rules, None, source)?,
    };
    if given == Some(Profile::Off) {
        // The command line switches it off, whatever the file has chosen for when it is on.
        return Ok(rule);
    }
    if let Some(methods) = &rules.methods {
        if profile == Profile::Off {
            return Err(source.error(
                &methods.span(),
                "the profile \"off\" protects no method; choose another profile, or drop `methods`",
            ));
        }
        rule.policy.methods = methods_of(methods, source)?;
    }
    overlay(&mut rule.policy, rules, source)?;
    rule.probe = probe(rules, None, &rule.policy, &(0..0), source)?;
    if rule.is_off() && (rule.policy != profile.policy() || rule.probe.is_some()) {
        return Err(at_profile(rules, source, OFF_WITH_MORE));
    }
    // The same refusals as the layer's, but at the place in the file.
    Routes::none().otherwise(rule.named()).map_err(|error| match not_yet(rules) {
        Some(span) => source.error(&span, error.to_string()),
        None => at_profile(rules, source, &error.to_string()),
    })?;
    Ok(rule)
}

/// The rule of one route. `defaults` gives it its profile, if it names none, and then its other settings too.
pub(super) fn route(
    typed: &Spanned<Rules>,
    defaults: &Rule,
    source: &Source<'_>,
) -> Result<Rule, ConfigError> {
    let rules = typed.get_ref();
    let Some(pattern) = &rules.pattern else {
        return Err(source.error(
            &typed.span(),
            "a [[route]] needs `match`, such as match = \"POST /payments/{id}/refunds\"",
        ));
    };
    let method = pattern.get_ref().split(' ').next().unwrap_or_default();
    if let Some(methods) = &rules.methods {
        return Err(source
            .error(&methods.span(), "a route's method is in its `match`; `methods` belongs to [defaults]"));
    }
    let mut rule = match &rules.profile {
        Some(profile) => {
            let profile = profile.get_ref().0;
            Rule {
                profile,
                policy: profile.policy(),
                pattern: String::new(),
                name: None,
                formerly: Vec::new(),
                client_retry: defaults.client_retry,
                probe: None,
                preauthorize: defaults.preauthorize.clone(),
            }
        }
        None => defaults.clone(),
    };
    rule.pattern.clone_from(pattern.get_ref());
    rule.name = rules.name.as_ref().map(|name| name.get_ref().clone());
    rule.formerly = formerly(rules, source)?;
    if let Some(span) = rules.client_retry {
        rule.client_retry = span.0;
    }
    let before = rule.policy.clone();
    overlay(&mut rule.policy, rules, source)?;
    if let Some(credentials) = rules.credentials.as_ref().filter(|_| !rule.policy.may_defer()) {
        let words =
            "has an effect only on deferred requests: execution = \"deferred\" or respond_async = true";
        return Err(source.error(&credentials.span(), words));
    }
    rule.probe = probe(rules, rule.probe, &rule.policy, &pattern.span(), source)?;
    rule.preauthorize = preauthorize(rules, rule.preauthorize, source)?;
    let asks = rules.preauthorize.is_some();
    if rule.is_off() && (rule.policy != before || rule.probe.is_some() || asks) {
        return Err(source.error(&pattern.span(), OFF_WITH_MORE));
    }
    if !rule.is_off() && SAFE.contains(&method) {
        let words = format!("a {method} changes nothing, so there is nothing to protect; drop the route");
        return Err(source.error(&pattern.span(), words));
    }
    if let Some(name) = &rules.name
        && rule.policy.scope == ScopeWidth::Tenant
    {
        return Err(source.error(&name.span(), "has an effect only with scope = \"tenant+operation\""));
    }
    let unnamed = Rule { name: None, ..rule.clone() };
    if let Some(name) = &rules.name
        && Routes::none().route(&rule.pattern, unnamed.named()).is_ok()
    {
        let refused = Routes::none().route(&rule.pattern, rule.named());
        refused.map_err(|error| source.error(&name.span(), error.to_string()))?;
    }
    Routes::none()
        .route(&rule.pattern, rule.named())
        .map_err(|error| source.error(&not_yet(rules).unwrap_or(pattern.span()), error.to_string()))?;
    Ok(rule)
}

/// What a route was called before.
fn formerly(rules: &Rules, source: &Source<'_>) -> Result<Vec<String>, ConfigError> {
    let Some(texts) = &rules.formerly else { return Ok(Vec::new()) };
    if texts.get_ref().iter().any(|text| text.is_empty() || text.contains(char::is_control)) {
        let words = "expected patterns or names that the route had, such as \"POST /orders/{id}\"";
        return Err(source.error(&texts.span(), words));
    }
    Ok(texts.get_ref().clone())
}

/// The rule's own probe, or the one that it starts from: the policy must suit it in either case.
fn probe(
    rules: &Rules,
    inherited: Option<Arc<Probe>>,
    policy: &Policy,
    place: &Range<usize>,
    source: &Source<'_>,
) -> Result<Option<Arc<Probe>>, ConfigError> {
    let (probe, span) = match (&rules.probe, inherited) {
        (Some(typed), _) => (Arc::new(reconcile::probe(typed, source)?), typed.span()),
        (None, Some(inherited)) => (inherited, place.clone()),
        (None, None) => return Ok(None),
    };
    reconcile::fits(&probe, policy).map_err(|words| source.error(&span, words))?;
    Ok(Some(probe))
}

/// Who is asked by this rule; a route inherits it whatever its profile.
fn preauthorize(
    rules: &Rules,
    inherited: Option<Arc<Preauthorize>>,
    source: &Source<'_>,
) -> Result<Option<Arc<Preauthorize>>, ConfigError> {
    let Some(typed) = &rules.preauthorize else { return Ok(inherited) };
    let file::Preauthorize::Ask { url, timeout, headers, tls_ca } = typed.get_ref() else { return Ok(None) };
    let at = |message: &str| source.error(&typed.span(), message);
    let timeout = timeout.map_or(PREAUTHORIZE_TIMEOUT, |span| span.0);
    if timeout.is_zero() {
        return Err(at("preauthorize.timeout must be greater than zero"));
    }
    let headers = headers_of(&Spanned::new(typed.span(), headers.clone()), source)?;
    let headers = headers.iter().filter_map(|name| name.parse().ok()).collect();
    let target = reconcile::target(&Spanned::new(typed.span(), url.clone()), source)?;
    let tls_ca = tls_ca.as_ref().map(|path| Spanned::new(typed.span(), path.clone()));
    let tls_ca = trust::authorities(tls_ca.as_ref(), source)?;
    Ok(Some(Arc::new(Preauthorize { target, timeout, tls_ca, headers })))
}

/// How long a service may think about a caller, where the file says nothing.
const PREAUTHORIZE_TIMEOUT: Duration = Duration::from_secs(2);

/// Names of headers, in lower case. Those of one connection mean nothing later, and the rest is the gateway's to say.
fn headers_of(names: &Spanned<Vec<String>>, source: &Source<'_>) -> Result<Vec<Box<str>>, ConfigError> {
    let mut kept: Vec<Box<str>> = Vec::new();
    for name in names.get_ref() {
        let Ok(parsed) = name.parse::<HeaderName>() else {
            return Err(source.error(&names.span(), format!("{name:?} is not the name of a header")));
        };
        if parsed == HOST {
            let words = "\"host\" needs no setting here: it is stored with deferred requests, and told as X-Forwarded-Host, \
                         in any case; leave it out, or compare it by fingerprint_headers";
            return Err(source.error(&names.span(), words));
        }
        if is_gateways(&parsed) {
            let words = format!("{name:?} is of one connection, or said by the gateway itself; leave it out");
            return Err(source.error(&names.span(), words));
        }
        if !kept.iter().any(|one| **one == *parsed.as_str()) {
            kept.push(parsed.as_str().into());
        }
    }
    Ok(kept)
}

/// Names of headers in the fingerprint, sorted. The host may be one of them: it is compared as the
/// client asked for it, in one spelling.
fn compared_headers(names: &Spanned<Vec<String>>, source: &Source<'_>) -> Result<Vec<Box<str>>, ConfigError> {
    let is_host = |name: &String| name.eq_ignore_ascii_case(HOST.as_str());
    let (host, others): (Vec<_>, Vec<_>) = names.get_ref().iter().cloned().partition(is_host);
    let mut kept = headers_of(&Spanned::new(names.span(), others), source)?;
    kept.extend(host.first().map(|_| HOST.as_str().into()));
    kept.sort();
    Ok(kept)
}

/// What a request that is run later carries in any case, as the gateway knows it.
const OF_THE_GATEWAY: [&str; 4] = ["host", "content-length", "idempotency-key", "idempotency-attempt"];

/// Whether a header is of one connection, or said by the gateway itself.
pub(super) fn is_gateways(name: &HeaderName) -> bool {
    HOP_BY_HOP.contains(name)
        || OF_THE_GATEWAY.contains(&name.as_str())
        || name.as_str().starts_with(StoredRequest::RESERVED_PREFIX)
}

/// Where a choice is made that the layer does not offer.
fn not_yet(rules: &Rules) -> Option<Range<usize>> {
    let resume = rules.crash.as_ref().filter(|crash| crash.get_ref().0 == CrashPolicy::Resume);
    let accept = rules.in_progress.as_ref().filter(|choice| choice.get_ref().0 == WhileInProgress::Accept);
    let doubt = rules.after_doubt.as_ref().filter(|choice| choice.get_ref().0 == AfterDoubt::Accept);
    let dropped = rules.credentials.as_ref().filter(|given| given.get_ref().0 == Credentials::Dropped);
    let dropped = dropped.filter(|_| rules.request_headers.is_some());
    let profile =
        rules.profile.as_ref().filter(|name| matches!(name.get_ref().0, Profile::Accepted | Profile::Resume));
    resume
        .map(Spanned::span)
        .or_else(|| accept.map(Spanned::span))
        .or_else(|| doubt.map(Spanned::span))
        .or_else(|| dropped.map(Spanned::span))
        .or_else(|| profile.map(Spanned::span))
}

fn at_profile(rules: &Rules, source: &Source<'_>, message: &str) -> ConfigError {
    match &rules.profile {
        Some(profile) => source.error(&profile.span(), message),
        None => ConfigError::of("[defaults]", message),
    }
}

fn methods_of(methods: &Spanned<Vec<String>>, source: &Source<'_>) -> Result<Vec<&'static str>, ConfigError> {
    let mut known = Vec::new();
    for method in methods.get_ref() {
        let Some(found) = METHODS.into_iter().find(|known| known == method) else {
            let words = format!("{method:?} cannot be protected; expected some of {}", METHODS.join(", "));
            return Err(source.error(&methods.span(), words));
        };
        if !known.contains(&found) {
            known.push(found);
        }
    }
    if known.is_empty() {
        return Err(source.error(
            &methods.span(),
            "an empty list protects nothing; if that is meant, use profile = \"off\"",
        ));
    }
    Ok(known)
}

/// Puts what the file says over what the profile says.
fn overlay(policy: &mut Policy, rules: &Rules, source: &Source<'_>) -> Result<(), ConfigError> {
    macro_rules! take {
        ($($place:expr => $given:expr),* $(,)?) => {
            $(if let Some(given) = &$given { $place = given.clone().0; })*
        };
    }
    take! {
        policy.execution => rules.execution,
        policy.key.empty => rules.key_empty,
        policy.key.syntax => rules.key_syntax,
        policy.scope => rules.scope,
        policy.stored => rules.stored,
        policy.server_error => rules.server_error,
        policy.unavailable => rules.unavailable,
        policy.retention_from => rules.retention_from,
        policy.wait_limit => rules.wait_limit,
        policy.patience => rules.patience,
        policy.body_bytes_max => rules.body_bytes_max,
        policy.answer_bytes_max => rules.answer_bytes_max,
        policy.retry_in_progress => rules.retry_in_progress,
        policy.retry_unknown => rules.retry_unknown,
    }
    if let Some(given) = &rules.fingerprint {
        policy.fingerprint = given.get_ref().0.clone();
    }
    if let Some(given) = &rules.forward_key {
        policy.forward_key = given.get_ref().0;
    }
    if let Some(given) = &rules.mismatch {
        policy.mismatch = given.get_ref().0;
    }
    if let Some(given) = &rules.in_progress {
        policy.in_progress = given.get_ref().0;
    }
    if let Some(given) = &rules.after_doubt {
        policy.after_doubt = given.get_ref().0;
    }
    if let Some(given) = &rules.crash {
        policy.crash = given.get_ref().0;
    }
    if let Some(names) = &rules.request_headers {
        policy.request_headers = headers_of(names, source)?;
    }
    if let Some(given) = &rules.credentials {
        policy.credentials = given.get_ref().0;
    }
    if let Some(names) = &rules.fingerprint_headers {
        policy.fingerprint_headers = compared_headers(names, source)?;
    }
    policy.respond_async = rules.respond_async.unwrap_or(policy.respond_async);
    policy.key.required = rules.key_required.as_ref().map_or(policy.key.required, |given| *given.get_ref());
    policy.keeps_cookies = rules.keep_cookies.unwrap_or(policy.keeps_cookies);
    policy.horizon = rules.horizon.as_ref().map(|span| span.get_ref().0).or(policy.horizon);
    for (place, given) in [
        (&mut policy.lease, &rules.lease),
        (&mut policy.attempt_deadline, &rules.attempt_deadline),
        (&mut policy.retention, &rules.retention),
    ] {
        if let Some(given) = given {
            if given.get_ref().0.is_zero() {
                return Err(source.error(&given.span(), "must be greater than zero"));
            }
            *place = given.get_ref().0;
        }
    }
    if policy.attempt_deadline < policy.lease {
        match (&rules.attempt_deadline, &rules.lease) {
            (Some(deadline), _) => {
                return Err(
                    source.error(&deadline.span(), "an attempt's deadline cannot be shorter than its lease")
                );
            }
            (None, Some(_)) => policy.attempt_deadline = policy.lease,
            (None, None) => {}
        }
    }
    key_lengths(policy, rules, source)?;
    if let Some(form) = &rules.key_form {
        policy.key.form = match form.get_ref().as_str() {
            "any" => KeyForm::Any,
            "uuid" => KeyForm::Uuid,
            pattern => KeyForm::Pattern(KeyPattern::new(pattern).map_err(|error| {
                source.error(
                    &form.span(),
                    format!("expected \"any\", \"uuid\" or a regular expression over whole keys: {error}"),
                )
            })?),
        };
    }
    if policy.key.form == KeyForm::Uuid && !(policy.key.chars_min..=policy.key.chars_max).contains(&36) {
        let span =
            [&rules.key_chars_max, &rules.key_chars_min].into_iter().flatten().next().map(Spanned::span);
        let span = span.or(rules.key_form.as_ref().map(Spanned::span)).unwrap_or(0..0);
        return Err(source.error(&span, "no UUID is so long: it has 36 characters"));
    }
    if let Some(probe) = &rules.probe {
        reconcile::pauses(policy, probe.get_ref(), source)?;
    }
    after_retention(policy, rules, source)
}

fn key_lengths(policy: &mut Policy, rules: &Rules, source: &Source<'_>) -> Result<(), ConfigError> {
    const LONGEST: usize = 255;
    for (place, given) in
        [(&mut policy.key.chars_min, &rules.key_chars_min), (&mut policy.key.chars_max, &rules.key_chars_max)]
    {
        if let Some(given) = given {
            if !(1..=LONGEST).contains(&given.get_ref().0) {
                return Err(source.error(&given.span(), format!("expected a number from 1 to {LONGEST}")));
            }
            *place = given.get_ref().0;
        }
    }
    if policy.key.chars_min > policy.key.chars_max {
        let span = rules.key_chars_min.as_ref().or(rules.key_chars_max.as_ref()).map_or(0..0, Spanned::span);
        return Err(source.error(
            &span,
            format!(
                "the shortest key ({}) is longer than the longest ({})",
                policy.key.chars_min, policy.key.chars_max
            ),
        ));
    }
    Ok(())
}

fn after_retention(policy: &mut Policy, rules: &Rules, source: &Source<'_>) -> Result<(), ConfigError> {
    let kept = match policy.after_retention {
        AfterRetention::Gone { tombstone, .. } => tombstone,
        AfterRetention::Fresh => TOMBSTONE,
    };
    let tombstone = rules.tombstone.as_ref().map_or(kept, |span| span.get_ref().0);
    if let Some(span) = &rules.tombstone
        && tombstone.is_zero()
    {
        return Err(source.error(&span.span(), "must be greater than zero"));
    }
    if let Some(after) = &rules.after_retention {
        policy.after_retention = match after.get_ref().0 {
            After::Fresh => AfterRetention::Fresh,
            After::Gone => AfterRetention::Gone { status: GoneStatus::Gone, tombstone },
            After::NotFound => AfterRetention::Gone { status: GoneStatus::NotFound, tombstone },
        };
    } else if let AfterRetention::Gone { status, .. } = policy.after_retention {
        policy.after_retention = AfterRetention::Gone { status, tombstone };
    }
    match (&rules.tombstone, policy.after_retention) {
        (Some(span), AfterRetention::Fresh) => Err(source.error(
            &span.span(),
            "under after_retention = \"fresh\" there are no tombstones; use after_retention = 410, or drop `tombstone`",
        )),
        _ => Ok(()),
    }
}
