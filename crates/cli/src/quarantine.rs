//! `oncegate quarantine`: after a restore, holds back the keys that may have been lost.

use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use oncegate::{AnyStore, Engine, Store as _};
use oncegate_core::time::Timestamp;
use oncegate_engine::Operator;
use oncegate_gateway::reconcile::Moment;
use oncegate_store::Quarantine;
use serde_json::{Value, json};

use crate::act::login;
use crate::output::{self, one_line};
use crate::source::{Source, Trouble, Where};
use crate::streams::{print, say};

/// Running nodes read the windows every two seconds by default; after this long they have.
const NODES_HAVE_READ: Duration = Duration::from_secs(5);

/// Hold back the keys of a lost window of time until an operator releases them.
///
/// After a backup was restored, keys that were used between the backup and the restore have no
/// record and would run again. While a window is declared, such a key is answered
/// `outcome_unknown` and becomes a dead letter. A key's time is that of its UUID version 7, or of
/// the configured request_time_header; a key without either counts as inside the window.
///
/// A key may have been made before the backup and first executed after it. So subtract the longest
/// time between the making of a key and its last retry from the moment of the backup.
///
/// Needs the store itself (--store): gateways refuse everything after a restore.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    declare: Declare,
}

#[derive(clap::Subcommand)]
enum Command {
    List(List),
    Release(Release),
}

#[derive(clap::Args)]
struct Declare {
    #[command(flatten)]
    source: Where,
    /// When the backup was taken, less the longest time between the making of a key and its last
    /// retry: RFC 3339, or seconds since 1970
    #[arg(long, value_name = "TIME", required = true)]
    since: Option<String>,
    /// When the store was restored [default: now]
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Why; shown by `quarantine list`
    #[arg(long, value_name = "TEXT", default_value = "a backup was restored")]
    reason: String,
    /// Who does it [default: your login name]
    #[arg(long, value_name = "NAME")]
    operator: Option<String>,
    /// For programs
    #[arg(long)]
    json: bool,
}

/// List the windows, also those that were released.
#[derive(clap::Args)]
struct List {
    #[command(flatten)]
    source: Where,
    /// For programs
    #[arg(long)]
    json: bool,
}

/// End a window: settle what it still holds back as "did not happen", so that retries run.
#[derive(clap::Args)]
struct Release {
    /// The window's id, as `quarantine list` prints it
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    source: Where,
    /// Why; kept in each record's audit trail
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Who does it [default: your login name]
    #[arg(long, value_name = "NAME")]
    operator: Option<String>,
    /// For programs
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    let done = crate::source::block_on(async {
        match &args.command {
            None => declare(&args.declare).await,
            Some(Command::List(args)) => list(args).await,
            Some(Command::Release(args)) => release(args).await,
        }
    });
    done.unwrap_or_else(|trouble| output::trouble(&trouble))
}

async fn declare(args: &Declare) -> Result<ExitCode, Trouble> {
    let since = moment("--since", args.since.as_deref().unwrap_or_default())?.earliest();
    let until = args.until.as_deref().map(|text| moment("--until", text)).transpose()?.map(Moment::latest);
    let operator = operator(args.operator.as_deref(), &args.reason)?;
    let engine = open(&args.source).await?;
    let now = engine.now().at;
    let until = until.unwrap_or(now);
    if since > until {
        return Err(Trouble::Wrong(format!(
            "--since {} is after --until {}. Nothing was changed",
            shown(since),
            shown(until)
        )));
    }
    let declared =
        engine.declare_quarantine(since, until, &operator).await.map_err(|error| failed(&error))?;
    let _ = engine.leave().await;
    if args.json {
        return Ok(print(format!("{:#}\n", as_json(&declared)).as_bytes()));
    }
    let code = print(
        format!(
            "{} holds back keys without a record from {} to {}, released keys, accepted work, and work in \
             progress that would run again\n",
            declared.id,
            shown(since),
            shown(until)
        )
        .as_bytes(),
    );
    say(format_args!(
        "a key without a record whose time is before {} runs, also if it was first executed after the backup: if \
         clients may still retry such keys, declare an earlier window too",
        shown(since)
    ));
    say(format_args!(
        "nodes that start now apply it at once, running nodes within a few seconds; send them traffic only \
         after that. Held-back keys are in `oncegate dead list`. When you are done: oncegate quarantine \
         release {} --reason TEXT",
        declared.id
    ));
    Ok(code)
}

async fn list(args: &List) -> Result<ExitCode, Trouble> {
    let Source::Store(store) = args.source.open().await? else { return Err(only_stores()) };
    let all = store.quarantines().await.map_err(|error| failed(&error))?;
    if args.json {
        let all: Vec<_> = all.iter().map(as_json).collect();
        return Ok(print(format!("{:#}\n", json!({ "quarantines": all })).as_bytes()));
    }
    if all.is_empty() {
        say(format_args!("no quarantines"));
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<_> = all
        .iter()
        .map(|one| {
            let state =
                one.released_at.map_or_else(|| "active".to_owned(), |at| format!("released {}", shown(at)));
            vec![one.id.to_string(), shown(one.since), shown(one.until), state, one_line(&one.reason)]
        })
        .collect();
    Ok(print(output::table(&["ID", "SINCE", "UNTIL", "STATE", "REASON"], &rows).as_bytes()))
}

async fn release(args: &Release) -> Result<ExitCode, Trouble> {
    let operator = operator(args.operator.as_deref(), &args.reason)?;
    let engine = open(&args.source).await?;
    let all = engine.store().quarantines().await.map_err(|error| failed(&error))?;
    if !all.iter().any(|one| *one.id == *args.id) {
        let words = format!("there is no quarantine {}; `oncegate quarantine list` shows them", args.id);
        return Err(Trouble::NotFound(words));
    }
    let released = engine.release_quarantine(&args.id, &operator).await.map_err(|error| failed(&error))?;
    // Until they have read that it is released, nodes may hold back more.
    let mut keys = released.keys;
    if released.was_active {
        tokio::time::sleep(NODES_HAVE_READ).await;
        let late = engine.release_quarantine(&args.id, &operator).await.map_err(|error| failed(&error))?;
        keys += late.keys;
    }
    let _ = engine.told(Duration::from_secs(5)).await;
    let _ = engine.leave().await;
    if args.json {
        let done = json!({ "id": args.id, "was_active": released.was_active, "keys": keys });
        return Ok(print(format!("{done:#}\n").as_bytes()));
    }
    let before = if released.was_active { "is released" } else { "was released before" };
    Ok(print(format!("{} {before}; keys that may run now: {keys}\n", args.id).as_bytes()))
}

/// A node of this command over the store. A running gateway may be the one that must be
/// restarted.
async fn open(source: &Where) -> Result<Engine<AnyStore>, Trouble> {
    match source.open().await?.into_acting().await? {
        Source::Engine(engine) => Ok(engine),
        Source::Store(_) | Source::Gateway(_) => Err(only_stores()),
    }
}

fn only_stores() -> Trouble {
    let words = "`oncegate quarantine` needs the store, because gateways refuse everything after a restore: pass \
                 --store URL or set ONCEGATE_STORE";
    Trouble::Wrong(words.to_owned())
}

fn operator(name: Option<&str>, reason: &str) -> Result<Operator, Trouble> {
    let unnamed =
        || Trouble::Wrong("no login name is set (LOGNAME, USER): say who acts with --operator".to_owned());
    let name = name.map(str::to_owned).or_else(login).ok_or_else(unnamed)?;
    Ok(Operator { name: name.into(), reason: reason.into() })
}

fn moment(flag: &str, text: &str) -> Result<Moment, Trouble> {
    Moment::read(text).ok_or_else(|| {
        let expected = "expected RFC 3339 such as 2026-11-16T09:30:00Z, or seconds since 1970";
        Trouble::Wrong(format!("{flag} {text:?} is not a time: {expected}. Nothing was changed"))
    })
}

fn as_json(one: &Quarantine) -> Value {
    json!({
        "id": &*one.id,
        "since": shown(one.since),
        "until": shown(one.until),
        "declared_at": shown(one.declared_at),
        "released_at": one.released_at.map(shown),
        "reason": &*one.reason,
    })
}

/// To the second.
fn shown(at: Timestamp) -> String {
    let seconds = u64::try_from(at.as_micros() / 1_000_000).unwrap_or_default();
    match UNIX_EPOCH.checked_add(Duration::from_secs(seconds)) {
        Some(time) if seconds < 253_402_300_800 => humantime::format_rfc3339_seconds(time).to_string(),
        _ => seconds.to_string(),
    }
}

fn failed(error: &oncegate_store::StoreError) -> Trouble {
    Trouble::Failed(error.to_string())
}
