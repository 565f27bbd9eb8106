//! What a rule comes to, in the words of the file.

mod reconcile;

use std::time::Duration;

use oncegate_core::fingerprint::{Fields, Mode};
use oncegate_core::policy::KeyForm;
use oncegate_core::record::AfterRetention;

use super::file::After;
use super::rules::Rule;
use super::word::{Size, Words as _};
use super::{Config, Store, Upstream};
use crate::preauthorize::Preauthorize;

impl Rule {
    /// How long an unknown outcome is asked about before it is parked, at most: the sum of all pauses.
    #[must_use]
    pub fn reconcile_window(&self) -> Duration {
        let reconcile = self.policy.reconcile;
        let mut pause = reconcile.backoff_first;
        let mut all = Duration::ZERO;
        for _ in 0..reconcile.park_after {
            all = all.saturating_add(pause);
            pause = pause.saturating_mul(2).min(reconcile.backoff_max);
        }
        all
    }

    /// Each setting, by the name that it has in the file, for programs.
    #[must_use]
    pub fn settings_json(&self) -> serde_json::Map<String, serde_json::Value> {
        let settings = self.settings().into_iter();
        settings.map(|(name, value)| (name.to_owned(), json_of(&value))).collect()
    }

    /// Each setting, by the name that it has in the file, and its value as it would be written there.
    #[must_use]
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let policy = &self.policy;
        let span = |span: Duration| quoted(&shown(span));
        let size = |bytes: u64| quoted(&Size(bytes).to_string());
        let number_or_word = |word: &str| {
            if word.parse::<u16>().is_ok() { word.to_owned() } else { quoted(word) }
        };
        let (after, tombstone) = match policy.after_retention {
            AfterRetention::Fresh => (After::Fresh, None),
            AfterRetention::Gone { status, tombstone } => {
                let after = if status.code() == 410 { After::Gone } else { After::NotFound };
                (after, Some(tombstone))
            }
        };
        let mut settings = vec![("profile", quoted(self.profile.name()))];
        if self.is_off() {
            return settings;
        }
        if self.pattern == "*" {
            let methods: Vec<_> = policy.methods.iter().map(|method| quoted(method)).collect();
            settings.push(("methods", format!("[{}]", methods.join(", "))));
        }
        settings.extend(self.name.as_ref().map(|name| ("name", quoted(name))));
        if !self.formerly.is_empty() {
            let texts: Vec<_> = self.formerly.iter().map(|text| quoted(text)).collect();
            settings.push(("formerly", format!("[{}]", texts.join(", "))));
        }
        settings.push(("execution", quoted(policy.execution.word())));
        settings.push(("respond_async", policy.respond_async.to_string()));
        if policy.may_defer() {
            settings.push(("request_headers", list(&policy.request_headers)));
            settings.push(("credentials", quoted(policy.credentials.word())));
        }
        settings.extend([
            ("key_required", policy.key.required.to_string()),
            ("key_empty", quoted(policy.key.empty.word())),
            ("key_syntax", quoted(policy.key.syntax.word())),
            ("key_chars_min", policy.key.chars_min.to_string()),
            ("key_chars_max", policy.key.chars_max.to_string()),
            ("key_form", quoted(&key_form(&policy.key.form))),
            ("forward_key", quoted(policy.forward_key.word())),
            ("scope", quoted(policy.scope.word())),
            ("fingerprint", fingerprint(&policy.fingerprint)),
            ("mismatch", number_or_word(policy.mismatch.word())),
            ("in_progress", quoted(policy.in_progress.word())),
            ("after_doubt", quoted(policy.after_doubt.word())),
            ("wait_limit", span(policy.wait_limit)),
            ("stored", quoted(policy.stored.word())),
            ("server_error", quoted(policy.server_error.word())),
            ("unavailable", quoted(policy.unavailable.word())),
            ("crash", quoted(policy.crash.word())),
            ("lease", span(policy.lease)),
            ("attempt_deadline", span(policy.attempt_deadline)),
            ("retention", span(policy.retention)),
            ("retention_from", quoted(policy.retention_from.word())),
            ("after_retention", number_or_word(after.word())),
        ]);
        if !policy.fingerprint_headers.is_empty() {
            settings.push(("fingerprint_headers", list(&policy.fingerprint_headers)));
        }
        settings.extend(tombstone.map(|lives| ("tombstone", span(lives))));
        settings.extend(policy.horizon.map(|horizon| ("horizon", span(horizon))));
        settings.extend([
            ("patience", span(policy.patience)),
            ("body_bytes_max", size(policy.body_bytes_max)),
            ("answer_bytes_max", size(policy.answer_bytes_max)),
            ("keep_cookies", policy.keeps_cookies.to_string()),
            ("retry_in_progress", span(policy.retry_in_progress)),
            ("retry_unknown", span(policy.retry_unknown)),
            ("client_retry", span(self.client_retry)),
        ]);
        settings.extend(self.preauthorize.as_ref().map(|asked| ("preauthorize", preauthorize(asked))));
        if let Some(probe) = &self.probe {
            settings.extend(reconcile::probe(probe, &policy.reconcile));
        }
        settings
    }
}

impl Config {
    /// What bounds clients, by the names that the settings have in the file.
    #[must_use]
    pub fn limit_settings(&self) -> Vec<(&'static str, String)> {
        let (listen, limits) = (&self.listen, &self.limits);
        let span = |span: Duration| quoted(&shown(span));
        let exempt = limits.per_peer_exempt.as_deref().unwrap_or(&self.scope.trusted_peers);
        let exempt: Vec<_> = exempt.iter().map(|net| quoted(&net.to_string())).collect();
        vec![
            ("body_timeout", span(listen.body_timeout)),
            ("body_deadline", span(listen.body_deadline)),
            ("body_rate_min", listen.body_rate_min.to_string()),
            ("connections_max", listen.connections_max.to_string()),
            ("requests_max", limits.requests_max.to_string()),
            ("executions_max", limits.executions_max.to_string()),
            ("queue_max", limits.queue_max.to_string()),
            ("queue_timeout", span(limits.queue_timeout)),
            ("per_peer_connections_max", limits.per_peer_connections_max.to_string()),
            ("per_peer_requests_max", limits.per_peer_requests_max.to_string()),
            ("per_peer_exempt", format!("[{}]", exempt.join(", "))),
        ]
    }

    /// The same, for programs.
    #[must_use]
    pub fn limit_settings_json(&self) -> serde_json::Map<String, serde_json::Value> {
        let settings = self.limit_settings().into_iter();
        settings.map(|(name, value)| (name.to_owned(), json_of(&value))).collect()
    }
}

impl Store {
    /// The store, as far as it may be seen: no user, no password, no options.
    #[must_use]
    pub fn shown(&self) -> String {
        without_secrets(self.url.expose())
    }
}

impl Upstream {
    /// As it would be written.
    #[must_use]
    pub fn shown(&self) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority, self.base_path)
    }
}

/// A URL without its user, password and options. A password may hold anything, also an `@`, a `/` or a `?`: what could be part of one is
/// not shown.
pub(super) fn without_secrets(url: &str) -> String {
    let (scheme, rest) = match url.find("://") {
        Some(end) => url.split_at(end + 3),
        None => ("", url),
    };
    let (place, options) = match rest.find(['?', '#']) {
        Some(start) => (&rest[..start], Some(&rest[start + 1..])),
        None => (rest, None),
    };
    let (user, host) = match place.rsplit_once('@') {
        Some((_, host)) => ("…@", host),
        None => ("", place),
    };
    match options {
        None => format!("{scheme}{user}{host}"),
        Some(options) if options.contains('@') => format!("{scheme}…"),
        Some(_) => format!("{scheme}{user}{host}?…"),
    }
}

/// A span of time as it is usually written: `2d`, not `2days`; `40d`, not a month and some hours.
pub(super) fn shown(span: Duration) -> String {
    const DAY_S: u64 = 86_400;
    let seconds = span.as_secs();
    if span.subsec_nanos() == 0 && seconds >= DAY_S && seconds.is_multiple_of(DAY_S) {
        return format!("{}d", seconds / DAY_S);
    }
    humantime::format_duration(span).to_string()
}

/// The same value in JSON.
fn json_of(value: &str) -> serde_json::Value {
    #[derive(serde::Deserialize)]
    struct Line {
        value: serde_json::Value,
    }
    match toml::from_str::<Line>(&format!("value = {value}")) {
        Ok(line) => line.value,
        Err(_) => value.into(),
    }
}

/// A text as TOML has it: without escapes where that is possible.
fn quoted(text: &str) -> String {
    if !text.contains(['"', '\\']) && !text.contains(char::is_control) {
        return format!("\"{text}\"");
    }
    if !text.contains('\'') && !text.contains(char::is_control) {
        return format!("'{text}'");
    }
    // JSON's escapes are TOML's.
    serde_json::Value::from(text).to_string()
}

fn preauthorize(asked: &Preauthorize) -> String {
    let names: Vec<Box<str>> = asked.headers.iter().map(|name| name.as_str().into()).collect();
    let headers = if names.is_empty() { String::new() } else { format!(", headers = {}", list(&names)) };
    let tls_ca = asked.tls_ca.as_ref();
    let tls_ca = tls_ca
        .map_or_else(String::new, |file| format!(", tls_ca = {}", quoted(&file.path.to_string_lossy())));
    format!(
        "{{ url = {}, timeout = {}{headers}{tls_ca} }}",
        quoted(&asked.url()),
        quoted(&shown(asked.timeout))
    )
}

fn list(names: &[Box<str>]) -> String {
    let names: Vec<_> = names.iter().map(|name| quoted(name)).collect();
    format!("[{}]", names.join(", "))
}

fn key_form(form: &KeyForm) -> String {
    match form {
        KeyForm::Any => "any".to_owned(),
        KeyForm::Uuid => "uuid".to_owned(),
        KeyForm::Pattern(pattern) => pattern.as_str().to_owned(),
    }
}

fn fingerprint(mode: &Mode) -> String {
    let list = |pointers: &[oncegate_core::fingerprint::Pointer]| {
        let quoted: Vec<_> = pointers.iter().map(|pointer| quoted(&pointer.to_string())).collect();
        quoted.join(", ")
    };
    match mode {
        Mode::Json => "\"json\"".to_owned(),
        Mode::Raw => "\"raw\"".to_owned(),
        Mode::None => "\"none\"".to_owned(),
        Mode::Fields(Fields::Include(only)) => format!("{{ only = [{}] }}", list(only)),
        Mode::Fields(Fields::Exclude(without)) => format!("{{ without = [{}] }}", list(without)),
    }
}
