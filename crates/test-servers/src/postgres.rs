//! A PostgreSQL cluster of one's own: made, started, killed, started again, copied to a standby, promoted.
//!
//! It keeps PostgreSQL's defaults that matter to durability: `fsync` is on. What a killed server had handed to the kernel
//! survives, as it does in a crash of the process; the loss of a machine's memory is not simulated.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::certificate;
use crate::fake_clock::FakeClock;
use crate::place::{self, Owner, Port, is_about_the_port};
use crate::process::Process;
use crate::programs;

mod cluster;
mod standby;

pub(crate) use cluster::free_memory;
pub use standby::Replication;

/// The superuser, whom everybody on this machine is trusted to be.
const USER: &str = "oncegate";

/// A PostgreSQL server. Dropped, it is stopped and its data are removed.
pub struct Postgres {
    // Before its directory, so that it ends first.
    process: Option<Process>,
    directory: TempDir,
    owner: Option<Owner>,
    port: Port,
    /// Which name a standby has at its primary, and in its logs.
    name: String,
    clock: Option<FakeClock>,
}

impl Postgres {
    /// An empty cluster with these settings, accepting connections.
    #[must_use]
    pub fn start(settings: &[(&str, &str)]) -> Self {
        let mut server = Self::place();
        cluster::make(&server.data(), server.owner);
        server.configure(settings);
        server.first_start();
        server
    }

    /// The same, by a clock that a test can set.
    #[must_use]
    pub fn start_by_clock(settings: &[(&str, &str)], clock: &FakeClock) -> Self {
        let mut server = Self::place();
        server.clock = Some(clock.clone());
        cluster::make(&server.data(), server.owner);
        server.configure(settings);
        server.first_start();
        server
    }

    /// The same with TLS offered, and the path of the certificate authority's certificate that vouches for `127.0.0.1` and
    /// `localhost`. Plain connections are still accepted: `pg_stat_ssl` tells which ones are encrypted.
    #[must_use]
    pub fn start_with_tls(settings: &[(&str, &str)]) -> (Self, PathBuf) {
        let mut server = Self::place();
        cluster::make(&server.data(), server.owner);
        let files = certificate::write(server.directory.path(), server.owner);
        let [certificate, key] = [&files.certificate, &files.key].map(|path| path.display().to_string());
        server.configure(&[("ssl", "on"), ("ssl_cert_file", &certificate), ("ssl_key_file", &key)]);
        server.configure(settings);
        server.first_start();
        (server, files.authority)
    }

    /// Where clients connect to.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/postgres", self.port())
    }

    /// The port on 127.0.0.1; it stays the same when the server is started again.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Runs statements with `psql` and returns what they print, columns separated by `|`.
    #[must_use]
    pub fn sql(&self, text: &str) -> String {
        self.try_sql(text).unwrap_or_else(|error| panic!("psql -c {text:?}: {error}"))
    }

    /// Stops it at once, as `pg_ctl stop -m immediate` does: clients are cut off, and the next start recovers.
    pub fn stop_immediate(&mut self) {
        let mut process = self.process.take().expect("the server runs");
        process.signal(Signal::QUIT);
        process.wait_until_ended();
        self.port.wait_until_free();
    }

    /// `kill -9` of the server and all its children: nobody gets to say goodbye.
    pub fn kill_9(&mut self) {
        drop(self.process.take().expect("the server runs"));
        self.port.wait_until_free();
    }

    /// Starts a stopped or killed server on the same data and port, and waits until it accepts connections.
    pub fn start_again(&mut self) {
        assert!(self.process.is_none(), "the server runs already");
        self.try_start().unwrap_or_else(|said| panic!("PostgreSQL does not start again; it says:\n{said}"));
    }

    fn place() -> Self {
        let owner = Owner::of_postgres();
        let directory = place::directory("postgres-", owner);
        let name = "primary".to_owned();
        Self { process: None, directory, owner, port: Port::free(), name, clock: None }
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Settings go into the file, not onto the command line, so that `ALTER SYSTEM` can change them later.
    fn configure(&self, settings: &[(&str, &str)]) {
        append(&self.data().join("postgresql.conf"), settings);
    }

    /// Another port is tried if somebody has taken this one in the meantime.
    fn first_start(&mut self) {
        for _ in 0..20 {
            match self.try_start() {
                Ok(()) => return,
                Err(said) if is_about_the_port(&said) => self.port = Port::free(),
                Err(said) => panic!("PostgreSQL does not start; it says:\n{said}"),
            }
        }
        panic!("PostgreSQL does not start: each of twenty ports was taken");
    }

    fn try_start(&mut self) -> Result<(), String> {
        let mut command = self.program("postgres");
        let directory = self.directory.path();
        command.arg("-D").arg(self.data()).args(["-p", &self.port().to_string()]);
        // What the place decides, and a standby must not copy.
        command.arg("-k").arg(directory).args(["-c", &format!("cluster_name={}", self.name)]);
        if let Some(clock) = &self.clock {
            clock.give_to(&mut command);
        }
        let mut process = Process::start("postgres", directory, &mut command);
        // Asked through the socket in its own directory: behind the port there might be somebody else.
        process
            .wait_until_up(|| self.client("pg_isready").output().is_ok_and(|told| told.status.success()))?;
        self.process = Some(process);
        Ok(())
    }

    fn try_sql(&self, text: &str) -> Result<String, String> {
        let mut psql = self.client("psql");
        psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-c", text]);
        let told = psql.output().map_err(|error| error.to_string())?;
        if told.status.success() {
            Ok(String::from_utf8_lossy(&told.stdout).trim().to_owned())
        } else {
            Err(String::from_utf8_lossy(&told.stderr).into_owned())
        }
    }

    /// A client program, connecting through the socket in the server's directory.
    fn client(&self, name: &str) -> Command {
        let mut command = self.program(name);
        command.arg("-h").arg(self.directory.path());
        command.args(["-p", &self.port().to_string(), "-U", USER, "-d", "postgres"]);
        command
    }

    fn program(&self, name: &str) -> Command {
        let program = programs::must(programs::postgres(name), "postgresql");
        place::command(&program, self.directory.path(), self.owner)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Asked to stop rather than killed, because a killed server leaves its System V memory behind. No panic here: it
        // would hide the test's own. What does not stop is killed when the process is dropped.
        if let Some(mut process) = self.process.take() {
            process.end_politely(Signal::QUIT);
        }
        free_memory(&self.data());
    }
}

fn append(file: &Path, settings: &[(&str, &str)]) {
    let lines = settings.iter().map(|(name, value)| format!("{name} = '{}'\n", value.replace('\'', "''")));
    let opened = fs::File::options().append(true).open(file);
    opened
        .and_then(|mut opened| opened.write_all(lines.collect::<String>().as_bytes()))
        .unwrap_or_else(|error| panic!("{} cannot be written: {error}", file.display()));
}
