//! Settings that are allowed and risky: each warning has the line of its setting and a remedy.

use std::time::Duration;

use oncegate_core::fingerprint::Mode;
use oncegate_core::policy::Mismatch;
use oncegate_core::record::AfterRetention;
use toml::Spanned;

use super::Config;
use super::admin;
use super::check::Source;
use super::file::{self, File};
use super::reconcile;
use super::request;
use super::rules::Rule;
use super::scope::From;
use super::show::shown;
use super::word::Span;
use crate::reconcile::{RecordAt, Target};

pub(super) fn warnings(config: &Config, file: &File, source: &Source<'_>) -> Vec<String> {
    let mut warnings = check_protection(config, file, source);
    warnings.extend(admin::warning(&config.admin, &file.admin, source));
    let from_request = request::warnings(&file.request).into_iter();
    warnings.extend(from_request.map(|(span, words)| format!("{}{words}", source.line(Some(span)))));
    warnings.extend(check_scope(config, file, source));
    let typed = std::iter::once(&file.defaults).chain(file.route.iter().map(Spanned::get_ref));
    let rules = std::iter::once(&config.otherwise).chain(&config.routes);
    for (rule, typed) in rules.zip(typed).filter(|(rule, _)| !rule.is_off()) {
        warnings.extend(check_times(rule, typed, config, source));
        warnings.extend(check_comparison(rule, typed, source));
        if let Some(words) = rule.probe.as_deref().and_then(|probe| reconcile::warning(probe, &rule.policy)) {
            let span = typed.probe.as_ref().map(Spanned::span).or_else(|| place(typed));
            warnings.push(format!("{}{}: {words}", source.line(span), rule.pattern));
        }
    }
    warnings
}

/// Where a rule begins.
fn place(typed: &file::Rules) -> Option<std::ops::Range<usize>> {
    typed.pattern.as_ref().map(Spanned::span).or(typed.profile.as_ref().map(Spanned::span))
}

fn check_protection(config: &Config, file: &File, source: &Source<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    let defaults = source.line(file.defaults.profile.as_ref().map(Spanned::span));
    if config.otherwise.is_off() && config.routes.iter().all(Rule::is_off) {
        warnings.push(format!(
            "{defaults}nothing is protected: the profile is \"off\" and no route says otherwise"
        ));
    } else if config.otherwise.is_off() {
        warnings.push(format!(
            "{defaults}defaults.profile = \"off\": a path that no route matches passes unprotected, also one \
             that the upstream reads as a route's; protect by default, and switch off single routes"
        ));
    }
    warnings
}

fn check_scope(config: &Config, file: &File, source: &Source<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    if config.scope.from == From::Authorization {
        let line = source.line(file.scope.from.as_ref().map(Spanned::span));
        warnings.push(format!(
            "{line}scope.from = \"authorization\": a client whose token is renewed between two retries becomes another tenant, and its retry \
             runs again; if yours are short-lived, take the tenant from a trusted header"
        ));
    }
    if let Some(peers) = &file.scope.trusted_peers
        && let Some(file::Peer(wide)) = peers.get_ref().iter().find(|peer| peer.is_wide())
    {
        warnings.push(format!(
            "{}scope.trusted_peers contains {wide}: any client in it can set the header that names the tenant, and \
             so read the responses of others; name only the proxies in front",
            source.line(Some(peers.span()))
        ));
    }
    if config.scope.shares_anonymous {
        let line = source.line(file.scope.anonymous.as_ref().map(Spanned::span));
        warnings.push(format!(
            "{line}scope.anonymous = \"share\": all callers without credentials see each other's answers if they \
             choose the same key; drop the setting, or take the tenant from a trusted header"
        ));
    }
    warnings
}

/// Retention against retries, and deadlines that come first.
fn check_times(rule: &Rule, typed: &file::Rules, config: &Config, source: &Source<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    let policy = &rule.policy;
    let line_of =
        |setting: Option<&Spanned<Span>>| source.line(setting.map(Spanned::span).or_else(|| place(typed)));
    let window = rule.client_retry.saturating_add(rule.reconcile_window());
    let late = match policy.after_retention {
        AfterRetention::Fresh => "runs its request again",
        AfterRetention::Gone { .. } => "is refused, and does not learn what became of its request",
    };
    if policy.retention < Duration::from_hours(1) {
        warnings.push(format!(
            "{}{}: retention {} is under an hour: a client that comes back later {late}; keep records longer \
             than clients retry",
            line_of(typed.retention.as_ref()),
            rule.pattern,
            shown(policy.retention)
        ));
    } else if policy.retention < window {
        warnings.push(format!(
            "{}{}: retention {} is shorter than clients retry ({}) and outcomes are asked about ({}): one that comes \
             back later {late}; raise it above their sum",
            line_of(typed.retention.as_ref()),
            rule.pattern,
            shown(policy.retention),
            shown(rule.client_retry),
            shown(rule.reconcile_window())
        ));
    }
    if policy.attempt_deadline < config.upstream.timeout {
        warnings.push(format!(
            "{}{}: an attempt's deadline ({}) comes before the upstream's timeout ({}): the lease ends while the \
             request runs; raise attempt_deadline, or lower upstream.timeout",
            line_of(typed.attempt_deadline.as_ref()),
            rule.pattern,
            shown(policy.attempt_deadline),
            shown(config.upstream.timeout)
        ));
    }
    warnings
}

/// What a reused key is not compared by.
fn check_comparison(rule: &Rule, typed: &file::Rules, source: &Source<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(word) = typed.mismatch.as_ref().filter(|word| word.get_ref().0 == Mismatch::Replay) {
        warnings.push(format!(
            "{}{}: mismatch = \"replay\": a key that is used for another request gets the first one's response, and the \
             other request is not executed; drop the setting, so that it is refused",
            source.line(Some(word.span())),
            rule.pattern
        ));
    }
    if let Some(word) = typed.fingerprint.as_ref().filter(|word| word.get_ref().0 == Mode::None) {
        warnings.push(format!(
            "{}{}: fingerprint = \"none\": a key that is used again with another body gets the first one's response; \
             use \"raw\" for bodies that are not JSON",
            source.line(Some(word.span())),
            rule.pattern
        ));
    }
    warnings
}
