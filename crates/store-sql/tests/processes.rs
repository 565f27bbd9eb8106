//! Several processes on one file: killed in the middle of writing, racing for keys, starting together.
//!
//! The binary is its own child: started with a role in its environment it plays that role, otherwise it runs the tests.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use oncegate_conformance::samples::{FAR_AHEAD, LONG_AGO, answer, entry, id, moved_to, reserved, token};
use oncegate_core::audit::{Act, Entry};
use oncegate_core::record::{Record, State, StateKind};
use oncegate_store::drive::read_one;
use oncegate_store::{Check as _, Outcome, Store, Write};
use oncegate_store_sql::SqliteStore;

const ROLE: &str = "ONCEGATE_TEST_ROLE";
const FILE: &str = "ONCEGATE_TEST_FILE";
const NUMBER: &str = "ONCEGATE_TEST_NUMBER";

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(ROLE) {
        let store = || SqliteStore::open(std::env::var(FILE).unwrap()).unwrap();
        let number = std::env::var(NUMBER).unwrap().parse().unwrap();
        match role.as_str() {
            "writer" => write_for_ever(&store(), number),
            "racer" => race(&store(), number),
            "server" => serve(&store(), number),
            "opener" => {
                await_start();
                let counts = block_on(store().counts()).unwrap();
                say(&format!("{}", counts.completed));
            }
            other => panic!("no role {other}"),
        }
        return ExitCode::SUCCESS;
    }
    let tests = vec![
        trial("kill_9_loses_nothing_acknowledged_and_leaves_no_half", kill_9),
        trial("two_processes_racing_for_the_same_keys_have_one_winner_each", two_processes),
        trial("two_processes_that_reserve_and_settle_see_each_others_rows", two_servers),
        trial("processes_that_start_together_migrate_once", start_together),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

fn trial(name: &str, test: fn()) -> Trial {
    Trial::test(name, move || {
        test();
        Ok::<(), Failed>(())
    })
}

// ---- kill -9 ---------------------------------------------------------------------------------------------------------

const ROUNDS: u64 = 50;
const ROWS_A_BATCH: u64 = 8;

/// Batch `n` reserves eight keys and settles those of batch `n − 1`, so that a half would show in either; each write tells of it.
fn batch(round: u64, n: u64) -> Vec<Write> {
    let mut writes: Vec<_> = (0..ROWS_A_BATCH)
        .map(|row| first(round, n, row))
        .map(|row| Write::insert(Arc::new(row.clone())).telling(Some(began(&row))))
        .collect();
    if n > 0 {
        writes.extend((0..ROWS_A_BATCH).map(|row| {
            let before = first(round, n - 1, row);
            let next = settled(round, &before);
            let told = Some(ended(&next));
            Write::swap(before.version, Arc::new(next)).telling(told)
        }));
    }
    writes
}

fn began(row: &Record) -> Entry {
    entry(row, LONG_AGO, Act::Began)
}

fn ended(row: &Record) -> Entry {
    entry(row, LONG_AGO, Act::Completed)
}

fn key(round: u64, n: u64, row: u64) -> String {
    format!("round-{round}-batch-{n}-row-{row}")
}

fn first(round: u64, n: u64, row: u64) -> Record {
    reserved(&key(round, n, row), n * ROWS_A_BATCH + row, LONG_AGO)
}

/// Every fifth round has answers large enough that the log is checkpointed while it is killed.
fn settled(round: u64, before: &Record) -> Record {
    let mut next = moved_to(before, StateKind::Completed, FAR_AHEAD);
    let body = vec![b'x'; if round % 5 == 4 { 200_000 } else { 300 }];
    next.state = State::Completed(answer(201, &body));
    next
}

fn write_for_ever(store: &SqliteStore, round: u64) {
    for n in 0.. {
        let outcomes = block_on(store.apply(&batch(round, n))).unwrap();
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Applied));
        say(&n.to_string());
    }
}

fn kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("records.db");
    let mut acknowledged = 0;
    let mut landed_unacknowledged = 0;
    for round in 0..ROUNDS {
        let mut writer = Actor::start("writer", &file, round);
        // Killed some moments after the n-th acknowledgement, each time a little later: before the next batch, in the
        // middle of it, between its commit and its acknowledgement.
        let acks = 2 + (round * 7) % 23;
        for n in 0..acks {
            assert_eq!(writer.hear(), n.to_string());
        }
        let moment = Instant::now() + Duration::from_micros(round * 40);
        while Instant::now() < moment {
            std::hint::spin_loop();
        }
        let rest = writer.kill();
        let last = acks - 1 + u64::try_from(rest.len()).unwrap();
        acknowledged += last + 1;
        landed_unacknowledged += u64::from(check_round(&file, round, last));
    }
    println!(
        "{acknowledged} acknowledged batches over {ROUNDS} kills; {landed_unacknowledged} more landed unacknowledged"
    );
    assert!(acknowledged > ROUNDS);
    is_sound(&SqliteStore::open(&file).unwrap());
}

/// Batches up to `last` were acknowledged: they are there. The next one is there whole or not at all; says which. And of each key is
/// told what was done to it, no less and no more.
fn check_round(file: &Path, round: u64, last: u64) -> bool {
    let store = SqliteStore::open(file).unwrap();
    let read = |n: u64| -> Vec<Option<Record>> {
        let ids: Vec<_> = (0..ROWS_A_BATCH).map(|row| id(&key(round, n, row))).collect();
        let found: Vec<_> = block_on(store.read(&ids)).unwrap().into_iter().map(Result::unwrap).collect();
        for (row, (id, found)) in (0..).zip(ids.iter().zip(&found)) {
            let first = first(round, n, row);
            let told = match found {
                None => vec![],
                Some(found) if *found == first => vec![began(&first)],
                Some(found) => vec![began(&first), ended(found)],
            };
            assert_eq!(block_on(store.story(*id, 10)).unwrap(), told, "round {round}: batch {n}, row {row}");
        }
        found
    };
    let expected = |n: u64, is_settled: bool| -> Vec<Option<Record>> {
        let rows = (0..ROWS_A_BATCH).map(|row| first(round, n, row));
        rows.map(|row| Some(if is_settled { settled(round, &row) } else { row })).collect()
    };
    for n in 0..last {
        assert_eq!(read(n), expected(n, true), "round {round}: batch {n} was settled and acknowledged");
    }
    let next_landed = read(last + 1).iter().any(Option::is_some);
    assert_eq!(read(last), expected(last, next_landed), "round {round}: batch {last} was acknowledged");
    if next_landed {
        assert_eq!(read(last + 1), expected(last + 1, false), "round {round}: half of a batch");
    }
    assert!(read(last + 2).iter().all(Option::is_none), "round {round}: nothing was begun after that");
    let connection = rusqlite::Connection::open(file).unwrap();
    let integrity: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(integrity, "ok", "round {round}");
    next_landed
}

// ---- racing ----------------------------------------------------------------------------------------------------------

const RACED_KEYS: u64 = 2_000;

fn race(store: &SqliteStore, number: u64) {
    await_start();
    let keys: Vec<_> = (0..RACED_KEYS).collect();
    for chunk in keys.chunks(16) {
        let rows: Vec<_> =
            chunk.iter().map(|key| reserved(&format!("raced-{key}"), number, LONG_AGO)).collect();
        let inserts: Vec<_> = rows.iter().map(|row| Write::insert(Arc::new(row.clone()))).collect();
        for ((key, row), outcome) in chunk.iter().zip(&rows).zip(block_on(store.apply(&inserts)).unwrap()) {
            match outcome {
                Outcome::Applied => say(&key.to_string()),
                Outcome::Refused { current } => assert_ne!(current.unwrap().life, row.life),
                Outcome::Unreadable { problem } => panic!("{problem}"),
            }
        }
    }
    say("done");
}

fn two_processes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("records.db");
    drop(SqliteStore::open(&file).unwrap());
    let mut racers: Vec<_> = (1..=2).map(|number| Actor::start("racer", &file, number)).collect();
    racers.iter_mut().for_each(Actor::begin);
    let mut winners = BTreeMap::new();
    for (racer, number) in racers.iter_mut().zip(1..) {
        loop {
            let line = racer.hear();
            if line == "done" {
                break;
            }
            let key: u64 = line.parse().unwrap();
            assert_eq!(winners.insert(key, number), None, "key {key} was granted twice");
        }
    }
    assert_eq!(winners.len() as u64, RACED_KEYS, "every key was granted");
    let store = SqliteStore::open(&file).unwrap();
    for (key, number) in winners {
        let row = block_on(read_one(&store, id(&format!("raced-{key}")))).unwrap().unwrap();
        assert_eq!(row.life, token(number), "key {key}: the row is its winner's");
    }
}

const KEYS_AT_ONCE: usize = 8;

/// Reserves keys that the other goes for as well, settles what it was granted in the next batch, as a gateway does.
fn serve(store: &SqliteStore, number: u64) {
    await_start();
    let mut granted: Vec<Record> = Vec::new();
    let keys: Vec<_> = (0..RACED_KEYS).collect();
    for chunk in keys.chunks(KEYS_AT_ONCE) {
        let rows: Vec<_> =
            chunk.iter().map(|key| reserved(&format!("raced-{key}"), number, LONG_AGO)).collect();
        let ended: Vec<_> = granted
            .drain(..)
            .map(|row| (row.version, moved_to(&row, StateKind::Completed, FAR_AHEAD)))
            .collect();
        let settles = ended.iter().map(|(before, end)| Write::swap(*before, Arc::new(end.clone())));
        let batch: Vec<_> =
            settles.chain(rows.iter().map(|row| Write::insert(Arc::new(row.clone())))).collect();
        let outcomes = block_on(store.apply(&batch)).unwrap();
        let (settled, reserved) = outcomes.split_at(ended.len());
        assert!(settled.iter().all(|outcome| *outcome == Outcome::Applied), "nobody else settles its rows");
        for ((key, row), outcome) in chunk.iter().zip(&rows).zip(reserved) {
            match outcome {
                Outcome::Applied => {
                    say(&key.to_string());
                    granted.push(row.clone());
                }
                Outcome::Refused { current: Some(current) } => assert_ne!(current.life, row.life),
                other => panic!("{other:?}"),
            }
        }
        // What the other is doing is there, whole, in one state or the other.
        let ids: Vec<_> = rows.iter().map(|row| row.id).collect();
        for row in block_on(store.read(&ids)).unwrap() {
            let row = row.unwrap().unwrap();
            assert!(matches!(row.state.kind(), StateKind::InProgress | StateKind::Completed));
        }
        say("next");
        hear();
    }
    let rest: Vec<_> = granted
        .iter()
        .map(|row| Write::swap(row.version, Arc::new(moved_to(row, StateKind::Completed, FAR_AHEAD))))
        .collect();
    assert!(block_on(store.apply(&rest)).unwrap().iter().all(|outcome| *outcome == Outcome::Applied));
    say("done");
}

fn two_servers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("records.db");
    drop(SqliteStore::open(&file).unwrap());
    let mut servers: Vec<_> = (1..=2).map(|number| Actor::start("server", &file, number)).collect();
    servers.iter_mut().for_each(Actor::begin);
    let mut winners = BTreeMap::new();
    // In step, so that neither is done before the other has begun: what each finds, the other has just written.
    for step in 0..=RACED_KEYS.div_ceil(KEYS_AT_ONCE as u64) {
        for (server, number) in servers.iter_mut().zip(1..) {
            loop {
                let line = server.hear();
                if line == "next" || line == "done" {
                    break;
                }
                let key: u64 = line.parse().unwrap();
                assert_eq!(winners.insert(key, number), None, "key {key} was granted twice");
            }
        }
        if step < RACED_KEYS.div_ceil(KEYS_AT_ONCE as u64) {
            servers.iter_mut().for_each(Actor::go);
        }
    }
    assert_eq!(winners.len() as u64, RACED_KEYS, "every key was granted");
    let share = winners.values().filter(|number| **number == 1).count();
    println!("{share} of {RACED_KEYS} keys went to the first process");
    assert!((1..winners.len()).contains(&share), "each had some");
    let store = SqliteStore::open(&file).unwrap();
    assert_eq!(block_on(store.counts()).unwrap().completed, RACED_KEYS, "and every one was settled");
    for (key, number) in winners {
        let row = block_on(read_one(&store, id(&format!("raced-{key}")))).unwrap().unwrap();
        assert_eq!(row.life, token(number), "key {key}: the row is its winner's");
    }
}

/// Once, one process in some hundred refused the file as foreign: it had read the version before, and the tables after,
/// another process's migration.
fn start_together() {
    for round in 0..40 {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("records.db");
        let mut openers: Vec<_> = (0..6).map(|number| Actor::start("opener", &file, number)).collect();
        openers.iter_mut().for_each(Actor::begin);
        for opener in &mut openers {
            assert_eq!(opener.hear(), "0", "round {round}: each opens an empty, migrated store");
        }
    }
}

// ---- actors ----------------------------------------------------------------------------------------------------------

/// A child process in a role, heard line by line. Killed when dropped.
struct Actor {
    process: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Actor {
    fn start(role: &str, file: &Path, number: u64) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .env(ROLE, role)
            .env(FILE, file)
            .env(NUMBER, number.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = process.stdin.take().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, stdin, lines }
    }

    fn begin(&mut self) {
        assert_eq!(self.hear(), "ready");
        self.go();
    }

    fn go(&mut self) {
        self.stdin.write_all(b"go\n").unwrap();
    }

    fn hear(&mut self) -> String {
        self.lines.next().unwrap_or_else(|| panic!("the process ended early")).unwrap()
    }

    /// SIGKILL; returns what it had still said.
    fn kill(mut self) -> Vec<String> {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.lines.by_ref().map_while(Result::ok).collect()
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// One line to the parent, at once.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

fn await_start() {
    say("ready");
    hear();
}

fn hear() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

/// What `oncegate store check` looks at.
fn is_sound(store: &SqliteStore) {
    let mut after = None;
    loop {
        let part = block_on(store.check(after.as_ref())).unwrap();
        assert_eq!(part.problems, [], "{}", part.area);
        match part.next {
            Some(next) => after = Some(next),
            None => return,
        }
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}
