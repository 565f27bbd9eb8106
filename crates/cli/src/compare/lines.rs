//! An export's rows, read from lines of JSON or from CSV: one row in memory at a time, and none longer than [`ROW_BYTES_MAX`].

use std::io::{self, BufRead};

use csv_core::ReadRecordResult;

use super::columns::{Columns, Field, Values};
use super::json::{self, Found, Path};

/// The longest row.
pub(crate) const ROW_BYTES_MAX: usize = 1 << 20;
const COLUMNS_MAX: usize = 4096;

/// What was read.
pub(crate) enum Row {
    /// Into the values.
    Read {
        line: u64,
    },
    /// There is a row, and it cannot be read.
    Bad {
        line: u64,
        why: String,
    },
    End,
}

/// Why reading cannot go on, or not begin.
pub(crate) enum Stop {
    Failed(io::Error),
    Wrong(String),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// One JSON object a line.
pub(crate) struct JsonLines<R> {
    input: R,
    line: u64,
    text: Vec<u8>,
    paths: Vec<(Field, Path)>,
}

impl<R: BufRead> JsonLines<R> {
    pub(crate) fn new(input: R, columns: &Columns) -> Self {
        let paths = columns.named().map(|(field, name)| (field, Path::parse(name))).collect();
        Self { input, line: 0, text: Vec::new(), paths }
    }

    pub(crate) fn next(&mut self, values: &mut Values) -> Result<Row, Stop> {
        loop {
            self.line += 1;
            let line = self.line;
            match read_line(&mut self.input, &mut self.text)? {
                Line::End => return Ok(Row::End),
                Line::TooLong => return Ok(Row::Bad { line, why: too_long() }),
                Line::Read => {}
            }
            if line == 1 && self.text.starts_with(BYTE_ORDER_MARK) {
                self.text.drain(..BYTE_ORDER_MARK.len());
            }
            if self.text.trim_ascii().is_empty() {
                continue;
            }
            return Ok(match self.fill(values) {
                Ok(()) => Row::Read { line },
                Err(why) => Row::Bad { line, why },
            });
        }
    }

    fn fill(&self, values: &mut Values) -> Result<(), String> {
        let text = str::from_utf8(&self.text).map_err(|_| "it is not UTF-8".to_owned())?;
        if !text.trim_start().starts_with('{') {
            return Err("it is not a JSON object".to_owned());
        }
        for (field, path) in &self.paths {
            let found =
                json::find(text, path).map_err(|error| format!("it is not JSON: {}", reason(&error)))?;
            match found {
                Found::Nothing => values.is_absent(*field),
                Found::Null => values.is_empty(*field),
                Found::Scalar(value) => values.set(*field, value.trim()),
                Found::Compound => return Err(format!("its {field} is an object or an array")),
            }
        }
        Ok(())
    }
}

/// The line is said already, and there is one.
fn reason(error: &serde_json::Error) -> String {
    let words = error.to_string();
    match words.split_once(" at line ") {
        Some((words, _)) => format!("{words} at column {}", error.column()),
        None => words,
    }
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

enum Line {
    Read,
    TooLong,
    End,
}

/// A line without its end. One that is too long is read to its end, and not kept.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Line> {
    line.clear();
    let mut bytes = 0;
    loop {
        let read = fill(input)?;
        if read.is_empty() {
            return Ok(if bytes == 0 { Line::End } else { size(bytes) });
        }
        let end = read.iter().position(|byte| *byte == b'\n');
        let part = &read[..end.unwrap_or(read.len())];
        let taken = end.map_or(read.len(), |end| end + 1);
        bytes += taken;
        if bytes <= ROW_BYTES_MAX {
            line.extend_from_slice(part);
        }
        input.consume(taken);
        if end.is_some() {
            return Ok(size(bytes));
        }
    }
}

const fn size(bytes: usize) -> Line {
    if bytes > ROW_BYTES_MAX { Line::TooLong } else { Line::Read }
}

fn fill(input: &mut impl BufRead) -> io::Result<&[u8]> {
    // Twice, because what the first one gives cannot be given on from a loop.
    while let Err(error) = input.fill_buf() {
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    input.fill_buf()
}

fn too_long() -> String {
    format!("it is longer than {} KiB", ROW_BYTES_MAX >> 10)
}

/// CSV with a head: RFC 4180, with either end of line.
pub(crate) struct Csv<R> {
    input: R,
    reader: csv_core::Reader,
    text: Vec<u8>,
    ends: Vec<usize>,
    width: usize,
    places: Vec<(Field, usize)>,
    ended: Ended,
}

/// How far the end of the input was told to the reader.
#[derive(PartialEq, Eq)]
enum Ended {
    No,
    /// It was given one more end of line, to see whether a quote is open.
    Closing,
    Yes,
}

enum Record {
    Read { line: u64, fields: usize },
    TooLong { line: u64 },
    OpenQuote { line: u64 },
    End,
}

impl<R: BufRead> Csv<R> {
    /// Reads the head.
    pub(crate) fn new(mut input: R, columns: &Columns) -> Result<Self, Stop> {
        if fill(&mut input)?.starts_with(BYTE_ORDER_MARK) {
            input.consume(BYTE_ORDER_MARK.len());
        }
        let mut csv = Self {
            input,
            reader: csv_core::Reader::new(),
            text: vec![0; ROW_BYTES_MAX],
            ends: vec![0; COLUMNS_MAX],
            width: 0,
            places: Vec::new(),
            ended: Ended::No,
        };
        let fields = match csv.record()? {
            Record::Read { fields, .. } => fields,
            Record::End => {
                return Err(Stop::Wrong("it is empty: there is no line that names the columns".to_owned()));
            }
            Record::TooLong { .. } => return Err(Stop::Wrong(format!("its first line: {}", too_long()))),
            Record::OpenQuote { .. } => {
                return Err(Stop::Wrong("its first line opens a quote that is never closed".to_owned()));
            }
        };
        csv.width = fields;
        let head: Vec<String> =
            (0..fields).map(|place| String::from_utf8_lossy(csv.field(place)).trim().to_owned()).collect();
        for (field, name) in columns.named() {
            csv.places.push((field, place(&head, name)?));
        }
        Ok(csv)
    }

    pub(crate) fn next(&mut self, values: &mut Values) -> Result<Row, Stop> {
        let (line, fields) = match self.record()? {
            Record::Read { line, fields } => (line, fields),
            Record::TooLong { line } => {
                return Ok(Row::Bad { line, why: format!("{}; is a quote left open in it?", too_long()) });
            }
            Record::OpenQuote { line } => {
                let why = "it opens a quote that is never closed; what follows it is not read".to_owned();
                return Ok(Row::Bad { line, why });
            }
            Record::End => return Ok(Row::End),
        };
        if fields != self.width {
            let why = format!("it has {fields} fields, and the first line names {}", self.width);
            return Ok(Row::Bad { line, why });
        }
        for (field, place) in &self.places {
            match str::from_utf8(self.field(*place)) {
                Ok(value) => values.set(*field, value.trim()),
                Err(_) => return Ok(Row::Bad { line, why: format!("its {field} is not UTF-8") }),
            }
        }
        Ok(Row::Read { line })
    }

    fn field(&self, place: usize) -> &[u8] {
        let start = place.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start..self.ends[place]]
    }

    /// The next one, into `text` and `ends`.
    fn record(&mut self) -> io::Result<Record> {
        self.skip_blank()?;
        let line = self.reader.line();
        let (mut text_bytes, mut ends, mut is_too_long) = (0, 0, false);
        loop {
            let read = match self.ended {
                Ended::No => fill(&mut self.input)?,
                Ended::Closing => b"\n",
                Ended::Yes => b"",
            };
            if read.is_empty() && self.ended == Ended::No {
                self.ended = Ended::Closing;
                continue;
            }
            let (result, taken, written, ended) =
                self.reader.read_record(read, &mut self.text[text_bytes..], &mut self.ends[ends..]);
            text_bytes += written;
            ends += ended;
            let is_over = self.ended == Ended::Yes;
            match self.ended {
                Ended::No => self.input.consume(taken),
                Ended::Closing if taken > 0 => self.ended = Ended::Yes,
                Ended::Closing | Ended::Yes => {}
            }
            match result {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => {
                    (is_too_long, text_bytes, ends) = (true, 0, 0);
                }
                ReadRecordResult::Record if is_too_long => return Ok(Record::TooLong { line }),
                // One more end of line had not ended it.
                ReadRecordResult::Record if is_over => return Ok(Record::OpenQuote { line }),
                ReadRecordResult::Record => return Ok(Record::Read { line, fields: ends }),
                ReadRecordResult::End => return Ok(Record::End),
            }
        }
    }

    /// To where a record begins, so that its line is known.
    fn skip_blank(&mut self) -> io::Result<()> {
        while self.ended == Ended::No {
            let read = fill(&mut self.input)?;
            let blank = read.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
            if blank == 0 {
                break;
            }
            let (_, taken, _, _) = self.reader.read_record(&read[..blank], &mut self.text, &mut self.ends);
            self.input.consume(taken);
        }
        Ok(())
    }
}

fn place(head: &[String], name: &str) -> Result<usize, Stop> {
    let mut places = head.iter().enumerate().filter(|(_, column)| *column == name).map(|(place, _)| place);
    match (places.next(), places.next()) {
        (Some(place), None) => Ok(place),
        (Some(_), Some(_)) => Err(Stop::Wrong(format!("two of its columns are called {name:?}"))),
        (None, _) => {
            let known: Vec<_> = head.iter().take(40).map(|column| format!("{column:?}")).collect();
            Err(Stop::Wrong(format!("it has no column {name:?}; it has {}", known.join(", "))))
        }
    }
}
