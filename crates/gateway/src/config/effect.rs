//! Effects of the outbox: from what was typed to what can be used.

use http::HeaderName;
use oncegate_engine::{OUTAGE, Patience};
use toml::Spanned;

use super::check::Source;
use super::error::ConfigError;
use super::file::reconcile as typed;
use super::reconcile::{build, count_of, header_name, question_headers, size_of, span_of, target};
use super::trust;
use crate::reconcile::{Condition, HttpEffect, Inserted, Statuses, Variable};

/// By which a provider says that it has not acted, and may later.
const LATER: [u16; 4] = [408, 409, 425, 429];

/// All effects.
pub(super) fn effects(
    typed: &[Spanned<typed::Effect>],
    source: &Source<'_>,
) -> Result<Vec<HttpEffect>, ConfigError> {
    let mut effects: Vec<HttpEffect> = Vec::with_capacity(typed.len());
    for typed in typed {
        let effect = effect(typed, source)?;
        if effects.iter().any(|other| other.name == effect.name) {
            let span = typed.get_ref().name.as_ref().map_or(typed.span(), Spanned::span);
            return Err(source.error(&span, format!("there is an effect {:?} already", effect.name)));
        }
        effects.push(effect);
    }
    Ok(effects)
}

fn effect(typed: &Spanned<typed::Effect>, source: &Source<'_>) -> Result<HttpEffect, ConfigError> {
    let (span, typed) = (typed.span(), typed.get_ref());
    let name = typed.name.as_ref().filter(|name| !name.get_ref().is_empty());
    let Some(name) = name else {
        return Err(source.error(
            &span,
            "an [[effect]] needs `name`, such as name = \"charge\": the one that jobs are promised under",
        ));
    };
    if name.get_ref().chars().any(char::is_control) {
        return Err(source.error(&name.span(), "expected a name without control characters"));
    }
    let Some(url) = &typed.url else {
        return Err(source.error(
            &span,
            "an [[effect]] needs `url`: a URL, such as url = \"https://api.example.com/v1/charges\", or a path on the upstream",
        ));
    };
    let headers = question_headers(&typed.headers.0, source)?;
    for ((_, template), (_, written)) in headers.iter().zip(&typed.headers.0) {
        if Variable::TABLE.iter().any(|(_, variable)| template.names(*variable)) {
            return Err(source.error(
                &written.span(),
                "a job's headers have no variables but {env:NAME}; what is the job's own goes into `body`",
            ));
        }
    }
    let key_header = match &typed.key_header {
        None => HeaderName::from_static("idempotency-key"),
        Some(name) => header_name(name, source)?,
    };
    if let Some((written, _)) =
        typed.headers.0.iter().find(|(name, _)| name.get_ref().eq_ignore_ascii_case(key_header.as_str()))
    {
        return Err(
            source.error(&written.span(), "carries the downstream key; name another with `key_header`")
        );
    }
    let body = typed.body.as_ref().map(|text| {
        Inserted::parse(text.get_ref()).map_err(|error| source.error(&text.span(), error.to_string()))
    });
    Ok(HttpEffect {
        name: name.get_ref().clone(),
        target: target(url, source)?,
        method: typed.method.as_ref().map_or(http::Method::POST, |method| method.get_ref().0.method()),
        headers,
        key_header,
        body: body.transpose()?,
        tls_ca: trust::authorities(typed.tls_ca.as_ref(), source)?,
        body_bytes_max: size_of(typed.body_bytes_max.as_ref(), source)?,
        delivered: conditions(typed.delivered.as_ref(), &[Statuses::Class(2)]),
        later: conditions(typed.later.as_ref(), &LATER.map(Statuses::One)),
        refused: conditions(typed.refused.as_ref(), &[Statuses::Class(4)]),
        reference: typed.reference.as_ref().map(|at| at.0.clone()),
        answer: build(typed.answer.as_ref(), typed.answers.as_ref(), source)?,
        patience: patience(typed, source)?,
        outage: span_of(typed.outage.as_ref(), OUTAGE, source)?,
    })
}

/// Where a condition names no status, any is meant: a provider may say no in a 200.
fn conditions(typed: Option<&Spanned<Vec<typed::Condition>>>, default: &[Statuses]) -> Vec<Condition> {
    match typed {
        Some(list) => list.get_ref().iter().map(|typed| typed.0.clone()).collect(),
        None => vec![Condition { statuses: default.to_vec(), tests: Vec::new() }],
    }
}

fn patience(typed: &typed::Effect, source: &Source<'_>) -> Result<Patience, ConfigError> {
    let default = Patience::default();
    let backoff = span_of(typed.backoff.as_ref(), default.backoff, source)?;
    let backoff_max = span_of(typed.backoff_max.as_ref(), default.backoff_max.max(backoff), source)?;
    if backoff_max < backoff
        && let Some(max) = &typed.backoff_max
    {
        return Err(source.error(&max.span(), "the longest pause is shorter than the first"));
    }
    Ok(Patience {
        timeout: span_of(typed.timeout.as_ref(), default.timeout, source)?,
        backoff,
        backoff_max,
        park_after: count_of(typed.park_after.as_ref(), default.park_after, source)?,
    })
}
