//! What a server has for itself: a directory, a port, a user.
//!
//! A port is locked for as long as its server lives, also while the server is down, so that no other test of this run takes
//! it. It lies below the ports that the kernel gives to outgoing connections: one of those may sit on it otherwise.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use rustix::process::{Pid, getuid};
use tempfile::TempDir;

use crate::wait::wait_until;
use crate::{postgres, process};

/// Names the directory under which all servers keep their data; without it, the system's temporary directory.
pub const DIRECTORY: &str = "ONCEGATE_TEST_DIR";

static CHOSEN: OnceLock<PathBuf> = OnceLock::new();

/// Makes this the directory of this process, whatever [`DIRECTORY`] says: for whoever starts a test run. Works once.
pub fn choose_directory(path: &Path) {
    CHOSEN.set(path.to_path_buf()).expect("the directory is chosen once");
}

/// The directory of a test run, if there is one.
pub(crate) fn of_this_run() -> Option<PathBuf> {
    let named = || std::env::var_os(DIRECTORY).filter(|value| !value.is_empty()).map(PathBuf::from);
    CHOSEN.get().cloned().or_else(named)
}

/// An empty directory, which its owner may use and which is gone when dropped.
pub(crate) fn directory(prefix: &str, owner: Option<Owner>) -> TempDir {
    let root = of_this_run().unwrap_or_else(std::env::temp_dir);
    let made = tempfile::Builder::new().prefix(prefix).tempdir_in(&root);
    let made = made.unwrap_or_else(|error| panic!("no directory can be made in {}: {error}", root.display()));
    if let Some(owner) = owner {
        owner.give(made.path());
    }
    made
}

/// Ends the servers whose tests were killed before they could: each that left a `*.pid` in a directory of this one.
///
/// Only what still works in its own directory is ended, so that a pid which the system has given away is spared.
pub fn end_leftovers(root: &Path) {
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let files =
        entries(root).filter(|path| path.is_dir()).flat_map(|path| entries(&path).collect::<Vec<_>>());
    for file in files.filter(|path| path.extension().is_some_and(|extension| extension == "pid")) {
        let Some(own) = file.parent() else { continue };
        let pid = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            let works_in = fs::read_link(format!("/proc/{}/cwd", pid.as_raw_nonzero())).unwrap_or_default();
            if works_in.starts_with(own) {
                process::kill_family(pid);
            }
        }
        postgres::free_memory(&own.join("data"));
    }
}

/// A user other than ourselves. PostgreSQL and PgBouncer refuse to run as root, so root runs them as `postgres`.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    uid: u32,
    gid: u32,
}

impl Owner {
    /// The user whom PostgreSQL runs as; none if we are not root, and it runs as us.
    pub(crate) fn of_postgres() -> Option<Self> {
        getuid().is_root().then(|| Self { uid: Self::id("-u"), gid: Self::id("-g") })
    }

    fn id(which: &str) -> u32 {
        let told = Command::new("id").args([which, "postgres"]).output().expect("`id` runs");
        let told = String::from_utf8_lossy(&told.stdout).trim().parse();
        told.expect("PostgreSQL does not run as root, and there is no user `postgres` to run it as")
    }

    pub(crate) fn give(self, path: &Path) {
        std::os::unix::fs::chown(path, Some(self.uid), Some(self.gid))
            .unwrap_or_else(|error| panic!("{} cannot be given to `postgres`: {error}", path.display()));
    }
}

/// A command that runs in a directory, as that directory's owner, without the surroundings' PostgreSQL settings.
pub(crate) fn command(program: &Path, directory: &Path, owner: Option<Owner>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PG")) {
        command.env_remove(name);
    }
    // Messages are read by `is_about_the_port`, so they must be in one language.
    command.current_dir(directory).env("LC_ALL", "C").stdin(std::process::Stdio::null());
    if let Some(Owner { uid, gid }) = owner {
        command.uid(uid).gid(gid);
    }
    command
}

/// A port of 127.0.0.1 that no other test of this run uses.
pub(crate) struct Port {
    number: u16,
    _lock: File,
}

/// Below them are the well-known ones, above them the kernel's own.
const FIRST: u16 = 10_000;
const COUNT: u16 = 22_000;

impl Port {
    pub(crate) fn free() -> Self {
        let locks = of_this_run().map_or_else(
            || std::env::temp_dir().join(format!("oncegate-ports-{}", getuid().as_raw())),
            |run| run.join("ports"),
        );
        fs::create_dir_all(&locks).expect("a directory for the ports' locks can be made");
        // Tests that start together must not try the same ports in the same order.
        let nanos = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.subsec_nanos());
        let seed = nanos.wrapping_add(std::process::id().wrapping_mul(7919));
        let start = u16::try_from(seed % u32::from(COUNT)).unwrap_or(0);
        (0..COUNT)
            .map(|n| FIRST + (start + n) % COUNT)
            .find_map(|number| Self::lock(&locks, number))
            .expect("a port of 127.0.0.1 is free")
    }

    fn lock(locks: &Path, number: u16) -> Option<Self> {
        let lock = File::create(locks.join(format!("{number}.lock"))).ok()?;
        lock.try_lock().ok()?;
        let port = Self { number, _lock: lock };
        port.is_free().then_some(port)
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn is_free(&self) -> bool {
        TcpListener::bind((Ipv4Addr::LOCALHOST, self.number)).is_ok()
    }

    /// Waits until a killed server's listener is gone.
    pub(crate) fn wait_until_free(&self) {
        wait_until(&format!("port {} is free again", self.number), || self.is_free());
    }
}

/// Whether a log says that a server did not start because somebody else has its port.
pub(crate) fn is_about_the_port(log: &str) -> bool {
    log.to_ascii_lowercase().contains("address already in use")
}

/// `host:port` of a URL.
pub(crate) fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split(['/', '?']).next().unwrap_or(rest);
    rest.rsplit_once('@').map_or(rest, |(_, host)| host)
}
