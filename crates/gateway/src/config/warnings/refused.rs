//! Routes that keep the records of refused callers for their whole retention.
//!
//! Such a record usually ends after seconds, because anyone can cause it by inventing credentials.
//! Where an effect may be found out later, or a new life would send another key, it stays.

use std::ops::Range;

use oncegate_core::policy::ForwardKey;
use toml::Spanned;

use super::place;
use crate::config::check::Source;
use crate::config::file::{File, Rules};
use crate::config::rules::Rule;
use crate::config::scope::From;
use crate::config::word::Word;
use crate::config::{Config, show::shown};

pub(super) fn check(config: &Config, file: &File, source: &Source<'_>) -> Vec<String> {
    // Otherwise a proxy in front has verified who asks.
    let may_be_invented = config.scope.from == From::Authorization || config.scope.shares_anonymous;
    if !may_be_invented {
        return Vec::new();
    }
    let webhook = file.webhook.first().map(Spanned::span);
    let of_defaults = why(&config.otherwise, &file.defaults, webhook.clone());
    let is_of_defaults = of_defaults.is_some();
    let warning = |rule: &Rule, Why { span, setting }: Why| {
        format!(
            "{}{}: {setting}: the record of a caller that the upstream refuses is kept for all of its retention ({}), \
             so that invented credentials fill the store; set preauthorize",
            source.line(span),
            rule.pattern,
            shown(rule.policy.retention)
        )
    };
    let mut warnings: Vec<_> = of_defaults.map(|why| warning(&config.otherwise, why)).into_iter().collect();
    for (rule, typed) in config.routes.iter().zip(&file.route) {
        let typed = typed.get_ref();
        // What is set in the defaults holds for the route too, unless it says otherwise.
        let is_own = own_setting(typed).is_some() || typed.preauthorize.is_some();
        if is_own || !is_of_defaults {
            warnings.extend(why(rule, typed, place(typed).or(webhook.clone())).map(|why| warning(rule, why)));
        }
    }
    warnings
}

/// Which setting keeps the records, and where it was typed.
struct Why {
    span: Option<Range<usize>>,
    setting: &'static str,
}

/// `otherwise` is where a webhook is warned about, or what the rule inherits.
fn why(rule: &Rule, typed: &Rules, otherwise: Option<Range<usize>>) -> Option<Why> {
    if rule.is_off() || rule.preauthorize.is_some() {
        return None;
    }
    let policy = &rule.policy;
    let setting = match own_setting(typed) {
        Some(setting) => return Some(setting),
        None if policy.horizon.is_some() => HORIZON,
        None if policy.forward_key == ForwardKey::Derived => FORWARD_KEY,
        None if rule.probe.is_some() => PROBE,
        None if policy.expects_evidence => "[[webhook]]",
        None => return None,
    };
    Some(Why { span: otherwise, setting })
}

const HORIZON: &str = "horizon";
const FORWARD_KEY: &str = "forward_key = \"derived\"";
const PROBE: &str = "probe";

fn own_setting(typed: &Rules) -> Option<Why> {
    let derived = |word: &&Spanned<Word<ForwardKey>>| word.get_ref().0 == ForwardKey::Derived;
    let (span, setting) = match (&typed.horizon, typed.forward_key.as_ref().filter(derived), &typed.probe) {
        (Some(horizon), ..) => (horizon.span(), HORIZON),
        (None, Some(forward_key), _) => (forward_key.span(), FORWARD_KEY),
        (None, None, Some(probe)) => (probe.span(), PROBE),
        (None, None, None) => return None,
    };
    Some(Why { span: Some(span), setting })
}
