//! Data directories. `initdb` takes a while, so a test run does it once and copies the result.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use super::USER;
use crate::place::{self, Owner, command};
use crate::programs;

/// What every cluster has, unless its test says otherwise.
const SETTINGS: &[(&str, &str)] = &[
    ("listen_addresses", "127.0.0.1"),
    ("fsync", "on"),
    ("shared_buffers", "64MB"),
    ("max_connections", "300"),
    ("wal_level", "replica"),
    ("max_wal_senders", "4"),
    ("log_destination", "stderr"),
    ("logging_collector", "off"),
];

/// Makes an empty cluster at `data`.
pub(super) fn make(data: &Path, owner: Option<Owner>) {
    let Some(run) = place::of_this_run() else { return initialise(data, owner) };
    let template = run.join("template");
    // Tests are processes of their own, and start together.
    let lock = File::create(run.join("template.lock")).expect("the template's lock can be made");
    lock.lock().expect("the template can be locked");
    if !template.exists() {
        let unfinished = place::directory("template-", owner);
        initialise(&unfinished.path().join("data"), owner);
        fs::rename(unfinished.path().join("data"), &template).expect("the template can be named");
    }
    drop(lock);
    let directory = data.parent().unwrap_or(data);
    run_to_end(
        command(Path::new("cp"), directory, owner).args(["-a", "--reflink=auto"]).arg(&template).arg(data),
    );
}

fn initialise(data: &Path, owner: Option<Owner>) {
    let program = programs::must(programs::postgres("initdb"), "postgresql");
    let mut initdb = command(&program, data.parent().unwrap_or(data), owner);
    initdb.arg("-D").arg(data).args(["--no-sync", "-A", "trust", "-U", USER, "-E", "UTF8", "--locale=C"]);
    run_to_end(&mut initdb);
    super::append(&data.join("postgresql.conf"), SETTINGS);
}

/// Runs a command that must succeed.
pub(super) fn run_to_end(command: &mut Command) {
    let told = command.output().unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    let said = String::from_utf8_lossy(&told.stderr);
    assert!(told.status.success(), "{command:?} failed ({}); it says:\n{said}", told.status);
}

/// Frees the System V memory of a server that was killed and not started again. The kernel would keep it for ever.
pub(crate) fn free_memory(data: &Path) {
    // The seventh line is `key id`. A server that stopped by itself has removed the file.
    let file = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
    let id = file.lines().nth(6).and_then(|line| line.split_whitespace().nth(1));
    if let Some(id) = id {
        let _freed = Command::new("ipcrm").args(["-m", id]).output();
    }
}
