//! `oncegate keys`: the records, for whoever has to find out what became of one.

use std::fmt::Write as _;
use std::process::ExitCode;

use oncegate_core::identity::RecordId;
use oncegate_core::key::Key;
use oncegate_core::record::StateKind;
use oncegate_core::scope::{Address, Operation, Scope};
use oncegate_gateway::record::Bodies;
use serde_json::Value;

use crate::output::{self, second, shortened};
use crate::shown;
use crate::source::{Asked, Page, Source, Trouble, Where};
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
    /// Which the provider calls this, as a probe or a webhook has found it
    #[arg(long)]
    reference: Option<String>,
    #[command(flatten)]
    page: Page,
}

/// Show one record and its story, by its id (op_…) or by its key; the story also if the record is gone.
#[derive(clap::Args)]
pub(crate) struct Show {
    #[command(flatten)]
    pub(crate) source: Where,
    /// The record's id, or the client's key
    #[arg(value_name = "ID|KEY")]
    pub(crate) record: String,
    /// The key's scope; without it, the key must be in one scope only
    #[arg(long)]
    scope: Option<String>,
    /// Where scopes are per operation: method and path, such as 'POST /orders/17', or the route's
    /// declared name
    #[arg(long, requires = "scope")]
    operation: Option<String>,
    /// Show the stored answer's body too, which is customers' data
    #[arg(long)]
    pub(crate) body: bool,
    /// For programs
    #[arg(long)]
    pub(crate) json: bool,
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
    check_cursor(args.page.after.as_deref(), "keys list")?;
    let asked = Asked {
        state: args.state,
        parked: args.parked.then_some(true),
        scope: args.scope.clone(),
        key: args.key.clone(),
        operation: args.operation.clone(),
        reference: args.reference.clone(),
        limit: usize::from(args.page.limit),
        after: args.page.after.clone(),
        ..Asked::default()
    };
    let page = source.list(&asked, Bodies::Counted).await?;
    if args.page.json {
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
    say_rest(&page);
    Ok(code)
}

/// Whether it is where a list ended.
pub(crate) fn check_cursor(after: Option<&str>, command: &str) -> Result<(), Trouble> {
    match after.filter(|after| after.parse::<i64>().is_err()) {
        None => Ok(()),
        Some(after) => Err(Trouble::Wrong(format!(
            "{after:?} is not where a list ended: take the number after --after that `{command}` has printed"
        ))),
    }
}

/// What a page does not show.
pub(crate) fn say_rest(page: &Value) {
    if let Some(unreadable) = page["unreadable"].as_u64().filter(|count| *count > 0) {
        say(format_args!("{unreadable} more cannot be read: damaged, or of a newer release"));
    }
    if let Some(next) = page["next"].as_str() {
        say(format_args!("there are more: --after {next}"));
    }
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
    let (_, shown) = look(args).await?;
    let text = if args.json { format!("{shown:#}\n") } else { shown::whole(&shown) };
    Ok(print(text.as_bytes()))
}

/// Finds a record, or what its story tells of it once it is gone.
pub(crate) async fn look(args: &Show) -> Result<(RecordId, Value), Trouble> {
    let source = args.source.open().await?;
    let id = match args.record.parse::<RecordId>() {
        Ok(id) => id,
        Err(_) => by_key(&source, args).await?,
    };
    let bodies = if args.body { Bodies::Shown } else { Bodies::Counted };
    let found = source.whole(id, bodies).await.map_err(|trouble| match (trouble, &args.scope) {
        (Trouble::NotFound(_), Some(scope)) if args.record != id.to_string() => Trouble::NotFound(format!(
            "there is no record with the key {:?} in the scope {scope:?}",
            args.record
        )),
        (trouble, _) => trouble,
    })?;
    Ok((id, found))
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
            } else {
                words.push_str("; with --scope, or by its id, the story of one that is gone is still found");
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
