//! A server's process: started with its output in a log, signalled, killed with its children, and never left behind.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::{PATIENCE, wait_until};

const MOMENT: Duration = Duration::from_secs(5);

/// A running server. Dropped, it is killed with its children.
pub(crate) struct Process {
    name: &'static str,
    child: Child,
    log: PathBuf,
    /// Where in the log this process begins; a server that was started again appends.
    log_start: u64,
}

impl Process {
    /// Starts a server that works in `directory`, with its output appended to `NAME.log` and its pid in `NAME.pid`.
    pub(crate) fn start(name: &'static str, directory: &Path, command: &mut Command) -> Self {
        let log = directory.join(format!("{name}.log"));
        let open = File::options().create(true).append(true).open(&log);
        let file = open.unwrap_or_else(|error| panic!("{} cannot be written: {error}", log.display()));
        let log_start = file.metadata().map_or(0, |metadata| metadata.len());
        let copy = file.try_clone().expect("a file handle can be copied");
        let child = command.stdin(Stdio::null()).stdout(file).stderr(copy).spawn();
        let child = child.unwrap_or_else(|error| panic!("{name} cannot be started: {error}"));
        let process = Self { name, child, log, log_start };
        fs::write(directory.join(format!("{name}.pid")), process.child.id().to_string())
            .expect("a pid file can be written");
        process
    }

    /// Waits until the server answers; if it ends instead, the error is what it said.
    pub(crate) fn wait_until_up(&mut self, mut is_up: impl FnMut() -> bool) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        loop {
            if self.child.try_wait().expect("a child can be asked").is_some() {
                return Err(self.said());
            }
            if is_up() {
                return Ok(());
            }
            assert!(
                Instant::now() < end,
                "{} does not answer after {} s; it says:\n{}",
                self.name,
                PATIENCE.as_secs(),
                self.said()
            );
            std::thread::yield_now();
        }
    }

    /// The end of what the server has said since it was started.
    fn said(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let start = usize::try_from(self.log_start).unwrap_or(0).min(log.len());
        let log = String::from_utf8_lossy(&log[start..]).into_owned();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(pid(&self.child), signal)
            .unwrap_or_else(|error| panic!("{} cannot be signalled: {error}", self.name));
    }

    /// Asks the server to end, and gives it a moment. What has not ended then is killed when it is dropped.
    pub(crate) fn end_politely(&mut self, signal: Signal) {
        let _gone = kill_process(pid(&self.child), signal);
        let end = Instant::now() + MOMENT;
        while self.child.try_wait().is_ok_and(|status| status.is_none()) && Instant::now() < end {
            std::thread::yield_now();
        }
    }

    /// Waits until the server has ended by itself, after a signal that asks it to.
    pub(crate) fn wait_until_ended(&mut self) {
        let Self { name, child, .. } = self;
        wait_until(&format!("{name} has ended"), || child.try_wait().is_ok_and(|status| status.is_some()));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            kill_family(pid(&self.child));
        }
        // Reaped, so that its pid may be given away only now.
        let _status = self.child.wait();
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// `kill -9` of a process and its children, over when none of them runs any more.
pub(crate) fn kill_family(parent: Pid) {
    // Stopped first, so that it has no more children while they are counted.
    let _gone = kill_process(parent, Signal::STOP);
    wait_until("a process stands still", || matches!(Stat::of(parent).state, 'T' | 't') || has_ended(parent));
    let family: Vec<_> = children(parent).into_iter().chain([parent]).collect();
    for member in &family {
        let _gone = kill_process(*member, Signal::KILL);
    }
    wait_until("killed processes have ended", || family.iter().all(|member| has_ended(*member)));
}

/// Whether it runs no more, even if nobody has asked for its status yet. A process whose first thread has ended still
/// has its sockets while another thread, of which Redis has several, is on its way out.
fn has_ended(pid: Pid) -> bool {
    let threads = || fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).map_or(0, Iterator::count);
    match Stat::of(pid).state {
        'X' => true,
        'Z' => threads() <= 1,
        _ => false,
    }
}

fn children(parent: Pid) -> Vec<Pid> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw));
    pids.filter(|pid| Stat::of(*pid).parent == Some(parent)).collect()
}

/// What the kernel tells about a process.
struct Stat {
    state: char,
    parent: Option<Pid>,
}

impl Stat {
    /// `X`, dead, for one that is not there.
    fn of(pid: Pid) -> Self {
        let text = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        // `pid (name) state parent …`, and a name may hold anything.
        let mut words = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        let state = words.next().and_then(|word| word.chars().next()).unwrap_or('X');
        Self { state, parent: words.next().and_then(|word| word.parse().ok()).and_then(Pid::from_raw) }
    }
}
