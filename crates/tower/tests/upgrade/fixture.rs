//! Saves a database as a fixture, and loads it again.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use oncegate_test_servers::programs;

use crate::base::{OnPostgres, OnSqlite, Remote as _};

/// The schema's name in a dump. Loading replaces it, because tests share a server.
const SCHEMA: &str = "oncegate_fixture";

/// Where fixtures are kept.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/fixtures")
}

/// The folders of all releases that left one, oldest first.
pub(crate) fn releases() -> Vec<PathBuf> {
    let entries = fs::read_dir(folder()).unwrap();
    let mut folders: Vec<_> =
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

pub(crate) trait Fixture: Sized {
    /// The same database, by connections of the present runtime.
    fn reopened(&self) -> impl Future<Output = Self> + Send;

    /// Writes the database into `folder`. Nothing may be using it.
    fn save(&self, folder: &Path) -> impl Future<Output = ()> + Send;

    /// A copy of the database in `folder`.
    fn load(folder: &Path) -> impl Future<Output = Self> + Send;
}

impl Fixture for OnSqlite {
    async fn reopened(&self) -> Self {
        Self::reopened(self).await
    }

    async fn save(&self, folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        self.checkpoint().await;
        fs::copy(self.path(), folder.join("records.db")).unwrap();
    }

    async fn load(folder: &Path) -> Self {
        let copy = tempfile::tempdir().unwrap();
        fs::copy(folder.join("records.db"), copy.path().join("records.db")).unwrap();
        Self::in_folder(copy).await
    }
}

impl Fixture for OnPostgres {
    async fn reopened(&self) -> Self {
        Self::by(self, &self.place.url, 8)
    }

    async fn save(&self, folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        let dump = Command::new(programs::must(programs::postgres("pg_dump"), "postgresql"))
            .args(["--no-owner", "--no-privileges", "--inserts", "--schema", &self.place.schema])
            .arg(format!("--dbname={}", self.place.url))
            .output()
            .unwrap();
        assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
        let text = String::from_utf8(dump.stdout).unwrap().replace(&self.place.schema, SCHEMA);
        // Lines that only psql understands, with a random word in them.
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('\\')).collect();
        fs::write(folder.join("records.sql"), lines.join("\n") + "\n").unwrap();
    }

    async fn load(folder: &Path) -> Self {
        let place = crate::place::Place::shared();
        let text = fs::read_to_string(folder.join("records.sql")).unwrap().replace(SCHEMA, &place.schema);
        let mut psql = Command::new(programs::must(programs::postgres("psql"), "postgresql"))
            .args(["--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--file=-"])
            .arg(format!("--dbname={}", place.url))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        psql.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(psql.wait().unwrap().success(), "the dump in {} loads", folder.display());
        Self::in_place(place)
    }
}
