//! stdout is data, stderr is talk. A reader of either that has enough and leaves is no error.

use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// Writes data to stdout, and gives the exit code.
pub(crate) fn print(data: &[u8]) -> ExitCode {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(data).and_then(|()| stdout.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        // `oncegate check | head -1`: the reader has what it wanted.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("error: cannot write to stdout: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Writes a line to stderr, if anybody reads it; `eprintln!` would panic if not.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
