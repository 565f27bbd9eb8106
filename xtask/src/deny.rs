//! Licences, banned crates, sources and known vulnerabilities of all dependencies, by `cargo deny`.

use std::path::PathBuf;
use std::process::Command;

use crate::{Result, cargo, must, root};

/// The version whose configuration `deny.toml` is written for.
const VERSION: &str = "0.20.2";

pub(crate) fn run() -> Result<()> {
    let program = program()?;
    let deny = || {
        let mut command = Command::new(&program);
        command.current_dir(root());
        command
    };
    must(deny().args(["--log-level", "error", "check", "licenses", "bans", "sources"]))?;
    // The database is a git repository, which not every machine can reach.
    let fetched = deny().args(["--log-level", "off", "fetch", "db"]).status();
    if fetched.is_ok_and(|status| status.success()) {
        must(deny().args(["--log-level", "error", "check", "advisories"]))
    } else {
        eprintln!(
            "skipped: the advisory database cannot be fetched from this machine, so known vulnerabilities were not checked"
        );
        Ok(())
    }
}

/// The program, built into `target/tools` if this machine does not have this version.
fn program() -> Result<PathBuf> {
    let tools = root().join("target/tools");
    let own = tools.join("bin/cargo-deny");
    for program in [PathBuf::from("cargo-deny"), own.clone()] {
        if is_wanted(&program) {
            return Ok(program);
        }
    }
    eprintln!("cargo-deny {VERSION} is not installed; building it takes about a minute");
    // A debug build without the git library, which `git` replaces: it runs for two seconds.
    must(
        cargo()
            .args(["install", "cargo-deny", "--version", VERSION, "--locked", "--debug", "--quiet"])
            .args(["--no-default-features", "--root"])
            .arg(&tools)
            .arg("--target-dir")
            .arg(tools.join("build")),
    )?;
    Ok(own)
}

fn is_wanted(program: &PathBuf) -> bool {
    let version = Command::new(program).arg("--version").output();
    version.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).trim().ends_with(VERSION))
}
