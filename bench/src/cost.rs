//! What a turn consumed: CPU time and bytes handed to the kernel.
//!
//! On a shared machine the clock measures the neighbours too; these two do not. They come from procfs,
//! so they are Linux only, which is where decisions are measured.

use std::fs;

use crate::Outcome;
use crate::traffic::Sample;

/// The counters of this process at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Meter {
    cpu_ns: u64,
    machine_ns: u64,
    written_bytes: u64,
}

/// One turn: how fast it went, and what each request took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) requests_per_s: f64,
    pub(crate) cpu_us: f64,
    /// Of all that ran on the machine meanwhile: a server's processes and the kernel's are in it.
    #[cfg_attr(not(feature = "atomic"), expect(dead_code, reason = "told where a server does the work"))]
    pub(crate) machine_us: f64,
    pub(crate) written_kib: f64,
    /// Where commits are counted; 0 elsewhere.
    pub(crate) commits_per_write: f64,
}

impl Meter {
    /// Reads the counters; all threads together.
    pub(crate) fn read() -> Outcome<Self> {
        let mut cpu_ns = 0;
        for task in fs::read_dir("/proc/self/task")? {
            // A thread that ends meanwhile belongs to a turn before this one.
            let Ok(schedstat) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
            cpu_ns += schedstat.split(' ').next().ok_or("schedstat is empty")?.parse::<u64>()?;
        }
        let io = fs::read_to_string("/proc/self/io")?;
        let written = io.lines().find_map(|line| line.strip_prefix("wchar: ")).ok_or("no wchar in io")?;
        Ok(Self { cpu_ns, machine_ns: machine_ns()?, written_bytes: written.parse()? })
    }

    /// Runs `work` and says what it took. The making of rows is in the CPU time, the same for everyone.
    pub(crate) fn around(work: impl FnOnce() -> Outcome<Sample>) -> Outcome<Turn> {
        let before = Self::read()?;
        let sample = work()?;
        let after = Self::read()?;
        #[expect(clippy::cast_precision_loss, reason = "counts of one turn are far below 2^52")]
        let per_request = |total: u64| total as f64 / sample.requests as f64;
        Ok(Turn {
            requests_per_s: sample.throughput(),
            cpu_us: per_request(after.cpu_ns.saturating_sub(before.cpu_ns)) / 1e3,
            machine_us: per_request(after.machine_ns.saturating_sub(before.machine_ns)) / 1e3,
            written_kib: per_request(after.written_bytes - before.written_bytes) / 1024.0,
            commits_per_write: 0.0,
        })
    }
}

/// All processors' time but what they were idle, waited for a disk, or were lent to others. In steps of 10 ms.
fn machine_ns() -> Outcome<u64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let all = stat.lines().next().ok_or("stat is empty")?;
    let ticks: Vec<u64> = all.split_whitespace().skip(1).map(str::parse).collect::<Result<_, _>>()?;
    // user, nice, system, idle, iowait, irq, softirq
    let busy = [0, 1, 2, 5, 6].iter().filter_map(|place| ticks.get(*place)).sum::<u64>();
    Ok(busy * 10_000_000)
}

/// Turns of one contender, column by column.
pub(crate) fn column(turns: &[Turn], of: impl Fn(&Turn) -> f64) -> Vec<f64> {
    turns.iter().map(of).collect()
}
