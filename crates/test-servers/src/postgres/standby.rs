//! Standbys: a copy that follows its primary, until it is promoted.

use super::{Postgres, append, cluster};
use crate::wait::wait_until;

/// Whether a commit on the primary waits for the standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    /// It waits until the standby has it on disk. Without its standby, the primary commits nothing.
    Synchronous,
    /// It does not wait.
    Asynchronous,
}

impl Postgres {
    /// A standby of this server, streaming from it in this mode when it is returned.
    #[must_use]
    pub fn standby(&self, mode: Replication) -> Self {
        let mut standby = Self::place();
        standby.name = format!("standby_{}", standby.port());
        let mut backup = standby.program("pg_basebackup");
        backup.arg("-D").arg(standby.data()).args(["-R", "--checkpoint=fast", "--no-sync"]);
        cluster::run_to_end(backup.args(["-d", &self.url()]));
        // Copied from the primary, where it names the standbys: promoted, this one would wait for them for ever.
        append(&standby.data().join("postgresql.auto.conf"), &[("synchronous_standby_names", "")]);
        standby.first_start();
        let wanted = match mode {
            Replication::Synchronous => {
                self.wait_for_commits_on(&standby.name);
                "sync"
            }
            Replication::Asynchronous => "async",
        };
        let state = format!(
            "select state || ' ' || sync_state from pg_stat_replication where application_name = '{}'",
            standby.name
        );
        let wanted = format!("streaming {wanted}");
        wait_until(&format!("the primary says `{wanted}` of its standby"), || self.sql(&state) == wanted);
        standby
    }

    /// Makes a standby a primary, and waits until it takes writes.
    pub fn promote(&mut self) {
        assert_eq!(self.sql("select pg_promote(true, 60)"), "t", "the standby is promoted");
        wait_until("the promoted server takes writes", || self.sql("select pg_is_in_recovery()") == "f");
    }

    /// Adds a name to the standbys that each commit waits for.
    fn wait_for_commits_on(&self, name: &str) {
        let setting = self.sql("show synchronous_standby_names");
        let so_far = setting.split_once('(').map_or("", |(_, names)| names.trim_end_matches(')'));
        let mut names: Vec<_> = so_far.split(", ").filter(|name| !name.is_empty()).collect();
        names.push(name);
        let setting = format!("FIRST {} ({})", names.len(), names.join(", "));
        // Neither of the two commits anything that would wait for the standby.
        let _nothing = self.sql(&format!("alter system set synchronous_standby_names = '{setting}'"));
        let _true = self.sql("select pg_reload_conf()");
    }
}
