//! What a server's settings would lose, in plain words.

use std::fmt;

/// A setting under which acknowledged keys can be lost. A key that is lost runs again when it is retried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// Neither an append-only file nor snapshots.
    NothingIsKept,
    /// Snapshots only.
    SnapshotsOnly {
        /// When they are taken, as `save` says it; `None` if that could not be seen.
        save: Option<String>,
    },
    /// `appendfsync everysec`.
    SyncedEverySecond,
    /// `appendfsync no`.
    SyncedBySystem,
    /// `appendfsync always`, but not while the file is rewritten.
    NotSyncedWhileRewriting,
    /// There are replicas, and one of them may take over.
    Replicated {
        /// How many are connected now.
        replicas: u64,
    },
    /// The server does not show how it keeps data, as managed ones often do not.
    Unseen,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingIsKept => f.write_str(
                "Redis keeps nothing on disk: if it or its host dies or restarts, every key is lost, \
                 and a retry of any of them runs again. Set `appendonly yes` and `appendfsync always`",
            )?,
            Self::SnapshotsOnly { save } => {
                f.write_str("`appendonly` is `no`, Redis only takes snapshots")?;
                if let Some(save) = save {
                    write!(f, " (`save {save}`)")?;
                }
                f.write_str(
                    ": if Redis or its host dies, every key since the last snapshot is lost, and a retry of such a key \
                     runs again. Set `appendonly yes` and `appendfsync always`",
                )?;
            }
            Self::SyncedEverySecond => f.write_str(
                "`appendfsync` is `everysec`: if Redis or its host dies, up to about two seconds of acknowledged keys are \
                 lost, and a retry of such a key runs again. Set `appendfsync always`",
            )?,
            Self::SyncedBySystem => f.write_str(
                "`appendfsync` is `no`: if the host dies, what its system had not yet written, about thirty seconds of \
                 acknowledged keys, is lost, and a retry of such a key runs again. Set `appendfsync always`",
            )?,
            Self::NotSyncedWhileRewriting => f.write_str(
                "`no-appendfsync-on-rewrite` is `yes`: while Redis rewrites its file it syncs nothing, and if the host dies then, \
                 about thirty seconds of acknowledged keys are lost, and a retry of such a key runs again. Set \
                 `no-appendfsync-on-rewrite no`",
            )?,
            Self::Replicated { replicas } => write!(
                f,
                "{replicas} replica(s) follow this Redis, and replication is asynchronous: if one takes over, the keys that had \
                 not arrived there are lost, and a retry of such a key runs again. `WAIT` and `min-replicas-to-write` \
                 shorten that window and do not close it. Let no replica take over by itself"
            )?,
            Self::Unseen => f.write_str(
                "this Redis does not show how it keeps its data (`CONFIG` is forbidden): how many acknowledged keys a crash \
                 would lose is not known, and a retry of such a key runs again. Ask its operator for `appendonly yes` and \
                 `appendfsync always`",
            )?,
        }
        f.write_str(", or use PostgreSQL for anything that moves money.")
    }
}
