//! `oncegate keys`: the records, for whoever has to find out what became of one.

use std::fmt::Write as _;
use std::process::ExitCode;

use oncegate_core::identity::RecordId;
use oncegate_core::key::Key;
use oncegate_core::record::StateKind;
use oncegate_core::scope::{Address, Operation, Scope};
use oncegate_gateway::record::Bodies;
use serde_json::Value;

use crate::output;
use crate::source::{Asked, Source, Trouble, Where};
use crate::streams::{print, say};

/// List records, or show the story of one.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    List(List),
    Show(Show),
}

/// List records, newest first.
#[derive(clap::Args)]
struct List {
    #[command(flatten)]
    source: Where,
    /// In this state: pending, in_progress, completed, failed_retryable, unknown, expired
    #[arg(long)]
    state: Option<StateKind>,
    /// Only those that wait for an operator
    #[arg(long)]
    parked: bool,
    /// Of this scope
    #[arg(long)]
    scope: Option<String>,
    /// With this key, in any scope
    #[arg(long)]
    key: Option<String>,
    /// Of this route, such as 'POST /payments'
    #[arg(long)]
    operation: Option<String>,
    /// So many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
    limit: u16,
    /// Go on where a list ended
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// For programs
    #[arg(long)]
    json: bool,
}

/// Show one record, by its id (op_…) or by its key.
#[derive(clap::Args)]
struct Show {
    #[command(flatten)]
    source: Where,
    /// The record's id, or the client's key
    #[arg(value_name = "ID|KEY")]
    record: String,
    /// The key's scope; without it, the key must be in one scope only
    #[arg(long)]
    scope: Option<String>,
    /// The route, where scopes are per route
    #[arg(long, requires = "scope")]
    operation: Option<String>,
    /// Show the stored answer's body too, which is customers' data
    #[arg(long)]
    body: bool,
    /// For programs
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    let done = crate::source::block_on(async {
        match &args.command {
            Command::List(args) => list(args).await,
            Command::Show(args) => show(args).await,
        }
    });
    match done {
        Ok(code) => code,
        Err(trouble) => output::trouble(&trouble),
    }
}

async fn list(args: &List) -> Result<ExitCode, Trouble> {
    let source = args.source.open().await?;
    if let Some(after) = args.after.as_deref().filter(|after| after.parse::<i64>().is_err()) {
        let words = format!(
            "{after:?} is not where a list ended: take the number after --after that `keys list` has printed"
        );
        return Err(Trouble::Wrong(words));
    }
    let asked = Asked {
        state: args.state,
        parked: args.parked.then_some(true),
        scope: args.scope.clone(),
        key: args.key.clone(),
        operation: args.operation.clone(),
        limit: usize::from(args.limit),
        after: args.after.clone(),
        ..Asked::default()
    };
    let page = source.list(&asked, Bodies::Counted).await?;
    if args.json {
        return Ok(print(format!("{page:#}\n").as_bytes()));
    }
    let rows = page["records"].as_array().map(Vec::as_slice).unwrap_or_default();
    if rows.is_empty() {
        say(format_args!("no record fits"));
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<Vec<String>> = rows.iter().map(row).collect();
    let table = output::table(&["ID", "STATE", "KEY", "OPERATION", "ANSWER", "CREATED", "SCOPE"], &rows);
    let code = print(table.as_bytes());
    if let Some(unreadable) = page["unreadable"].as_u64().filter(|count| *count > 0) {
        say(format_args!("{unreadable} more cannot be read: damaged, or of a newer release"));
    }
    if let Some(next) = page["next"].as_str() {
        say(format_args!("there are more: --after {next}"));
    }
    Ok(code)
}

fn row(record: &Value) -> Vec<String> {
    let text = |name: &str| record[name].as_str().unwrap_or("–").to_owned();
    let answer =
        record["answer"]["status"].as_u64().map_or_else(|| "–".to_owned(), |status| status.to_string());
    let mut state = output::state(&text("state"));
    if record["doubt"]["parked"] == true {
        state.push_str(", parked");
    }
    vec![
        text("id"),
        state,
        shortened(&text("key"), 40),
        text("operation"),
        answer,
        second(&text("created_at")),
        shortened(&text("scope"), 28),
    ]
}

async fn show(args: &Show) -> Result<ExitCode, Trouble> {
    let source = args.source.open().await?;
    let id = match args.record.parse::<RecordId>() {
        Ok(id) => id,
        Err(_) => by_key(&source, args).await?,
    };
    let bodies = if args.body { Bodies::Shown } else { Bodies::Counted };
    let record = source.show(id, bodies).await.map_err(|trouble| match (trouble, &args.scope) {
        (Trouble::NotFound(_), Some(scope)) if args.record != id.to_string() => Trouble::NotFound(format!(
            "there is no record with the key {:?} in the scope {scope:?}",
            args.record
        )),
        (trouble, _) => trouble,
    })?;
    let shown = if args.json { format!("{record:#}\n") } else { story(&record) };
    Ok(print(shown.as_bytes()))
}

async fn by_key(source: &Source, args: &Show) -> Result<RecordId, Trouble> {
    let wrong = |words: String| Trouble::Wrong(words);
    let key = Key::from_text(&args.record)
        .map_err(|error| wrong(format!("{:?} is neither an id nor a key: {error}", args.record)))?;
    if let Some(tenant) = &args.scope {
        let scope = match &args.operation {
            None => Scope::tenant(tenant),
            Some(operation) => {
                let operation = Operation::new(operation).map_err(|error| wrong(error.to_string()))?;
                Scope::tenant_and_operation(tenant, &operation)
            }
        };
        let scope = scope.map_err(|error| wrong(format!("--scope is not one: {error}")))?;
        return Ok(RecordId::of(&Address { scope, key }));
    }
    let asked = Asked { key: Some(args.record.clone()), limit: 5, ..Asked::default() };
    let page = source.list(&asked, Bodies::Counted).await?;
    let found = page["records"].as_array().map(Vec::as_slice).unwrap_or_default();
    match found {
        [] => {
            let mut words = format!("there is no record with the key {:?} in any scope", args.record);
            if args.record.starts_with("op_") {
                words.push_str("; nor is it an id: those are op_ and 26 letters and digits");
            }
            Err(Trouble::NotFound(words))
        }
        [one] => {
            let id = one["id"].as_str().and_then(|id| id.parse().ok());
            id.ok_or_else(|| Trouble::Failed("the record has no id".to_owned()))
        }
        several => {
            let mut words = format!("several records have the key {:?}; show one by its id:", args.record);
            for record in several {
                let text = |name: &str| record[name].as_str().unwrap_or("–");
                let _ = write!(words, "\n  {} of {}", text("id"), text("scope"));
            }
            if page["next"].is_string() {
                words.push_str("\n  …");
            }
            Err(Trouble::Wrong(words))
        }
    }
}

/// The story of one record, for people.
fn story(record: &Value) -> String {
    let text = |name: &str| record[name].as_str();
    let mut story = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(story, "{name:<12} {value}");
    };
    line("record", text("id").unwrap_or("–"));
    line("key", text("key").unwrap_or("–"));
    line("scope", text("scope").unwrap_or("–"));
    line("operation", text("operation").unwrap_or("–"));
    line("state", &output::state(text("state").unwrap_or("–")));
    line("meaning", meaning(record));
    line("created", text("created_at").unwrap_or("–"));
    if let Some(at) = text("last_run_at") {
        line("last run", &format!("{at}, attempt {}", record["attempts"]));
    }
    if let Some(until) = record["lease"]["until"].as_str() {
        line(
            "leased",
            &format!("until {until}, at most until {}", record["lease"]["deadline"].as_str().unwrap_or("–")),
        );
    }
    if let Some(at) = text("settled_at") {
        line("settled", at);
    }
    if let Some(at) = text("expires_at") {
        line("expires", at);
    }
    if let Some(since) = record["doubt"]["since"].as_str() {
        let tries = &record["doubt"]["tries"];
        let asked = match tries.as_u64() {
            None | Some(0) => "nobody has asked about it yet".to_owned(),
            Some(1) => "asked about once".to_owned(),
            Some(tries) => format!("asked about {tries} times"),
        };
        let parked =
            if record["doubt"]["parked"] == true { ", parked: it waits for an operator" } else { "" };
        line("in doubt", &format!("since {since}; {asked}{parked}"));
    }
    if let Some(code) = record["last_error"]["code"].as_str() {
        line(
            "last error",
            &output::harmless(&format!(
                "{code}: {}",
                record["last_error"]["detail"].as_str().unwrap_or_default()
            )),
        );
    }
    if let Some(reference) = text("provider_reference") {
        line("provider", &output::harmless(reference));
    }
    let answer = &record["answer"];
    if let Some(status) = answer["status"].as_u64() {
        let kept = if answer["kept"] == true {
            format!("{status}, {} bytes kept", answer["body_bytes"])
        } else {
            format!("{status}, too large to keep")
        };
        line("answer", &kept);
        if let Some(location) = location(answer) {
            line("location", &output::harmless(location));
        }
        if let Some(body) = answer["body"].as_str() {
            let _ = writeln!(story, "\n{}", output::harmless(body));
        }
        if let Some(body) = answer["body_hex"].as_str() {
            let _ = writeln!(story, "\nnot text; in hexadecimal digits:\n{body}");
        }
    }
    story
}

/// Where the result is, if the answer says so.
fn location(answer: &Value) -> Option<&str> {
    let headers = answer["headers"].as_array().into_iter().flatten();
    let mut header = headers.filter(|header| header[0] == "location").filter_map(|header| header[1].as_str());
    answer["location"].as_str().or_else(|| header.next())
}

fn meaning(record: &Value) -> &'static str {
    match record["state"].as_str().unwrap_or_default() {
        "pending" => "accepted; nobody runs it yet",
        "in_progress" => "being executed right now",
        "lapsed" => {
            "its holder is gone; the next retry makes it unknown, or goes on with it, as its crash policy says"
        }
        "completed" if record["answer"]["kept"] == false => {
            "over; its answer was too large to keep, so retries get 409 answer_not_kept"
        }
        "completed" => "over; retries get the stored answer",
        "failed_retryable" => "proved to have had no effect; the same key may run again",
        "unknown" => {
            "may or may not have happened: ask whoever is behind; until it is settled, retries get 409 outcome_unknown"
        }
        "expired" => "past its retention; its answer is no longer replayed",
        _ => "–",
    }
}

fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept: String = text.chars().take(most - 1).collect();
    format!("{kept}…")
}

/// Without what is below a second.
fn second(moment: &str) -> String {
    match moment.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => moment.to_owned(),
    }
}
