//! What `resolve`, `forget` and `dead retry` have in common: who acts, why, and on what he has seen.
//!
//! **Invariant:** nothing is changed but the version that was shown: named with `--version`, or read and shown here, and confirmed.

use std::io::{self, BufRead as _, IsTerminal as _};
use std::process::ExitCode;

use oncegate_core::identity::RecordId;
use oncegate_gateway::operate::{Verb, Wish};
use oncegate_gateway::record::Bodies;
use serde_json::{Map, Value, json};

use crate::shown;
use crate::source::{Trouble, Where, variable};
use crate::streams::{print, say};

/// Who acts, and why.
#[derive(clap::Args)]
pub(crate) struct Acting {
    #[command(flatten)]
    pub(crate) source: Where,
    /// Why, for whoever reads the record's story
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Who does it [default: your login name]
    #[arg(long, value_name = "NAME")]
    operator: Option<String>,
    /// Do not ask; it is still checked that nothing has changed since it was read
    #[arg(long)]
    pub(crate) yes: bool,
    /// For programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which record, as it was seen.
#[derive(clap::Args)]
pub(crate) struct Seen {
    /// The record's id: op_…
    #[arg(value_name = "ID")]
    id: String,
    /// The version that you have looked at, as `keys show` prints it; without it the record is shown, and you are asked
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,
}

impl Seen {
    pub(crate) fn new(id: &str, version: Option<&str>) -> Self {
        Self { id: id.to_owned(), version: version.map(str::to_owned) }
    }
}

impl Acting {
    /// The wish, in the admin interface's JSON, checked as far as it can be before anything is read.
    pub(crate) fn wish(&self, verb: Verb, version: Option<&str>, more: Value) -> Result<Value, Trouble> {
        let operator = match &self.operator {
            Some(name) => name.clone(),
            None => login().ok_or_else(|| {
                Trouble::Wrong(
                    "nobody is logged in by name (LOGNAME, USER): say who acts with --operator".to_owned(),
                )
            })?,
        };
        let mut wish = Map::new();
        wish.insert("version".to_owned(), version.unwrap_or("0").into());
        wish.insert("reason".to_owned(), self.reason.as_str().into());
        wish.insert("operator".to_owned(), operator.into());
        if let Value::Object(more) = more {
            wish.extend(more);
        }
        let wish = Value::Object(wish);
        Wish::read(verb, wish.to_string().as_bytes())
            .map_err(|bad| Trouble::Wrong(format!("{} Nothing was changed", lower(&bad.to_string()))))?;
        Ok(wish)
    }
}

/// Does it to one record, and says what came of it.
pub(crate) async fn on_one(
    acting: &Acting,
    seen: &Seen,
    verb: Verb,
    more: Value,
    question: &str,
) -> Result<ExitCode, Trouble> {
    let id = id(&seen.id)?;
    let mut wish = acting.wish(verb, seen.version.as_deref(), more)?;
    let source = acting.source.open().await?.into_acting().await?;
    if seen.version.is_none() {
        let record = source.whole(id, Bodies::Counted).await?;
        let version = record["version"].as_str().ok_or_else(|| gone(id))?;
        wish["version"] = version.into();
        say(format_args!("{}", shown::whole(&record)));
        if !acting.yes {
            confirm(question, "Name the version that you have looked at with --version, or say --yes")?;
        }
    }
    let done = source.act(verb, id, &wish).await?;
    let code = say_done(acting, &done);
    let told = source.tell_others().await;
    // Whatever else is done, nobody holds an answer of it.
    if let (Verb::Forget, Some(words)) = (verb, told) {
        say(format_args!("note: {words}"));
    }
    Ok(code)
}

/// What came of it.
pub(crate) fn say_done(acting: &Acting, done: &Value) -> ExitCode {
    if acting.json {
        return print(format!("{done:#}\n").as_bytes());
    }
    let text = |name: &str| done[name].as_str().unwrap_or_default();
    print(format!("{}\n{}\n", text("done"), text("next")).as_bytes())
}

fn id(text: &str) -> Result<RecordId, Trouble> {
    text.parse().map_err(|_| {
        Trouble::Wrong(format!(
            "{text:?} is not a record's id: those are op_ and 26 letters and digits; `oncegate keys show KEY` shows it"
        ))
    })
}

fn gone(id: RecordId) -> Trouble {
    Trouble::NotFound(format!(
        "the record {id} is gone, and only its story is left (`oncegate keys show {id}`); there is nothing to act on"
    ))
}

/// Asks on the terminal. Whoever cannot be asked has not agreed.
pub(crate) fn confirm(question: &str, otherwise: &str) -> Result<(), Trouble> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        let words = format!("nobody can be asked: stdin is not a terminal. Nothing was changed. {otherwise}");
        return Err(Trouble::Wrong(words));
    }
    say(format_args!("{question} Type yes to go on:"));
    let mut answer = String::new();
    let read = stdin.lock().read_line(&mut answer);
    if read.is_ok() && answer.trim() == "yes" {
        return Ok(());
    }
    Err(Trouble::Failed("not confirmed. Nothing was changed".to_owned()))
}

/// Whoever is logged in.
pub(crate) fn login() -> Option<String> {
    variable("LOGNAME").or_else(|| variable("USER"))
}

fn lower(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

/// Nothing but the version, the reason and the name.
pub(crate) fn nothing_more() -> Value {
    json!({})
}
