//! What the server says of itself: whether it may be used at all, and what it would lose.
//!
//! **Invariant:** a server that may throw rows away (eviction), or that is a replica, is refused; at every new connection, because a
//! server can be reconfigured or demoted. What cannot be seen is said, and never taken for good.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use oncegate_store::{Effect, Kind, Result, StoreError};
use redis::{Cmd, RedisResult};

use crate::error::{Nature, of_call};
use crate::link::{Connection, LookOver};
use crate::warning::Warning;

/// Reads the settings of each new connection, and tells what is new about them.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    seen: Mutex<Vec<Warning>>,
}

impl Settings {
    pub(crate) fn warnings(&self) -> Vec<Warning> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl LookOver for Settings {
    async fn look_over(&self, connection: &mut Connection) -> Result<()> {
        let told = Told::ask(connection).await?;
        if let Some(problem) = told.problem() {
            return Err(StoreError::new(Kind::Misconfigured, Effect::None, "open").because(problem));
        }
        let warnings = told.warnings();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for warning in warnings.iter().filter(|warning| !seen.contains(warning)) {
            tracing::warn!("{warning}");
        }
        *seen = warnings;
        Ok(())
    }
}

/// What it said; a part that is forbidden is absent.
#[derive(Debug, Default)]
struct Told {
    info: HashMap<String, String>,
    config: HashMap<String, String>,
}

impl Told {
    async fn ask(connection: &mut Connection) -> Result<Self> {
        let info: Option<String> = optional(redis::cmd("INFO").query_async(connection).await)?;
        let mut config = HashMap::new();
        // One pattern a command: servers before 7 take no more.
        for pattern in ["*append*", "save", "maxmemory-policy"] {
            let mut command = Cmd::new();
            command.arg("CONFIG").arg("GET").arg(pattern);
            let part: Option<HashMap<String, String>> = optional(command.query_async(connection).await)?;
            config.extend(part.unwrap_or_default());
        }
        Ok(Self { info: parse_info(&info.unwrap_or_default()), config })
    }

    /// Why this server must not be used.
    fn problem(&self) -> Option<String> {
        let policy = self.config.get("maxmemory-policy").or_else(|| self.info.get("maxmemory_policy"));
        if let Some(policy) = policy.filter(|policy| *policy != "noeviction") {
            return Some(format!(
                "`maxmemory-policy` is `{policy}`: Redis may throw keys away when memory runs short, and a key that was thrown \
                 away runs again. Set `maxmemory-policy noeviction`, or use this Redis as a cache"
            ));
        }
        if self.info.get("role").is_some_and(|role| role != "master") {
            return Some("this Redis is a replica, which takes no writes: connect to its primary".to_owned());
        }
        None
    }

    fn warnings(&self) -> Vec<Warning> {
        let appends = match self.config.get("appendonly").map(String::as_str) {
            Some(value) => Some(value == "yes"),
            None => self.info.get("aof_enabled").map(|value| value == "1"),
        };
        let save = self.config.get("save");
        let fsync = self.config.get("appendfsync").map(String::as_str);
        let keeping = match (appends, fsync) {
            (Some(true), Some("always")) => None,
            (Some(true), Some("everysec")) => Some(Warning::SyncedEverySecond),
            (Some(true), Some("no")) => Some(Warning::SyncedBySystem),
            (Some(false), _) if save.is_some_and(String::is_empty) => Some(Warning::NothingIsKept),
            (Some(false), _) => Some(Warning::SnapshotsOnly { save: save.cloned() }),
            _ => Some(Warning::Unseen),
        };
        let rewriting = self.config.get("no-appendfsync-on-rewrite").is_some_and(|value| value == "yes");
        let rewriting = (keeping.is_none() && rewriting).then_some(Warning::NotSyncedWhileRewriting);
        let replicas = self.info.get("connected_slaves").and_then(|count| count.parse().ok()).unwrap_or(0);
        let replicated = (replicas > 0).then_some(Warning::Replicated { replicas });
        keeping.into_iter().chain(rewriting).chain(replicated).collect()
    }
}

/// What the server refuses to say is not said; a lost connection is an error.
fn optional<T>(answered: RedisResult<T>) -> Result<Option<T>> {
    match answered {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.code(), Some("NOPERM" | "ERR")) => Ok(None),
        Err(error) => Err(of_call(error, "open", Nature::Reads)),
    }
}

fn parse_info(text: &str) -> HashMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.trim_end().split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
