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
