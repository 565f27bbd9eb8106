//! `oncegate resolve`: a person settles what no machine could.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use oncegate_gateway::operate::{Verb, WISH_BYTES_MAX};
use serde_json::{Value, json};

use crate::act::{self, Acting, Seen};
use crate::output;
use crate::source::Trouble;

/// Say what happened to a record whose outcome no machine could find out.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("outcome").required(true))]
pub(crate) struct Args {
    #[command(flatten)]
    seen: Seen,
    /// It happened: retries get the answer in --response
    #[arg(long, group = "outcome", requires = "response")]
    happened: bool,
    /// It did not happen, and cannot any more: the same key may run again
    #[arg(long, group = "outcome", conflicts_with = "response")]
    did_not_happen: bool,
    /// The answer, a JSON file: {"status": 201, "headers": [["content-type", "application/json"]], "body": "…"}, or "body_base64"; - is
    /// stdin
    #[arg(long, value_name = "FILE")]
    response: Option<PathBuf>,
    #[command(flatten)]
    acting: Acting,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    let done = crate::source::block_on(async {
        let (more, question) = outcome(args)?;
        act::on_one(&args.acting, &args.seen, Verb::Resolve, more, question).await
    });
    done.unwrap_or_else(|trouble| output::trouble(&trouble))
}

fn outcome(args: &Args) -> Result<(Value, &'static str), Trouble> {
    match &args.response {
        Some(file) if args.happened => {
            let more = json!({ "outcome": "happened", "response": response(file)? });
            Ok((more, "Settle it as happened, so that retries get this answer?"))
        }
        _ => Ok((
            json!({ "outcome": "did_not_happen" }),
            "Settle it as not happened, so that the same key may run again? If it did happen, it happens twice.",
        )),
    }
}

fn response(file: &Path) -> Result<Value, Trouble> {
    let wrong = |words: String| {
        Trouble::Wrong(format!("--response {}: {words}. Nothing was changed", file.display()))
    };
    let mut text = Vec::new();
    let most = WISH_BYTES_MAX as u64;
    let read = if file == Path::new("-") {
        std::io::stdin().lock().take(most + 1).read_to_end(&mut text)
    } else {
        std::fs::File::open(file).and_then(|file| file.take(most + 1).read_to_end(&mut text))
    };
    read.map_err(|error| wrong(error.to_string()))?;
    if text.len() > WISH_BYTES_MAX {
        return Err(wrong(format!("larger than {WISH_BYTES_MAX} bytes")));
    }
    let read: Value = serde_json::from_slice(&text).map_err(|error| wrong(format!("not JSON: {error}")))?;
    if !read.is_object() {
        return Err(wrong("not a JSON object of status, headers, and body or body_base64".to_owned()));
    }
    Ok(read)
}
