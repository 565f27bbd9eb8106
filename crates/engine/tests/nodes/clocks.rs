//! Hosts whose clocks are off. The store's clock is the only one that counts.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use oncegate_test_servers::shared;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::Client;

use crate::actor::Actor;
use crate::node::{self, LEASE_MS, URL};
use crate::schema::own_schema;
use crate::world::connect;

pub(crate) const TRUE: Option<&str> = None;
pub(crate) const AHEAD: Option<&str> = Some("+10m");
pub(crate) const BEHIND: Option<&str> = Some("-10m");

/// A process whose wall clock is off, by libfaketime. The monotonic clock stays true: a host whose clock is set wrong still counts
/// seconds. The program `faketime` is only asked for its library: it would stand between us and the child.
pub(crate) fn off_by(clock: &str) -> [(&'static str, String); 4] {
    let told = Command::new("faketime").args(["-m", "-f", clock, "printenv", "LD_PRELOAD"]).output();
    let told = told.unwrap_or_else(|error| panic!("the Debian package `faketime` is missing: {error}"));
    assert!(told.status.success(), "faketime: {}", String::from_utf8_lossy(&told.stderr));
    let library = String::from_utf8(told.stdout).unwrap().trim().to_owned();
    [
        ("LD_PRELOAD", library),
        ("FAKETIME", clock.to_owned()),
        ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ]
}

/// What the library of a killed process has left behind, named after its pid: whoever got that pid again would have the true time.
pub(crate) fn tidy_up(pid: u32) {
    for name in ["faketime_shm", "sem.faketime_sem"] {
        let _not_there = std::fs::remove_file(format!("/dev/shm/{name}_{pid}"));
    }
}

/// This process's wall clock.
pub(crate) fn wall_s() -> i64 {
    i64::try_from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()).unwrap()
}

/// A child's wall clock is as far off as it is meant to be.
pub(crate) fn check_clock(said: &str, clock: Option<&str>) {
    let expected = match clock {
        TRUE => 0,
        AHEAD => 600,
        BEHIND => -600,
        Some(other) => panic!("{other}?"),
    };
    let off = said.parse::<i64>().unwrap() - wall_s();
    assert!((off - expected).abs() < 60, "a clock that is to be off by {expected} s is off by {off} s");
}

const LEASE: Duration = Duration::from_secs(3);

/// Each of three hosts holds a lease for each of the others to look at. It is respected for as long as it lasts by the database's
/// clock, and lapses soon after.
pub(crate) fn leases() {
    let server = shared::postgres_url();
    let schema = own_schema(&server);
    let database = DatabaseClock::new(&server);
    let lease = LEASE.as_millis().to_string();
    let clocks = [TRUE, AHEAD, BEHIND];
    let mut nodes: Vec<_> = clocks
        .iter()
        .map(|clock| Actor::start_at("node", *clock, &[(URL, &schema.url), (LEASE_MS, &lease)]))
        .collect();
    for (node, clock) in nodes.iter().zip(clocks) {
        check_clock(&node.hear_word("ready"), clock);
    }
    let mut watched = Vec::new();
    for holder in 0..nodes.len() {
        for watcher in (0..nodes.len()).filter(|watcher| *watcher != holder) {
            let key = format!("held-by-{holder}-watched-by-{watcher}");
            let before = database.now_us();
            let until = node::micros(&nodes[holder].ask(&format!("arrive {key}")), "execute");
            let length = Duration::from_micros(u64::try_from(until - before).unwrap());
            assert!(
                length.abs_diff(LEASE) < Duration::from_secs(2),
                "{key}: {length:?} is no lease of {LEASE:?}"
            );
            watched.push((watcher, key, until));
        }
    }
    let (mut refusals, mut latest, started) = (0, 0, Instant::now());
    while !watched.is_empty() {
        assert!(started.elapsed() < Duration::from_mins(1), "these never lapse: {watched:?}");
        watched.retain(|(watcher, key, until)| {
            let before = database.now_us();
            let said = nodes[*watcher].ask(&format!("arrive {key}"));
            let after = database.now_us();
            if said == "unsettled" {
                assert!(after >= *until, "{key} lapsed {} µs before its end", until - after);
                latest = latest.max(before - until);
                return false;
            }
            assert_eq!(node::micros(&said, "busy"), *until, "{key}");
            refusals += 1;
            true
        });
    }
    println!(
        "6 leases over clocks 20 minutes apart: respected {refusals} times, lapsed at most {latest} µs late"
    );
    assert!(refusals >= 6, "nobody looked in time");
    assert!(latest < 10_000_000, "a lapse was seen {latest} µs late");
}

/// Asked over one connection.
struct DatabaseClock {
    runtime: Runtime,
    client: Client,
}

impl DatabaseClock {
    fn new(url: &str) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(connect(url));
        Self { runtime, client }
    }

    fn now_us(&self) -> i64 {
        let text = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        self.runtime.block_on(self.client.query_one(text, &[])).unwrap().get(0)
    }
}
