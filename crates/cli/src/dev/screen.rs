//! What the show looks like: a trace for people, coloured on a terminal, and a memory of what came out wrong.

use std::io::{IsTerminal, Write};

pub(super) struct Screen {
    is_coloured: bool,
    steps: usize,
    wrong: usize,
}

impl Screen {
    pub(super) fn new() -> Self {
        let is_coloured = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self { is_coloured, steps: 0, wrong: 0 }
    }

    pub(super) fn title(&self, title: &str, subtitle: &str) {
        line(&format!("{}\n{subtitle}", self.painted("1", title)));
    }

    pub(super) fn step(&mut self, title: &str) {
        self.steps += 1;
        line(&format!("\n{}", self.painted("1;36", &format!("{}. {title}", self.steps))));
    }

    /// What somebody saw, and what they should have.
    pub(super) fn saw(&mut self, who: &str, seen: &str, expected: &str) {
        self.check(seen == expected, &format!("{who:<34} {seen}"), expected);
    }

    /// What there is to say, and not to check.
    pub(super) fn note(&self, words: &str) {
        line(&format!("     {}", self.painted("2", words)));
    }

    /// The provider's count, and what it should be.
    pub(super) fn charged(&mut self, charges: u64, expected: u64) {
        let shown = format!("{:<34} {charges}", "the provider's charges so far");
        self.check(charges == expected, &shown, &expected.to_string());
    }

    pub(super) fn end(&self) {
        let words = match self.wrong {
            0 => self.painted("1;32", "Every step came out right: no key was charged twice."),
            wrong => self.painted("1;31", &format!("{wrong} observations came out wrong.")),
        };
        line(&format!("\n{words}"));
    }

    pub(super) const fn all_came_out_right(&self) -> bool {
        self.wrong == 0
    }

    fn check(&mut self, is_right: bool, shown: &str, expected: &str) {
        if is_right {
            line(&format!("   {} {shown}", self.painted("32", "✓")));
        } else {
            self.wrong += 1;
            line(&format!("   {} {shown}   (expected: {expected})", self.painted("31", "✗")));
        }
    }

    fn painted(&self, code: &str, text: &str) -> String {
        if self.is_coloured { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// A reader that went away is no reason to fail.
pub(super) fn line(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
