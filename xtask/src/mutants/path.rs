//! The mutants of a request's path: what the engine and the layer do beyond the rules.

use super::list::Mutant;

/// A mutant of the engine.
const fn engine(name: &'static str, file: &'static str, rule: &'static str, without: &'static str) -> Mutant {
    Mutant { name, package: "oncegate-engine", test: "engine", file, rule, without }
}

/// A mutant of the layer.
const fn layer(name: &'static str, file: &'static str, rule: &'static str, without: &'static str) -> Mutant {
    Mutant { name, package: "oncegate-tower", test: "layer", file, rule, without }
}

/// A mutant of atomic handlers.
const fn atomic(name: &'static str, file: &'static str, rule: &'static str, without: &'static str) -> Mutant {
    Mutant { name, package: "oncegate-tower", test: "atomic", file, rule, without }
}

/// A mutant of the PostgreSQL store.
const fn postgres(
    name: &'static str,
    file: &'static str,
    rule: &'static str,
    without: &'static str,
) -> Mutant {
    Mutant { name, package: "oncegate-store-sql", test: "postgres_conformance", file, rule, without }
}

const ARRIVE: &str = "crates/engine/src/arrive.rs";
const CACHE: &str = "crates/engine/src/cache.rs";
const HELD: &str = "crates/engine/src/held.rs";
const SETTLE: &str = "crates/engine/src/settle.rs";
const WAIT: &str = "crates/engine/src/wait.rs";
const WRITER: &str = "crates/engine/src/writer.rs";
const BATCH: &str = "crates/engine/src/writer/batch.rs";
const SQLITE_DEDICATED: &str = "crates/store-sql/src/sqlx/dedicated_sqlite.rs";
const SQLITE_JOIN: &str = "crates/store-sql/src/sqlite/join.rs";

/// Every one of them.
pub(super) const MUTANTS: &[Mutant] = &[
    engine(
        "attack 02: the lease is not checked before the first byte",
        HELD,
        "        self.permit().check()?;\n        self.begun",
        "        self.begun",
    ),
    engine(
        "attack 02: an acknowledgement after the lease's end grants",
        ARRIVE,
        "Arrived::Execute(held) if held.permit().check().is_err() => {",
        "Arrived::Execute(held) if false => {",
    ),
    engine(
        "attack 10, 11: a reserve in doubt is not cleaned up",
        ARRIVE,
        "let Some(over) = self.may_land.take() else { return };",
        "let Some(over) = self.may_land.take().filter(|_| false) else { return };",
    ),
    engine(
        "a reserve in doubt is taken for one that failed",
        ARRIVE,
        "Err(error) if error.effect() == Effect::None => {",
        "Err(error) if error.effect() == Effect::None || true => {\n                    doubted_since = None;",
    ),
    engine(
        "attack 15: a cached answer is replayed up to its expiry",
        CACHE,
        "let guarded = Now { at: now.at, error: now.error * 2 };",
        "let guarded = Now { at: now.at, error: now.error * 0 };",
    ),
    engine(
        "attack 16: what was forgotten is put back into the cache",
        CACHE,
        "let is_current = *counter == epoch.value;",
        "let is_current = *counter == epoch.value || true;",
    ),
    engine(
        "attack 16: a cached answer has no age",
        CACHE,
        "if self.is_young(entry.shown_at, now) && is_replayable(&entry.record, now) {",
        "if (self.is_young(entry.shown_at, now) || true) && is_replayable(&entry.record, now) {",
    ),
    engine(
        "a dropped lease leaves its key stuck",
        HELD,
        "        self.engine.behind(async move {\n            drop(engine.settle_until_done(&event, record, awaited).await);\n        });",
        "        drop((engine, event, record, awaited));",
    ),
    engine(
        "whoever gives up the settling takes back what was said",
        SETTLE,
        "self.ending = Ending::Said(Arc::clone(&event));",
        "",
    ),
    engine("nobody is woken when an answer is there", SETTLE, "self.0.waiters.wake(id);", ""),
    engine(
        "a waiter asks before it registers",
        WAIT,
        "            let waiter = self.0.waiters.register(asked.id);\n            let mut woken = std::pin::pin!(waiter.notify.notified());\n            woken.as_mut().enable();\n            let arrived = self.look(route, asked, look).await?;",
        "            let arrived = self.look(route, asked, look).await?;\n            let waiter = self.0.waiters.register(asked.id);\n            let mut woken = std::pin::pin!(waiter.notify.notified());\n            woken.as_mut().enable();",
    ),
    engine(
        "a store that hangs never opens the breaker",
        WRITER,
        "        breaker.failed();\n        metrics::counter!",
        "        let _ = breaker;\n        metrics::counter!",
    ),
    engine(
        "a clean-up comes back after an hour",
        "crates/engine/src/clean_up.rs",
        "const BACKOFF_MAX: Duration = Duration::from_secs(1);",
        "const BACKOFF_MAX: Duration = Duration::from_secs(3600);",
    ),
    engine(
        "a token is asked about twice",
        ARRIVE,
        "arrival.token = self.new_token()?;",
        "let _ = self.new_token()?;",
    ),
    engine(
        "work that nobody said begins is released when it is dropped",
        HELD,
        "        self.begun.get_or_insert_with(Instant::now);\n",
        "",
    ),
    engine(
        "a write that was given up is applied all the same",
        WRITER,
        "let is_taken_back = !self.claim.swap(true, Ordering::AcqRel);",
        "let is_taken_back = !self.claim.load(Ordering::Acquire);",
    ),
    engine(
        "a duplicate that follows an insert is granted too",
        BATCH,
        "(Outcome::Applied, Change::Insert(record)) => Outcome::Refused { current: Some(record) },",
        "(Outcome::Applied, Change::Insert(_)) => Outcome::Applied,",
    ),
    layer(
        "a client that hangs up cancels the execution",
        "crates/tower/src/service.rs",
        "Outlive::new(AssertUnwindSafe(attempt).catch_unwind());",
        "{ let _ = Outlive::new(async {}); AssertUnwindSafe(attempt).catch_unwind() };",
    ),
    layer(
        "nested routers take each other's requests for the same",
        "crates/tower/src/fingerprint.rs",
        "let address = route::address(&request.uri, &request.extensions);",
        "let address = &request.uri;",
    ),
    layer(
        "attack 12: a fenced holder sends its own bytes",
        "crates/tower/src/settle.rs",
        "Ok(Settled::Fenced(row)) => answer::from_row(row.as_deref(), about),",
        "Ok(Settled::Fenced(Some(row))) => answer::own(ended, &row, about),\n        Ok(Settled::Fenced(row)) => answer::from_row(row.as_deref(), about),",
    ),
    layer(
        "a panic is taken for a proof that nothing happened",
        "crates/tower/src/execute.rs",
        "ended.unwrap_or(Ended::Failed(Failure::Panic))",
        "ended.unwrap_or(Ended::Failed(Failure::QueueFull))",
    ),
    layer(
        "an answer that broke off is taken for whole",
        "crates/tower/src/execute.rs",
        "let Ok(frame) = frame else { return Ended::Failed(Failure::Truncated) };",
        "let Ok(frame) = frame else { break };",
    ),
    layer(
        "a refusal is not drained",
        "crates/tower/src/read.rs",
        "            if drained > DRAIN_BYTES_MAX {",
        "            if drained < u64::MAX {",
    ),
    layer(
        "cookies are replayed",
        "crates/tower/src/headers.rs",
        "(keeps_cookies || *name != header::SET_COOKIE)",
        "(keeps_cookies || *name != header::COOKIE)",
    ),
    atomic(
        "what a closing says is logged",
        "crates/store-sql/src/sqlx/unlogged.rs",
        "if has_been_set() { with_default(&QUIET, work) } else { work() }",
        "if !has_been_set() { with_default(&QUIET, work) } else { work() }",
    ),
    atomic(
        "a transaction that sqlx has lost is not noticed",
        "crates/store-sql/src/sqlx.rs",
        "    !::sqlx::Connection::is_in_transaction(connection)",
        "    let _ = connection;\n    false",
    ),
    atomic(
        "whatever has the code of a lost transaction is taken for one",
        "crates/store-sql/src/sqlx.rs",
        "&& matches!(error.routine(), Some(\"EndTransactionBlock\" | \"CheckTransactionBlock\"))",
        "&& error.routine().is_some()",
    ),
    atomic(
        "a transaction that sqlx does not count goes back to the pool",
        "crates/store-sql/src/sqlx.rs",
        "        if !is_lost(connection) {\n            return;",
        "        if is_lost(connection) {\n            return;",
    ),
    atomic(
        "whatever the server says after a commit was sent is taken for its acknowledgement",
        "crates/store-sql/src/sqlx/dedicated.rs",
        "        if !is_answer {",
        "        if !is_answer && false {",
    ),
    atomic(
        "a closing that has ended is taken for a commit",
        "crates/store-sql/src/sqlx.rs",
        "const ENDING: usize = 2;",
        "const ENDING: usize = 1;",
    ),
    atomic(
        "a transaction is closed by name though it was not opened so",
        "crates/store-sql/src/sqlx/dedicated.rs",
        "let by_name = if self.is_by_name {",
        "let by_name = if self.held.is_prepared {",
    ),
    atomic(
        "a key that is occupied is taken along all the same",
        "crates/store-sql/src/sqlx/dedicated.rs",
        "        if told.is_taken == Some(false) {",
        "        if told.is_taken.is_none() && beginning.takes {",
    ),
    atomic(
        "a connection that rests is never the pool's again",
        "crates/store-sql/src/sqlx/resting.rs",
        "watch.is_done = !watch.over.give_back_rested();",
        "watch.is_done = std::future::pending::<bool>().await;",
    ),
    atomic(
        "an opening by name does not look for the key's row",
        "crates/store-sql/src/postgres/join.rs",
        "WHERE id = $1) THEN false \\",
        "WHERE id = $1) AND false THEN false \\",
    ),
    atomic(
        "an answer that was kept with its row by name is never looked at again",
        "crates/store-sql/src/postgres/join.rs",
        "$1, $2, 2, $3, $4, $3 + {}, $5)",
        "$1, $2, 2, $3, $4, NULLIF($3, $3) + {}, $5)",
    ),
    atomic(
        "SQLite: the last row of a transaction takes the place of the row that has its key",
        SQLITE_JOIN,
        "{STILL_OPEN}; INSERT INTO record ({columns}) VALUES ({places}, CASE",
        "{STILL_OPEN}; INSERT OR REPLACE INTO record ({columns}) VALUES ({places}, CASE",
    ),
    atomic(
        "SQLite: a joined row takes the place of the row that has its key",
        SQLITE_JOIN,
        "{STILL_OPEN}; INSERT INTO record ({columns}) SELECT",
        "{STILL_OPEN}; INSERT OR REPLACE INTO record ({columns}) SELECT",
    ),
    atomic(
        "SQLite: a connection rests with the file in its hands",
        SQLITE_DEDICATED,
        "vec![&*sql, \"COMMIT\", COMMITTED]",
        "vec![&*sql, \"COMMIT; BEGIN IMMEDIATE\", COMMITTED]",
    ),
    atomic(
        "SQLite: a transaction begins whatever it is told of its key",
        SQLITE_DEDICATED,
        "Ok(true) => Ok(Opened::Begun(self)),",
        "Ok(_) => Ok(Opened::Begun(self)),",
    ),
    atomic(
        "SQLite: a commit begins the transaction of a key that is taken",
        SQLITE_JOIN,
        "IS_NEW.replace(\"?1\"",
        "IS_NEW.replace(\"NOT EXISTS\", \"1 OR EXISTS\").replace(\"?1\"",
    ),
    atomic(
        "SQLite: a commit takes its own key along",
        SQLITE_JOIN,
        "(id != self.id).then",
        "(true || id != self.id).then",
    ),
    atomic(
        "SQLite: a commit is acknowledged when the next transaction has begun",
        SQLITE_DEDICATED,
        "tell.take_if(|_| next.is_some())",
        "tell.take_if(|_| false)",
    ),
    atomic(
        "SQLite: a commit passes a batch of the engine's over",
        SQLITE_DEDICATED,
        "is_some_and(|waiting| waiting <= in_line)",
        "is_some_and(|_| true)",
    ),
    atomic(
        "SQLite: a transaction hands on a turn that is its caller's",
        SQLITE_DEDICATED,
        "is_some_and(|waiting| waiting <= in_line)",
        "is_none_or(|waiting| waiting <= in_line)",
    ),
    atomic(
        "SQLite: whoever was to be taken along by a commit that was refused waits anew",
        SQLITE_DEDICATED,
        "of.line.put_back(next);",
        "drop(next);",
    ),
    atomic(
        "SQLite: what was not tried is taken for a key that is new",
        "crates/engine/src/atomic.rs",
        "Opened::Occupied | Opened::Unable => Opened::Occupied,",
        "Opened::Occupied => Opened::Occupied,\n            Opened::Unable => Opened::Unable,",
    ),
    atomic(
        "SQLite: nested transactions that nobody has ended are ended in place of the outer one",
        "crates/store-sql/src/sqlx.rs",
        "for nested in (1..Manager::get_transaction_depth(connection)).rev()",
        "for nested in (9..Manager::get_transaction_depth(connection)).rev()",
    ),
    atomic(
        "nested transactions that nobody has ended are ended in place of the outer one",
        "crates/store-sql/src/sqlx.rs",
        "while Manager::get_transaction_depth(connection) > 1 {",
        "while Manager::get_transaction_depth(connection) > 9 {",
    ),
    atomic(
        "an answer that a joined row gets in another life is never looked at again",
        "crates/store-sql/src/postgres/statements.rs",
        "format!(\"{seq} & {} = 0\", BATCH_MAX - 1)",
        "format!(\"{seq} & {} = 1\", BATCH_MAX - 1)",
    ),
    Mutant {
        name: "rows that several statements change are locked in the order of the statements",
        package: "oncegate-store-sql",
        test: "postgres",
        file: "crates/store-sql/src/postgres/batch.rs",
        rule: "    if kinds > 1\n",
        without: "    if kinds > 9\n",
    },
    postgres(
        "what is settled is still found by its doubt",
        "crates/store-sql/src/postgres/statements.rs",
        "unmarked AS (DELETE FROM {} WHERE seq",
        "unmarked AS (DELETE FROM {} WHERE false AND seq",
    ),
    postgres(
        "who looks for doubts finds what is forgotten",
        "crates/store-sql/src/postgres/row.rs",
        "(self as i64) << Self::BITS",
        "(self as i64 & 2) << Self::BITS",
    ),
    atomic(
        "one that was overtaken is told that nothing happened",
        "crates/engine/src/atomic.rs",
        "Ok(Some(row)) => NotCommitted::Overtaken(self.behind(Some(&Arc::new(row)))),\n            Err(_) => NotCommitted::InDoubt,",
        "Ok(Some(_)) => NotCommitted::RolledBack(error),\n            Err(_) => NotCommitted::InDoubt,",
    ),
];
