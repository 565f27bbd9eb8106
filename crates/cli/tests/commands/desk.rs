//! An operator's desk: a folder with a store in it, and the commands.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use oncegate::Store as _;
use oncegate_core::record::Record;
use oncegate_store::{Outcome, Write};
use tempfile::TempDir;

/// Whatever is secret in these tests has this in it, and nothing that is shown may.
pub(crate) const SECRET: &str = "hunter2";

/// A folder, in which commands run: names in what they say are the same on every machine.
pub(crate) struct Desk {
    folder: TempDir,
}

impl Desk {
    /// With nothing on it.
    pub(crate) fn empty() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// With these records in `oncegate.db`, the last of them the newest.
    pub(crate) fn with(records: Vec<Record>) -> Self {
        let desk = Self::empty();
        let url = format!("sqlite://{}", desk.path().join("oncegate.db").display());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = oncegate::open(&url).await.unwrap();
            for record in records {
                let applied = store.apply(&[Write::insert(Arc::new(record))]).await.unwrap();
                assert_eq!(applied, [Outcome::Applied]);
            }
        });
        desk
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A command, with no variables but those that are given to it here.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
        command.env_clear().current_dir(self.path()).args(words(line)).stdin(Stdio::null());
        command
    }

    /// What is seen of a command.
    #[track_caller]
    pub(crate) fn run(&self, line: &str) -> String {
        seen(&self.command(line).output().unwrap())
    }

    /// The same of one that looks into the store that is here.
    #[track_caller]
    pub(crate) fn ask(&self, line: &str) -> String {
        self.run(&format!("{line} --store sqlite://oncegate.db"))
    }
}

/// Words of a command line; one in quotes may have spaces.
fn words(line: &str) -> Vec<&str> {
    line.split('\'')
        .enumerate()
        .flat_map(|(n, part)| if n % 2 == 0 { part.split_whitespace().collect() } else { vec![part] })
        .collect()
}

/// Everything that is seen of it. No secret is, and no colour: nobody here is a terminal.
#[track_caller]
pub(crate) fn seen(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let seen = format!(
        "exit code: {}\n----- stdout\n{}----- stderr\n{}",
        output.status.code().unwrap(),
        text(&output.stdout),
        text(&output.stderr)
    );
    assert!(!seen.contains(SECRET), "a secret is shown:\n{seen}");
    assert!(!seen.contains('\x1b'), "colours without a terminal:\n{seen}");
    seen
}
