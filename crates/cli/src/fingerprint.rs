//! `oncegate fingerprint`: shows what of a request decides whether it is the same, and its fingerprint.

use std::borrow::Cow;
use std::io::{self, Read as _};
use std::process::ExitCode;

use clap::ValueEnum;
use oncegate_core::fingerprint::{
    self, Canonical, Content, Fields, Fingerprint, FingerprintError, Mode, Pointer,
};
use serde_json::json;

use crate::streams::{print, say};

/// Show the canonical form and the fingerprint of a request whose body is on stdin.
///
/// Two requests with one key are the same request exactly if their fingerprints are equal.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The request's method.
    #[arg(long, default_value = "POST")]
    method: String,
    /// The request's path, as sent.
    #[arg(long, default_value = "/")]
    path: String,
    /// The request's query, as sent, without `?`. Not given and empty are two things.
    #[arg(long)]
    query: Option<String>,
    /// The request's `Content-Type`.
    #[arg(long, default_value = "application/json", value_name = "TYPE")]
    content_type: String,
    /// What counts: what the body says, or its bytes.
    #[arg(long, value_enum, default_value_t = Reading::Json)]
    mode: Reading,
    /// JSON Pointers to the only parts of a JSON body that count.
    #[arg(long, value_name = "POINTER", num_args = 1.., conflicts_with = "exclude")]
    include: Vec<Pointer>,
    /// JSON Pointers to the parts of a JSON body that do not count.
    #[arg(long, value_name = "POINTER", num_args = 1..)]
    exclude: Vec<Pointer>,
    /// Print the canonical form only: exactly its bytes, without a newline.
    #[arg(long, conflicts_with = "json")]
    canonical: bool,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Reading {
    Json,
    Raw,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    let Some(mode) = mode(args) else {
        return refuse(
            "--mode raw takes the body whole, so it has no fields",
            "leave out --mode raw, or the pointers",
        );
    };
    let mut body = Vec::new();
    if let Err(error) = io::stdin().read_to_end(&mut body) {
        say(format_args!("error: cannot read the body from stdin: {error}"));
        return ExitCode::FAILURE;
    }
    let content = Content {
        method: &args.method,
        path: &args.path,
        query: args.query.as_deref(),
        content_type: Some(args.content_type.as_bytes()),
        body: &body,
    };
    match compute(&mode, &content) {
        Ok((canonical, fingerprint)) => print(&render(args, &canonical, fingerprint)),
        Err(error) => refuse(&error.to_string(), advice(&error)),
    }
}

/// What the flags ask for; nothing, if they contradict each other.
fn mode(args: &Args) -> Option<Mode> {
    match (args.mode, args.include.as_slice(), args.exclude.as_slice()) {
        (Reading::Json, [], []) => Some(Mode::Json),
        (Reading::Json, [], exclude) => Some(Mode::Fields(Fields::Exclude(exclude.to_vec()))),
        (Reading::Json, include, _) => Some(Mode::Fields(Fields::Include(include.to_vec()))),
        (Reading::Raw, [], []) => Some(Mode::Raw),
        (Reading::Raw, ..) => None,
    }
}

fn compute<'a>(mode: &Mode, content: &Content<'a>) -> Result<(Canonical<'a>, Fingerprint), FingerprintError> {
    Ok((fingerprint::canonical(mode, content)?, fingerprint::of(mode, content)?))
}

fn render<'a>(args: &Args, canonical: &'a Canonical<'_>, fingerprint: Fingerprint) -> Cow<'a, [u8]> {
    if args.canonical {
        return Cow::Borrowed(&canonical.bytes);
    }
    let text = if args.json {
        format!("{}\n", as_json(canonical, fingerprint))
    } else {
        format!("canonical    {}\nfingerprint  {fingerprint}\n", in_one_line(&canonical.bytes))
    };
    Cow::Owned(text.into_bytes())
}

/// Canonical bytes that are no text have no place in JSON: `--canonical` gives them.
fn as_json(canonical: &Canonical<'_>, fingerprint: Fingerprint) -> serde_json::Value {
    json!({
        "canonical": str::from_utf8(&canonical.bytes).ok(),
        "family": canonical.family.to_string(),
        "fingerprint": fingerprint.to_string(),
    })
}

/// For people: a text as it is but for control characters, other bytes escaped.
fn in_one_line(bytes: &[u8]) -> String {
    match str::from_utf8(bytes) {
        Ok(text) if !text.contains(char::is_control) => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

/// What the sender of such a body can do.
fn advice(error: &FingerprintError) -> &'static str {
    match error {
        FingerprintError::NotJson { .. } => "correct the body, or say what it is with --content-type",
        FingerprintError::DuplicateName { .. } => {
            "remove one of the two: readers disagree on which of them counts"
        }
        FingerprintError::TooDeep { .. } => "send a flatter body, or take its bytes with --mode raw",
        FingerprintError::ExponentTooLarge { .. } => {
            "send the number as a string, or take the bytes with --mode raw"
        }
    }
}

/// Says what is wrong with the input.
fn refuse(problem: &str, advice: &str) -> ExitCode {
    say(format_args!("error: {problem}\nhelp: {advice}"));
    ExitCode::from(2)
}
