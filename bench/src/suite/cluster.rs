//! A PostgreSQL of the run's own, with its data where they can be kept: a cluster with ten million rows is not made twice.
//!
//! Durable as PostgreSQL is by default; sized as a machine that does little else would have it.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use oncegate_test_servers::programs;

use super::meter::Watched;
use super::program::{Program, free_port};
use crate::Outcome;
use crate::postgres::SETTINGS;

const USER: &str = "oncegate";

pub(crate) struct Cluster {
    process: Program,
    directory: PathBuf,
    port: u16,
}

impl Cluster {
    /// Starts the one at this path, made if it is not there.
    pub(crate) fn start(directory: &Path) -> Outcome<Self> {
        let data = directory.join("data");
        if !data.join("PG_VERSION").exists() {
            make(directory, &data)?;
        }
        let port = free_port()?;
        let mut command = program("postgres", directory)?;
        command.arg("-D").arg(&data).args(["-p", &port.to_string(), "-k"]).arg(directory);
        let mut process = Program::start("postgres", directory, &mut command)?;
        let is_ready = |said: &str| said.contains("ready to accept connections").then_some(());
        process.wait_for(is_ready)?;
        Ok(Self { process, directory: directory.to_path_buf(), port })
    }

    pub(crate) fn url(&self, schema: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/postgres?schema={schema}", self.port)
    }

    pub(crate) fn watched(&self) -> Watched {
        Watched { name: "store", pids: vec![self.process.id()], has_children: true }
    }

    /// What a statement prints.
    pub(crate) fn sql(&self, text: &str) -> Outcome<String> {
        let mut psql = program("psql", &self.directory)?;
        psql.arg("-h").arg(&self.directory).args([
            "-p",
            &self.port.to_string(),
            "-U",
            USER,
            "-d",
            "postgres",
        ]);
        let told = psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-c", text]).output()?;
        if !told.status.success() {
            return Err(format!("psql: {}", String::from_utf8_lossy(&told.stderr)).into());
        }
        Ok(String::from_utf8_lossy(&told.stdout).trim().to_owned())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // "Fast": clients are cut off, and the next start has nothing to recover.
        self.process.end_by(rustix::process::Signal::INT);
    }
}

fn make(directory: &Path, data: &Path) -> Outcome {
    fs::create_dir_all(directory)?;
    if let Some((user, group)) = owner()? {
        std::os::unix::fs::chown(directory, Some(user), Some(group))?;
    }
    let mut initdb = program("initdb", directory)?;
    initdb.arg("-D").arg(data).args(["-A", "trust", "-U", USER, "-E", "UTF8", "--locale=C"]);
    let told = initdb.output()?;
    if !told.status.success() {
        return Err(format!("initdb: {}", String::from_utf8_lossy(&told.stderr)).into());
    }
    let mut file = fs::File::options().append(true).open(data.join("postgresql.conf"))?;
    for (name, value) in
        [("listen_addresses", "127.0.0.1"), ("max_connections", "300")].iter().chain(&SETTINGS)
    {
        writeln!(file, "{name} = '{value}'")?;
    }
    Ok(())
}

/// As whoever may run it: PostgreSQL refuses to be root's.
fn program(name: &str, directory: &Path) -> Outcome<Command> {
    let path = programs::postgres(name).ok_or_else(|| format!("there is no {name} on this machine"))?;
    let mut command = Command::new(path);
    command.current_dir(directory).env("LC_ALL", "C");
    if let Some((user, group)) = owner()? {
        command.uid(user).gid(group);
    }
    Ok(command)
}

/// Who runs it instead of root.
fn owner() -> Outcome<Option<(u32, u32)>> {
    if !rustix::process::getuid().is_root() {
        return Ok(None);
    }
    let id = |which: &str| -> Outcome<u32> {
        let told = Command::new("id").args([which, "postgres"]).output()?;
        Ok(String::from_utf8_lossy(&told.stdout).trim().parse().map_err(|_| "there is no user `postgres`")?)
    };
    Ok(Some((id("-u")?, id("-g")?)))
}
