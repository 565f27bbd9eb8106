//! A Redis server of one's own, without a configuration file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::certificate::Certificate;
use crate::place::{self, Port, is_about_the_port};
use crate::process::Process;
use crate::programs;
use crate::wait::wait_until;

/// A Redis server. Dropped, it is killed and its data are removed.
pub struct Redis {
    // Before its directory, so that it ends first.
    process: Option<Process>,
    directory: TempDir,
    port: Port,
    /// The port for TLS, and what the server shows there.
    tls: Option<(Port, Certificate)>,
    options: Vec<String>,
}

impl Redis {
    /// An empty server with these options, `&["--appendonly", "yes"]` say. Without any, it keeps nothing on disk.
    #[must_use]
    pub fn start(options: &[&str]) -> Self {
        Self::start_on(place::directory("redis-", None), options, None)
    }

    /// An empty server that speaks TLS on a second port, with a certificate for `localhost` and
    /// `127.0.0.1`.
    #[must_use]
    pub fn start_with_tls() -> Self {
        let directory = place::directory("redis-", None);
        let certificate = Certificate::new(directory.path());
        Self::start_on(directory, &[], Some((Port::free(), certificate)))
    }

    fn start_on(directory: TempDir, options: &[&str], tls: Option<(Port, Certificate)>) -> Self {
        let options = options.iter().map(|&option| option.to_owned()).collect();
        let mut server = Self { process: None, directory, port: Port::free(), tls, options };
        for _ in 0..20 {
            match server.try_start() {
                Ok(()) => return server,
                Err(said) if is_about_the_port(&said) => {
                    server.port = Port::free();
                    if let Some((port, _)) = &mut server.tls {
                        *port = Port::free();
                    }
                }
                Err(said) => panic!("Redis does not start; it says:\n{said}"),
            }
        }
        panic!("Redis does not start: each of twenty ports was taken");
    }

    /// A replica of another, in step with it when it is returned.
    #[must_use]
    pub fn replica_of(primary: &Self) -> Self {
        let replica = Self::start(&["--replicaof", "127.0.0.1", &primary.port().to_string()]);
        wait_until("the replica is in step with its primary", || {
            replica.command(&["INFO", "replication"]).contains("master_link_status:up")
        });
        replica
    }

    /// Where clients connect to.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port())
    }

    /// The port for TLS on 127.0.0.1, and the certificate that is shown there.
    #[must_use]
    pub fn tls(&self) -> (u16, &Certificate) {
        let (port, certificate) = self.tls.as_ref().expect("the server was started with TLS");
        (port.number(), certificate)
    }

    /// The port on 127.0.0.1; it stays the same when the server is started again.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The process's id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.running().id()
    }

    /// Runs a command with `redis-cli` and returns what it prints.
    #[must_use]
    pub fn command(&self, words: &[&str]) -> String {
        let told = self.client(words).output().expect("redis-cli runs");
        let said = String::from_utf8_lossy(&told.stdout).trim().to_owned();
        assert!(told.status.success(), "redis-cli {words:?} failed; it says: {said}");
        said
    }

    /// `kill -9`, its children included.
    pub fn kill_9(&mut self) {
        drop(self.process.take().expect("the server runs"));
        self.port.wait_until_free();
    }

    /// Starts a killed server on the same data and port, and waits until it has loaded them.
    pub fn start_again(&mut self) {
        assert!(self.process.is_none(), "the server runs already");
        self.try_start().unwrap_or_else(|said| panic!("Redis does not start again; it says:\n{said}"));
    }

    /// Keeps a copy of what is on disk, in place of the last one. The server must run with `--appendonly yes`.
    pub fn back_up(&self) {
        let _none_yet = fs::remove_dir_all(self.backup());
        copy(&self.files(), &self.backup());
    }

    /// Kills the server and starts it again with the files of the backup.
    pub fn restore(&mut self) {
        self.kill_9();
        fs::remove_dir_all(self.files()).expect("the server's files can be removed");
        copy(&self.backup(), &self.files());
        self.start_again();
    }

    fn files(&self) -> PathBuf {
        self.directory.path().join("appendonlydir")
    }

    fn backup(&self) -> PathBuf {
        self.directory.path().join("backup")
    }

    /// Stops it where it stands: connections stay open, and nothing is answered.
    pub fn pause(&self) {
        self.running().signal(Signal::STOP);
    }

    /// Lets a paused server go on.
    pub fn resume(&self) {
        self.running().signal(Signal::CONT);
    }

    fn running(&self) -> &Process {
        self.process.as_ref().expect("the server runs")
    }

    fn try_start(&mut self) -> Result<(), String> {
        let program = programs::must(programs::find("redis-server"), "redis-server");
        let directory = self.directory.path();
        let mut command = place::command(&program, directory, None);
        command.args(["--port", &self.port().to_string(), "--bind", "127.0.0.1", "--dir"]).arg(directory);
        // A replica is served at once, not after the five seconds in which others might join.
        command.args(["--save", "", "--repl-diskless-sync-delay", "0"]).args(&self.options);
        if let Some((port, certificate)) = &self.tls {
            command.args(["--tls-port", &port.number().to_string(), "--tls-auth-clients", "no"]);
            command.arg("--tls-cert-file").arg(&certificate.certificate);
            command.arg("--tls-key-file").arg(&certificate.key);
            command.arg("--tls-ca-cert-file").arg(&certificate.authority);
        }
        let mut process = Process::start("redis", directory, &mut command);
        let id = format!("process_id:{}", process.id());
        // Asked who it is: behind the port there might be somebody else.
        process.wait_until_up(|| {
            let told = self.client(&["INFO"]).output().expect("redis-cli runs");
            let told = String::from_utf8_lossy(&told.stdout);
            let says = |line: &str| told.lines().any(|told| told.trim_end() == line);
            says(&id) && says("loading:0")
        })?;
        self.process = Some(process);
        Ok(())
    }

    fn client(&self, words: &[&str]) -> Command {
        let program = programs::must(programs::find("redis-cli"), "redis-tools");
        let mut command = place::command(&program, self.directory.path(), None);
        command.args(["-h", "127.0.0.1", "-p", &self.port().to_string()]).args(words);
        command
    }
}

/// Copies a folder of plain files.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("a folder for the copy");
    for entry in fs::read_dir(from).expect("the server keeps files, with `--appendonly yes`").flatten() {
        fs::copy(entry.path(), to.join(entry.file_name())).expect("a file can be copied");
    }
}
