//! The servers of a test run: one PostgreSQL and one Redis that all tests share, and the directory of all others.
//!
//! Whatever a run has started ends with it: also when tests fail, are killed, or are interrupted.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncegate_test_servers::{self as test_servers, Postgres, Redis, shared};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tempfile::TempDir;

use crate::{Result, shown};

/// What runs, and what the tests are told about it. Dropped, it ends, quietly.
pub(crate) struct Servers {
    postgres: Option<Postgres>,
    redis: Option<Redis>,
    /// Variables of the surroundings.
    told: Vec<(&'static str, String)>,
    signals: Signals,
    directory: TempDir,
}

impl Servers {
    /// Starts those that the surroundings do not name.
    pub(crate) fn start() -> Result<Self> {
        let signals = Signals::catch().map_err(|error| format!("signals cannot be caught: {error}"))?;
        let directory = directory().map_err(|error| format!("no directory for the servers: {error}"))?;
        test_servers::choose_directory(directory.path());
        let mut told = vec![(test_servers::DIRECTORY, directory.path().display().to_string())];
        let postgres = is_unset(shared::POSTGRES_URL).then(|| Postgres::start(&[]));
        told.extend(postgres.as_ref().map(|server| (shared::POSTGRES_URL, server.url())));
        let durable = ["--appendonly", "yes", "--appendfsync", "always"];
        let redis = is_unset(shared::REDIS_URL).then(|| Redis::start(&durable));
        told.extend(redis.as_ref().map(|server| (shared::REDIS_URL, server.url())));
        Ok(Self { postgres, redis, told, signals, directory })
    }

    /// Runs a command that is told about the servers, and fails if it does. An interrupted one ends before we do.
    pub(crate) fn must(&self, command: &mut Command) -> Result<()> {
        let shown = shown(command);
        eprintln!("$ {shown}");
        if self.signals.any() {
            return Err("interrupted".to_owned());
        }
        command.envs(self.told.iter().map(|(name, value)| (name, value)));
        let child = command.spawn();
        let mut child = child.map_err(|error| format!("could not start `{shown}`: {error}"))?;
        let mut is_told = false;
        loop {
            let status = child.try_wait().map_err(|error| format!("`{shown}` is lost: {error}"))?;
            match status {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("`{shown}` failed ({status})")),
                None => {}
            }
            if self.signals.ours_alone() && !is_told {
                let _gone = kill_process(Pid::from_child(&child), Signal::TERM);
                is_told = true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        drop(self.postgres.take());
        drop(self.redis.take());
        test_servers::end_leftovers(self.directory.path());
    }
}

/// An unset variable and an empty one are the same.
pub(crate) fn is_unset(variable: &str) -> bool {
    std::env::var_os(variable).is_none_or(|value| value.is_empty())
}

/// PostgreSQL may run as another user, who has to get there.
fn directory() -> io::Result<TempDir> {
    let directory = tempfile::Builder::new().prefix("oncegate-test-").tempdir()?;
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
    Ok(directory)
}

/// What asks us to end. Caught, so that we can end what we have started.
struct Signals {
    /// Ctrl-C goes to the whole group: the tests have it too.
    interrupt: Arc<AtomicBool>,
    /// These go to us alone, and must be passed on.
    terminate: Arc<AtomicBool>,
}

impl Signals {
    fn catch() -> io::Result<Self> {
        let signals = Self { interrupt: Arc::default(), terminate: Arc::default() };
        signal_hook::flag::register(SIGINT, Arc::clone(&signals.interrupt))?;
        for signal in [SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&signals.terminate))?;
        }
        Ok(signals)
    }

    fn any(&self) -> bool {
        self.interrupt.load(Ordering::Relaxed) || self.ours_alone()
    }

    fn ours_alone(&self) -> bool {
        self.terminate.load(Ordering::Relaxed)
    }
}
