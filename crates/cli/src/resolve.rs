//! `oncegate resolve`: a person settles what no machine could.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use oncegate_gateway::operate::{self, Verb, WISH_BYTES_MAX};
use serde_json::{Value, json};

use crate::act::{self, Acting, Seen};
use crate::output;
use crate::source::Trouble;

/// Say what happened to a record whose outcome no machine could find out.
#[derive(clap::Args)]
#[expect(clippy::doc_link_with_quotes, reason = "this text is shown in a terminal")]
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
        act::on_one(&args.acting, &args.seen, Verb::Resolve, more, &question).await
    });
    done.unwrap_or_else(|trouble| output::trouble(&trouble))
}

fn outcome(args: &Args) -> Result<(Value, String), Trouble> {
    match &args.response {
        Some(file) if args.happened => {
            let (status, response) = response(file)?;
            let question = format!("Settle it as happened, so that retries get this {status}?");
            Ok((json!({ "outcome": "happened", "response": response }), question))
        }
        _ => {
            let question = "Settle it as not happened, so that the same key may run again? If it did happen, it happens twice.";
            Ok((json!({ "outcome": "did_not_happen" }), question.to_owned()))
        }
    }
}

/// The answer in a file, as it is, and its status.
fn response(file: &Path) -> Result<(u16, Value), Trouble> {
    let wrong = |words: String| {
        let words = words.trim_end_matches('.');
        Trouble::Wrong(format!("--response {}: {words}. Nothing was changed", file.display()))
    };
    let json = read(file).map_err(|error| wrong(error.to_string()))?;
    if json.len() > WISH_BYTES_MAX {
        return Err(wrong(format!("larger than {WISH_BYTES_MAX} bytes")));
    }
    let answer = operate::answer(&json).map_err(|bad| wrong(bad.to_string()))?;
    let response = serde_json::from_slice(&json).map_err(|error| wrong(error.to_string()))?;
    Ok((answer.status(), response))
}

/// One byte more than may be, so that it is seen.
fn read(file: &Path) -> io::Result<Vec<u8>> {
    let (mut json, most) = (Vec::new(), WISH_BYTES_MAX as u64 + 1);
    if file == Path::new("-") {
        io::stdin().lock().take(most).read_to_end(&mut json)?;
    } else {
        File::open(file)?.take(most).read_to_end(&mut json)?;
    }
    Ok(json)
}
