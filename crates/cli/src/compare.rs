//! `oncegate compare`: a provider's export beside the records, for a nightly job.
//!
//! In this order: the export is read, then the records; both go through a sorter that keeps them on disk; then they are judged side by
//! side. Memory has a bound whatever the number of lines ([0010](../../../docs/decisions/0010-compare.md)).

mod amount;
mod columns;
mod entry;
mod export;
mod json;
mod judge;
mod lines;
mod records;
mod report;
mod sort;
pub(crate) mod window;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use humantime::Duration;
use oncegate_core::audit::Comparison;
use oncegate_core::fingerprint::Pointer;
use oncegate_core::time::Timestamp;
use oncegate_gateway::{comparison, record};
use serde_json::{Value, json};

use crate::output;
use crate::report_output::{ReportOutput, unfinished};
use crate::source::{Source, Trouble, Where};
use crate::streams::say;
use columns::{Columns, Field, Matching};
use export::Format;
use judge::Kind;
use records::Question;
use report::{Form, Report};
use sort::Sorter;
use window::{When, Window};

/// There are differences.
const DIFFERENT: u8 = 5;

/// Compare a provider's export with the records: charges that no record knows of, and the other way round.
///
/// Changes no record. The run and its differences become an entry of the audit trail, which the
/// gateways' metrics show. A column is a name in the first line of CSV; in JSON lines it is a
/// member's name, or a JSON Pointer that begins with /.
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 all agree; 5 there are differences; 2 the input or the command line is wrong, or rows of the export cannot be \
                  read (the report is then of the others); 1 it could not be finished."
)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Where,
    /// The export; - is stdin
    #[arg(long, value_name = "FILE")]
    provider_export: PathBuf,
    /// What it is; by default as its name ends: .csv, .jsonl, .ndjson
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Compare from then on: 2026-11-16T00:00:00Z, or 24h, so long ago
    #[arg(long, value_name = "TIME")]
    since: When,
    /// And before then: the moment when the export was made [default: now]
    #[arg(long, value_name = "TIME")]
    until: Option<When>,
    /// How far a charge may be from the beginning of its record
    #[arg(long, value_name = "TIME", default_value = "1h")]
    slack: Duration,
    /// The column with the client's key
    #[arg(long, value_name = "COLUMN", default_value = "idempotency_key")]
    key_column: String,
    /// The column with the tenant; without it, keys are looked for in every scope
    #[arg(long, value_name = "COLUMN", conflicts_with_all = ["id_column", "derived_keys"])]
    scope_column: Option<String>,
    /// The column with the record's id (op_…), instead of the key
    #[arg(long, value_name = "COLUMN", conflicts_with_all = ["key_column", "derived_keys"])]
    id_column: Option<String>,
    /// The keys are those that the gateway derives (forward_key = "derived")
    #[arg(long)]
    derived_keys: bool,
    /// The column with the provider's own name for a charge, for the report
    #[arg(long, value_name = "COLUMN")]
    reference_column: Option<String>,
    /// The column with the status; only rows with --status-charged are charges
    #[arg(long, value_name = "COLUMN", requires = "status_charged")]
    status_column: Option<String>,
    /// The status of a charge; may be given several times
    #[arg(long, value_name = "VALUE", requires = "status_column")]
    status_charged: Vec<String>,
    /// The column with the time, RFC 3339 or seconds since 1970; rows of other times are left out
    #[arg(long, value_name = "COLUMN")]
    time_column: Option<String>,
    /// The column with the amount
    #[arg(long, value_name = "COLUMN", requires = "amount_pointer")]
    amount_column: Option<String>,
    /// Where a stored answer has its amount, as a JSON Pointer: /amount
    #[arg(long, value_name = "POINTER", requires = "amount_column")]
    amount_pointer: Option<Pointer>,
    /// The export's amounts have so many decimal places more: 2 makes 12.50 there equal to 1250 in the answer
    #[arg(long, value_name = "PLACES", default_value_t = 0, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-18..=18))]
    amount_shift: i32,
    /// The column with the currency, compared together with the amount
    #[arg(long, value_name = "COLUMN", requires_all = ["currency_pointer", "amount_column"])]
    currency_column: Option<String>,
    /// Where a stored answer has its currency
    #[arg(long, value_name = "POINTER", requires = "currency_column")]
    currency_pointer: Option<Pointer>,
    /// The export is of this route only, such as 'POST /payments'
    #[arg(long)]
    operation: Option<String>,
    /// The form of the report
    #[arg(long, value_enum, default_value_t = Form::Table)]
    report: Form,
    /// Write the report there, once it is whole, instead of to stdout
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// What this comparison is called in metrics and in the audit trail: one name for each export
    /// that is compared regularly
    #[arg(long, default_value = Comparison::UNNAMED, value_parser = comparison_name)]
    name: String,
    /// Do not record this run: neither metrics nor the audit trail show it
    #[arg(long)]
    no_record: bool,
}

fn comparison_name(name: &str) -> Result<String, String> {
    comparison::check_name(name).map(|()| name.to_owned())
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    match compare(args) {
        Ok(code) => code,
        Err(trouble) => output::trouble(&trouble),
    }
}

fn compare(args: &Args) -> Result<ExitCode, Trouble> {
    let window = args.window()?;
    let format = args.format.map_or_else(|| Format::of(&args.provider_export), Ok)?;
    let mut sorter = Sorter::default();
    let runtime = crate::source::runtime()?;
    // Before millions of lines are read.
    let source = runtime.block_on(args.source.open())?;
    let (export, records) = runtime.block_on(async {
        let export = export::read(&args.provider_export, format, &args.columns(window), &mut sorter)?;
        let records = records::read(&source, &args.question(window), &mut sorter).await?;
        if export.charges > 0 {
            records.check(args.operation.as_deref())?;
        }
        Ok::<_, Trouble>((export, records))
    })?;

    let entries = sorter.entries();
    let merge = sorter.sorted().map_err(|error| spill(&error))?;
    let mut report = Report::new(ReportOutput::open(args.output.as_deref())?, args.report);
    let judged = judge::judge(merge, entries, &mut report).map_err(|error| unfinished(&error))?;
    let read = Read { window, export, records, judged };
    let out = report.end(&read.summary()).map_err(|error| unfinished(&error))?;
    out.close(args.output.as_deref())?;
    read.say();
    if !args.no_record {
        runtime.block_on(recorded(&source, &read.comparison(&args.name)))?;
    }
    Ok(read.code())
}

/// A run that nothing shows would look like one that never was.
async fn recorded(source: &Source, run: &Comparison) -> Result<(), Trouble> {
    let done = source.record_comparison(run).await;
    done.map_err(|trouble| {
        let words = format!("the report is complete, but the run could not be recorded: {trouble}");
        Trouble::Failed(words)
    })
}

impl Args {
    fn window(&self) -> Result<Window, Trouble> {
        let now = window::now();
        let since = self.since.moment(now);
        let until = self.until.map_or(now, |until| until.moment(now));
        if since >= until {
            let words =
                format!("there is nothing between --since {} and --until {}", moment(since), moment(until));
            return Err(Trouble::Wrong(words));
        }
        Ok(Window { since, until, slack: self.slack.into() })
    }

    fn matching(&self) -> Matching {
        match (&self.id_column, self.derived_keys, &self.scope_column) {
            (Some(_), ..) => Matching::Id,
            (None, true, _) => Matching::DerivedKey,
            (None, false, Some(_)) => Matching::KeyInScope,
            (None, false, None) => Matching::Key,
        }
    }

    fn columns(&self, window: Window) -> Columns {
        let mut names = [const { None }; 8];
        for (field, name) in [
            (Field::Key, self.id_column.is_none().then_some(&self.key_column)),
            (Field::Scope, self.scope_column.as_ref()),
            (Field::Id, self.id_column.as_ref()),
            (Field::Reference, self.reference_column.as_ref()),
            (Field::Amount, self.amount_column.as_ref()),
            (Field::Currency, self.currency_column.as_ref()),
            (Field::Status, self.status_column.as_ref()),
            (Field::Time, self.time_column.as_ref()),
        ] {
            names[field as usize] = name.cloned();
        }
        Columns {
            matching: self.matching(),
            names,
            charged: self.status_charged.clone(),
            amount_shift: self.amount_shift,
            window,
        }
    }

    fn question(&self, window: Window) -> Question {
        let path = |pointer: &Pointer| json::Path::parse(pointer.as_str());
        Question {
            matching: self.matching(),
            window,
            operation: self.operation.clone(),
            amount: self.amount_pointer.as_ref().map(path),
            currency: self.currency_pointer.as_ref().map(path),
        }
    }
}

/// All that was read and found.
struct Read {
    window: Window,
    export: export::Tally,
    records: records::Tally,
    judged: judge::Tally,
}

impl Read {
    fn differences(&self) -> u64 {
        self.judged.differences.iter().sum()
    }

    /// What could not be read comes first: it may be what the differences are about.
    fn code(&self) -> ExitCode {
        if self.records.unreadable > 0 {
            ExitCode::FAILURE
        } else if self.export.bad > 0 {
            ExitCode::from(2)
        } else if self.differences() > 0 {
            ExitCode::from(DIFFERENT)
        } else {
            ExitCode::SUCCESS
        }
    }

    /// As it is recorded. Rows of the export that cannot be read may be charges, too.
    fn comparison(&self, name: &str) -> Comparison {
        Comparison {
            name: name.into(),
            charges: self.export.charges,
            records: self.records.records,
            differences: self.differences(),
            unreadable: self.export.bad + self.records.unreadable,
        }
    }

    fn summary(&self) -> Value {
        let Self { window, export, records, judged } = self;
        let kinds = Kind::ALL.iter().zip(judged.differences);
        let kinds: serde_json::Map<_, _> =
            kinds.map(|(kind, count)| (kind.name().to_owned(), count.into())).collect();
        let named = export.named.iter().map(|(line, why)| json!({ "line": line, "reason": why }));
        json!({
            "since": moment(window.since),
            "until": moment(window.until),
            "charges": export.charges,
            "records": records.records,
            "agreed": judged.agreed,
            "differences": kinds,
            "left_out": {
                "no_charges": export.no_charges,
                "outside_the_window": export.outside,
                "of_other_operations": judged.other_operations,
                "past_retention": judged.past_retention,
                "answer_not_kept": judged.not_kept,
            },
            "bad_rows": export.bad,
            "first_bad_rows": named.collect::<Vec<_>>(),
            "unreadable_records": records.unreadable,
        })
    }

    /// The same for people.
    fn say(&self) {
        let Self { window, export, records, judged } = self;
        say(format_args!(
            "compared {} with {}, from {} until {}",
            counted(export.charges, "charge"),
            counted(records.records, "record"),
            moment(window.since),
            moment(window.until)
        ));
        let kinds = Kind::ALL.iter().zip(judged.differences).filter(|(_, count)| *count > 0);
        let kinds: Vec<_> = kinds.map(|(kind, count)| format!("{count} {}", kind.name())).collect();
        match self.differences() {
            0 => say(format_args!("no differences")),
            count => say(format_args!("differences: {count} ({})", kinds.join(", "))),
        }
        for (count, what, why) in [
            (export.no_charges, "row", "no charge, by its status"),
            (export.outside, "row", "of another time"),
            (judged.other_operations, "charge", "of another operation"),
            (judged.past_retention, "charge", "past its record's retention: nobody can tell any more"),
            (judged.not_kept, "amount", "of an answer that was too large to keep"),
        ] {
            if count > 0 {
                say(format_args!("left out: {}, {why}", counted(count, what)));
            }
        }
        if records.unreadable > 0 {
            say(format_args!(
                "error: {} cannot be read: damaged, or of a newer release; the report is of the others",
                counted(records.unreadable, "record")
            ));
        }
        if export.bad > 0 {
            let rows = counted(export.bad, "row");
            say(format_args!("error: {rows} of the export cannot be read; the report is of the others"));
            for (line, why) in &export.named {
                say(format_args!("  line {line}: {}", output::harmless(why)));
            }
            if export.bad > export.named.len() as u64 {
                say(format_args!("  …"));
            }
        }
    }
}

fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn moment(at: Timestamp) -> String {
    record::moment(at).as_str().unwrap_or("–").to_owned()
}

/// What the sorter keeps on disk could not be kept.
fn spill(error: &io::Error) -> Trouble {
    Trouble::Failed(format!(
        "what is compared could not be kept in {}: {error}; set TMPDIR to a folder with room",
        std::env::temp_dir().display()
    ))
}
