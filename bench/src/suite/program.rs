//! Processes of a run: started, found by what they say, and never left behind.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Outcome;

/// How long one may take until it listens: npm's programs are slow.
const PATIENCE: Duration = Duration::from_mins(1);

/// A running one. Dropped, it is killed.
pub(crate) struct Program {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts it with what it says in `DIRECTORY/NAME.log`.
    pub(crate) fn start(name: &str, directory: &Path, command: &mut Command) -> Outcome<Self> {
        let log = directory.join(format!("{name}.log"));
        let file = File::create(&log)?;
        let child = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn();
        let child = child.map_err(|error| format!("{name} cannot be started: {error}"))?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    /// This program again, in another role.
    pub(crate) fn role(name: &str, directory: &Path, words: &[&str]) -> Outcome<(Self, SocketAddr)> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut program = Self::start(name, directory, command.arg("role").args(words))?;
        let address = program.wait_for(|said| said.lines().next()?.parse().ok())?;
        Ok((program, address))
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until what it has said so far has the looked-for in it.
    pub(crate) fn wait_for<T>(&mut self, find: impl Fn(&str) -> Option<T>) -> Outcome<T> {
        let end = Instant::now() + PATIENCE;
        loop {
            let said = fs::read_to_string(&self.log)?;
            if let Some(found) = find(&said) {
                return Ok(found);
            }
            let has_ended = self.child.try_wait()?.is_some();
            if has_ended || Instant::now() > end {
                let what = if has_ended { "has ended" } else { "does not listen" };
                return Err(format!("{} {what}; it says:\n{said}", self.name).into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until somebody listens there.
    pub(crate) fn wait_until_listening(&mut self, address: SocketAddr) -> Outcome {
        self.wait_for(|_| std::net::TcpStream::connect(address).ok().map(drop))
    }

    /// Asks it to end with a signal, and waits until it has.
    pub(crate) fn end_by(&mut self, signal: rustix::process::Signal) {
        let _gone = rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal);
        let end = Instant::now() + PATIENCE;
        while self.child.try_wait().is_ok_and(|status| status.is_none()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

/// A port that nobody listens on at the moment.
pub(crate) fn free_port() -> Outcome<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
