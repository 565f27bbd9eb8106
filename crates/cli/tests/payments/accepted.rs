//! Ten thousand accepted operations, two gateways on one PostgreSQL, both killed in the middle of it. All of them end; each took effect once
//! where the other side dedupes by its key, and at most once where it does not. The provider's ledger is the judge.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;

use example_payments::post::{self, NoReply};
use hyper::Request;
use hyper::body::Bytes;
use oncegate_test_servers::{Postgres, wait_until};
use tempfile::TempDir;
use tokio::sync::watch;

use crate::gateway::Gateway;
use crate::mix::records_at;
use crate::town::{FOREVER, Memory, Patience, Town};

const OPERATIONS: usize = 10_000;
const CLIENTS: usize = 32;
/// Longer than anything in this town is late.
const HORIZON: &str = "10s";

/// Two on one store, each with a folder of its own.
struct Pair {
    gateways: [Gateway; 2],
    _folders: [TempDir; 2],
}

impl Pair {
    fn starts(store: &str, upstream: SocketAddr, more: &str) -> Self {
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let start = |folder: &TempDir| {
            fs::write(folder.path().join("store.url"), store).unwrap();
            fs::write(folder.path().join("more.toml"), more).unwrap();
            Gateway::start(folder.path(), upstream, None)
        };
        Self { gateways: [start(&folders[0]), start(&folders[1])], _folders: folders }
    }

    fn addresses(&self) -> [SocketAddr; 2] {
        [self.gateways[0].address, self.gateways[1].address]
    }

    /// `kill -9` of both, one right after the other; then both return.
    fn die_and_return(&mut self) {
        self.gateways.iter_mut().for_each(Gateway::is_killed);
        self.gateways.iter_mut().for_each(Gateway::starts_again);
    }
}

/// What all clients have been told so far.
struct Crowd {
    gateways: [SocketAddr; 2],
    accepted: watch::Sender<usize>,
}

impl Crowd {
    /// Each until it is accepted, at one gateway and then at the other.
    async fn sends(self: Arc<Self>, client: usize, request: fn(&str) -> Request<Bytes>) {
        for number in (client..OPERATIONS).step_by(CLIENTS) {
            let key = key(number);
            for gateway in self.gateways.iter().cycle().skip(number % 2) {
                match post::send(&gateway.to_string(), request(&key), FOREVER).await {
                    Ok(reply) if reply.status == 202 || reply.status == 201 => break,
                    // Not accepted; or nobody knows whether it was. Both mean: the same again.
                    Ok(reply) if reply.status == 503 => {}
                    Ok(reply) if reply.status == 504 && reply.json()["code"] == "outcome_unknown" => {}
                    Ok(reply) => panic!("{key}: {} {}", reply.status, reply.json()),
                    // Nobody is there just now.
                    Err(NoReply::NotSent | NoReply::Closed | NoReply::TimedOut) => {
                        tokio::task::yield_now().await;
                    }
                }
            }
            self.accepted.send_modify(|count| *count += 1);
        }
    }
}

fn key(number: usize) -> String {
    format!("accepted-{number:05}-operation")
}

fn post_json(path: &str, key: &str, body: String) -> Request<Bytes> {
    Request::post(path)
        .header("host", "localhost")
        .header("authorization", "Bearer mix")
        .header("content-type", "application/json")
        .header("idempotency-key", format!("\"{key}\""))
        .body(Bytes::from(body))
        .unwrap()
}

/// Sends all, kills both gateways twice meanwhile, and waits until nothing is open. Gives the records by their keys.
fn live_through(
    town: &Town,
    pair: &mut Pair,
    request: fn(&str) -> Request<Bytes>,
) -> BTreeMap<String, serde_json::Value> {
    let crowd = Arc::new(Crowd { gateways: pair.addresses(), accepted: watch::Sender::new(0) });
    let clients: Vec<_> =
        (0..CLIENTS).map(|client| town.runtime.spawn(Arc::clone(&crowd).sends(client, request))).collect();
    for half in [OPERATIONS / 2, OPERATIONS * 9 / 10] {
        wait_until("enough is accepted", || *crowd.accepted.borrow() >= half);
        pair.die_and_return();
    }
    for client in clients {
        town.runtime.block_on(client).unwrap();
    }
    let admin = pair.gateways[0].admin;
    let mut left = usize::MAX;
    while left > 0 {
        // As long as there is progress, there is patience.
        wait_until("it goes on", || {
            let open = ["pending", "in_progress", "unknown"].map(|state| {
                let page = town.get(admin, &format!("/api/v1/records?limit=500&state={state}"));
                page["records"].as_array().unwrap().len()
            });
            let now: usize = open.iter().sum();
            let charges = town.get(town.provider_address(), "/ledger")["charges"].as_u64().unwrap();
            let remaining = now + OPERATIONS.saturating_sub(usize::try_from(charges).unwrap());
            let is_less = remaining < left;
            left = if is_less { remaining } else { left };
            is_less || remaining == 0
        });
    }
    let all = records_at(town, admin, "");
    assert_eq!(all.len(), OPERATIONS);
    all.into_iter().collect()
}

fn deferred(crash: &str, more: &str) -> String {
    format!(
        "execution = \"deferred\"\nin_progress = \"accept\"\nafter_doubt = \"accept\"\ncrash = \"{crash}\"\n\
         request_headers = [\"content-type\", \"authorization\"]\n{more}"
    )
}

const HURRIED: &str =
    "[workers]\nsweep_every = \"100ms\"\nreconcile_every = \"50ms\"\ndeferred_every = \"100ms\"\n";

/// The provider itself is behind the gateways: it dedupes by key, so what broke off is run again.
#[test]
fn each_takes_effect_exactly_once_where_the_other_side_dedupes() {
    let server = Postgres::start(&[]);
    let town = Town::opens_with(Memory::Good, Patience::Endless);
    let mut pair = Pair::starts(&server.url(), town.provider_address(), &deferred("restart", HURRIED));
    let records = live_through(&town, &mut pair, |key| {
        let body = format!("{{\"reference\": \"{key}\", \"amount\": 100, \"currency\": \"EUR\"}}");
        post_json("/charges", key, body)
    });
    let mut attempts = BTreeMap::new();
    for (key, record) in &records {
        assert_eq!(
            (&record["state"], &record["answer"]["status"]),
            (&"completed".into(), &201.into()),
            "{key}"
        );
        *attempts.entry(record["attempts"].as_u64().unwrap()).or_insert(0) += 1;
    }
    let verdict = town.get(town.provider_address(), "/ledger");
    println!("{OPERATIONS} operations, by attempts: {attempts:?}; the judge: {verdict}");
    assert_eq!(verdict["charges"], OPERATIONS);
    town.the_judge_convicts(0);
    assert!(attempts.len() > 1, "some were run again: {attempts:?}");
}

/// The payment API knows nothing of retries: what broke off is found out.
#[test]
fn each_takes_effect_at_most_once_where_the_other_side_does_not() {
    let server = Postgres::start(&[]);
    let town = Town::opens_with(Memory::None, Patience::Endless);
    let probe = format!(
        "forward_key = \"derived\"\nhorizon = \"{HORIZON}\"\n[defaults.probe]\ntimeout = \"5s\"\nbackoff = \"50ms\"\n\
         backoff_max = \"200ms\"\npark_after = 1000\n{}\n{HURRIED}",
        example_payments::PROBE
    );
    let mut pair = Pair::starts(&server.url(), town.api_address(), &deferred("reconcile", &probe));
    let records = live_through(&town, &mut pair, |key| {
        post_json("/payments", key, r#"{"amount": 100, "currency": "EUR"}"#.to_owned())
    });
    let mut doubted = 0;
    for (key, record) in &records {
        assert_eq!(
            (&record["state"], &record["answer"]["status"]),
            (&"completed".into(), &201.into()),
            "{key}"
        );
        // A released attempt leaves an error too; what was in doubt says so in its trail.
        if record["last_error"] != serde_json::Value::Null {
            let path = format!("/api/v1/records/{}/story", record["id"].as_str().unwrap());
            let told = town.get(pair.gateways[0].admin, &path);
            let story = told["story"].as_array().unwrap();
            doubted += usize::from(story.iter().any(|entry| entry["to"] == "unknown"));
        }
    }
    let verdict = town.get(town.provider_address(), "/ledger");
    println!("{OPERATIONS} operations, {doubted} of them in doubt for a while; the judge: {verdict}");
    assert_eq!(verdict["charges"], OPERATIONS);
    town.the_judge_convicts(0);
    assert!(doubted > 0, "some were in doubt");
}
