//! `[request]`: how the spelling of a request is read, and what is refused because the upstream
//! might read it as a request that a route protects.

use serde::Deserialize;
use toml::Spanned;

use super::word::{Word, Words};
use crate::public::path;

/// `[request]`, as typed.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Typed {
    pub(crate) path_case: Option<Word<PathCase>>,
    pub(crate) path_params: Option<Word<PathParams>>,
    pub(crate) encoded_separators: Option<Spanned<Word<Ambiguous>>>,
    pub(crate) method_override: Option<Spanned<Word<Ambiguous>>>,
}

/// How the spelling of a request is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestRules {
    /// Whether `/Payments` is `/payments`.
    pub path_case: PathCase,
    /// Whether `/payments;v=1` is `/payments`.
    pub path_params: PathParams,
    /// `%2F`, `%5C`, `\`, `%00` and the like in a path, unless the method is safe.
    pub encoded_separators: Ambiguous,
    /// `X-HTTP-Method-Override`, `X-Original-URL` and the like.
    pub method_override: Ambiguous,
}

impl RequestRules {
    /// What holds where the file says nothing.
    pub const DEFAULT: Self = Self {
        path_case: PathCase::Exact,
        path_params: PathParams::Keep,
        encoded_separators: Ambiguous::Reject,
        method_override: Ambiguous::Reject,
    };

    pub(super) fn of(typed: &Typed) -> Self {
        let ambiguous = |word: &Option<Spanned<Word<Ambiguous>>>| {
            word.as_ref().map_or(Ambiguous::Reject, |word| word.get_ref().0)
        };
        Self {
            path_case: typed.path_case.map_or(PathCase::Exact, |word| word.0),
            path_params: typed.path_params.map_or(PathParams::Keep, |word| word.0),
            encoded_separators: ambiguous(&typed.encoded_separators),
            method_override: ambiguous(&typed.method_override),
        }
    }
}

/// Whether case matters in paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathCase {
    /// It does.
    Exact,
    /// It does not: paths are compared and forwarded in lower case.
    Fold,
}

impl Words for PathCase {
    const TABLE: &'static [(&'static str, Self)] = &[("exact", Self::Exact), ("fold", Self::Fold)];
}

/// What becomes of the parameters of a path's segments (`;v=1`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathParams {
    /// They are part of the path.
    Keep,
    /// They are removed, before routes are matched.
    Strip,
}

impl Words for PathParams {
    const TABLE: &'static [(&'static str, Self)] = &[("keep", Self::Keep), ("strip", Self::Strip)];
}

/// What becomes of a request that the upstream may read as another one, which is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ambiguous {
    /// 400.
    Reject,
    /// It is forwarded.
    Pass,
}

impl Words for Ambiguous {
    const TABLE: &'static [(&'static str, Self)] = &[("reject", Self::Reject), ("pass", Self::Pass)];
}

/// What these settings reopen, with the remedy.
pub(super) fn warnings(typed: &Typed) -> Vec<(std::ops::Range<usize>, &'static str)> {
    let mut warnings = Vec::new();
    let mut check = |word: &Option<Spanned<Word<Ambiguous>>>, words| {
        if let Some(word) = word.as_ref().filter(|word| word.get_ref().0 == Ambiguous::Pass) {
            warnings.push((word.span(), words));
        }
    };
    check(
        &typed.encoded_separators,
        "request.encoded_separators = \"pass\": an upstream that decodes %2F may read a protected path as \
         another one; drop the setting unless identifiers in your paths contain slashes",
    );
    check(
        &typed.method_override,
        "request.method_override = \"pass\": an upstream that honours X-HTTP-Method-Override or \
         X-Original-URL may execute another operation than the one that was recorded; drop the setting, \
         or turn the override off in the upstream",
    );
    warnings
}

/// A pattern must be spelled as paths are compared: no request would ever match any other.
pub(super) fn check_pattern(pattern: &str, rules: RequestRules) -> Result<(), String> {
    let Some((method, path)) = pattern.split_once(' ') else { return Ok(()) };
    // The names of parameters are not compared.
    let mut literal = String::with_capacity(path.len());
    let mut is_name = false;
    for char in path.chars() {
        is_name &= char != '}';
        if !is_name {
            literal.push(char);
        }
        is_name |= char == '{';
    }
    let normal = path::normal(&literal, rules).unwrap_or_else(|| literal.clone());
    let compared = path::matched(&normal);
    if compared == literal {
        return Ok(());
    }
    let example =
        if literal.contains('{') { String::new() } else { format!("; write \"{method} {compared}\"") };
    Err(format!(
        "{pattern:?} matches no request: paths are compared without a slash at the end, without empty, `.` \
         and `..` segments, with unreserved characters decoded, and as [request] says{example}"
    ))
}
