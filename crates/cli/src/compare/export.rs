//! Reading the provider's export: each row that is a charge goes to the sorter, whatever cannot be read is counted and named.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use clap::ValueEnum;

use super::columns::{Columns, Field, Meaning, Values};
use super::entry::CHARGE;
use super::lines::{Csv, JsonLines, Row, Stop};

use super::sort::Sorter;
use crate::progress::Progress;
use crate::source::Trouble;

/// So many bad rows are named; the others are counted.
const NAMED: usize = 10;
const READ_BYTES: usize = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Comma-separated, the first line names the columns
    Csv,
    /// One JSON object a line
    Jsonl,
}

impl Format {
    /// By the name's end, where nobody says it.
    pub(crate) fn of(path: &Path) -> Result<Self, Trouble> {
        let end = path.extension().map(|end| end.to_string_lossy().to_ascii_lowercase());
        match end.as_deref() {
            Some("csv") => Ok(Self::Csv),
            Some("jsonl" | "ndjson") => Ok(Self::Jsonl),
            _ => Err(Trouble::Wrong(format!(
                "the name {:?} does not say what the export is: give --format csv or --format jsonl",
                path.display().to_string()
            ))),
        }
    }
}

/// What was read.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) rows: u64,
    pub(crate) charges: u64,
    pub(crate) no_charges: u64,
    pub(crate) outside: u64,
    pub(crate) bad: u64,
    /// The first of them: line and reason.
    pub(crate) named: Vec<(u64, String)>,
}

/// Reads all of it.
pub(crate) fn read(
    path: &Path,
    format: Format,
    columns: &Columns,
    sorter: &mut Sorter,
) -> Result<Tally, Trouble> {
    let (input, total) = open(path)?;
    let passed = Rc::new(Cell::new(0));
    let input = BufReader::with_capacity(READ_BYTES, Counted { input, passed: Rc::clone(&passed) });
    let reading = match format {
        Format::Csv => Csv::new(input, columns).map(|rows| Reading::Csv(Box::new(rows))),
        Format::Jsonl => Ok(Reading::Jsonl(JsonLines::new(input, columns))),
    };
    let mut reading = reading.map_err(|stop| stopped(path, stop))?;
    let mut progress = Progress::new("lines of the export", total);
    let (mut tally, mut values) = (Tally::default(), Values::default());
    loop {
        match reading.next(&mut values).map_err(|stop| stopped(path, stop))? {
            Row::End => break,
            Row::Bad { line, why } => tally.is_bad(line, why),
            Row::Read { line } => match columns.read(line, &values) {
                Err(why) => tally.is_bad(line, why),
                Ok(Meaning::NoCharge) => tally.no_charges += 1,
                Ok(Meaning::Outside) => tally.outside += 1,
                Ok(Meaning::Charge(matched_by, charge)) => {
                    sorter
                        .add(&matched_by, CHARGE, &charge.encode())
                        .map_err(|error| super::spill(&error))?;
                    tally.charges += 1;
                }
            },
        }
        tally.rows += 1;
        progress.tick(tally.rows, passed.get());
    }
    drop(progress);
    never_seen(path, columns, &values, &tally)?;
    Ok(tally)
}

/// A file that is missing is a wrong command line; one that breaks off is not.
fn open(path: &Path) -> Result<(Box<dyn Read>, Option<u64>), Trouble> {
    if path == Path::new("-") {
        return Ok((Box::new(io::stdin().lock()), None));
    }
    let wrong = |words: &dyn std::fmt::Display| {
        Trouble::Wrong(format!("the export {} cannot be read: {words}", path.display()))
    };
    let file = File::open(path).map_err(|error| wrong(&error))?;
    let about = file.metadata().map_err(|error| wrong(&error))?;
    if about.is_dir() {
        return Err(wrong(&"it is a folder"));
    }
    Ok((Box::new(file), about.is_file().then_some(about.len())))
}

/// JSON says of each row what it has: a name that no row has is a mistake, and would make every charge look foreign.
fn never_seen(path: &Path, columns: &Columns, values: &Values, tally: &Tally) -> Result<(), Trouble> {
    if tally.rows == tally.bad {
        return Ok(());
    }
    match columns.named().find(|(field, _)| !values.was_seen(*field)) {
        None => Ok(()),
        Some((field, name)) => Err(Trouble::Wrong(format!(
            "no row of the export {} has {name:?}; {} says otherwise",
            path.display(),
            Field::flag(field)
        ))),
    }
}

fn stopped(path: &Path, stop: Stop) -> Trouble {
    match stop {
        Stop::Wrong(words) => Trouble::Wrong(format!("the export {} is not one: {words}", path.display())),
        Stop::Failed(error) => {
            Trouble::Failed(format!("the export {} could not be read to its end: {error}", path.display()))
        }
    }
}

impl Tally {
    fn is_bad(&mut self, line: u64, why: String) {
        self.bad += 1;
        if self.named.len() < NAMED {
            self.named.push((line, why));
        }
    }
}

enum Reading<R> {
    Csv(Box<Csv<R>>),
    Jsonl(JsonLines<R>),
}

impl<R: io::BufRead> Reading<R> {
    fn next(&mut self, values: &mut Values) -> Result<Row, Stop> {
        match self {
            Self::Csv(rows) => rows.next(values),
            Self::Jsonl(rows) => rows.next(values),
        }
    }
}

/// Counts what passes.
struct Counted {
    input: Box<dyn Read>,
    passed: Rc<Cell<u64>>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.passed.set(self.passed.get() + read as u64);
        Ok(read)
    }
}
