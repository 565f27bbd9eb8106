//! The database's file, apart from SQLite: which one it is, and syncing it.
//!
//! SQLite syncs the file only when a checkpoint has reached the end of the log. So a thread's passes leave all they wrote to
//! the kernel, and the writer's last step would wait for all of it; synced after each pass, little is left to wait for.
//!
//! **Invariant:** a descriptor that is opened here is never closed while the process lives. POSIX drops *all* locks of a
//! process on a file when *any* of its descriptors of it is closed; without its locks, another process that closes the
//! database could take itself for the last one and delete the log. So there is one descriptor a file, shared by all handles,
//! kept for ever.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Which file it is, whatever it is called.
pub(super) type Identity = (u64, u64);

static OPENED: Mutex<BTreeMap<Identity, Arc<File>>> = Mutex::new(BTreeMap::new());

/// Makes durable what was written to the file at `path`. Where a file's identity is not known, it does nothing: that costs
/// time later, not safety.
pub(super) fn sync(path: &Path) -> io::Result<()> {
    let Some(identity) = identity(path)? else { return Ok(()) };
    let file = {
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        match opened.get(&identity) {
            Some(file) => Arc::clone(file),
            None => Arc::clone(opened.entry(identity).or_insert(Arc::new(File::open(path)?))),
        }
    };
    file.sync_data()
}

/// Creates the file at `path`, empty, for its owner only. SQLite gives the log and the index of the
/// log the same mode. A file that is there stays as it is; what is wrong with the path is left for
/// SQLite to say.
#[cfg(unix)]
pub(super) fn create_private(path: &Path) {
    use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let created = File::options().read(true).write(true).create_new(true).mode(0o600).open(path);
    let Ok(file) = created else { return };
    // Not closed: another thread may have opened the database meanwhile, and hold locks on it.
    if let Ok(metadata) = file.metadata() {
        opened.insert((metadata.dev(), metadata.ino()), Arc::new(file));
    }
}

#[cfg(not(unix))]
pub(super) fn create_private(_: &Path) {}

/// What is wrong with the modes of the database's files: they hold requests and responses of
/// customers, and where requests are deferred also their credentials.
#[cfg(unix)]
pub(super) fn mode_warnings(path: &Path) -> Vec<String> {
    use std::os::unix::fs::PermissionsExt as _;
    let with = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        std::path::PathBuf::from(name)
    };
    let wide = ["", "-wal", "-shm"].into_iter().filter_map(|suffix| {
        let path = with(suffix);
        let mode = std::fs::metadata(&path).ok()?.permissions().mode() & 0o777;
        let words = format!(
            "{0} has mode {mode:04o}: other users of this machine can read or change stored requests and \
             responses; run `chmod 600 {0}`",
            path.display()
        );
        (mode & 0o077 != 0).then_some(words)
    });
    wide.collect()
}

#[cfg(not(unix))]
pub(super) fn mode_warnings(_: &Path) -> Vec<String> {
    Vec::new()
}

/// Which file is at `path` now; `None` where that cannot be told.
#[cfg(unix)]
pub(super) fn identity(path: &Path) -> io::Result<Option<Identity>> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path)?;
    Ok(Some((metadata.dev(), metadata.ino())))
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "the same signature on every system")]
pub(super) fn identity(_: &Path) -> io::Result<Option<Identity>> {
    Ok(None)
}
