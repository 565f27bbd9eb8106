//! The same keys, sent to several processes at once.
//!
//! Each caller has a connection of its own to a table that nothing makes unique: what ran twice is there twice.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oncegate_core::policy::Profile;
use oncegate_engine::{Arrived, Engine, Options, Route, Settled};
use oncegate_store_sql::PostgresStore;
use oncegate_test_servers::{PgBouncer, Postgres};
use tokio_postgres::Client;

use crate::actor::{Actor, block_on, orders, say, var};
use crate::clocks::{AHEAD, BEHIND, TRUE, check_clock, wall_s};
use crate::world::{Dice, complete, connect, node, replayed, request, route, unique, words};

const URL: &str = "ONCEGATE_TEST_URL";
const EFFECTS_URL: &str = "ONCEGATE_TEST_EFFECTS_URL";
const NUMBER: &str = "ONCEGATE_TEST_NUMBER";
const PROFILE: &str = "ONCEGATE_TEST_PROFILE";
const KEYS: &str = "ONCEGATE_TEST_KEYS";

const WORKERS: u64 = 64;
const EFFECTS: &str = "CREATE TABLE effects (key text, answer text)";

fn profile(name: &str) -> Profile {
    match name {
        "ietf" => Profile::Ietf,
        "lenient" => Profile::Lenient,
        other => panic!("no profile {other}"),
    }
}

fn key(number: usize) -> String {
    format!("order-{number}")
}

// ---- a process of the race -------------------------------------------------------------------------------------------

/// What the callers of one process were told.
#[derive(Default)]
struct Told {
    executed: u64,
    replayed: u64,
    busy: u64,
    /// The one answer of each key; every caller's was equal to it.
    answers: HashMap<usize, String>,
}

struct Racer {
    number: u64,
    keys: usize,
    route: Route,
    engine: Engine<PostgresStore>,
    told: Mutex<Told>,
}

pub(crate) fn racer() {
    let mut orders = orders();
    block_on(async {
        let racer = Arc::new(Racer {
            number: var(NUMBER).parse().unwrap(),
            keys: var(KEYS).parse().unwrap(),
            route: route(profile(&var(PROFILE)), |_| ()),
            // A machine that is busy with other tests is no reason for a 503.
            engine: node(&var(URL), Options { store_timeout: Duration::from_mins(1), ..Options::default() })
                .await,
            told: Mutex::default(),
        });
        let mut connections = Vec::new();
        for _ in 0..WORKERS {
            connections.push(connect(&var(EFFECTS_URL)).await);
        }
        say(&format!("ready {}", wall_s()));
        orders.recv().await.unwrap();
        let callers: Vec<_> = (0..WORKERS)
            .zip(connections)
            .map(|(worker, effects)| tokio::spawn(Arc::clone(&racer).call(worker, effects)))
            .collect();
        for caller in callers {
            caller.await.unwrap();
        }
        let told = std::mem::take(&mut *racer.told.lock().unwrap());
        say(&format!("told {} {} {}", told.executed, told.replayed, told.busy));
        for (number, answer) in told.answers {
            say(&format!("answer {number} {answer}"));
        }
        say("done");
    });
}

impl Racer {
    /// One caller, who wants all keys and gives up on none.
    async fn call(self: Arc<Self>, worker: u64, effects: Client) {
        // Every other caller has a twin in each process, who wants the same keys in the same order at the same time.
        let seed = if worker.is_multiple_of(2) { worker } else { self.number << 32 | worker };
        let mut wanted = VecDeque::from(Dice::new(seed).shuffled(self.keys));
        while let Some(number) = wanted.pop_front() {
            if !self.ask(worker, number, &effects).await {
                self.told.lock().unwrap().busy += 1;
                // Asked for again when all others have been; by then it has most likely been answered.
                wanted.push_back(number);
            }
            // As a server does between two requests. Replays from the cache never wait, and would keep all others waiting.
            tokio::task::yield_now().await;
        }
    }

    /// Whether there was an answer; otherwise it was a 409.
    async fn ask(&self, worker: u64, number: usize, effects: &Client) -> bool {
        let key = key(number);
        let answer = match self.engine.arrive_or_wait(&self.route, request(&self.route, &key)).await.unwrap()
        {
            Arrived::Execute(mut held) => {
                held.begin().unwrap();
                let mine = unique(&format!("process-{}-worker-{worker}", self.number));
                held.run(effects.execute("INSERT INTO effects VALUES ($1, $2)", &[&key, &mine]))
                    .await
                    .unwrap();
                let settled = held.settle(complete(&mine)).await;
                assert!(matches!(settled, Settled::Done(_)), "{settled:?}");
                self.told.lock().unwrap().executed += 1;
                mine
            }
            Arrived::Replay { answer, .. } => {
                self.told.lock().unwrap().replayed += 1;
                words(&answer)
            }
            Arrived::Busy { .. } => return false,
            other => panic!("{key}: {other:?}"),
        };
        let mut told = self.told.lock().unwrap();
        let known = told.answers.entry(number).or_insert_with(|| answer.clone());
        assert_eq!(*known, answer, "{key} has two answers");
        true
    }
}

// ---- the race --------------------------------------------------------------------------------------------------------

/// Who takes part, and in what.
struct Race<'a> {
    server: &'a Postgres,
    /// Where the stores connect to.
    url: String,
    profile: &'a str,
    keys: usize,
    /// One process for each: by how much its host's clock is off, in the words of `faketime`.
    clocks: &'a [Option<&'a str>],
}

fn server() -> Postgres {
    let server = Postgres::start(&[("max_connections", "300")]);
    let _nothing = server.sql(EFFECTS);
    server
}

pub(crate) fn refusing() {
    let server = server();
    let busy = run(&Race::of_three(&server, "ietf", &[TRUE; 3]));
    assert!(busy > 0, "nobody met anybody: this was no race");
}

pub(crate) fn waiting() {
    let server = server();
    run(&Race::of_three(&server, "lenient", &[TRUE; 3]));
}

pub(crate) fn clocks_apart() {
    let server = server();
    run(&Race::of_three(&server, "ietf", &[TRUE, AHEAD, BEHIND]));
}

pub(crate) fn pooled() {
    let server = server();
    let bouncer = PgBouncer::start(&server.url(), &[("default_pool_size", "8")]);
    run(&Race { server: &server, url: bouncer.url(), profile: "ietf", keys: 500, clocks: &[TRUE; 2] });
}

impl<'a> Race<'a> {
    fn of_three(server: &'a Postgres, profile: &'a str, clocks: &'a [Option<&'a str>]) -> Self {
        Self { server, url: server.url(), profile, keys: 2_000, clocks }
    }

    fn racer(&self, number: usize, clock: Option<&str>) -> Actor {
        let (number, keys, effects_url) = (number.to_string(), self.keys.to_string(), self.server.url());
        let environment = [
            (URL, self.url.as_str()),
            (EFFECTS_URL, &effects_url),
            (NUMBER, &number),
            (PROFILE, self.profile),
            (KEYS, &keys),
        ];
        Actor::start_at("racer", clock, &environment)
    }
}

/// Runs a race and checks it; says how many callers were refused meanwhile.
fn run(race: &Race<'_>) -> u64 {
    let mut racers: Vec<_> =
        race.clocks.iter().enumerate().map(|(number, clock)| race.racer(number, *clock)).collect();
    for (racer, clock) in racers.iter().zip(race.clocks) {
        check_clock(&racer.hear_word("ready"), *clock);
    }
    let started = Instant::now();
    for racer in &mut racers {
        racer.tell("go");
    }
    let (mut executed, mut replays, mut busy) = (0, 0, 0);
    let mut answers = BTreeMap::new();
    for racer in &racers {
        let told: Vec<u64> = racer.hear_word("told").split(' ').map(|count| count.parse().unwrap()).collect();
        executed += told[0];
        replays += told[1];
        busy += told[2];
        let mut known = 0;
        loop {
            let line = racer.hear();
            let Some(pair) = line.strip_prefix("answer ") else { break };
            let (number, answer) = pair.split_once(' ').unwrap();
            let number: usize = number.parse().unwrap();
            let first = answers.entry(key(number)).or_insert_with(|| answer.to_owned());
            assert_eq!(first, answer, "two processes gave two answers to {}", key(number));
            known += 1;
        }
        assert_eq!(known, race.keys, "a process without an answer to each key");
    }
    let took = started.elapsed();
    let (keys, processes) = (u64::try_from(race.keys).unwrap(), u64::try_from(race.clocks.len()).unwrap());
    println!(
        "{processes} processes, {keys} keys, {}: {executed} ran, {replays} replays, {busy} times 409, in {took:?}",
        race.profile
    );
    assert_eq!(executed, keys, "each ran once");
    assert_eq!(replays, keys * (processes * WORKERS - 1), "every other caller got the answer in the end");
    check_effects(race, &answers);
    busy
}

/// The operations' own side effects: one a key, and its words are the answer that everybody got and the store keeps.
fn check_effects(race: &Race<'_>, answers: &BTreeMap<String, String>) {
    block_on(async {
        let rows =
            connect(&race.server.url()).await.query("SELECT key, answer FROM effects", &[]).await.unwrap();
        assert_eq!(rows.len(), race.keys, "as many effects as keys");
        let effects: BTreeMap<String, String> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        assert_eq!(effects.len(), race.keys, "one effect a key");
        assert!(effects == *answers, "the effects are not those that were answered");
        let fresh = node(&race.server.url(), Options::default()).await;
        let counts = oncegate_store::Store::counts(fresh.store()).await.unwrap();
        assert_eq!(counts.completed, u64::try_from(race.keys).unwrap(), "{counts:?}");
        assert_eq!((counts.in_progress, counts.unknown, counts.failed_retryable), (0, 0, 0), "{counts:?}");
        let route = route(profile(race.profile), |_| ());
        for (key, answer) in answers {
            assert_eq!(replayed(fresh.arrive(&route, request(&route, key)).await.unwrap()), *answer, "{key}");
        }
    });
}
