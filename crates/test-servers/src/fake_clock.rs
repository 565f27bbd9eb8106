//! A wall clock that a test can set while programs run by it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use tempfile::TempDir;

use crate::place;

/// The wall clock of the programs that it is given to, by libfaketime. Their monotonic clocks stay true, as on a
/// host whose clock is set. Clones are the same clock.
///
/// Not for Redis: its allocator asks for the time before the library is ready, and it never starts.
#[derive(Clone, Debug)]
pub struct FakeClock {
    directory: Arc<TempDir>,
    library: String,
}

impl FakeClock {
    /// A clock that shows the true time.
    #[must_use]
    pub fn new() -> Self {
        // The program `faketime` only tells where its library is: it would stand between us and a child.
        let mut faketime = Command::new("faketime");
        let told = faketime.args(["-m", "-f", "+0", "printenv", "LD_PRELOAD"]).output();
        let told = told.unwrap_or_else(|error| panic!("the Debian package `faketime` is missing: {error}"));
        assert!(told.status.success(), "faketime: {}", String::from_utf8_lossy(&told.stderr));
        let library = String::from_utf8_lossy(&told.stdout).trim().to_owned();
        let directory = place::directory("clock-", None);
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))
            .expect("a server that runs as another user may read the clock");
        let clock = Self { directory: Arc::new(directory), library };
        clock.set_offset_s(0);
        clock
    }

    /// Sets the clock so many seconds before or after the true time. Programs see it within a second.
    pub fn set_offset_s(&self, seconds: i64) {
        // Replaced whole, so that a program never reads half of it.
        let next = self.directory.path().join("next");
        fs::write(&next, format!("{seconds:+}\n")).expect("the clock's file can be written");
        fs::rename(next, self.file()).expect("the clock's file can be replaced");
    }

    /// Makes the program run by this clock.
    pub fn give_to(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", &self.library)
            .env("FAKETIME_TIMESTAMP_FILE", self.file())
            .env("FAKETIME_CACHE_DURATION", "1")
            .env("FAKETIME_DONT_RESET", "1")
            .env("DONT_FAKE_MONOTONIC", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("offset")
    }
}

impl Default for FakeClock {
    fn default() -> Self {
        Self::new()
    }
}
