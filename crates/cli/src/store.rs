//! `oncegate store check`: looks for contradictions in what a store keeps.

use std::process::ExitCode;

use oncegate::AnyStore;
use oncegate_store::{CheckedPart, Counts, Problem, Store as _};
use serde_json::{Value, json};

use crate::output::{self, one_line};
use crate::progress::Progress;
use crate::source::{Trouble, not_opened, store_url};
use crate::streams::print;

/// Examine a store.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Check(Check),
}

/// Check a store for contradictions, at rest or while it serves; nothing is changed.
///
/// Every record, outbox job and audit entry must decode, columns must say what their record says,
/// no id may have two rows, and nothing may refer to a row that is not there. SQLite also checks
/// the pages and indexes of the file. Redis and memory have records alone to check.
///
/// Exit code: 0 the store is sound, 1 problems were found or the check failed, 2 the arguments are
/// wrong.
#[derive(clap::Args)]
pub(crate) struct Check {
    /// The store: sqlite://FILE, postgres://…, redis://…, or where its URL stands: env:NAME,
    /// file:PATH
    #[arg(long, env = "ONCEGATE_STORE", value_name = "URL", hide_env_values = true)]
    store: String,
    /// For programs
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(command: &Command) -> ExitCode {
    let Command::Check(args) = command;
    crate::source::block_on(check(args)).unwrap_or_else(|trouble| output::trouble(&trouble))
}

async fn check(args: &Check) -> Result<ExitCode, Trouble> {
    let url = store_url(&args.store)?;
    let store = oncegate::open_existing(url.expose()).await.map_err(|error| not_opened(&error))?;
    let report = Report::of(&store).await?;
    let shown = if args.json { format!("{:#}\n", report.as_json()) } else { report.as_table() };
    let printed = print(shown.as_bytes());
    Ok(if report.problems.is_empty() { printed } else { ExitCode::from(1) })
}

/// What all parts came to.
#[derive(Default)]
struct Report {
    /// Rows that were checked, area by area.
    areas: Vec<(&'static str, u64)>,
    problems: Vec<Problem>,
}

impl Report {
    async fn of(store: &AnyStore) -> Result<Self, Trouble> {
        let failed = |error: oncegate::StoreError| Trouble::Failed(error.to_string());
        let records = total(store.counts().await.map_err(failed)?);
        let mut progress = Progress::of_parts("rows checked", Some(records));
        let mut report = Self::default();
        let (mut after, mut done) = (None, 0);
        loop {
            let part = store.check(after.as_ref()).await.map_err(failed)?;
            done += part.rows;
            progress.tick(done, done.min(records));
            after.clone_from(&part.next);
            report.add(part);
            if after.is_none() {
                return Ok(report);
            }
        }
    }

    fn add(&mut self, part: CheckedPart) {
        match self.areas.last_mut().filter(|(area, _)| *area == part.area) {
            Some((_, rows)) => *rows += part.rows,
            None => self.areas.push((part.area, part.rows)),
        }
        self.problems.extend(part.problems);
    }

    fn as_table(&self) -> String {
        let areas: Vec<_> =
            self.areas.iter().map(|(area, rows)| vec![rows.to_string(), (*area).to_owned()]).collect();
        let areas = output::table(&["CHECKED", "OF"], &areas);
        if self.problems.is_empty() {
            return format!("{areas}\nThe store is sound.\n");
        }
        let problem = |problem: &Problem| {
            vec![problem.kind.name().to_owned(), one_line(&problem.subject), one_line(&problem.detail)]
        };
        let problems: Vec<_> = self.problems.iter().map(problem).collect();
        let problems = output::table(&["PROBLEM", "WHERE", "WHAT IS WRONG"], &problems);
        format!(
            "{areas}\n{problems}\n{} problems. Nothing was changed. Keys of unreadable records are refused; restore a backup \
             if more than single rows are damaged (docs/restore.md)\n",
            self.problems.len()
        )
    }

    fn as_json(&self) -> Value {
        let areas: Vec<_> =
            self.areas.iter().map(|(area, rows)| json!({ "area": area, "rows": rows })).collect();
        let problem = |problem: &Problem| json!({ "kind": problem.kind.name(), "subject": problem.subject, "detail": problem.detail });
        let problems: Vec<_> = self.problems.iter().map(problem).collect();
        json!({ "is_sound": self.problems.is_empty(), "checked": areas, "problems": problems })
    }
}

/// Parked records are among the unknown ones.
fn total(counts: Counts) -> u64 {
    let Counts { pending, in_progress, completed, failed_retryable, unknown, expired, parked: _ } = counts;
    pending + in_progress + completed + failed_retryable + unknown + expired
}
