//! Where a report goes that may be long: stdout, or a file that appears once it is whole.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use tempfile::NamedTempFile;

use crate::source::Trouble;

/// Where a report goes.
pub(crate) enum ReportOutput {
    Stdout {
        is_read: bool,
        buffer: Box<BufWriter<io::Stdout>>,
    },
    /// Renamed when it is whole: a job that reads it never sees half of one.
    File(Box<BufWriter<NamedTempFile>>),
}

impl ReportOutput {
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, Trouble> {
        let Some(path) = path else {
            return Ok(Self::Stdout { is_read: true, buffer: Box::new(BufWriter::new(io::stdout())) });
        };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match NamedTempFile::new_in(folder) {
            Ok(file) => Ok(Self::File(Box::new(BufWriter::new(file)))),
            // The kind alone: the error itself names a temporary file.
            Err(error) => Err(Trouble::Wrong(format!(
                "--output {}: cannot create a file in {}: {}",
                path.display(),
                folder.display(),
                error.kind()
            ))),
        }
    }

    /// Whether anybody still reads it.
    pub(crate) fn is_read(&self) -> bool {
        !matches!(self, Self::Stdout { is_read: false, .. })
    }

    pub(crate) fn close(self, path: Option<&Path>) -> Result<(), Trouble> {
        let (Self::File(file), Some(path)) = (self, path) else { return Ok(()) };
        let file = file.into_inner().map_err(|error| unfinished(error.error()))?;
        match file.persist(path) {
            Ok(File { .. }) => Ok(()),
            Err(error) => Err(Trouble::Failed(format!(
                "--output {} cannot be written: {}",
                path.display(),
                error.error
            ))),
        }
    }
}

impl Write for ReportOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout { is_read: false, .. } => Ok(bytes.len()),
            Self::Stdout { is_read, buffer } => has_enough(is_read, bytes.len(), buffer.write(bytes)),
            Self::File(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout { is_read: false, .. } => Ok(()),
            Self::Stdout { is_read, buffer } => has_enough(is_read, (), buffer.flush()),
            Self::File(file) => file.flush(),
        }
    }
}

/// `oncegate compare … | head -1`: a reader that leaves is no error, and what was found is still
/// counted.
fn has_enough<T>(is_read: &mut bool, all: T, written: io::Result<T>) -> io::Result<T> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            *is_read = false;
            Ok(all)
        }
        written => written,
    }
}

pub(crate) fn unfinished(error: &io::Error) -> Trouble {
    Trouble::Failed(format!("the report could not be finished: {error}"))
}
