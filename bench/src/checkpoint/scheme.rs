//! The checkpoint schemes that were compared, as data.

pub(crate) const MIB: i64 = 1 << 20;

/// A way to keep the WAL short.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scheme {
    pub(crate) name: &'static str,
    pub(crate) who: Who,
}

/// Who does the copying.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Who {
    /// The committing writer, whenever the log is this long.
    Writer { at_bytes: i64 },
    /// A thread, whenever this much waits to be copied; nobody takes the last step.
    Thread { at_bytes: i64 },
    /// A thread, and the writer takes the last step when the log is longer than `restart_bytes`.
    Both { at_bytes: i64, restart_bytes: i64, sync: Sync, last: LastStep },
}

/// Who waits until the copied pages are on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sync {
    /// SQLite's rule: it syncs the file only when a checkpoint reached the end of the log. A pass of the
    /// thread never does, so the writer's last step pays for everything the thread has copied.
    LastStep,
    /// The thread syncs the file itself after each pass; the last step finds little left to do.
    Thread,
}

/// How the writer ends a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastStep {
    /// Copy the rest; the next write starts over inside the same, already allocated file.
    Reuse,
    /// Copy the rest and cut the file to nothing.
    Truncate,
}

/// What SQLite does if nobody says otherwise.
pub(crate) const DEFAULT: Scheme = Scheme { name: "inline-4", who: Who::Writer { at_bytes: 4 * MIB } };

/// What the store uses; docs/decisions/0018-stores.md says why.
pub(crate) const CHOSEN: Scheme = both("both-16-64-sync", 16, 64, Sync::Thread, LastStep::Reuse);

/// All that were measured.
pub(crate) const SCHEMES: &[Scheme] = &[
    DEFAULT,
    Scheme { name: "inline-64", who: Who::Writer { at_bytes: 64 * MIB } },
    Scheme { name: "inline-256", who: Who::Writer { at_bytes: 256 * MIB } },
    Scheme { name: "thread-4", who: Who::Thread { at_bytes: 4 * MIB } },
    both("both-4-16", 4, 16, Sync::LastStep, LastStep::Reuse),
    both("both-16-64", 16, 64, Sync::LastStep, LastStep::Reuse),
    both("both-64-256", 64, 256, Sync::LastStep, LastStep::Reuse),
    both("both-16-64-truncate", 16, 64, Sync::LastStep, LastStep::Truncate),
    both("both-4-16-sync", 4, 16, Sync::Thread, LastStep::Reuse),
    CHOSEN,
    both("both-64-256-sync", 64, 256, Sync::Thread, LastStep::Reuse),
];

const fn both(name: &'static str, at_mib: i64, restart_mib: i64, sync: Sync, last: LastStep) -> Scheme {
    Scheme { name, who: Who::Both { at_bytes: at_mib * MIB, restart_bytes: restart_mib * MIB, sync, last } }
}
