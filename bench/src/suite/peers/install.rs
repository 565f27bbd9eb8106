//! From the registries, by name, with the ordinary clients; once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Outcome;

const NODE: [&str; 6] = [
    "express@5",
    "express-idempotency@1",
    "@node-idempotency/core@1",
    "@node-idempotency/storage-adapter-redis@1",
    "@restatedev/restate-server-linux-x64@1.7",
    "@restatedev/restate-sdk@1",
];
const PYTHON: [&str; 6] = [
    "idemkit[asgi,redis]==1.0.*",
    "asgi-idempotency-header==0.2.*",
    "fastapi",
    "redis",
    "starlette",
    "uvicorn[standard]",
];

/// The folder with `node_modules`, and with our glue.
pub(super) fn node(directory: &Path) -> Outcome<PathBuf> {
    let folder = directory.join("node");
    fs::create_dir_all(&folder)?;
    if !folder.join("installed").exists() {
        fs::write(folder.join("package.json"), "{\"private\": true}\n")?;
        must(
            Command::new("npm").args(["install", "--no-audit", "--no-fund"]).args(NODE).current_dir(&folder),
        )?;
        fs::write(folder.join("installed"), "")?;
    }
    for (name, text) in [
        ("node-idempotency.cjs", include_str!("../../../peers/node-idempotency.cjs")),
        ("express-idempotency.cjs", include_str!("../../../peers/express-idempotency.cjs")),
        ("restate.cjs", include_str!("../../../peers/restate.cjs")),
    ] {
        fs::write(folder.join(name), text)?;
    }
    Ok(folder)
}

/// The folder with `venv`, and with our glue.
pub(super) fn python(directory: &Path) -> Outcome<PathBuf> {
    let folder = directory.join("python");
    fs::create_dir_all(&folder)?;
    if !folder.join("installed").exists() {
        must(Command::new("python3").args(["-m", "venv", "venv"]).current_dir(&folder))?;
        must(Command::new("venv/bin/pip").args(["install", "--quiet"]).args(PYTHON).current_dir(&folder))?;
        fs::write(folder.join("installed"), "")?;
    }
    fs::write(folder.join("service.py"), include_str!("../../../peers/service.py"))?;
    Ok(folder)
}

/// The program, built by `cargo install`.
pub(super) fn proxy(directory: &Path) -> Outcome<PathBuf> {
    let root = directory.join("cargo");
    let program = root.join("bin/idempotent-proxy-server");
    if !program.exists() {
        let mut cargo = Command::new("cargo");
        cargo
            .args(["install", "idempotent-proxy-server", "--version", "1.2.2", "--locked", "--root"])
            .arg(&root);
        // Not into the workspace's target, and not by its settings.
        must(cargo.current_dir(directory).env("CARGO_TARGET_DIR", directory.join("cargo-target")))?;
    }
    Ok(program)
}

fn must(command: &mut Command) -> Outcome {
    eprintln!("  $ {command:?}");
    let told = command.stdin(Stdio::null()).output()?;
    if told.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&told.stderr);
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(format!("it could not be installed: {last}").into())
}
