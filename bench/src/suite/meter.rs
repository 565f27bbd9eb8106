//! What processes took: CPU time by the nanosecond and resident memory, from procfs.
//!
//! On a shared machine the clock measures the neighbours too; CPU time hardly does.

use std::collections::HashMap;
use std::fs;

use crate::Outcome;

/// Processes that are charged together, under one name.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) name: &'static str,
    pub(crate) pids: Vec<u32>,
    /// Whether their children count, too: PostgreSQL has a process for each connection.
    pub(crate) has_children: bool,
}

/// CPU time in ns by thread.
type Threads = HashMap<u32, u64>;

/// CPU time of several of them at one moment.
#[derive(Debug, Default)]
pub(crate) struct Reading(Vec<(&'static str, Threads)>);

impl Reading {
    pub(crate) fn of(watched: &[Watched]) -> Outcome<Self> {
        Ok(Self(watched.iter().map(|each| Ok((each.name, each.threads()?))).collect::<Outcome<_>>()?))
    }

    /// µs since an earlier one. A thread that ended meanwhile was idle for seconds before: it is not missed.
    pub(crate) fn since(&self, earlier: &Self) -> Vec<(&'static str, f64)> {
        let used = |now: &Threads, before: &Threads| -> u64 {
            now.iter().map(|(id, ns)| ns.saturating_sub(before.get(id).copied().unwrap_or(0))).sum()
        };
        #[expect(clippy::cast_precision_loss, reason = "the nanoseconds of one turn are far below 2^52")]
        let used = |now: &Threads, before: &Threads| used(now, before) as f64 / 1e3;
        self.0.iter().zip(&earlier.0).map(|((name, now), (_, before))| (*name, used(now, before))).collect()
    }
}

impl Watched {
    fn threads(&self) -> Outcome<Threads> {
        let mut pids = self.pids.clone();
        if self.has_children {
            pids.extend(children(&self.pids)?);
        }
        let mut threads = Threads::new();
        for pid in pids {
            let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
            for task in tasks.flatten() {
                let Ok(schedstat) = fs::read_to_string(task.path().join("schedstat")) else { continue };
                let ns = schedstat.split(' ').next().unwrap_or_default().parse()?;
                let id = task.file_name().to_string_lossy().parse()?;
                threads.insert(id, ns);
            }
        }
        Ok(threads)
    }
}

fn children(parents: &[u32]) -> Outcome<Vec<u32>> {
    let is_child = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // `pid (name) state parent …`, and a name may hold anything.
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1));
        parent.and_then(|parent| parent.parse().ok()).is_some_and(|parent| parents.contains(&parent))
    };
    let pids = fs::read_dir("/proc")?.flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(pids.filter(|pid| is_child(*pid)).collect())
}

/// Resident memory, now and at its highest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) now_mib: f64,
    pub(crate) highest_mib: f64,
}

impl Memory {
    pub(crate) fn of(pid: u32) -> Outcome<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let mib = |name: &str| -> Outcome<f64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such line")?;
            let kib: f64 = line.split_whitespace().next().ok_or("an empty line")?.parse()?;
            Ok(kib / 1024.0)
        };
        Ok(Self { now_mib: mib("VmRSS:")?, highest_mib: mib("VmHWM:")? })
    }
}
