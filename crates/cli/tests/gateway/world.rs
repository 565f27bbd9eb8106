//! What the tests have in common: a folder with a configuration and a store, and requests.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use oncegate_test_servers::shared;
use tempfile::TempDir;

use crate::client::Call;
use crate::process::Gateway;

/// A folder of a gateway's own: its file, and its records if they are in SQLite.
pub(crate) struct Place {
    folder: TempDir,
    store: String,
}

impl Place {
    /// With a SQLite file.
    pub(crate) fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = format!("sqlite://{}", folder.path().join("records.db").display());
        Self { folder, store }
    }

    /// With a schema of the shared PostgreSQL, which no other test has.
    pub(crate) fn postgres() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let schema = format!("gateway_{}_{number}", std::process::id());
        Self {
            folder: tempfile::tempdir().unwrap(),
            store: format!("{}?schema={schema}", shared::postgres_url()),
        }
    }

    /// With keys of the shared Redis, which no other test has.
    pub(crate) fn redis() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().file_name().unwrap().to_string_lossy().replace('.', "");
        Self { store: format!("{}?prefix={prefix}", shared::redis_url()), folder }
    }

    /// Where its records are.
    pub(crate) fn store(&self) -> &str {
        &self.store
    }

    pub(crate) fn records(&self) -> PathBuf {
        self.folder.path().join("records.db")
    }

    /// Until it is dropped, the gateway can read its file, and cannot write.
    pub(crate) fn lock(&self) -> rusqlite::Connection {
        let lock = rusqlite::Connection::open(self.records()).unwrap();
        lock.busy_timeout(Duration::from_mins(1)).unwrap();
        lock.execute_batch("BEGIN IMMEDIATE").unwrap();
        lock
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes the file of a gateway in front of `upstream`: both listeners wherever there is room, the tenant from a header. `more`
    /// is TOML, from `[defaults]` on.
    pub(crate) fn configure(&self, upstream: &str, more: &str) -> PathBuf {
        let text = format!(
            "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n[store]\nurl = \"{}\"\n[scope]\n\
             from = \"header\"\nheader = \"x-tenant\"\ntrusted_peers = [\"127.0.0.1\"]\n[upstream]\nurl = \"{upstream}\"\n{more}",
            self.store
        );
        let path = self.folder.path().join("oncegate.toml");
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A gateway with that file.
    pub(crate) fn start(&self, upstream: &str, more: &str) -> Gateway {
        Gateway::start(&self.configure(upstream, more))
    }
}

/// What a charge says.
pub(crate) const CHARGE: &str = "{\"amount\":100}";

/// A charge under a key, always with the same body.
pub(crate) fn charge(key: &str) -> Call {
    Call::post("/charges").key(key).json(CHARGE)
}

/// The same key for another amount.
pub(crate) fn another_charge(key: &str) -> Call {
    Call::post("/charges").key(key).json("{\"amount\":1}")
}
