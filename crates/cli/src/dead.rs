//! `oncegate dead`: the dead letters, which no machine could settle and a person must.

use std::fmt::{Display, Write as _};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use oncegate_core::identity::RecordId;
use oncegate_gateway::operate::Verb;
use oncegate_gateway::record::Bodies;
use oncegate_store::jobs::JobId;
use serde_json::{Value, json};

use crate::act::{self, Acting, Seen};
use crate::keys::{self, Show};
use crate::output::{self, one_line, shortened};
use crate::shown;
use crate::source::{Asked, Page, Source, Trouble, Where};
use crate::streams::{print, say};

mod job;

/// List dead letters, show one, have the machine ask again, or end a job of the outbox.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    List(List),
    /// Show one record, its story, and what can be done about it
    Show(Show),
    Retry(Retry),
    Withdraw(Withdraw),
}

/// Which of them.
#[derive(clap::Args)]
struct Which {
    /// Of this scope
    #[arg(long)]
    scope: Option<String>,
    /// Of this route, such as 'POST /payments'
    #[arg(long)]
    operation: Option<String>,
}

/// List the records and the jobs of the outbox that wait for an operator.
#[derive(clap::Args)]
struct List {
    #[command(flatten)]
    source: Where,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    page: Page,
}

/// Have the machine ask again, as if nobody had: one record, or all of a scope or route.
#[derive(clap::Args)]
struct Retry {
    /// The record's id: op_…; or the job's: job_…
    #[arg(value_name = "ID", required_unless_present = "all")]
    id: Option<String>,
    /// The version that you have looked at, as `dead show` prints it; without it the record is shown, and you are asked
    #[arg(long, value_name = "VERSION", conflicts_with = "all")]
    version: Option<String>,
    /// All dead letters of --scope, --operation or both; or all jobs of the outbox of --effect
    #[arg(long, conflicts_with = "id")]
    all: bool,
    #[command(flatten)]
    which: Which,
    /// Jobs of the outbox for this effect, which have no scope and no route of their own
    #[arg(long, requires = "all", conflicts_with_all = ["id", "scope", "operation"])]
    effect: Option<String>,
    #[command(flatten)]
    acting: Acting,
}

/// End a parked job of the outbox: it is not sent any more, and what waits behind it in its line is next.
#[derive(clap::Args)]
struct Withdraw {
    /// The job's id: job_…
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    acting: Acting,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    let done = crate::source::block_on(async {
        match &args.command {
            Command::List(args) => list(args).await,
            Command::Show(args) => show(args).await,
            Command::Retry(args) => retry(args).await,
            Command::Withdraw(args) => job::withdraw(&args.acting, &args.id).await,
        }
    });
    done.unwrap_or_else(|trouble| output::trouble(&trouble))
}

impl Which {
    const fn is_narrowed(&self) -> bool {
        self.scope.is_some() || self.operation.is_some()
    }

    fn asked(&self, limit: usize, after: Option<String>) -> Asked {
        Asked {
            parked: Some(true),
            scope: self.scope.clone(),
            operation: self.operation.clone(),
            limit,
            after,
            ..Asked::default()
        }
    }
}

async fn list(args: &List) -> Result<ExitCode, Trouble> {
    let after = args.page.after.as_deref();
    let after_job = after.and_then(|after| after.parse::<JobId>().ok());
    if after_job.is_none() {
        keys::check_cursor(after, "dead list")?;
    }
    let source = args.source.open().await?;
    let page = page(&source, args, after_job).await?;
    if args.page.json {
        return Ok(print(format!("{page:#}\n").as_bytes()));
    }
    let rows = page["records"].as_array().map(Vec::as_slice).unwrap_or_default();
    let jobs = page["jobs"].as_array().map(Vec::as_slice).unwrap_or_default();
    if rows.is_empty() && jobs.is_empty() {
        say(format_args!("no {}dead letters", if after.is_some() { "more " } else { "" }));
        return Ok(ExitCode::SUCCESS);
    }
    let mut tables = Vec::new();
    tables.extend((!rows.is_empty()).then(|| table(rows)));
    tables.extend((!jobs.is_empty()).then(|| job::table(jobs)));
    let code = print(tables.join("\n").as_bytes());
    keys::say_rest(&page);
    Ok(code)
}

/// Records first, page by page; behind the last of them the jobs, whose pages are told apart by the job's id at which they begin.
async fn page(source: &Source, args: &List, after_job: Option<JobId>) -> Result<Value, Trouble> {
    let limit = usize::from(args.page.limit);
    let mut page = if after_job.is_some() {
        json!({ "records": [], "unreadable": 0, "next": null })
    } else {
        source.list(&args.which.asked(limit, args.page.after.clone()), Bodies::Counted).await?
    };
    // Jobs have no scope and no route of their own.
    if page["next"].is_null() && !args.which.is_narrowed() {
        let mut jobs = source.parked_jobs(after_job, limit).await?;
        page["next"] = jobs["next"].take();
        if jobs["jobs"].as_array().is_some_and(|jobs| !jobs.is_empty()) {
            page["jobs"] = jobs["jobs"].take();
        }
    }
    Ok(page)
}

fn table(records: &[Value]) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let rows: Vec<_> = records.iter().map(|record| row(record, now)).collect();
    output::table(&["ID", "AGE", "TRIES", "OPERATION", "KEY", "LAST ERROR"], &rows)
}

fn row(record: &Value, now: Duration) -> Vec<String> {
    let text = |name: &str| record[name].as_str().unwrap_or("–").to_owned();
    let error = error_of(record);
    let since = record["doubt"]["since"].as_str().and_then(moment);
    vec![
        text("id"),
        since.map_or_else(|| "–".to_owned(), |since| age(now.saturating_sub(since))),
        record["doubt"]["tries"].to_string(),
        text("operation"),
        shortened(&text("key"), 40),
        shortened(&error, 80),
    ]
}

fn error_of(shown: &Value) -> String {
    let error = &shown["last_error"];
    match (error["code"].as_str(), error["detail"].as_str()) {
        (Some(code), Some(detail)) => one_line(&format!("{code}: {detail}")),
        _ => "–".to_owned(),
    }
}

/// Since the epoch.
fn moment(text: &str) -> Option<Duration> {
    humantime::parse_rfc3339(text).ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()
}

/// In the largest unit that it has two of.
fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    let units = [(86_400, "d"), (3_600, "h"), (60, "min")];
    let unit = units.iter().find(|(length, _)| seconds >= 2 * length);
    unit.map_or_else(|| format!("{seconds} s"), |(length, name)| format!("{} {name}", seconds / length))
}

async fn show(args: &Show) -> Result<ExitCode, Trouble> {
    if let Ok(id) = args.record.parse() {
        return job::show(args, id).await;
    }
    let (id, shown) = keys::look(args).await?;
    if args.json {
        return Ok(print(format!("{shown:#}\n").as_bytes()));
    }
    let code = print(format!("{}{}", shown::whole(&shown), what_to_do(id, &shown)).as_bytes());
    if shown["doubt"]["parked"] != true {
        let state = shown["state"].as_str().unwrap_or("–");
        let words = if state == "unknown" { "unknown, and the machine still asks about it" } else { state };
        say(format_args!("this is no dead letter: it is {words}"));
    }
    Ok(code)
}

/// What an operator may do about an outcome that nobody knows.
fn what_to_do(id: RecordId, shown: &Value) -> String {
    let (Some("unknown"), Some(version)) = (shown["state"].as_str(), shown["version"].as_str()) else {
        return String::new();
    };
    let mut text = "\nwhat to do   look where the effect would be, then one of\n".to_owned();
    for (case, command) in [
        (
            "it happened:",
            format!("resolve {id} --version {version} --happened --response FILE --reason TEXT"),
        ),
        ("it did not:", format!("resolve {id} --version {version} --did-not-happen --reason TEXT")),
        ("ask again:", format!("dead retry {id} --version {version} --reason TEXT")),
    ] {
        let _ = writeln!(text, "{case:<12} oncegate {command}");
    }
    text
}

const QUESTION: &str = "Have the machine ask again?";

async fn retry(args: &Retry) -> Result<ExitCode, Trouble> {
    let is_narrowed = args.which.is_narrowed();
    match &args.id {
        Some(_) if is_narrowed => {
            let words = "--scope and --operation are for --all; one record is named by its id";
            Err(Trouble::Wrong(words.to_owned()))
        }
        Some(id) if id.starts_with("job_") => job::retry(&args.acting, id, args.version.as_deref()).await,
        Some(id) => {
            let seen = Seen::new(id, args.version.as_deref());
            act::on_one(&args.acting, &seen, Verb::Retry, act::nothing_more(), QUESTION).await
        }
        None if is_narrowed => retry_all(args).await,
        None => {
            if let Some(effect) = &args.effect {
                return job::retry_all(&args.acting, effect).await;
            }
            let words =
                "--all needs --scope or --operation, or --effect for jobs: say which. Nothing was changed";
            Err(Trouble::Wrong(words.to_owned()))
        }
    }
}

async fn retry_all(args: &Retry) -> Result<ExitCode, Trouble> {
    let mut wish = args.acting.wish(Verb::Retry, None, act::nothing_more())?;
    let source = args.acting.source.open().await?.into_acting().await?;
    let records = all(&source, &args.which).await?;
    if records.is_empty() {
        say(format_args!("no dead letters"));
        say_of_jobs(&source).await?;
        return Ok(ExitCode::SUCCESS);
    }
    say(format_args!("{}", table(&records)));
    if !args.acting.yes {
        let question = format!("Have the machine ask again about these {}?", records.len());
        act::confirm(&question, "Say --yes to go on all the same")?;
    }
    let mut tally = Tally::default();
    for record in &records {
        let id: Option<RecordId> = record["id"].as_str().and_then(|id| id.parse().ok());
        let Some(id) = id else { continue };
        wish["version"] = record["version"].clone();
        tally.count(&id, source.act(Verb::Retry, id, &wish).await)?;
    }
    source.tell_others().await;
    let code = tally.end("asked about", args.acting.json);
    say_of_jobs(&source).await?;
    Ok(code)
}

/// What a scope or a route does not reach.
async fn say_of_jobs(source: &Source) -> Result<(), Trouble> {
    let jobs = source.parked_jobs(None, 1).await?;
    if let Some(effect) = jobs["jobs"][0]["effect"].as_str() {
        say(format_args!(
            "jobs of the outbox wait too, which have no scope and no route: dead retry --all --effect {}",
            one_line(effect)
        ));
    }
    Ok(())
}

async fn all(source: &Source, which: &Which) -> Result<Vec<Value>, Trouble> {
    let (mut records, mut after) = (Vec::new(), None);
    loop {
        let mut page = source.list(&which.asked(500, after), Bodies::Counted).await?;
        if let Value::Array(rows) = page["records"].take() {
            records.extend(rows);
        }
        match page["next"].as_str() {
            Some(next) => after = Some(next.to_owned()),
            None => return Ok(records),
        }
    }
}

#[derive(Default)]
struct Tally {
    done: usize,
    refused: usize,
}

impl Tally {
    /// One more. A refusal is about that one; a failure ends it all.
    fn count(&mut self, id: &dyn Display, done: Result<Value, Trouble>) -> Result<(), Trouble> {
        match done {
            Ok(_) => self.done += 1,
            Err(Trouble::Refused(words) | Trouble::NotFound(words)) => {
                self.refused += 1;
                say(format_args!("{id}: {words}"));
            }
            Err(Trouble::Failed(words) | Trouble::Wrong(words)) => {
                let Self { done, refused } = self;
                let words = format!("{id}: {words}. Before it {done} were done and {refused} refused");
                return Err(Trouble::Failed(words));
            }
        }
        Ok(())
    }

    fn end(&self, what: &str, json: bool) -> ExitCode {
        let Self { done, refused } = self;
        let text = if json {
            format!("{:#}\n", serde_json::json!({ "done": done, "refused": refused }))
        } else {
            format!("{done} are {what} again, {refused} were refused\n")
        };
        let code = print(text.as_bytes());
        if *refused > 0 { ExitCode::from(4) } else { code }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        for (seconds, text) in [
            (0, "0 s"),
            (119, "119 s"),
            (120, "2 min"),
            (7_199, "119 min"),
            (7_200, "2 h"),
            (172_799, "47 h"),
            (172_800, "2 d"),
        ] {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }
}
