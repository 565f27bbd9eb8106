//! Probes and webhooks in the words of the file, without their secrets.

use http::HeaderName;
use oncegate_core::policy::Reconcile;

use super::{quoted, shown};
use crate::config::word::{Size, Words as _};
use crate::reconcile::{
    Body, Build, Case, Condition, Expected, Probe, Proof, RecordAt, Scalar, Test, Webhook,
};

/// Each setting of a probe, under its name in the route.
pub(super) fn probe(probe: &Probe, pauses: &Reconcile) -> Vec<(&'static str, String)> {
    let span = |span| quoted(&shown(span));
    let mut settings = vec![
        ("probe.url", quoted(&without_values(probe.url.as_str()))),
        ("probe.method", quoted(probe.method.word())),
    ];
    if !probe.headers.is_empty() {
        let headers = probe.headers.iter().map(|(name, value)| (name, value.shown()));
        settings.push(("probe.headers", headers_of(headers)));
    }
    settings.extend(probe.tls_ca.as_ref().map(|file| ("probe.tls_ca", quoted(&file.path.to_string_lossy()))));
    settings.extend([
        ("probe.timeout", span(probe.timeout)),
        ("probe.backoff", span(pauses.backoff_first)),
        ("probe.backoff_max", span(pauses.backoff_max)),
        ("probe.park_after", pauses.park_after.to_string()),
        ("probe.body_bytes_max", quoted(&Size(probe.body_bytes_max).to_string())),
        ("probe.happened", conditions(&probe.happened)),
    ]);
    for (name, list) in [("probe.did_not_happen", &probe.did_not_happen), ("probe.not_yet", &probe.not_yet)] {
        settings.extend((!list.is_empty()).then(|| (name, conditions(list))));
    }
    match &probe.proof {
        Proof::Created { pointer, clock_error } => settings
            .extend([("probe.created", quoted(pointer.as_str())), ("probe.clock_error", span(*clock_error))]),
        Proof::NeverReused => settings.push(("probe.keys_are_never_reused", "true".to_owned())),
        Proof::Name | Proof::Life(_) => {}
    }
    let (several, text) = build(&probe.answer);
    settings.push((if several { "probe.answers" } else { "probe.answer" }, text));
    settings.extend(probe.reference.as_ref().map(|pointer| ("probe.reference", quoted(pointer.as_str()))));
    settings
}

impl Webhook {
    /// Where providers send their events.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/.oncegate/webhooks/{}", self.name)
    }

    /// Each setting, by the name that it has in the file, for programs.
    #[must_use]
    pub fn settings_json(&self) -> serde_json::Map<String, serde_json::Value> {
        let settings = self.settings().into_iter();
        settings.map(|(name, value)| (name.to_owned(), super::json_of(&value))).collect()
    }

    /// Each setting, by the name that it has in the file, and its value as it would be written there.
    #[must_use]
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let span = |span| quoted(&shown(span));
        let secrets: Vec<_> = self.secret_names.iter().map(|name| quoted(&format!("env:{name}"))).collect();
        let mut settings = vec![
            ("name", quoted(&self.name)),
            ("scheme", quoted(self.scheme.word())),
            ("secrets", format!("[{}]", secrets.join(", "))),
            ("tolerance", span(self.tolerance)),
            ("body_bytes_max", quoted(&Size(self.body_bytes_max).to_string())),
            ("record", record(&self.record)),
        ];
        match &self.proof {
            Proof::Life(pointer) => settings.push(("life", quoted(pointer.as_str()))),
            Proof::Created { pointer, clock_error } => {
                settings.extend([("created", quoted(pointer.as_str())), ("clock_error", span(*clock_error))]);
            }
            Proof::NeverReused => settings.push(("keys_are_never_reused", "true".to_owned())),
            Proof::Name => {}
        }
        for (name, list) in [
            ("happened", &self.happened),
            ("did_not_happen", &self.did_not_happen),
            ("ignored", &self.ignored),
        ] {
            settings.extend((!list.is_empty()).then(|| (name, conditions(list))));
        }
        if let Some(fence) = &self.final_fence {
            settings
                .extend([("did_not_happen_is_final", "true".to_owned()), ("fence", quoted(fence.as_str()))]);
        }
        settings.extend(
            self.answer
                .as_ref()
                .map(build)
                .map(|(several, text)| (if several { "answers" } else { "answer" }, text)),
        );
        settings.extend(self.reference.as_ref().map(|pointer| ("reference", quoted(pointer.as_str()))));
        settings
    }
}

/// A URL whose query's values are shown only where they are variables: others may be secrets.
fn without_values(url: &str) -> String {
    let Some((path, query)) = url.split_once('?') else { return url.to_owned() };
    let pair = |pair: &str| match pair.split_once('=') {
        Some((name, value)) if !(value.starts_with('{') && value.ends_with('}')) => format!("{name}=…"),
        _ => pair.to_owned(),
    };
    let pairs: Vec<_> = query.split('&').map(pair).collect();
    format!("{path}?{}", pairs.join("&"))
}

fn record(record: &RecordAt) -> String {
    match record {
        RecordAt::Id(at) => format!("{{ id = {} }}", quoted(at.as_str())),
        RecordAt::ForwardedKey(at) => format!("{{ forwarded_key = {} }}", quoted(at.as_str())),
        RecordAt::Reference(at) => format!("{{ reference = {} }}", quoted(at.as_str())),
        RecordAt::Key { key, scope, operation } => {
            let operation = operation.as_ref();
            let operation =
                operation.map_or_else(String::new, |of| format!(", operation = {}", quoted(of.as_str())));
            format!("{{ key = {}, scope = {}{operation} }}", quoted(key.as_str()), quoted(scope.as_str()))
        }
    }
}

fn conditions(list: &[Condition]) -> String {
    let all: Vec<_> = list.iter().map(condition).collect();
    format!("[{}]", all.join(", "))
}

fn condition(condition: &Condition) -> String {
    let statuses: Vec<_> = condition.statuses.iter().map(ToString::to_string).collect();
    let mut parts = Vec::new();
    match statuses.as_slice() {
        [] => {}
        [one] if condition.tests.is_empty() => return one.clone(),
        [one] => parts.push(format!("status = {one}")),
        several => parts.push(format!("status = [{}]", several.join(", "))),
    }
    match condition.tests.as_slice() {
        [] => {}
        [only] => parts.push(test(only)),
        several => {
            let tests: Vec<_> = several.iter().map(|one| format!("{{ {} }}", test(one))).collect();
            parts.push(format!("all = [{}]", tests.join(", ")));
        }
    }
    format!("{{ {} }}", parts.join(", "))
}

fn test(one: &Test) -> String {
    let value = |value: &Scalar| match value {
        Scalar::Text(text) => quoted(text),
        Scalar::Integer(number) => number.to_string(),
        Scalar::Bool(is) => is.to_string(),
    };
    let expected = match &one.expected {
        Expected::Exists(is) => format!("exists = {is}"),
        Expected::Empty(is) => format!("empty = {is}"),
        Expected::OneOf(values) => match values.as_slice() {
            [one] => format!("equals = {}", value(one)),
            several => format!("one_of = [{}]", several.iter().map(value).collect::<Vec<_>>().join(", ")),
        },
    };
    format!("pointer = {}, {expected}", quoted(one.pointer.as_str()))
}

/// Whether it is a list, and its text.
fn build(build: &Build) -> (bool, String) {
    match build.cases.as_slice() {
        [one] if one.when.is_none() => (false, case(one)),
        several => (true, format!("[{}]", several.iter().map(case).collect::<Vec<_>>().join(", "))),
    }
}

fn case(case: &Case) -> String {
    let mut parts = Vec::new();
    parts.extend(case.when.as_ref().map(|when| format!("when = {}", condition(when))));
    parts.push(format!("status = {}", case.status));
    if !case.headers.is_empty() {
        let headers = case.headers.iter().map(|(name, value)| (name, value.as_str().to_owned()));
        parts.push(format!("headers = {}", headers_of(headers)));
    }
    parts.push(match &case.body {
        Body::Found => "body = \"found\"".to_owned(),
        Body::Part(pointer) => format!("pointer = {}", quoted(pointer.as_str())),
        Body::Text(text) => format!("body = {}", quoted(text.as_str())),
    });
    format!("{{ {} }}", parts.join(", "))
}

fn headers_of<'a>(headers: impl Iterator<Item = (&'a HeaderName, String)>) -> String {
    let lines: Vec<_> = headers.map(|(name, value)| format!("{name} = {}", quoted(&value))).collect();
    format!("{{ {} }}", lines.join(", "))
}
