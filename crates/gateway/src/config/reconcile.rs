//! Probes and webhooks: from what was typed to what can be used.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use http::{HeaderName, header};
use oncegate_core::policy::{ForwardKey, Policy};
use oncegate_core::scope::Operation;
use oncegate_tower::headers::HOP_BY_HOP;
use toml::Spanned;

use super::check::Source;
use super::error::ConfigError;
use super::file::reconcile as typed;
use super::trust;
use super::word::{Count, Secret, Size, Span};
use crate::reconcile::{
    Body, Build, Case, Condition, HeaderTemplate, Inserted, Method, Probe, Proof, RecordAt, Scheme,
    SigningSecret, Statuses, Target, TemplateError, UrlTemplate, Variable, Webhook,
};

/// Variables whose values a file does not hold.
#[derive(Clone, Debug, Default)]
pub enum Environment {
    /// Those of this process.
    #[default]
    Process,
    /// These.
    Only(BTreeMap<String, Secret>),
}

impl Environment {
    pub(super) fn secret(&self, name: &str) -> Result<Secret, String> {
        let found = match self {
            Self::Process => std::env::var(name).ok().map(Secret::new),
            Self::Only(all) => all.get(name).cloned(),
        };
        let found = found.filter(|secret| !secret.expose().is_empty());
        found.ok_or_else(|| format!("the environment variable {name} is not set, or is empty"))
    }
}

/// How far a provider's clock may be behind, where nobody says.
const CLOCK_ERROR: Duration = Duration::from_secs(1);
/// The largest answer or event that is read, where nobody says.
const BODY_BYTES_MAX: u64 = 1 << 20;

/// How a route asks.
pub(super) fn probe(typed: &Spanned<typed::Probe>, source: &Source<'_>) -> Result<Probe, ConfigError> {
    let (span, typed) = (typed.span(), typed.get_ref());
    let Some(url) = &typed.url else {
        return Err(source.error(
            &span,
            "a probe needs `url`, such as url = \"/payments?idempotency_key={forwarded_key}\"",
        ));
    };
    let url =
        UrlTemplate::parse(url.get_ref()).map_err(|error| source.error(&url.span(), error.to_string()))?;
    let Some(happened) = typed.happened.as_ref().filter(|list| !list.get_ref().is_empty()) else {
        let span = typed.happened.as_ref().map_or(span, Spanned::span);
        return Err(source.error(
            &span,
            "a probe that never finds that something happened settles nothing; say it, such as happened = [{ pointer = \"/data/0/status\", equals = \"succeeded\" }]",
        ));
    };
    let list = |list: Option<&Spanned<Vec<typed::Condition>>>| list.map_or_else(Vec::new, of_successes);
    let probe = Probe {
        url,
        method: typed.method.as_ref().map_or(Method::Get, |method| method.get_ref().0),
        headers: question_headers(&typed.headers.0, source)?,
        tls_ca: trust::authorities(typed.tls_ca.as_ref(), source)?,
        timeout: span_of(typed.timeout.as_ref(), Duration::from_secs(10), source)?,
        body_bytes_max: size_of(typed.body_bytes_max.as_ref(), source)?,
        happened: of_successes(happened),
        did_not_happen: list(typed.did_not_happen.as_ref()),
        not_yet: list(typed.not_yet.as_ref()),
        proof: proof(
            typed.created.as_ref(),
            typed.clock_error.as_ref(),
            typed.keys_are_never_reused.as_ref(),
            source,
        )?,
        answer: match build(typed.answer.as_ref(), typed.answers.as_ref(), source)? {
            Some(build) => build,
            None => return Err(source.error(&span, NO_ANSWER)),
        },
        reference: typed.reference.as_ref().map(|at| at.0.clone()),
    };
    if let Some(method) = &typed.method
        && probe.method == Method::Head
        && looks_at_the_body(&probe)
    {
        return Err(source.error(&method.span(), "the answer to a HEAD has no body to look at; use GET"));
    }
    Ok(probe)
}

const NO_ANSWER: &str = "what are clients told then? Say answer = { status = 201, body = \"found\" }, or the part of it at a pointer: answer = { status = 201, pointer = \"/data/0\" }";

/// Where a condition names no status, a success is meant: an error's body says little about the operation.
fn of_successes(list: &Spanned<Vec<typed::Condition>>) -> Vec<Condition> {
    let condition = |typed: &typed::Condition| {
        let mut condition = typed.0.clone();
        if condition.statuses.is_empty() {
            condition.statuses.push(Statuses::Class(2));
        }
        condition
    };
    list.get_ref().iter().map(condition).collect()
}

fn looks_at_the_body(probe: &Probe) -> bool {
    let lists = [&probe.happened, &probe.did_not_happen, &probe.not_yet];
    lists.into_iter().flatten().any(|condition| !condition.tests.is_empty())
        || matches!(probe.proof, Proof::Created { .. })
        || probe.reference.is_some()
        || probe
            .answer
            .cases
            .iter()
            .any(|case| case.body == Body::Found || matches!(case.body, Body::Part(_)))
}

/// Whether the probe can be used under this policy, which may be another than that of the place where it was written.
pub(super) fn fits(probe: &Probe, policy: &Policy) -> Result<(), String> {
    if probe.asks_by(Variable::ForwardedKey) && policy.forward_key == ForwardKey::None {
        return Err(
            "the probe asks by {forwarded_key}, and forward_key = \"none\" sends the upstream no key"
                .to_owned(),
        );
    }
    match &probe.proof {
        Proof::Name => {
            if probe.names_life(policy.forward_key) {
                return Ok(());
            }
            Err("what this probe finds could be of an earlier request with the same key, and would be given to a later one: ask by \
                 {forwarded_key} with forward_key = \"derived\"; or say where the answer tells when it was made, created = \
                 \"/data/0/created_at\"; or declare that your clients never use a key twice, keys_are_never_reused = true"
                .to_owned())
        }
        Proof::Created { clock_error, .. } if *clock_error >= policy.retention => Err(
            "`clock_error` is not shorter than `retention`: an earlier request with the same key could not be told apart".to_owned(),
        ),
        Proof::Created { .. } | Proof::NeverReused | Proof::Life(_) => Ok(()),
    }
}

/// Headers that are the connection's, or that say what the probe itself says.
fn is_ours(name: &HeaderName) -> bool {
    HOP_BY_HOP.contains(name)
        || [header::HOST, header::CONTENT_LENGTH, header::DATE, header::ACCEPT_ENCODING].contains(name)
}

pub(super) fn header_name(name: &Spanned<String>, source: &Source<'_>) -> Result<HeaderName, ConfigError> {
    let parsed = name.get_ref().to_ascii_lowercase().parse::<HeaderName>();
    let parsed = parsed.map_err(|_| source.error(&name.span(), "is not the name of a header"))?;
    if is_ours(&parsed) {
        return Err(
            source.error(&name.span(), format!("{parsed} is not for a configuration to set; drop it"))
        );
    }
    Ok(parsed)
}

pub(super) fn question_headers(
    typed: &BTreeMap<Spanned<String>, Spanned<Secret>>,
    source: &Source<'_>,
) -> Result<Vec<(HeaderName, HeaderTemplate)>, ConfigError> {
    let mut headers = Vec::with_capacity(typed.len());
    for (name, value) in typed {
        let environment = |name: &str| source.environment.secret(name);
        let template = HeaderTemplate::parse(value.get_ref().expose(), environment).map_err(|error| {
            // What stands between braces may be a secret all the same.
            let error = if matches!(error, TemplateError::Unknown(_)) {
                TemplateError::Unknown("…".to_owned())
            } else {
                error
            };
            source.error(&value.span(), error.to_string())
        })?;
        headers.push((header_name(name, source)?, template));
    }
    Ok(headers)
}

pub(super) fn span_of(
    typed: Option<&Spanned<Span>>,
    default: Duration,
    source: &Source<'_>,
) -> Result<Duration, ConfigError> {
    match typed {
        Some(span) if span.get_ref().0.is_zero() => {
            Err(source.error(&span.span(), "must be greater than zero"))
        }
        Some(span) => Ok(span.get_ref().0),
        None => Ok(default),
    }
}

pub(super) fn size_of(typed: Option<&Spanned<Size>>, source: &Source<'_>) -> Result<u64, ConfigError> {
    match typed {
        Some(size) if !(1..=64 << 20).contains(&size.get_ref().0) => {
            Err(source.error(&size.span(), "expected 1 B to 64 MiB"))
        }
        Some(size) => Ok(size.get_ref().0),
        None => Ok(BODY_BYTES_MAX),
    }
}

/// The pauses between questions, and their end.
pub(super) fn pauses(
    policy: &mut Policy,
    typed: &typed::Probe,
    source: &Source<'_>,
) -> Result<(), ConfigError> {
    let reconcile = &mut policy.reconcile;
    reconcile.backoff_first = span_of(typed.backoff.as_ref(), reconcile.backoff_first, source)?;
    reconcile.backoff_max = span_of(typed.backoff_max.as_ref(), reconcile.backoff_max, source)?;
    if reconcile.backoff_first > reconcile.backoff_max {
        match (&typed.backoff_max, &typed.backoff) {
            (Some(max), _) => {
                return Err(source.error(&max.span(), "the longest pause is shorter than the first"));
            }
            (None, Some(_)) => reconcile.backoff_max = reconcile.backoff_first,
            (None, None) => {}
        }
    }
    reconcile.park_after = count_of(typed.park_after.as_ref(), reconcile.park_after, source)?;
    Ok(())
}

pub(super) fn count_of(
    typed: Option<&Spanned<Count>>,
    default: u32,
    source: &Source<'_>,
) -> Result<u32, ConfigError> {
    let Some(count) = typed else { return Ok(default) };
    let Count(number) = *count.get_ref();
    let number = u32::try_from(number).ok().filter(|number| (1..=1_000_000).contains(number));
    number.ok_or_else(|| source.error(&count.span(), "expected a number from 1 to 1000000"))
}

/// A URL, or a path on the upstream; without variables.
pub(super) fn target(url: &Spanned<String>, source: &Source<'_>) -> Result<Target, ConfigError> {
    let wrong = |words: String| source.error(&url.span(), words);
    let text = url.get_ref().as_str();
    // Checked as a probe's is, which may have variables.
    UrlTemplate::parse(text).map_err(|error| wrong(error.to_string()))?;
    if text.contains(['{', '}']) {
        return Err(wrong("has no variables; what is the job's own goes into `body`".to_owned()));
    }
    let parsed = if text.starts_with('/') {
        text.parse().map(Target::Upstream).ok()
    } else {
        text.parse().map(Target::Elsewhere).ok()
    };
    parsed.ok_or_else(|| wrong("is not a URL".to_owned()))
}

fn proof(
    created: Option<&Spanned<typed::At>>,
    clock_error: Option<&Spanned<Span>>,
    never_reused: Option<&Spanned<bool>>,
    source: &Source<'_>,
) -> Result<Proof, ConfigError> {
    let never_reused = never_reused.filter(|is| *is.get_ref());
    if let (None, Some(span)) = (created, clock_error) {
        return Err(source.error(&span.span(), "has an effect only with `created`"));
    }
    match (created, never_reused) {
        (Some(_), Some(is)) => Err(source.error(
            &is.span(),
            "`created` and `keys_are_never_reused` are two answers to one question; keep one",
        )),
        (Some(at), None) => Ok(Proof::Created {
            pointer: at.get_ref().0.clone(),
            clock_error: clock_error.map_or(CLOCK_ERROR, |span| span.get_ref().0),
        }),
        (None, Some(_)) => Ok(Proof::NeverReused),
        (None, None) => Ok(Proof::Name),
    }
}

pub(super) fn build(
    one: Option<&Spanned<typed::Answer>>,
    several: Option<&Spanned<Vec<Spanned<typed::Answer>>>>,
    source: &Source<'_>,
) -> Result<Option<Build>, ConfigError> {
    let cases = match (one, several) {
        (None, None) => return Ok(None),
        (Some(one), Some(_)) => {
            return Err(
                source.error(&one.span(), "`answer` and `answers` are two answers to one question; keep one")
            );
        }
        (Some(one), None) => vec![case(one, source)?],
        (None, Some(several)) => {
            let cases = several.get_ref().iter().map(|typed| case(typed, source));
            cases.collect::<Result<Vec<_>, _>>()?
        }
    };
    if let (Some(several), Some(end)) = (several, cases.iter().position(|case| case.when.is_none()))
        && let Some(never) = several.get_ref().get(end + 1)
    {
        return Err(source
            .error(&never.span(), "is never used: the entry before it has no `when`, and fits everything"));
    }
    if cases.is_empty() {
        return Err(source.error(&several.map_or(0..0, Spanned::span), NO_ANSWER));
    }
    Ok(Some(Build { cases }))
}

fn case(typed: &Spanned<typed::Answer>, source: &Source<'_>) -> Result<Case, ConfigError> {
    let (span, typed) = (typed.span(), typed.get_ref());
    let Some(status) = &typed.status else {
        return Err(source.error(&span, "an answer needs `status`, such as status = 201"));
    };
    let number = u16::try_from(status.get_ref().0).ok().filter(|number| (200..600).contains(number));
    let number = number.ok_or_else(|| source.error(&status.span(), "expected a status from 200 to 599"))?;
    let inserted = |text: &Spanned<String>| {
        Inserted::parse(text.get_ref()).map_err(|error| source.error(&text.span(), error.to_string()))
    };
    let body = match (&typed.body, &typed.pointer) {
        (Some(body), Some(_)) if body.get_ref() != "found" => {
            return Err(source
                .error(&body.span(), "`body` is a text, and `pointer` a part of what was found; keep one"));
        }
        (_, Some(at)) => Body::Part(at.get_ref().0.clone()),
        (None, None) => Body::Found,
        (Some(body), None) if body.get_ref() == "found" => Body::Found,
        (Some(body), None) => Body::Text(inserted(body)?),
    };
    let mut headers = Vec::with_capacity(typed.headers.len());
    for (name, value) in &typed.headers {
        let text = inserted(value)?;
        if http::HeaderValue::from_str(value.get_ref()).is_err() {
            return Err(source.error(&value.span(), TemplateError::Header.to_string()));
        }
        headers.push((header_name(name, source)?, text));
    }
    Ok(Case { when: typed.when.as_ref().map(|when| when.get_ref().0.clone()), status: number, headers, body })
}

/// All webhooks. `derives` says whether some route's upstream is sent derived keys.
pub(super) fn webhooks(
    typed: &[Spanned<typed::Webhook>],
    derives: bool,
    source: &Source<'_>,
) -> Result<Vec<Webhook>, ConfigError> {
    let mut webhooks: Vec<Webhook> = Vec::with_capacity(typed.len());
    for typed in typed {
        let webhook = webhook(typed, derives, source)?;
        if webhooks.iter().any(|other| other.name == webhook.name) {
            let span = typed.get_ref().name.as_ref().map_or(typed.span(), Spanned::span);
            return Err(source.error(&span, format!("there is a webhook {:?} already", webhook.name)));
        }
        webhooks.push(webhook);
    }
    Ok(webhooks)
}

fn webhook(
    typed: &Spanned<typed::Webhook>,
    derives: bool,
    source: &Source<'_>,
) -> Result<Webhook, ConfigError> {
    let (span, typed) = (typed.span(), typed.get_ref());
    let name = webhook_name(typed.name.as_ref(), &span, source)?;
    let Some(scheme) = typed.scheme else {
        return Err(source
            .error(&span, "how are its events signed? Say scheme = \"standard\" or scheme = \"stripe\""));
    };
    let (secrets, secret_names) = secrets(scheme.0, typed.secrets.as_ref(), &span, source)?;
    let (record, names_life) = record_at(typed.record.as_ref(), derives, &span, source)?;
    let happened = events(typed.happened.as_ref(), source)?;
    let did_not_happen = events(typed.did_not_happen.as_ref(), source)?;
    if happened.is_empty() && did_not_happen.is_empty() {
        return Err(source.error(
            &span,
            "which events say something? Say it, such as happened = [{ pointer = \"/type\", equals = \"charge.succeeded\" }]",
        ));
    }
    let answer = build(typed.answer.as_ref(), typed.answers.as_ref(), source)?;
    if !happened.is_empty() && answer.is_none() {
        return Err(source.error(&span, NO_ANSWER));
    }
    for case in answer.iter().flat_map(|build| &build.cases) {
        no_status(case.when.as_ref(), &span, source)?;
    }
    Ok(Webhook {
        name,
        scheme: scheme.0,
        secrets,
        secret_names,
        tolerance: span_of(typed.tolerance.as_ref(), Duration::from_mins(5), source)?,
        body_bytes_max: size_of(typed.body_bytes_max.as_ref(), source)?,
        record,
        proof: webhook_proof(typed, names_life, &span, source)?,
        happened,
        did_not_happen,
        final_fence: final_fence(typed, source)?,
        ignored: events(typed.ignored.as_ref(), source)?,
        answer,
        reference: typed.reference.as_ref().map(|at| at.0.clone()),
    })
}

fn webhook_name(
    typed: Option<&Spanned<String>>,
    span: &Range<usize>,
    source: &Source<'_>,
) -> Result<String, ConfigError> {
    let Some(name) = typed else {
        return Err(source.error(span, "a [[webhook]] needs `name`, such as name = \"provider\"; it listens at /.oncegate/webhooks/provider"));
    };
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    if !(1..=64).contains(&name.get_ref().len()) || !name.get_ref().bytes().all(is_plain) {
        return Err(source
            .error(&name.span(), "expected 1 to 64 small letters, digits, - and _: it is part of a path"));
    }
    Ok(name.get_ref().clone())
}

type Secrets = (Vec<SigningSecret>, Vec<String>);

fn secrets(
    scheme: Scheme,
    typed: Option<&Spanned<typed::SecretList>>,
    span: &Range<usize>,
    source: &Source<'_>,
) -> Result<Secrets, ConfigError> {
    let Some(list) = typed.filter(|list| !list.get_ref().0.is_empty()) else {
        let span = typed.map_or(span.clone(), Spanned::span);
        return Err(source.error(
            &span,
            "without a secret anybody could send events; say secrets = [\"env:PROVIDER_SECRET\"]",
        ));
    };
    let mut secrets: Secrets = (Vec::new(), Vec::new());
    for typed in &list.get_ref().0 {
        let wrong = |words: String| source.error(&typed.span(), words);
        let Some(name) = typed.get_ref().expose().strip_prefix("env:") else {
            return Err(wrong(
                "a secret does not belong in a file; put it into the environment, and \"env:NAME\" here"
                    .to_owned(),
            ));
        };
        let text = source.environment.secret(name).map_err(wrong)?;
        let secret = SigningSecret::parse(scheme, text.expose());
        secrets.0.push(secret.map_err(|words| wrong(format!("the environment variable {name} {words}")))?);
        secrets.1.push(name.to_owned());
    }
    Ok(secrets)
}

/// Where the record's name stands, and whether that names the life too.
fn record_at(
    typed: Option<&Spanned<typed::Record>>,
    derives: bool,
    span: &Range<usize>,
    source: &Source<'_>,
) -> Result<(RecordAt, bool), ConfigError> {
    const EXPECTED: &str = "which record is an event about? Say one of record = { forwarded_key = \"/data/idempotency_key\" }, { id = \"/data/metadata/oncegate_id\" }, { key = \"/data/metadata/key\", scope = \"x-tenant:acme\" } or { reference = \"/data/id\" }";
    let Some(typed) = typed else { return Err(source.error(span, EXPECTED)) };
    let (span, typed) = (typed.span(), typed.get_ref());
    let wrong = |at: &Range<usize>, words: &str| Err(source.error(at, words));
    if typed.key.is_none()
        && let Some(beside) = typed.scope.as_ref().or(typed.operation.as_ref())
    {
        return wrong(&beside.span(), "has an effect only with `key`");
    }
    match (&typed.id, &typed.key, &typed.forwarded_key, &typed.reference) {
        (Some(at), None, None, None) => Ok((RecordAt::Id(at.0.clone()), false)),
        // A record learns its reference within one life, and forgets it with it.
        (None, None, None, Some(at)) => Ok((RecordAt::Reference(at.0.clone()), true)),
        (None, None, Some(at), None) if !derives => wrong(
            &at.span(),
            "no route has forward_key = \"derived\": a key that is forwarded as it is names no record by itself; use { key = …, scope = … }",
        ),
        (None, None, Some(at), None) => Ok((RecordAt::ForwardedKey(at.get_ref().0.clone()), true)),
        (None, Some(key), None, None) => {
            let Some(scope) = &typed.scope else {
                return wrong(
                    &key.span(),
                    "whose key? Say scope = \"/data/metadata/scope\" beside it, or a text, such as scope = \"x-tenant:{pointer:/data/tenant}\"",
                );
            };
            let operation = typed.operation.as_ref().map(|text| {
                let wrong = |error: String| source.error(&text.span(), error);
                Operation::new(text.get_ref()).map_err(|error| wrong(error.to_string()))?;
                Inserted::parse(text.get_ref()).map_err(|error| wrong(error.to_string()))
            });
            let operation = operation.transpose()?;
            Ok((
                RecordAt::Key {
                    key: pointer_or_text(key, source)?,
                    scope: pointer_or_text(scope, source)?,
                    operation,
                },
                false,
            ))
        }
        _ => wrong(&span, EXPECTED),
    }
}

/// What begins with a slash is a pointer.
fn pointer_or_text(typed: &Spanned<String>, source: &Source<'_>) -> Result<Inserted, ConfigError> {
    let text = typed.get_ref();
    let wrong = |words: String| source.error(&typed.span(), words);
    if text.starts_with('/') {
        return text.parse().map(Inserted::of_pointer).map_err(|error| wrong(format!("{error}")));
    }
    if text.is_empty() {
        return Err(wrong("expected a JSON Pointer, or a text".to_owned()));
    }
    Inserted::parse(text).map_err(|error| wrong(error.to_string()))
}

fn webhook_proof(
    typed: &typed::Webhook,
    names_life: bool,
    span: &Range<usize>,
    source: &Source<'_>,
) -> Result<Proof, ConfigError> {
    let never_reused = typed.keys_are_never_reused.as_ref();
    let given = proof(typed.created.as_ref(), typed.clock_error.as_ref(), never_reused, source)?;
    match (given, &typed.life) {
        (Proof::Name, None) if names_life => Ok(Proof::Name),
        (Proof::Name, None) => Err(source.error(
            span,
            "an event could be about an earlier request with the same key: find its record by { forwarded_key = … } with forward_key = \
             \"derived\"; or say where it names the life, life = \"/data/metadata/oncegate_life\", or when it was made, created = \
             \"/data/created\"; or declare that your clients never use a key twice, keys_are_never_reused = true",
        )),
        (_, Some(life)) if names_life => {
            Err(source.error(&life.span(), "the record is found by a name that names its life already; drop `life`"))
        }
        (given, None) if !names_life => Ok(given),
        (Proof::Name, Some(life)) => Ok(Proof::Life(life.get_ref().0.clone())),
        (_, Some(life)) => Err(source.error(
            &life.span(),
            "`life`, `created` and `keys_are_never_reused` are answers to one question; keep one",
        )),
        (_, None) => Err(source.error(
            &typed.created.as_ref().map(Spanned::span).or(never_reused.map(Spanned::span)).unwrap_or(span.clone()),
            "the record is found by a name that names its life already; drop this",
        )),
    }
}

fn final_fence(
    typed: &typed::Webhook,
    source: &Source<'_>,
) -> Result<Option<oncegate_core::fingerprint::Pointer>, ConfigError> {
    let is_final = typed.did_not_happen_is_final.as_ref().filter(|is| *is.get_ref());
    match (is_final, &typed.fence) {
        (None, None) => Ok(None),
        (Some(_), Some(at)) => Ok(Some(at.get_ref().0.clone())),
        (None, Some(at)) => Err(source.error(&at.span(), "has an effect only with did_not_happen_is_final = true")),
        (Some(is), None) => Err(source.error(
            &is.span(),
            "the last word on which attempt? Say where the event has the Idempotency-Attempt that the upstream was sent, fence = \
             \"/data/metadata/attempt\"",
        )),
    }
}

fn events(
    typed: Option<&Spanned<Vec<typed::Condition>>>,
    source: &Source<'_>,
) -> Result<Vec<Condition>, ConfigError> {
    let Some(list) = typed else { return Ok(Vec::new()) };
    for condition in list.get_ref() {
        no_status(Some(&condition.0), &list.span(), source)?;
    }
    Ok(list.get_ref().iter().map(|condition| condition.0.clone()).collect())
}

fn no_status(
    condition: Option<&Condition>,
    span: &Range<usize>,
    source: &Source<'_>,
) -> Result<(), ConfigError> {
    match condition {
        Some(condition) if !condition.statuses.is_empty() => {
            Err(source.error(span, "an event has no status; test its body, such as { pointer = \"/type\", equals = \"charge.succeeded\" }"))
        }
        _ => Ok(()),
    }
}

/// Warnings of one route.
pub(super) fn warning(probe: &Probe, policy: &Policy) -> Option<&'static str> {
    (!probe.did_not_happen.is_empty() && policy.horizon.is_none()).then_some(
        "the probe has `did_not_happen`, and the route no `horizon`: what is not there now may still come, so \"not found\" is never \
         believed, and such records are parked for an operator; if you know the longest time after which the upstream may still act, \
         say horizon = \"10m\"",
    )
}
