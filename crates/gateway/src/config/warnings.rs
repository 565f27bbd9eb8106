//! Settings that are allowed and risky: each warning has the line of its setting and a remedy.

mod protection;
mod refused;

use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use oncegate_core::fingerprint::Mode;
use oncegate_core::policy::{Credentials, Mismatch};
use oncegate_core::record::AfterRetention;
use toml::Spanned;

use super::admin;
use super::check::Source;
use super::file::{self, File};
use super::limits;
use super::reconcile;
use super::request;
use super::rules::Rule;
use super::scope::From;
use super::secret_file;
use super::show::{shown, without_secrets};
use super::word::{Secret, Span};
use super::{Config, Given};
use crate::reconcile::{RecordAt, Target};

pub(super) fn warnings(config: &Config, file: &File, given: &Given, source: &Source<'_>) -> Vec<String> {
    let mut warnings = protection::check(config, file, given, source);
    warnings.extend(check_store(config, file, source));
    warnings.extend(admin::warning(&config.admin, &file.admin, source));
    warnings.extend(secret_file::warnings(file, given, source));
    warnings.extend(check_transport(config, file, given, source));
    warnings.extend(check_removed_keys(config, file, source));
    warnings.extend(check_trail(config, file, source));
    let from_request = request::warnings(&file.request).into_iter();
    warnings.extend(from_request.map(|(span, words)| format!("{}{words}", source.line(Some(span)))));
    let from_limits = limits::warnings(config, file).into_iter();
    warnings.extend(from_limits.map(|(span, words)| format!("{}{words}", source.line(Some(span)))));
    warnings.extend(check_scope(config, file, source));
    warnings.extend(check_webhooks(config, file, source));
    warnings.extend(check_preauthorization(config, file, source));
    warnings.extend(refused::check(config, file, source));
    let typed = std::iter::once(&file.defaults).chain(file.route.iter().map(Spanned::get_ref));
    let rules = std::iter::once(&config.otherwise).chain(&config.routes);
    for (rule, typed) in rules.zip(typed).filter(|(rule, _)| !rule.is_off()) {
        warnings.extend(check_times(rule, typed, config, source));
        warnings.extend(check_comparison(rule, typed, profile_at(typed, given), source));
        warnings.extend(check_credentials(rule, typed, file, source));
        if let Some(words) = rule.probe.as_deref().and_then(|probe| reconcile::warning(probe, &rule.policy)) {
            let span = typed.probe.as_ref().map(Spanned::span).or_else(|| place(typed));
            warnings.push(format!("{}{}: {words}", source.line(span), rule.pattern));
        }
    }
    warnings
}

/// Where a rule's profile was typed, unless the command line has replaced it.
fn profile_at(typed: &file::Rules, given: &Given) -> Option<Range<usize>> {
    let is_replaced = typed.pattern.is_none() && given.profile.is_some();
    typed.profile.as_ref().filter(|_| !is_replaced).map(Spanned::span)
}

/// Where a rule begins.
fn place(typed: &file::Rules) -> Option<Range<usize>> {
    typed.pattern.as_ref().map(Spanned::span).or(typed.profile.as_ref().map(Spanned::span))
}

/// Stores that are reached over the network by a connection that can be read or changed on the way.
fn check_transport(config: &Config, file: &File, given: &Given, source: &Source<'_>) -> Vec<String> {
    let typed = &file.store;
    let store_at = typed.url.as_ref().map(Spanned::span).or(typed.url_file.as_ref().map(Spanned::span));
    let cache_at = typed.shared_cache.as_ref().map(Spanned::span);
    let urls = [
        ("store.url", Some(&config.store.url), store_at.filter(|_| given.store.is_none())),
        ("store.shared_cache", config.store.shared_cache.as_ref(), cache_at),
    ];
    let exposed = urls.into_iter().filter_map(|(key, url, span)| {
        let url = url.map(Secret::expose).filter(|url| oncegate::is_exposed(url))?;
        let remedy = if url.starts_with("redis") { "use rediss://" } else { "say sslmode=verify-full" };
        Some(format!(
            "{}{key}: {} is reached over the network without TLS that proves who answers: records and passwords can be \
             read on the way, and responses forged; {remedy}",
            source.line(span),
            without_secrets(url)
        ))
    });
    exposed.collect()
}

fn check_removed_keys(config: &Config, file: &File, source: &Source<'_>) -> Option<String> {
    let line = source.line(file.workers.removed_keys_for.as_ref().map(Spanned::span));
    config.workers.removed_keys_for.is_zero().then(|| {
        format!(
            "{line}workers.removed_keys_for = \"0s\": a key that is used again after its record was removed is executed \
             again, and neither metrics nor the audit trail show it; drop the setting"
        )
    })
}

/// A trail that does not tell what happened to a record that is still there.
fn check_trail(config: &Config, file: &File, source: &Source<'_>) -> Option<String> {
    let kept = config.workers.options.audit_retention;
    let typed = file.route.iter().map(Spanned::get_ref).chain([&file.defaults]);
    let rules = config.rules().zip(typed).filter(|(rule, _)| !rule.is_off());
    let (longest, typed) = rules.max_by_key(|(rule, _)| rule.policy.retention)?;
    if kept >= longest.policy.retention {
        return None;
    }
    let of_rule = || typed.retention.as_ref().map(Spanned::span).or_else(|| place(typed));
    let line = source.line(file.workers.audit_retention.as_ref().map(Spanned::span).or_else(of_rule));
    Some(format!(
        "{line}workers.audit_retention = \"{}\": the audit trail of {} ends before its records; set {} or more",
        shown(kept),
        longest.pattern,
        shown(longest.policy.retention)
    ))
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
        let what = match config.scope.header() {
            Some(_) => "the header that names the tenant, and so read the responses of others",
            None => "`Forwarded` and `X-Forwarded-*`, which the upstream may believe",
        };
        warnings.push(format!(
            "{}scope.trusted_peers contains {wide}: any client in it can set {what}; name only the proxies in front",
            source.line(Some(peers.span()))
        ));
    }
    if let Some(names) = &file.scope.also_public
        && let Some(name) = config.scope.also_public.iter().find(|name| is_secret(name.as_str()))
    {
        warnings.push(format!(
            "{}scope.also_public contains {name:?}: its values are shown in lists of records, metrics and the audit trail; \
             name it in scope.also, which digests them",
            source.line(Some(names.span()))
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

/// Whether a header of this name has a credential, as far as its name says.
fn is_secret(name: &str) -> bool {
    const WORDS: [&str; 9] =
        ["key", "token", "secret", "auth", "session", "password", "credential", "jwt", "signature"];
    WORDS.into_iter().any(|word| name.contains(word))
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

/// Warns about deferred requests that run without credentials.
fn check_credentials(rule: &Rule, typed: &file::Rules, file: &File, source: &Source<'_>) -> Option<String> {
    if !rule.policy.may_defer() || rule.policy.credentials == Credentials::Kept {
        return None;
    }
    let given = typed.credentials.as_ref().or(file.defaults.credentials.as_ref());
    Some(format!(
        "{}{}: credentials = \"dropped\": a deferred request runs without its caller's credentials, and an upstream \
         that trusts the gateway executes it for anybody; drop the setting, unless the upstream takes no request for \
         authorized because the gateway sends it",
        source.line(given.map(Spanned::span)),
        rule.pattern
    ))
}

/// What a reused key is not compared by.
fn check_comparison(
    rule: &Rule,
    typed: &file::Rules,
    profile: Option<Range<usize>>,
    source: &Source<'_>,
) -> Vec<String> {
    let mut warnings = Vec::new();
    // A route that has it from the defaults is not warned about beside them.
    let is_own = typed.mismatch.is_some() || typed.profile.is_some() || rule.pattern == "*";
    if rule.policy.mismatch == Mismatch::Replay && is_own {
        let of_profile = format!("profile = \"{}\" has mismatch = \"replay\"", rule.profile);
        let (span, setting, remedy) = match &typed.mismatch {
            Some(word) => (Some(word.span()), "mismatch = \"replay\"", "drop the setting"),
            None => (profile, of_profile.as_str(), "set mismatch = 422"),
        };
        warnings.push(format!(
            "{}{}: {setting}: a key that is used for another request gets the first one's response, and the \
             other request is not executed; {remedy}, so that it is refused",
            source.line(span),
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

/// A store's file that other users can read.
fn check_store(config: &Config, file: &File, source: &Source<'_>) -> Vec<String> {
    let line = source.line(file.store.url.as_ref().map(Spanned::span));
    let warnings = oncegate::warnings_of(config.store.url.expose()).into_iter();
    warnings.map(|words| format!("{line}{words}")).collect()
}

/// Webhooks whose events can name any record, if end users choose what is in them.
fn check_webhooks(config: &Config, file: &File, source: &Source<'_>) -> Vec<String> {
    let webhooks = config.webhooks.iter().zip(&file.webhook);
    let warnings = webhooks.filter_map(|(webhook, typed)| {
        let by = match webhook.record {
            RecordAt::Id(_) => "id",
            RecordAt::Key { .. } => "key",
            RecordAt::ForwardedKey(_) | RecordAt::Reference(_) => return None,
        };
        let line = source.line(typed.get_ref().record.as_ref().map(Spanned::span));
        Some(format!(
            "{line}[[webhook]] {:?}: record is found by {by}: an end user who can write that field of an event can settle \
             another operation; find it by forwarded_key or reference, or make sure that only your API writes the field",
            webhook.name
        ))
    });
    warnings.collect()
}

/// Routes whose stored responses a revoked credential gets, and checks that can be forged.
fn check_preauthorization(config: &Config, file: &File, source: &Source<'_>) -> Vec<String> {
    let typed = std::iter::once(&file.defaults).chain(file.route.iter().map(Spanned::get_ref));
    let rules = std::iter::once(&config.otherwise).chain(&config.routes);
    let warnings = rules.zip(typed).filter_map(|(rule, typed)| {
        let (span, words) = preauthorize_warning(rule, typed, &config.otherwise)?;
        Some(format!("{}{}: {words}", source.line(Some(span)), rule.pattern))
    });
    warnings.collect()
}

/// What is wrong with who is asked on this route, with the remedy; of an inherited rule nothing.
fn preauthorize_warning(
    rule: &Rule,
    typed: &file::Rules,
    defaults: &Rule,
) -> Option<(Range<usize>, &'static str)> {
    let span = typed.preauthorize.as_ref()?.span();
    let Some(asked) = &rule.preauthorize else {
        let words = "preauthorize = \"off\": a caller whose credential was revoked still gets what is stored under it; \
                     drop the setting";
        return defaults.preauthorize.is_some().then_some((span, words));
    };
    let Target::Elsewhere(url) = &asked.target else { return None };
    let is_here = url.host().is_some_and(|host| {
        let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
    });
    let words = "preauthorize.url is http:// and not of this machine: credentials cross the network unencrypted, and \
                 anyone on the way can allow a request; use https://";
    (url.scheme_str() == Some("http") && !is_here).then_some((span, words))
}
