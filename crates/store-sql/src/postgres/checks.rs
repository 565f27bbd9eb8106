//! What about this server would lose acknowledged keys, in plain words.

use std::fmt;

use super::error::Failure;
use super::session::Session;

/// Something to mend, or to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    setting: String,
    words: String,
}

impl Warning {
    fn new(setting: &str, words: impl Into<String>) -> Self {
        Self { setting: setting.to_owned(), words: words.into() }
    }

    /// What it is about: a setting of the server, or a standby.
    #[must_use]
    pub fn setting(&self) -> &str {
        &self.setting
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.words)
    }
}

/// What a server says of itself.
#[derive(Debug)]
struct Facts {
    fsync: String,
    synchronous_commit: String,
    full_page_writes: String,
    standby_names: String,
    is_replica: bool,
    /// Name and sync_state of the standbys that are connected.
    standbys: Vec<(String, String)>,
}

/// Looks at the server that `session` is with. A replica is an error: nothing is ever decided from one.
pub(super) async fn run(session: &Session) -> Result<Vec<Warning>, Failure> {
    let facts = facts(session).await?;
    if facts.is_replica {
        return Err(Failure::ReadOnly);
    }
    Ok(judge(&facts))
}

async fn facts(session: &Session) -> Result<Facts, Failure> {
    let text = "SELECT current_setting('fsync'), current_setting('synchronous_commit'), \
                current_setting('full_page_writes'), current_setting('synchronous_standby_names'), pg_is_in_recovery()";
    let rows = session.query_once(text, &[]).await?;
    let row = rows.first().ok_or_else(|| Failure::Words("no settings".to_owned()))?;
    // Who may not see it gets NULLs.
    let text = "SELECT coalesce(application_name, 'a standby'), coalesce(sync_state, '') FROM pg_stat_replication \
                WHERE state IS DISTINCT FROM 'backup'";
    let standbys = session.query_once(text, &[]).await?;
    let standbys = standbys.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    Ok(Facts {
        fsync: row.try_get(0)?,
        synchronous_commit: row.try_get(1)?,
        full_page_writes: row.try_get(2)?,
        standby_names: row.try_get(3)?,
        is_replica: row.try_get(4)?,
        standbys: standbys.collect::<Result<_, Failure>>()?,
    })
}

fn judge(facts: &Facts) -> Vec<Warning> {
    let mut warnings = Vec::new();
    if facts.fsync == "off" {
        warnings.push(Warning::new(
            "fsync = off",
            "if the server's machine dies, any number of acknowledged keys may be lost, or the whole database; a retry of \
             such a key runs again. Set fsync = on.",
        ));
    }
    if facts.full_page_writes == "off" {
        warnings.push(Warning::new(
            "full_page_writes = off",
            "if the server's machine dies in the middle of writing a page, rows on it may be lost or damaged, unless the \
             file system never tears pages. Set full_page_writes = on.",
        ));
    }
    if facts.synchronous_commit == "off" {
        warnings.push(Warning::new(
            "synchronous_commit = off",
            "if the server dies, the last moments of acknowledged keys would be lost, and a retry of such a key would run \
             again. Oncegate's own transactions therefore use synchronous_commit = on, whatever the default; others in this \
             database are not protected.",
        ));
    }
    let is_synchronous = !facts.standby_names.is_empty();
    if is_synchronous && facts.synchronous_commit == "local" {
        warnings.push(Warning::new(
            "synchronous_commit = local",
            "a standby is configured as synchronous, but commits do not wait for it: after a failover to it the last \
             acknowledged keys may be missing, and a retry of such a key runs again. Set synchronous_commit = on.",
        ));
    }
    for (name, sync_state) in &facts.standbys {
        if sync_state == "async" || (sync_state.is_empty() && !is_synchronous) {
            warnings.push(Warning::new(
                &format!("standby {name} is asynchronous"),
                "a failover to it loses the keys that were acknowledged and had not arrived there; a retry of such a key runs \
                 again. Name it in synchronous_standby_names, or never promote it.",
            ));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> Facts {
        Facts {
            fsync: "on".to_owned(),
            synchronous_commit: "on".to_owned(),
            full_page_writes: "on".to_owned(),
            standby_names: String::new(),
            is_replica: false,
            standbys: Vec::new(),
        }
    }

    fn about(facts: &Facts) -> Vec<String> {
        judge(facts).iter().map(|warning| warning.setting().to_owned()).collect()
    }

    #[test]
    fn each_way_to_lose_a_key_is_named() {
        let standbys = |all: &[(&str, &str)]| {
            all.iter().map(|(name, state)| ((*name).to_owned(), (*state).to_owned())).collect()
        };
        let text = str::to_owned;
        assert!(about(&sound()).is_empty());
        assert_eq!(about(&Facts { fsync: text("off"), ..sound() }), ["fsync = off"]);
        assert_eq!(about(&Facts { full_page_writes: text("off"), ..sound() }), ["full_page_writes = off"]);
        let off = Facts { synchronous_commit: text("off"), ..sound() };
        assert_eq!(about(&off), ["synchronous_commit = off"]);
        let local = Facts { synchronous_commit: text("local"), standby_names: text("b"), ..sound() };
        assert_eq!(about(&local), ["synchronous_commit = local"]);
        let one = Facts { standbys: standbys(&[("b", "async")]), ..sound() };
        assert_eq!(about(&one), ["standby b is asynchronous"]);
        let unseen = Facts { standbys: standbys(&[("b", "")]), ..sound() };
        assert_eq!(about(&unseen), ["standby b is asynchronous"]);
        let both = Facts {
            standby_names: text("b"),
            standbys: standbys(&[("b", "sync"), ("c", "async"), ("d", "quorum"), ("e", "potential")]),
            ..sound()
        };
        assert_eq!(about(&both), ["standby c is asynchronous"]);
    }
}
