//! Differences as a table, as JSON or as CSV, each written when it is found: a report is never in memory.

use std::fmt::Write as _;
use std::io::{self, Write};

use clap::ValueEnum;
use serde_json::{Value, json};

use super::judge::{Difference, Kind, Tell};
use crate::output;

/// So many rows of a table have their columns aligned together.
const BLOCK: usize = 1000;
const HEAD: [&str; 9] =
    ["DIFFERENCE", "KEY", "SCOPE", "RECORD", "STATE", "CHARGED", "RECORDED", "REFERENCES", "DETAIL"];
const CSV_HEAD: &str =
    "kind,key,scope,record,state,answer_status,created_at,recorded,charges,charged,references,lines,detail";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// For people
    Table,
    /// One object: the differences, and a summary
    Json,
    /// A line a difference
    Csv,
}

/// A report on its way.
pub(crate) struct Report<W> {
    out: W,
    form: Form,
    rows: Vec<Vec<String>>,
    written: u64,
}

impl<W: Write> Report<W> {
    pub(crate) const fn new(out: W, form: Form) -> Self {
        Self { out, form, rows: Vec::new(), written: 0 }
    }

    /// After the last difference.
    pub(crate) fn end(mut self, summary: &Value) -> io::Result<W> {
        match self.form {
            Form::Table => self.end_block()?,
            Form::Json if self.written == 0 => {
                writeln!(self.out, "{{\"differences\": [],\n\"summary\": {summary}}}")?;
            }
            Form::Json => writeln!(self.out, "\n],\n\"summary\": {summary}}}")?,
            Form::Csv if self.written == 0 => writeln!(self.out, "{CSV_HEAD}")?,
            Form::Csv => {}
        }
        self.out.flush()?;
        Ok(self.out)
    }

    fn end_block(&mut self) -> io::Result<()> {
        if !self.rows.is_empty() {
            self.out.write_all(output::table(&HEAD, &self.rows).as_bytes())?;
            self.rows.clear();
        }
        Ok(())
    }
}

impl<W: Write> Tell for Report<W> {
    fn tell(&mut self, difference: &Difference<'_>) -> io::Result<()> {
        let is_first = self.written == 0;
        self.written += 1;
        match self.form {
            Form::Table => {
                self.rows.push(row(difference));
                if self.rows.len() == BLOCK { self.end_block() } else { Ok(()) }
            }
            Form::Json => {
                let before = if is_first { "{\"differences\": [\n" } else { ",\n" };
                write!(self.out, "{before}{}", object(difference))
            }
            Form::Csv => {
                if is_first {
                    writeln!(self.out, "{CSV_HEAD}")?;
                }
                writeln!(self.out, "{}", line(difference))
            }
        }
    }
}

/// Whose it is: the record's own, or what the export says.
fn key<'a>(difference: &'a Difference<'_>) -> &'a str {
    let of_charge = || difference.charges.first().map(|charge| charge.key.as_str());
    difference.records.first().map(|kept| kept.key.as_str()).or_else(of_charge).unwrap_or_default()
}

fn scope<'a>(difference: &'a Difference<'_>) -> Option<&'a str> {
    let of_charge = || difference.charges.first().map(|charge| charge.scope.as_str());
    match difference.kind {
        // Of which, is the question.
        Kind::Ambiguous => None,
        _ => difference.records.first().map(|kept| kept.scope.as_str()).or_else(of_charge),
    }
    .filter(|scope| !scope.is_empty())
}

fn state(difference: &Difference<'_>) -> String {
    match (difference.kind, difference.records) {
        (Kind::Ambiguous, _) => "ambiguous".to_owned(),
        (_, []) => "absent".to_owned(),
        (_, [kept, ..]) => kept.state.clone(),
    }
}

fn recorded(difference: &Difference<'_>) -> Option<String> {
    use super::entry::Recorded;
    match difference.records {
        [one] => match &one.money {
            Recorded::Found(money) => Some(money.to_string()),
            Recorded::NotAsked | Recorded::NotKept | Recorded::Missing(_) => None,
        },
        _ => None,
    }
}

/// The record that it is about, if it is one.
fn record<'a>(difference: &'a Difference<'_>) -> Option<&'a super::entry::Kept> {
    difference.records.first().filter(|_| difference.kind != Kind::Ambiguous)
}

fn amounts(difference: &Difference<'_>) -> Vec<String> {
    difference.charges.iter().filter_map(|charge| charge.money.as_ref().map(ToString::to_string)).collect()
}

fn row(difference: &Difference<'_>) -> Vec<String> {
    let or_none = |text: &str| if text.is_empty() { "–".to_owned() } else { cell(text) };
    let mut state = state(difference);
    if let Some(status) = record(difference).and_then(|kept| kept.status) {
        let _ = write!(state, " {status}");
    }
    let more = difference.charge_count > difference.charges.len() as u64;
    let more = if more { ", …" } else { "" };
    let charged = match (difference.charge_count, amounts(difference)) {
        (0, _) => "–".to_owned(),
        (count, amounts) if amounts.is_empty() => format!("{count} ×"),
        (count, amounts) => format!("{count} × {}{more}", amounts.join(", ")),
    };
    let named = |charge: &super::entry::Charge| match charge.reference.as_str() {
        "" => format!("line {}", charge.line),
        reference => cell(reference),
    };
    let references: Vec<_> = difference.charges.iter().map(named).collect();
    vec![
        difference.kind.name().to_owned(),
        or_none(key(difference)),
        or_none(scope(difference).unwrap_or_default()),
        record(difference).map_or_else(|| "–".to_owned(), |kept| kept.id.clone()),
        state,
        charged,
        recorded(difference).unwrap_or_else(|| "–".to_owned()),
        or_none(&format!("{}{more}", references.join(", "))),
        or_none(&difference.detail),
    ]
}

/// In one line, and without what a terminal would take for a command.
fn cell(text: &str) -> String {
    output::harmless(text).replace('\n', "\\n").replace('\t', "\\t")
}

fn object(difference: &Difference<'_>) -> Value {
    let charges = difference.charges.iter().map(|charge| {
        json!({
            "line": charge.line,
            "reference": Some(&charge.reference).filter(|reference| !reference.is_empty()),
            "amount": charge.money.as_ref().map(|money| &money.amount),
            "currency": charge.money.as_ref().and_then(|money| money.currency.as_ref()),
        })
    });
    let kept = record(difference);
    let mut shown = json!({
        "kind": difference.kind.name(),
        "key": Some(key(difference)).filter(|key| !key.is_empty()),
        "scope": scope(difference),
        "record": kept.map(|kept| &kept.id),
        "state": state(difference),
        "parked": kept.is_some_and(|kept| kept.is_parked),
        "answer_status": kept.and_then(|kept| kept.status),
        "created_at": kept.map(|kept| &kept.created_at),
        "recorded": recorded(difference),
        "charge_count": difference.charge_count,
        "charges": charges.collect::<Vec<_>>(),
        "detail": Some(&difference.detail).filter(|detail| !detail.is_empty()),
    });
    if difference.kind == Kind::Ambiguous {
        let records = difference.records.iter();
        let records =
            records.map(|kept| json!({ "record": kept.id, "scope": kept.scope, "state": kept.state }));
        shown["records"] = records.collect();
    }
    shown
}

fn line(difference: &Difference<'_>) -> String {
    let kept = record(difference);
    let all = |each: fn(&super::entry::Charge) -> String| {
        difference.charges.iter().map(each).collect::<Vec<_>>().join(" ")
    };
    let fields = [
        difference.kind.name().to_owned(),
        key(difference).to_owned(),
        scope(difference).unwrap_or_default().to_owned(),
        kept.map(|kept| kept.id.clone()).unwrap_or_default(),
        state(difference),
        kept.and_then(|kept| kept.status).map(|status| status.to_string()).unwrap_or_default(),
        kept.map(|kept| kept.created_at.clone()).unwrap_or_default(),
        recorded(difference).unwrap_or_default(),
        difference.charge_count.to_string(),
        amounts(difference).join("; "),
        all(|charge| charge.reference.clone()),
        all(|charge| charge.line.to_string()),
        difference.detail.clone(),
    ];
    fields.map(|field| quoted(&field)).join(",")
}

/// One cell: RFC 4180, and no formula for the spreadsheet that opens the file.
fn quoted(field: &str) -> String {
    let prefix = if is_formula(field) { "'" } else { "" };
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{prefix}{}\"", field.replace('"', "\"\""))
    } else {
        format!("{prefix}{field}")
    }
}

/// Whether a spreadsheet could take the cell for a formula, by the list of OWASP's page on CSV
/// injection. Keys and references come from clients and providers. A negative number is none.
fn is_formula(field: &str) -> bool {
    const BEGINNINGS: [char; 11] = ['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠'];
    field.starts_with(BEGINNINGS) && !field.strip_prefix('-').is_some_and(is_plain_number)
}

fn is_plain_number(text: &str) -> bool {
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    is_digits(whole) && is_digits(fraction)
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn no_cell_is_a_formula_and_numbers_stay_numbers() {
        for (field, cell) in [
            ("=1+2", "'=1+2"),
            ("=HYPERLINK(\"http://evil.test\",\"x\")", "\"'=HYPERLINK(\"\"http://evil.test\"\",\"\"x\"\")\""),
            ("+1", "'+1"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("-cmd|' /C calc'!A0", "'-cmd|' /C calc'!A0"),
            ("-1+2", "'-1+2"),
            ("-", "'-"),
            ("-1.", "'-1."),
            ("-100; -200", "'-100; -200"),
            ("\t=1", "'\t=1"),
            ("\r=1", "\"'\r=1\""),
            ("\n=1", "\"'\n=1\""),
            ("＝1", "'＝1"),
            ("-100", "-100"),
            ("-12.50", "-12.50"),
            ("100", "100"),
            ("a=b", "a=b"),
            ("order-1, two", "\"order-1, two\""),
            ("", ""),
        ] {
            assert_eq!(quoted(field), cell, "{field:?}");
        }
    }
}
