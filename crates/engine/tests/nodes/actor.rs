//! Child processes: told what to do line by line, and heard line by line. None outlives its parent.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::clocks::{TRUE, off_by, tidy_up};

const ROLE: &str = "ONCEGATE_TEST_ROLE";
/// A bound on what a test waits for. Reached only by a test that fails.
const PATIENCE: Duration = Duration::from_mins(2);

// ---- the parent's side -----------------------------------------------------------------------------------------------

/// A child process in a role. Killed when dropped.
pub(crate) struct Actor {
    process: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Actor {
    pub(crate) fn start(role: &str, environment: &[(&str, &str)]) -> Self {
        Self::start_at(role, TRUE, environment)
    }

    /// The same on a host whose clock is off.
    pub(crate) fn start_at(role: &str, clock: Option<&str>, environment: &[(&str, &str)]) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .env(ROLE, role)
            .envs(clock.into_iter().flat_map(off_by))
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = process.stdin.take().unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = channel();
        // Always read, so that a child never waits for somebody to listen.
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { process, stdin, lines }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        self.stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    pub(crate) fn hear(&self) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(error) => panic!("the process says nothing any more: {error}"),
        }
    }

    /// The next line, which must begin with `word`; the rest of it.
    pub(crate) fn hear_word(&self, word: &str) -> String {
        let line = self.hear();
        match line.strip_prefix(word) {
            Some(rest) => rest.trim_start().to_owned(),
            None => panic!("said {line:?} where {word:?} was to be heard"),
        }
    }

    /// Tells, and hears the one line that answers.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.hear()
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        tidy_up(self.process.id());
    }
}

// ---- the child's side ------------------------------------------------------------------------------------------------

pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

pub(crate) fn var(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

/// One line to the parent, at once.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // A parent that is gone hears nothing, and ends this process by itself.
    let _ = out.write_all(format!("{line}\n").as_bytes());
    let _ = out.flush();
}

/// What the parent says. When it has gone, however it went, this process ends.
pub(crate) fn orders() -> UnboundedReceiver<String> {
    let (sender, orders) = unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
        std::process::exit(1);
    });
    orders
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}
