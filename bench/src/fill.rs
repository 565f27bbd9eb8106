//! Files of a given age: filled by the same traffic that is measured, only without durability.
//!
//! Keys arrive in random order and rows grow when they are settled, so pages are as full as they would be
//! after months of service. A bulk load in key order, or a `VACUUM`, would flatter every layout.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::Outcome;
use crate::bare::{Bare, Durability};
use crate::layouts::Layout;
use crate::options::Options;
use crate::rows::RowMaker;
use crate::traffic::{self, Load};

/// Rows per transaction while filling.
const FILL_BATCH: usize = 8192;
const FILL_SEED: u64 = 1;

/// The path of a file that holds `options.rows` completed rows; made if it is missing.
pub(crate) fn filled(options: &Options, layout: Layout) -> Outcome<PathBuf> {
    let path = options.dir.join(format!("{}-{}.db", layout.name, options.rows));
    if path.exists() {
        warm(&path)?;
        return Ok(path);
    }
    // Under another name until it is complete: an interrupted fill must not be taken for a file.
    let part = empty(options, layout, "part")?;
    let mut bare = Bare::open(&part, layout, Durability::Off)?;
    let load = Load { batch: FILL_BATCH, requests: options.rows };
    traffic::run(&mut bare, &mut RowMaker::new(FILL_SEED), load)?;
    drop(bare);
    fs::rename(part, &path)?;
    Ok(path)
}

/// Reads the file once. Whether the page cache still holds it is luck, and worth more than most layouts.
fn warm(path: &Path) -> Outcome {
    std::io::copy(&mut fs::File::open(path)?, &mut std::io::sink())?;
    Ok(())
}

/// A copy of the filled file that nobody else writes to: two connections would disturb each other's caches.
pub(crate) fn filled_copy(options: &Options, layout: Layout, suffix: &str) -> Outcome<PathBuf> {
    let source = filled(options, layout)?;
    let target = empty(options, layout, suffix)?;
    fs::copy(source, &target)?;
    Ok(target)
}

/// A path at which no file exists any more.
pub(crate) fn empty(options: &Options, layout: Layout, suffix: &str) -> Outcome<PathBuf> {
    let path = options.dir.join(format!("{}-{suffix}.db", layout.name));
    remove(&path)?;
    Ok(path)
}

/// Removes a database and its side files, if they are there.
pub(crate) fn remove(path: &Path) -> Outcome {
    ["", "-wal", "-shm"].iter().try_for_each(|ending| remove_if_there(&with_ending(path, ending)))
}

/// `path` with something appended, as SQLite names its side files.
pub(crate) fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn remove_if_there(path: &Path) -> Outcome {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Rows for one more turn on a file that may have been measured before, in this process or an earlier one.
/// They carry today's time: rows older than the newest would land in the middle of the due index.
pub(crate) fn fresh_rows() -> RowMaker {
    let now = now();
    RowMaker::starting_at(seed(now), i64::try_from(now.as_micros()).unwrap_or_default())
}

/// The same of long ago: their leases have lapsed, and their answers have expired.
pub(crate) fn old_rows() -> RowMaker {
    RowMaker::new(seed(now()))
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The low bits differ from call to call, and that is all a seed needs.
fn seed(now: Duration) -> u64 {
    u64::from(now.subsec_nanos()) | now.as_secs() << 32
}
