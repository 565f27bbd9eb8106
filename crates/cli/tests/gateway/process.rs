//! The gateway's process: started, heard, signalled, and never left behind.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use oncegate_test_servers::wait_until;
use rustix::process::{Pid, Signal, kill_process};

/// A gateway that listens. Killed with SIGKILL when dropped.
pub(crate) struct Gateway {
    running: Running,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Gateway {
    /// `oncegate serve` with this file.
    pub(crate) fn start(config: &Path) -> Self {
        Self::of(serve().arg("--config").arg(config))
    }

    /// Any command that becomes a gateway.
    pub(crate) fn of(command: &mut Command) -> Self {
        let mut running = Running::start(command);
        let mut line = None;
        wait_until("the gateway listens", || {
            line = running.line_with("oncegate listens on");
            line.is_some() || running.has_ended()
        });
        let Some(line) = line else { panic!("the gateway ended at once:\n{}", running.said()) };
        let addresses: Vec<SocketAddr> = line
            .split_whitespace()
            .filter_map(|word| word.trim_end_matches(',').split_once("://")?.1.parse().ok())
            .collect();
        // Between the two stands the upstream's.
        let (Some(address), Some(admin)) = (addresses.first(), addresses.last()) else {
            panic!("no addresses in {line:?}")
        };
        Self { running, address: *address, admin: *admin }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.running.child.id()
    }

    /// `kill -9`, over when the process is gone.
    pub(crate) fn kill_9(self) {
        drop(self);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.running.signal(signal);
    }

    /// SIGTERM, and its exit code when it has ended.
    pub(crate) fn terminate(&mut self) -> i32 {
        self.signal(Signal::TERM);
        self.exit_code()
    }

    /// Waits until it has ended by itself.
    pub(crate) fn exit_code(&mut self) -> i32 {
        self.running.exit_code()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.running.has_ended()
    }

    /// All it has said so far.
    pub(crate) fn said(&self) -> String {
        self.running.said()
    }

    /// Waits until it has said this.
    pub(crate) fn hear(&self, words: &str) {
        wait_until(&format!("the gateway says {words:?}"), || self.said().contains(words));
    }
}

/// `oncegate serve`, whatever the surroundings say.
pub(crate) fn serve() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"ONCEGATE_"))
    {
        command.env_remove(name);
    }
    command.arg("serve");
    command
}

/// A process whose stderr is heard. Killed when dropped.
pub(crate) struct Running {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let heard = Arc::clone(&lines);
        // Always read, so that it never waits for somebody to listen.
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                heard.lock().unwrap().push(line);
            }
        });
        Self { child, lines }
    }

    pub(crate) fn said(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    fn line_with(&self, words: &str) -> Option<String> {
        self.lines.lock().unwrap().iter().find(|line| line.contains(words)).cloned()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until it has ended by itself, and all it said has been heard.
    pub(crate) fn exit_code(&mut self) -> i32 {
        wait_until("the process ends", || self.has_ended());
        self.hear_out();
        let status = self.child.wait().unwrap();
        status.code().unwrap_or_else(|| panic!("ended by a signal: {status}\n{}", self.said()))
    }
}

impl Running {
    /// `kill -9`; and all that it has ever said.
    pub(crate) fn kill_9(mut self) -> String {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.hear_out();
        self.said()
    }

    /// Until the last word of one that has ended: then the thread that listens has ended too.
    fn hear_out(&self) {
        wait_until("its last words are heard", || Arc::strong_count(&self.lines) == 1);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("---- process {} said:\n{}", self.child.id(), self.said());
        }
    }
}
