//! Requests that pass without a record, or without a key, beside routes that forbid it.
//!
//! The upstream may read a path as a route's that the gateway does not: by its case, by an alias.
//! What holds for such a path is `[defaults]`, or a wider route. If that is weaker than the route
//! itself, the route can be passed by.

use std::ops::Range;

use http::Method;
use oncegate_core::policy::Profile;
use oncegate_tower::Routes;
use toml::Spanned;

use super::profile_at;
use crate::config::check::Source;
use crate::config::file::{File, Rules};
use crate::config::rules::Rule;
use crate::config::{Config, Given};

/// What becomes of a request without a key; the later, the safer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Protection {
    /// It passes, and so does one with a key.
    None,
    /// It passes.
    WithKey,
    /// It is refused.
    Always,
}

impl Protection {
    fn of(rule: &Rule) -> Self {
        match (rule.is_off(), rule.policy.key.required) {
            (true, _) => Self::None,
            (false, false) => Self::WithKey,
            (false, true) => Self::Always,
        }
    }
}

pub(super) fn check(config: &Config, file: &File, given: &Given, source: &Source<'_>) -> Vec<String> {
    let defaults = source.line(profile_at(&file.defaults, given));
    if config.rules().all(Rule::is_off) {
        let words = "nothing is protected: the profile is \"off\" and no route says otherwise";
        return vec![format!("{defaults}{words}")];
    }
    let mut warnings = Vec::new();
    if config.otherwise.is_off() {
        warnings.push(format!(
            "{defaults}defaults.profile = \"off\": a path that no route matches passes unprotected, also one \
             that the upstream reads as a route's; protect by default, and switch off single routes"
        ));
    } else {
        warnings.extend(optional_by_default(config, file, given, source));
        warnings.extend(unprotected_methods(config, file, source));
    }
    warnings.extend(weaker_routes(config, file, source));
    warnings
}

/// `[defaults]` lets requests without a key pass, and a route does not.
fn optional_by_default(config: &Config, file: &File, given: &Given, source: &Source<'_>) -> Option<String> {
    let otherwise = &config.otherwise;
    let is_passed = |rule: &&Rule| {
        let is_covered = method_of(rule).is_some_and(|method| otherwise.policy.methods.contains(&method));
        is_covered && Protection::of(rule) > Protection::of(otherwise)
    };
    let route = config.routes.iter().find(is_passed)?;
    let (span, setting) = optional_keys(otherwise, &file.defaults, profile_at(&file.defaults, given));
    let words = passes_by(&route.pattern, "a key");
    let line = source.line(span);
    Some(format!("{line}defaults.{setting}: {words}; require keys, and make them optional on single routes"))
}

/// Routes whose method `[defaults]` does not protect: at the first of each method.
fn unprotected_methods(config: &Config, file: &File, source: &Source<'_>) -> Vec<String> {
    let mut methods = Vec::new();
    let mut warnings = Vec::new();
    for (rule, typed) in config.routes.iter().zip(&file.route).filter(|(rule, _)| !rule.is_off()) {
        let Some(method) = method_of(rule) else { continue };
        // What has every path of the method leaves none to the defaults.
        let has_all =
            |other: &Rule| other.pattern.strip_prefix(method).is_some_and(|p| p.starts_with(" /{*"));
        let is_covered = config.otherwise.policy.methods.contains(&method);
        if is_covered || methods.contains(&method) || config.routes.iter().any(has_all) {
            continue;
        }
        methods.push(method);
        let remedy = if crate::config::rules::METHODS.contains(&method) {
            format!("add {method} to defaults.methods")
        } else {
            format!("add a route with match = \"{method} /{{*rest}}\"")
        };
        let line = source.line(typed.get_ref().pattern.as_ref().map(Spanned::span));
        let words = passes_by("this route's", "a record");
        warnings.push(format!("{line}{}: {words}; {remedy}", rule.pattern));
    }
    warnings
}

/// Routes that match what a stronger one is for.
fn weaker_routes(config: &Config, file: &File, source: &Source<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    for (weak, typed) in config.routes.iter().zip(&file.route) {
        let typed = typed.get_ref();
        // One that has it from the defaults is not warned about beside them.
        if typed.profile.is_none() && typed.key_required.is_none() {
            continue;
        }
        let stronger = config.routes.iter().find(|rule| {
            Protection::of(rule) > Protection::of(weak) && matches_path_of(&weak.pattern, &rule.pattern)
        });
        let Some(stronger) = stronger else { continue };
        let profile = typed.profile.as_ref().map(Spanned::span);
        let (span, setting, without, remedy) = match Protection::of(weak) {
            Protection::None => (profile, "profile = \"off\"".to_owned(), "a record", "protect it"),
            Protection::WithKey | Protection::Always => {
                let (span, setting) = optional_keys(weak, typed, profile);
                (span, setting, "a key", "require keys")
            }
        };
        warnings.push(format!(
            "{}{}: {setting}: {}; {remedy}, or match only the paths that may pass",
            source.line(span),
            weak.pattern,
            passes_by(&stronger.pattern, without)
        ));
    }
    warnings
}

fn passes_by(route: &str, without: &str) -> String {
    format!("a path that the upstream reads as {route}, and the gateway does not, passes without {without}")
}

/// Where keys were made optional, and by which setting.
fn optional_keys(
    rule: &Rule,
    typed: &Rules,
    profile: Option<Range<usize>>,
) -> (Option<Range<usize>>, String) {
    match &typed.key_required {
        Some(setting) => (Some(setting.span()), "key_required = false".to_owned()),
        None => (profile, format!("profile = \"{}\" has key_required = false", rule.profile)),
    }
}

fn method_of(rule: &Rule) -> Option<&str> {
    rule.pattern.split_once(' ').map(|(method, _)| method)
}

/// Whether a pattern matches a path that is spelled like those of another pattern.
fn matches_path_of(wide: &str, other: &str) -> bool {
    // Parameters stand for what no pattern says literally.
    let mut path = String::with_capacity(other.len());
    let mut is_name = false;
    for char in other.chars() {
        match char {
            '{' => is_name = true,
            '}' => {
                is_name = false;
                path.push('~');
            }
            char if !is_name => path.push(char),
            _ => {}
        }
    }
    let Some((method, path)) = path.split_once(' ') else { return false };
    let Ok(method) = method.parse::<Method>() else { return false };
    Routes::none().route(wide, Profile::Ietf).is_ok_and(|routes| routes.of(&method, path).is_some())
}
