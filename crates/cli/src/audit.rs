//! `oncegate audit`: the audit trail of all records, by time, scope and operation.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use oncegate_core::audit::Act;
use oncegate_gateway::audit::{AuditFilter, ENTRIES_MAX, act_named};
use oncegate_store::EntryPlace;
use serde_json::Value;

use crate::compare::window::{self, When};
use crate::output::{self, one_line, second, shortened};
use crate::progress::Progress;
use crate::report_output::{ReportOutput, unfinished};
use crate::source::{Source, Trouble, Where};
use crate::streams::{print, say};

/// List or export the audit trail; it outlives the records.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    List(List),
    Export(Export),
}

/// List entries of the audit trail, oldest first.
#[derive(clap::Args)]
struct List {
    #[command(flatten)]
    source: Where,
    /// Entries from this time on: an RFC 3339 time, or an age such as 24h
    #[arg(long, value_name = "TIME", default_value = "24h")]
    since: When,
    #[command(flatten)]
    filter: Filter,
    /// At most this many entries
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
    limit: u16,
    /// Continue after the cursor that an earlier list printed
    #[arg(long, value_name = "CURSOR")]
    after: Option<EntryPlace>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Write all entries of a time as JSON lines, oldest first.
///
/// An entry may be written some seconds after its time. For exports that fit together without a
/// gap, let --until be a minute ago or more, and begin the next one there.
#[derive(clap::Args)]
struct Export {
    #[command(flatten)]
    source: Where,
    /// Entries from this time on: an RFC 3339 time, or an age such as 24h [default: the oldest
    /// entry]
    #[arg(long, value_name = "TIME")]
    since: Option<When>,
    #[command(flatten)]
    filter: Filter,
    /// Write to this file, which appears only when it is complete, instead of to stdout
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Which entries.
#[derive(clap::Args)]
struct Filter {
    /// Entries before this time [default: now]
    #[arg(long, value_name = "TIME")]
    until: Option<When>,
    /// Only this scope, or all scopes of this tenant
    #[arg(long)]
    scope: Option<String>,
    /// Only this route pattern, such as 'POST /payments'
    #[arg(long)]
    operation: Option<String>,
    /// Only this act, such as `ran_after_expiry`
    #[arg(long, value_name = "ACT", value_parser = act_named)]
    act: Option<Act>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    let done = crate::source::block_on(async {
        match &args.command {
            Command::List(args) => list(args).await,
            Command::Export(args) => export(args).await,
        }
    });
    match done {
        Ok(code) => code,
        Err(trouble) => output::trouble(&trouble),
    }
}

impl Filter {
    fn checked(&self, since: Option<When>) -> Result<AuditFilter, Trouble> {
        let now = window::now();
        let since = since.map(|since| since.moment(now));
        // Fixed now, so that an export ends however much is added meanwhile.
        let until = self.until.map_or(now, |until| until.moment(now));
        if since.is_some_and(|since| since >= until) {
            return Err(Trouble::Wrong("there is nothing between --since and --until".to_owned()));
        }
        Ok(AuditFilter {
            since,
            until: Some(until),
            scope: self.scope.clone(),
            operation: self.operation.clone(),
            act: self.act,
        })
    }
}

async fn list(args: &List) -> Result<ExitCode, Trouble> {
    let filter = args.filter.checked(Some(args.since))?;
    let source = args.source.open().await?;
    let limit = usize::from(args.limit);
    let (mut entries, mut left_out, mut after) = (Vec::new(), LeftOut::default(), args.after);
    // A page may have fewer than there are: what the filter leaves out is read, too.
    while entries.len() < limit {
        let page = source.audit(&filter, after, limit - entries.len()).await?;
        let page = Page::read(page)?;
        entries.extend(page.entries);
        left_out.add(&page.left_out);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if args.json {
        let next = after.map(|after| after.to_string());
        let LeftOut { unreadable, without_scope } = left_out;
        let shown = serde_json::json!({
            "entries": entries, "unreadable": unreadable, "without_scope": without_scope, "next": next,
        });
        return Ok(print(format!("{shown:#}\n").as_bytes()));
    }
    if entries.is_empty() {
        say(format_args!("no matching entries"));
    }
    let rows: Vec<_> = entries.iter().map(row).collect();
    let code = if rows.is_empty() {
        ExitCode::SUCCESS
    } else {
        print(output::table(&["TIME", "ACT", "ID", "OPERATION", "SCOPE", "WHAT"], &rows).as_bytes())
    };
    left_out.say();
    if let Some(after) = after {
        say(format_args!("there are more: --after {after}"));
    }
    Ok(code)
}

fn row(entry: &Value) -> Vec<String> {
    let text = |name: &str| one_line(entry[name].as_str().unwrap_or("–"));
    vec![
        second(&text("at")),
        text("act"),
        text("id"),
        shortened(&text("operation"), 40),
        shortened(&text("scope"), 28),
        text("words"),
    ]
}

/// One page is held at a time, however many there are.
async fn export(args: &Export) -> Result<ExitCode, Trouble> {
    let filter = args.filter.checked(args.since)?;
    let source = args.source.open().await?;
    let mut out = ReportOutput::open(args.output.as_deref())?;
    let written = export_to(&mut out, &source, &filter).await?;
    out.flush().map_err(|error| unfinished(&error))?;
    out.close(args.output.as_deref())?;
    written.left_out.say();
    say(format_args!("exported {} entries", written.entries));
    // A reader of an archived trail must know that some of it is missing.
    Ok(if written.left_out.unreadable > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

#[derive(Default)]
struct Written {
    entries: u64,
    left_out: LeftOut,
}

async fn export_to(
    out: &mut ReportOutput,
    source: &Source,
    filter: &AuditFilter,
) -> Result<Written, Trouble> {
    let mut progress = Progress::new("entries", None);
    let (mut written, mut after) = (Written::default(), None);
    loop {
        let page = Page::read(source.audit(filter, after, ENTRIES_MAX).await?)?;
        for entry in &page.entries {
            write_line(out, entry).map_err(|error| unfinished(&error))?;
            written.entries += 1;
            progress.tick(written.entries, 0);
        }
        written.left_out.add(&page.left_out);
        after = page.next;
        if after.is_none() || !out.is_read() {
            return Ok(written);
        }
    }
}

fn write_line(out: &mut ReportOutput, entry: &Value) -> io::Result<()> {
    serde_json::to_writer(&mut *out, entry)?;
    out.write_all(b"\n")
}

/// A page as the admin interface gives it.
struct Page {
    entries: Vec<Value>,
    left_out: LeftOut,
    next: Option<EntryPlace>,
}

impl Page {
    fn read(mut page: Value) -> Result<Self, Trouble> {
        let odd = || Trouble::Failed("the gateway's answer is no page of the audit trail".to_owned());
        let Value::Array(entries) = page["entries"].take() else { return Err(odd()) };
        let next = page["next"].as_str().map(str::parse).transpose().map_err(|_| odd())?;
        let count = |name: &str| page[name].as_u64().unwrap_or_default();
        let left_out = LeftOut { unreadable: count("unreadable"), without_scope: count("without_scope") };
        Ok(Self { entries, left_out, next })
    }
}

/// Entries that are not shown.
#[derive(Default)]
struct LeftOut {
    unreadable: u64,
    without_scope: u64,
}

impl LeftOut {
    fn add(&mut self, more: &Self) {
        self.unreadable += more.unreadable;
        self.without_scope += more.without_scope;
    }

    fn say(&self) {
        if self.unreadable > 0 {
            say(format_args!(
                "{} entries could not be read: damaged, or written by a newer release",
                self.unreadable
            ));
        }
        if self.without_scope > 0 {
            say(format_args!(
                "left out: {} entries of an earlier release, whose records are gone, so that their scope and operation are unknown",
                self.without_scope
            ));
        }
    }
}
