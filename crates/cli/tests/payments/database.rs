//! Where the records of a storm are, and what can happen to them.

use std::cell::{Ref, RefCell};
use std::path::{Path, PathBuf};
use std::time::Duration;

use oncegate_test_servers::{FakeClock, Postgres, Redis, RedisClock, wait_until};
use rusqlite::backup::Backup;
use rusqlite::{Connection, OpenFlags};

use crate::town::{FOREVER, Town};

/// A database whose clock can be set.
pub(crate) enum Database {
    /// A file of the gateway's, by the gateway's clock.
    Sqlite(FakeClock),
    Postgres(Postgres, FakeClock),
    Redis(RefCell<Redis>, RedisClock),
}

impl Database {
    pub(crate) fn sqlite() -> Self {
        Self::Sqlite(FakeClock::new())
    }

    pub(crate) fn postgres() -> Self {
        let clock = FakeClock::new();
        Self::Postgres(Postgres::start_by_clock(&[], &clock), clock)
    }

    pub(crate) fn redis() -> Self {
        let server = Redis::start(&["--appendonly", "yes", "--appendfsync", "always"]);
        let clock = RedisClock::of(&server);
        Self::Redis(RefCell::new(server), clock)
    }

    /// Sets its clock so many seconds before or after the true time.
    pub(crate) fn set_clock_off_s(&self, seconds: i64) {
        match self {
            Self::Sqlite(clock) | Self::Postgres(_, clock) => clock.set_offset_s(seconds),
            Self::Redis(_, clock) => clock.set_offset_s(seconds),
        }
    }

    /// A town in disorder, whose gateway keeps its records here.
    pub(crate) fn opens_a_town(&self, horizon: &str) -> Town {
        match self {
            Self::Sqlite(clock) => Town::opens_in_a_storm(None, horizon, Some(clock.clone())),
            Self::Postgres(server, _) => Town::opens_in_a_storm(Some(&server.url()), horizon, None),
            Self::Redis(_, clock) => Town::opens_in_a_storm(Some(&clock.url()), horizon, None),
        }
    }

    /// The gateway notices that the store's clock was set, and says so.
    pub(crate) fn wait_for_step(town: &Town, direction: &str) {
        let name = format!("oncegate_clock_step_count{{direction=\"{direction}\"}}");
        wait_until(&format!("a step {direction} is counted"), || {
            town.counted(town.admin_address(), &name) > 0
        });
    }

    /// The database rejects about one write of fifty, as a constraint of its owner would.
    pub(crate) fn reject_writes(&self, town: &Town) {
        match self {
            Self::Sqlite(_) => sqlite(town)
                .execute_batch(
                    "CREATE TRIGGER storm BEFORE UPDATE ON record WHEN abs(random()) % 50 = 0
                     BEGIN SELECT RAISE(ABORT, 'rejected by the storm'); END",
                )
                .unwrap(),
            Self::Postgres(server, _) => drop(server.sql(
                "CREATE FUNCTION oncegate.storm() RETURNS trigger LANGUAGE plpgsql AS $$
                 BEGIN
                   IF random() < 0.02 THEN
                     RAISE EXCEPTION 'rejected by the storm' USING ERRCODE = 'check_violation';
                   END IF;
                   RETURN NEW;
                 END $$;
                 CREATE TRIGGER storm BEFORE INSERT OR UPDATE ON oncegate.record
                 FOR EACH ROW EXECUTE FUNCTION oncegate.storm()",
            )),
            // Redis has no constraints. An access rule rejects the writes of about one key of 32.
            Self::Redis(server, _) => {
                let others = ["%R~*", "~{oncegate}:[^r]*", "~{oncegate}:r[^o]*"];
                let rows = "~{oncegate}:row:????????[^a]*";
                let rule = [&["ACL", "SETUSER", "default", "resetkeys"], &others[..], &[rows]].concat();
                assert_eq!(server.borrow().command(&rule), "OK");
            }
        }
    }

    pub(crate) fn accept_writes(&self, town: &Town) {
        match self {
            Self::Sqlite(_) => sqlite(town).execute_batch("DROP TRIGGER storm").unwrap(),
            Self::Postgres(server, _) => drop(server.sql("DROP TRIGGER storm ON oncegate.record")),
            Self::Redis(server, _) => {
                let server = server.borrow();
                assert!(server.command(&["ACL", "LOG", "1"]).contains("key"), "no write was rejected");
                assert_eq!(server.command(&["ACL", "SETUSER", "default", "allkeys"]), "OK");
            }
        }
    }

    /// Takes a backup, and waits until the gateway has rewritten its watermark.
    pub(crate) fn back_up(&self, town: &Town) {
        match self {
            Self::Sqlite(_) => copy(&sqlite_file(town), &town.folder().join("backup.db")),
            Self::Postgres(server, _) => drop(server.sql(
                "BEGIN ISOLATION LEVEL REPEATABLE READ;
                 DO $$ DECLARE name text; BEGIN
                   CREATE SCHEMA backup;
                   FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'oncegate' LOOP
                     EXECUTE format('CREATE TABLE backup.%I AS TABLE oncegate.%I', name, name);
                   END LOOP;
                 END $$;
                 COMMIT",
            )),
            Self::Redis(server, _) => server.borrow().back_up(),
        }
        let before = self.watermarks(town);
        wait_until("the watermark is rewritten", || self.watermarks(town) != before);
    }

    /// Restores the backup under the gateway that runs.
    pub(crate) fn restore(&self, town: &Town) {
        match self {
            Self::Sqlite(_) => copy(&town.folder().join("backup.db"), &sqlite_file(town)),
            // Every other connection ends, as when a server is stopped, recovered and started.
            Self::Postgres(server, _) => drop(server.sql(
                "SET deadlock_timeout = '1min';
                 DO $$ DECLARE name text; tables text; BEGIN
                   SELECT string_agg(format('oncegate.%I', tablename), ', ') INTO tables
                     FROM pg_tables WHERE schemaname = 'oncegate';
                   EXECUTE 'LOCK TABLE ' || tables || ' IN ACCESS EXCLUSIVE MODE';
                   EXECUTE 'TRUNCATE ' || tables || ' CASCADE';
                   SET LOCAL session_replication_role = replica;
                   FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'backup' LOOP
                     EXECUTE format('INSERT INTO oncegate.%I OVERRIDING SYSTEM VALUE SELECT * FROM backup.%I', name, name);
                   END LOOP;
                   PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
                     WHERE pid <> pg_backend_pid() AND application_name = 'oncegate';
                 END $$",
            )),
            Self::Redis(server, _) => server.borrow_mut().restore(),
        }
    }

    fn watermarks(&self, town: &Town) -> String {
        match self {
            Self::Sqlite(_) => {
                let query = "SELECT coalesce(group_concat(mark), '') FROM watermark";
                sqlite(town).query_row(query, [], |row| row.get(0)).unwrap()
            }
            Self::Postgres(server, _) => {
                server.sql("SELECT string_agg(mark::text, ' ') FROM oncegate.watermark")
            }
            Self::Redis(server, _) => {
                let server: Ref<'_, Redis> = server.borrow();
                server.command(&["HVALS", "{oncegate}:watermarks:marks"])
            }
        }
    }
}

fn sqlite_file(town: &Town) -> PathBuf {
    town.folder().join("oncegate.db")
}

/// A connection of the test's own to the gateway's file.
fn sqlite(town: &Town) -> Connection {
    let connection = Connection::open(sqlite_file(town)).unwrap();
    connection.busy_timeout(FOREVER).unwrap();
    connection
}

/// Copies one database into another, page by page, as `.backup` and `.restore` do.
fn copy(from: &Path, to: &Path) {
    let from = Connection::open_with_flags(from, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let mut to = Connection::open(to).unwrap();
    to.busy_timeout(FOREVER).unwrap();
    Backup::new(&from, &mut to).unwrap().run_to_completion(i32::MAX, Duration::ZERO, None).unwrap();
}
