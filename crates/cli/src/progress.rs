//! How far it is, on a terminal: one line, written anew once a second. Anywhere else nothing.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

const WIDTH: usize = 30;
const PACE: Duration = Duration::from_secs(1);
/// The clock is not looked at for each of millions.
const STRIDE: u64 = 1024;

pub(crate) struct Progress {
    is_shown: bool,
    what: &'static str,
    /// If it is known.
    total: Option<u64>,
    written: Option<Instant>,
    calls: u64,
    /// The clock is looked at once in so many calls.
    stride: u64,
}

impl Progress {
    /// Of `what`, such as "lines of the export".
    pub(crate) fn new(what: &'static str, total: Option<u64>) -> Self {
        Self { is_shown: io::stderr().is_terminal(), what, total, written: None, calls: 0, stride: STRIDE }
    }

    /// The same for work that is told of in parts, each of many.
    pub(crate) fn of_parts(what: &'static str, total: Option<u64>) -> Self {
        Self { stride: 1, ..Self::new(what, total) }
    }

    /// So many are done, which is so much of the total.
    pub(crate) fn tick(&mut self, done: u64, of_total: u64) {
        self.calls += 1;
        if !self.is_shown || !self.calls.is_multiple_of(self.stride) {
            return;
        }
        if self.written.is_none_or(|written| written.elapsed() >= PACE) {
            self.written = Some(Instant::now());
            let _ = write!(io::stderr().lock(), "\r\x1b[K{}", line(self.what, done, of_total, self.total));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.written.is_some() {
            let _ = write!(io::stderr().lock(), "\r\x1b[K");
        }
    }
}

fn line(what: &str, done: u64, of_total: u64, total: Option<u64>) -> String {
    let Some(total) = total.filter(|total| *total > 0) else { return format!("{done} {what}") };
    let part = u128::from(of_total.min(total));
    let percent = part * 100 / u128::from(total);
    let full = usize::try_from(part * WIDTH as u128 / u128::from(total)).unwrap_or(WIDTH);
    format!("[{}{}] {percent:>3} %  {done} {what}", "#".repeat(full), ".".repeat(WIDTH - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar() {
        assert_eq!(line("lines", 5, 0, Some(10)), "[..............................]   0 %  5 lines");
        assert_eq!(line("lines", 5, 5, Some(10)), "[###############...............]  50 %  5 lines");
        assert_eq!(line("lines", 5, 11, Some(10)), "[##############################] 100 %  5 lines");
        assert_eq!(line("lines", 5, 0, Some(0)), "5 lines");
        assert_eq!(line("records", 5, 5, None), "5 records");
    }
}
