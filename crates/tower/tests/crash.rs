//! A service on SQLite, killed with SIGKILL under load, and started again on the same file.
//!
//! What a client was told stays true, and nothing runs twice.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Extension, State};
use axum::routing::post;
use libtest_mimic::{Arguments, Failed, Trial};
use oncegate_core::policy::{Policy, Profile};
use oncegate_engine::{Engine, Options};
use oncegate_store_sql::SqliteStore;
use oncegate_tower::{Attempt, Idempotency, Routes, scope};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

#[path = "killed/child.rs"]
mod child;
#[path = "layer/client.rs"]
#[expect(dead_code, reason = "the other test needs more of it")]
mod client;
#[path = "killed/dice.rs"]
mod dice;
#[path = "layer/reply.rs"]
#[expect(dead_code, reason = "the other test needs more of it")]
mod reply;

use child::{Service, runtime};
use client::{Call, Connection, within};
use dice::Dice;
use reply::Reply;

const FOLDER: &str = "ONCEGATE_TEST_FOLDER";
const SEED: &str = "ONCEGATE_TEST_SEED";

/// So short that what died over a key lapses while its retries go on coming.
const LEASE: Duration = Duration::from_millis(500);
const ROUNDS: u64 = 50;
const CONNECTIONS: usize = 16;

fn main() -> ExitCode {
    if let Some(folder) = std::env::var_os(FOLDER) {
        runtime().block_on(serve(Path::new(&folder)));
        return ExitCode::SUCCESS;
    }
    let test = || {
        kill_9();
        Ok::<(), Failed>(())
    };
    let name = "kill_9_under_load_changes_no_answer_and_runs_nothing_twice";
    libtest_mimic::run(&Arguments::from_args(), vec![Trial::test(name, test)]).exit_code()
}

// ---- the service -----------------------------------------------------------------------------------------------------

/// Every execution is one line here, in one write: what was executed is known whatever becomes of the process.
struct Ledger {
    file: std::fs::File,
    executions: AtomicU64,
}

async fn serve(folder: &Path) {
    let ledger = OpenOptions::new().create(true).append(true).open(folder.join("ledger")).unwrap();
    let ledger = Arc::new(Ledger { file: ledger, executions: AtomicU64::new(0) });
    let store = SqliteStore::open(folder.join("records.db")).unwrap();
    let engine = Engine::start(store, Options::default()).await.unwrap();
    let policy = Policy { lease: LEASE, ..Profile::Ietf.policy() };
    let routes = Routes::none().otherwise(policy).unwrap();
    let app = Router::new().route("/charges", post(charge)).with_state(ledger).layer(Idempotency::new(
        engine,
        scope::header("x-tenant"),
        routes,
    ));
    child::serve(app).await;
}

async fn charge(State(ledger): State<Arc<Ledger>>, Extension(attempt): Extension<Attempt>) -> String {
    let number = ledger.executions.fetch_add(1, Ordering::Relaxed);
    (&ledger.file).write_all(format!("{}\n", attempt.key.as_str()).as_bytes()).unwrap();
    // Work takes a moment, more or less: so that some of it is always under way when the end comes.
    for _ in 0..number % 4 {
        let ledger = Arc::clone(&ledger);
        tokio::task::spawn_blocking(move || ledger.file.sync_all()).await.unwrap().unwrap();
    }
    format!("{} was charged by execution {number} of process {}", attempt.key.as_str(), std::process::id())
}

fn start(folder: &Path) -> Service {
    Service::start(&[(FOLDER, folder.to_str().unwrap())])
}

// ---- the clients -----------------------------------------------------------------------------------------------------

/// What clients know. Keys that were sent and are not told were on their way when the service died.
#[derive(Default)]
struct Told {
    sent: BTreeSet<u64>,
    answers: BTreeMap<u64, Reply>,
    /// Keys of which nobody knows what became of them, as they were told.
    unknown: BTreeSet<u64>,
}

fn call(key: u64) -> Call {
    Call::post("/charges").key(&format!("key-{key}")).json(&format!("{{\"amount\":{key}}}"))
}

/// Sends a key's request, and checks the reply against what was told before; `None`: the service is gone.
async fn ask(connection: &mut Connection, told: &Mutex<Told>, key: u64) -> Option<Reply> {
    let was_told = {
        let mut told = told.lock().unwrap();
        told.sent.insert(key);
        told.answers.contains_key(&key)
    };
    connection.send(&call(key)).await.ok()?;
    let reply = connection.reply().await.ok()?;
    assert!(!was_told || reply.is_replay(), "key {key} was told before, and is not replayed: {reply:?}");
    if reply.status == 200 {
        let mut told = told.lock().unwrap();
        let first = told.answers.entry(key).or_insert_with(|| reply.clone());
        assert_eq!(first.in_common(), reply.in_common(), "key {key}: another answer");
    } else {
        // Somebody runs it, or died over it; and after the lease nobody knows what that one did.
        let is_lapsed = reply.body.windows(15).any(|words| words == b"outcome_unknown");
        reply.expect_problem(409, if is_lapsed { "outcome_unknown" } else { "in_progress" });
        if is_lapsed {
            told.lock().unwrap().unknown.insert(key);
        }
    }
    Some(reply)
}

/// A client: fresh keys, and again such as it or another has sent before, until the service is gone.
async fn client(addr: SocketAddr, told: Arc<Mutex<Told>>, answers: Arc<Semaphore>, mut dice: Dice) {
    let Ok(mut connection) = Connection::to(addr).await else { return };
    loop {
        let sent = told.lock().unwrap().sent.len() as u64;
        let key = dice.key(sent, CONNECTIONS as u64);
        if ask(&mut connection, &told, key).await.is_none() {
            return;
        }
        answers.add_permits(1);
    }
}

// ---- the test --------------------------------------------------------------------------------------------------------

fn kill_9() {
    let seed = std::env::var(SEED).map_or(1, |seed| seed.parse().unwrap());
    let runtime = runtime();
    let folder = tempfile::tempdir().unwrap();
    let told = Arc::new(Mutex::new(Told::default()));
    let mut dice = Dice(seed);
    for round in 0..ROUNDS {
        // Shown only if it fails.
        println!("round {round}; again with {SEED}={seed}");
        let service = start(folder.path());
        // What was told is still true; and what was cut off is not run again, but answered if its end was recorded.
        runtime.block_on(ask_for_all(service.addr, &told, round));
        runtime.block_on(load(service, &told, &mut dice));
        check(folder.path().join("ledger"), &told, round);
    }
    let service = start(folder.path());
    // Until every lease has lapsed: whatever was cut off is asked for again after it, and not run.
    let cut_off = loop {
        runtime.block_on(ask_for_all(service.addr, &told, 0));
        let cut_off = check(folder.path().join("ledger"), &told, ROUNDS);
        if told.lock().unwrap().unknown.len() >= cut_off {
            break cut_off;
        }
    };
    drop(service);
    let told = told.lock().unwrap();
    assert!(told.unknown.iter().all(|key| !told.answers.contains_key(key)), "a doubt was run again");
    println!(
        "{} keys, {} answers, {cut_off} executions whose end nobody knows, {ROUNDS} kills",
        told.sent.len(),
        told.answers.len()
    );
    assert!(cut_off > 50, "the kills came in the middle of work");
    assert!(told.answers.len() > 500, "and there was some");
}

/// Load from all connections, and the end at some answer.
async fn load(service: Service, told: &Arc<Mutex<Told>>, dice: &mut Dice) {
    let answers = Arc::new(Semaphore::new(0));
    let last = 1 + u32::try_from(dice.roll(200)).unwrap();
    let mut clients = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let dice = Dice(dice.roll(u64::MAX));
        clients.spawn(client(service.addr, Arc::clone(told), Arc::clone(&answers), dice));
    }
    tokio::select! {
        answered = within(answers.acquire_many(last)) => answered.unwrap().forget(),
        Some(client) = clients.join_next() => unreachable!("a client ended before the service: {client:?}"),
    }
    drop(service);
    while let Some(client) = within(clients.join_next()).await {
        client.unwrap();
    }
}

/// Every key again: all of them in the first round and at the end, later only some of those that are long settled.
async fn ask_for_all(addr: SocketAddr, told: &Arc<Mutex<Told>>, round: u64) {
    let keys: Vec<u64> = told.lock().unwrap().sent.iter().copied().collect();
    let (old, new) = keys.split_at(keys.len().saturating_sub(400));
    let old = old.iter().filter(|key| round == 0 || **key % 10 == round % 10);
    let keys = Arc::new(Mutex::new(old.chain(new).copied().collect::<Vec<_>>()));
    let mut clients = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (keys, told) = (Arc::clone(&keys), Arc::clone(told));
        clients.spawn(async move {
            let mut connection = Connection::to(addr).await.unwrap();
            loop {
                let Some(key) = keys.lock().unwrap().pop() else { return };
                ask(&mut connection, &told, key).await.expect("the service is there");
            }
        });
    }
    while let Some(client) = within(clients.join_next()).await {
        client.unwrap();
    }
}

/// No key was executed twice, and what was told was executed. Says how many executions nobody was told the end of.
fn check(ledger: PathBuf, told: &Mutex<Told>, round: u64) -> usize {
    let ledger = std::fs::read_to_string(ledger).unwrap();
    let mut executed = BTreeSet::new();
    for line in ledger.lines() {
        let key: u64 = line.strip_prefix("key-").expect("a whole line").parse().unwrap();
        assert!(executed.insert(key), "round {round}: key {key} was executed twice");
    }
    let told = told.lock().unwrap();
    assert!(executed.is_subset(&told.sent), "round {round}");
    for key in told.answers.keys() {
        assert!(executed.contains(key), "round {round}: key {key} was answered, and never executed");
    }
    executed.iter().filter(|key| !told.answers.contains_key(key)).count()
}
