//! A Prometheus of one's own: scrapes one target, evaluates one file of rules; and `promtool`, which checks such files.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::place::{self, Port, is_about_the_port};
use crate::process::Process;
use crate::programs;

const PACKAGE: &str = "prometheus";

/// What it watches.
#[derive(Clone, Copy, Debug)]
pub struct Watching<'a> {
    /// Whose `/metrics` it scrapes.
    pub target: SocketAddr,
    /// The text of a file of rules.
    pub rules: &'a str,
    /// How often it scrapes and evaluates.
    pub every: Duration,
    /// For how long the last sample of a series counts.
    pub lookback: Duration,
}

/// A Prometheus. Dropped, it is killed and its data are removed.
pub struct Prometheus {
    // Before its directory, so that it ends first.
    process: Option<Process>,
    directory: TempDir,
    port: Port,
    lookback: Duration,
}

impl Prometheus {
    /// An empty one, which begins to watch.
    #[must_use]
    pub fn start(watching: Watching<'_>) -> Self {
        let directory = place::directory("prometheus-", None);
        let write = |name: &str, text: &str| {
            fs::write(directory.path().join(name), text).expect("Prometheus' files can be written");
        };
        write("prometheus.yml", &configuration(&watching));
        write("watched.rules.yml", watching.rules);
        let mut server = Self { process: None, directory, port: Port::free(), lookback: watching.lookback };
        for _ in 0..20 {
            match server.try_start() {
                Ok(()) => return server,
                Err(said) if is_about_the_port(&said) => server.port = Port::free(),
                Err(said) => panic!("Prometheus does not start; it says:\n{said}"),
            }
        }
        panic!("Prometheus does not start: each of twenty ports was taken");
    }

    /// The body of an answer of its HTTP API: `/api/v1/alerts`, say.
    #[must_use]
    pub fn get(&self, path: &str) -> String {
        self.try_get(path).unwrap_or_else(|error| panic!("Prometheus does not answer {path}: {error}"))
    }

    /// HTTP/1.0, so that the answer ends with the connection.
    fn try_get(&self, path: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port.number()))?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned())
    }

    fn try_start(&mut self) -> Result<(), String> {
        let program = programs::must(programs::find("prometheus"), PACKAGE);
        let directory = self.directory.path();
        let mut command = place::command(&program, directory, None);
        let flag = |name: &str, value: &str| format!("--{name}={value}");
        command.args([
            flag("config.file", "prometheus.yml"),
            flag("storage.tsdb.path", &directory.join("data").display().to_string()),
            flag("web.listen-address", &format!("127.0.0.1:{}", self.port.number())),
            flag("query.lookback-delta", &format!("{}ms", self.lookback.as_millis())),
            flag("log.level", "warn"),
        ]);
        let mut process = Process::start(PACKAGE, directory, &mut command);
        let own = directory.display().to_string();
        // Asked who it is: behind the port there might be somebody else.
        process.wait_until_up(|| {
            self.try_get("/-/ready").is_ok_and(|said| said.contains("Ready"))
                && self.try_get("/api/v1/status/flags").is_ok_and(|flags| flags.contains(&own))
        })?;
        self.process = Some(process);
        Ok(())
    }
}

fn configuration(watching: &Watching<'_>) -> String {
    let (every, target) = (watching.every.as_millis(), watching.target);
    format!(
        "global:\n  scrape_interval: {every}ms\n  scrape_timeout: {every}ms\n  evaluation_interval: {every}ms\n\
         rule_files: [watched.rules.yml]\n\
         scrape_configs:\n  - job_name: oncegate\n    static_configs:\n      - targets: [\"{target}\"]\n"
    )
}

/// Checks a file of rules; the error is what is wrong with it.
pub fn check_rules(rules: &Path) -> Result<(), String> {
    promtool(&["check", "rules"], rules)
}

/// Runs a file of unit tests of rules; the error is what failed.
pub fn test_rules(tests: &Path) -> Result<(), String> {
    promtool(&["test", "rules"], tests)
}

fn promtool(words: &[&str], file: &Path) -> Result<(), String> {
    let program = programs::must(programs::find("promtool"), PACKAGE);
    let told = Command::new(program).args(words).arg(file).output().expect("promtool runs");
    let said = [told.stdout, told.stderr].concat();
    if told.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&said).into_owned()) }
}
