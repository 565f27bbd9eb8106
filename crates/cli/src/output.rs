//! Tables for people, and colours only on a terminal.

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;

use crate::source::Trouble;
use crate::streams::say;

/// Ends a command that met trouble.
pub(crate) fn trouble(trouble: &Trouble) -> ExitCode {
    say(format_args!("error: {trouble}"));
    ExitCode::from(match trouble {
        Trouble::Failed(_) => 1,
        Trouble::Wrong(_) => 2,
        Trouble::NotFound(_) => 3,
        Trouble::Refused(_) => 4,
    })
}

/// Whether stdout takes colours.
pub(crate) fn is_coloured() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// A state, in its colour: what needs a person is red.
pub(crate) fn state(name: &str) -> String {
    if !is_coloured() {
        return name.to_owned();
    }
    let code = match name {
        "completed" => "32",
        "unknown" | "lapsed" => "31",
        "in_progress" | "pending" => "33",
        _ => "2",
    };
    format!("\x1b[{code}m{name}\x1b[0m")
}

/// Text that others have written, without what a terminal would take for a command.
pub(crate) fn harmless(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() && !matches!(character, '\n' | '\t') {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// The same on one line: who wrote it shall not write the next line too.
pub(crate) fn one_line(text: &str) -> String {
    harmless(text).replace('\n', "\\n").replace('\t', " ")
}

/// At most so many characters.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept: String = text.chars().take(most - 1).collect();
    format!("{kept}…")
}

/// Without what is below a second.
pub(crate) fn second(moment: &str) -> String {
    match moment.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => moment.to_owned(),
    }
}

/// Columns as wide as their widest cell; the last one is not padded. Widths are of what is seen.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let columns = head.len();
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(seen(cell));
        }
    }
    let mut text = String::new();
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    for row in std::iter::once(&head).chain(rows) {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            text.push_str(cell);
            if column + 1 < columns {
                text.push_str(&" ".repeat(width - seen(cell) + 2));
            }
        }
        text.push('\n');
    }
    text
}

/// How many characters are seen: colours are not.
fn seen(cell: &str) -> usize {
    let mut is_code = false;
    let is_seen = |character: &char| {
        match (is_code, character) {
            (false, '\x1b') => is_code = true,
            (true, 'm') => {
                is_code = false;
                return false;
            }
            _ => {}
        }
        !is_code
    };
    cell.chars().filter(is_seen).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_does_not_paint_the_terminal() {
        assert_eq!(harmless("ä\tb\n\x1b[2Jc\u{9b}"), "ä\tb\n\\u{1b}[2Jc\\u{9b}");
    }

    #[test]
    fn what_others_wrote_is_no_line_of_ours() {
        assert_eq!(one_line("a\n09:00:00.000  b\tc\x1b"), "a\\n09:00:00.000  b c\\u{1b}");
    }

    #[test]
    fn colours_do_not_count() {
        let rows = vec![
            vec!["\x1b[32mab\x1b[0m".to_owned(), "x".to_owned()],
            vec!["abcd".to_owned(), "y".to_owned()],
        ];
        assert_eq!(table(&["A", "B"], &rows), "A     B\n\x1b[32mab\x1b[0m    x\nabcd  y\n");
    }
}
