//! Everything at once: 2,000 payments, every fault by the dice, the gateway killed twice and the API twice, a provider that remembers nothing,
//! and clients that retry all the while.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use example_payments::post::{self, NoReply};
use example_payments::provider::{Fault, Faults};
use hyper::Request;
use hyper::body::Bytes;
use oncegate_test_servers::wait_until;
use serde_json::Value;
use tokio::sync::watch;

use crate::town::{FOREVER, Town};

const PAYMENTS: usize = 2_000;
const CLIENTS: usize = 32;
/// How often a client sends each payment, whatever it is told.
const TRIES: usize = 4;

#[test]
fn two_thousand_payments_and_no_key_is_charged_twice() {
    let town = Town::opens_in_disorder();
    let faults = Fault::ALL.map(|fault| (fault, if fault.is_of_webhook() { 0.1 } else { 0.04 }));
    town.put(town.provider_address(), "/faults", &serde_json::to_value(Faults(faults.into())).unwrap());

    let crowd = Crowd::new(town.gateway_address());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let keys = (client..PAYMENTS).step_by(CLIENTS).map(|payment| format!("mix-{payment:04}-payment"));
            town.runtime.spawn(Arc::clone(&crowd).client(keys.collect(), TRIES))
        })
        .collect();
    for fifths in 1..=2 {
        crowd.wait_for(&town, "payments", |count| count.payments >= fifths * PAYMENTS / 5);
        crowd.kill_the_gateway(&town);
    }
    for fifths in 3..=4 {
        crowd.wait_for(&town, "payments", |count| count.payments >= fifths * PAYMENTS / 5);
        crowd.kill_the_api(&town);
    }
    let mut seen = HashMap::new();
    for client in clients {
        seen.extend(town.runtime.block_on(client).unwrap());
    }
    assert_eq!(seen.len(), PAYMENTS);

    // Whose holder was killed is only known to be in doubt when somebody asks again, after the lease.
    wait_until("nothing is in progress", || {
        let stuck = records(&town, "&state=in_progress");
        for key in stuck.keys() {
            town.runtime.block_on(crowd.ask(key, &mut Seen::default()));
        }
        stuck.is_empty()
    });
    wait_until("nothing is still to come", || {
        town.get(town.provider_address(), "/ledger")["still_to_come"] == 0
    });

    let mut summary = Summary::default();
    let records = records(&town, "");
    for (key, seen) in &seen {
        summary.add(Ended::of(&town, key, records.get(key), seen));
    }
    let verdict = town.get(town.provider_address(), "/ledger");
    let count = *crowd.count.borrow();
    println!("{PAYMENTS} payments by {CLIENTS} clients, {count}; {summary}; the judge: {verdict}");

    assert_eq!(verdict["charged_twice"], serde_json::json!([]));
    assert_eq!(records.len(), PAYMENTS);
    // All of it was there to go wrong.
    for what in ["paid", "declined", "unknown, charged", "unknown, not charged"] {
        assert!(summary.0.contains_key(what), "no payment was {what}: {summary}");
    }
    assert!(count.silences > 0 && count.unreachable > 0 && count.replays > 1_000, "{count}");
}

/// What clients share.
pub(crate) struct Crowd {
    gateway: SocketAddr,
    is_open: watch::Sender<bool>,
    pub(crate) count: watch::Sender<Count>,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Count {
    pub(crate) payments: usize,
    requests: usize,
    replays: usize,
    silences: usize,
    unreachable: usize,
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, replays, silences, unreachable, .. } = self;
        write!(f, "{requests} requests: {replays} replays, {silences} without an answer, {unreachable} × 502")
    }
}

/// What a client was told about one key: an outcome, once and for all, or none yet.
#[derive(Default)]
pub(crate) struct Seen(pub(crate) Option<(u16, Bytes)>);

impl Crowd {
    pub(crate) fn new(gateway: SocketAddr) -> Arc<Self> {
        Arc::new(Self {
            gateway,
            is_open: watch::Sender::new(true),
            count: watch::Sender::new(Count::default()),
        })
    }

    /// One payment after another, each sent several times; every fourth by two at once.
    pub(crate) async fn client(self: Arc<Self>, keys: Vec<String>, tries: usize) -> Vec<(String, Seen)> {
        let mut all = Vec::new();
        for (n, key) in keys.into_iter().enumerate() {
            let (mut seen, mut twin) = (Seen::default(), Seen::default());
            for _ in 0..tries {
                if n % 4 == 0 {
                    tokio::join!(self.ask(&key, &mut seen), self.ask(&key, &mut twin));
                } else {
                    self.ask(&key, &mut seen).await;
                }
            }
            seen.agrees_with(twin, &key);
            self.count.send_modify(|count| count.payments += 1);
            all.push((key, seen));
        }
        all
    }

    /// Sends it until somebody takes it.
    pub(crate) async fn ask(&self, key: &str, seen: &mut Seen) {
        let reply = loop {
            match post::send(&self.gateway.to_string(), request(key), FOREVER).await {
                // Nothing was sent, and whoever restarts the gateway says so.
                Err(NoReply::NotSent) => drop(self.is_open.subscribe().wait_for(|is_open| *is_open).await),
                other => break other,
            }
        };
        let Ok(reply) = reply else {
            return self.count.send_modify(|count| {
                count.requests += 1;
                count.silences += 1;
            });
        };
        let (status, is_replay) = (reply.status.as_u16(), reply.headers.contains_key("idempotency-replayed"));
        self.count.send_modify(|count| {
            count.requests += 1;
            count.replays += usize::from(is_replay);
            count.unreachable += usize::from(status == 502);
        });
        match status {
            201 | 402 => seen.agrees_with(Seen(Some((status, reply.body))), key),
            // In progress, in doubt, or not executed.
            409 | 502..=504 => {}
            other => panic!("{key}: a client was answered {other}: {}", reply.json()),
        }
    }

    pub(crate) fn wait_for(&self, town: &Town, what: &str, holds: impl Fn(&Count) -> bool) {
        let mut count = self.count.subscribe();
        let held =
            async { tokio::time::timeout(FOREVER, count.wait_for(|count| holds(count))).await.is_ok() };
        assert!(town.runtime.block_on(held), "waited in vain for {what}");
    }

    pub(crate) fn kill_the_gateway(&self, town: &Town) {
        self.while_the_gateway_is_down(town, || ());
    }

    /// Kills the gateway, and starts it again when `act` is done.
    pub(crate) fn while_the_gateway_is_down(&self, town: &Town, act: impl FnOnce()) {
        self.is_open.send_replace(false);
        town.gateway_is_killed();
        act();
        town.gateway_returns();
        self.is_open.send_replace(true);
    }

    /// It stays away until some clients have been told so.
    pub(crate) fn kill_the_api(&self, town: &Town) {
        let unreachable = self.count.borrow().unreachable;
        town.api_stops();
        self.wait_for(town, "a 502", |count| count.unreachable > unreachable + 8);
        town.api_returns();
    }
}

impl Seen {
    /// Outcomes of one key are the same, byte for byte, whoever was told when.
    fn agrees_with(&mut self, other: Self, key: &str) {
        match (&self.0, other.0) {
            (Some(first), Some(second)) => assert_eq!(first, &second, "{key}: two outcomes"),
            (None, Some(outcome)) => self.0 = Some(outcome),
            (_, None) => {}
        }
    }
}

/// How a payment ended: the record, the ledger and the client must agree on it.
enum Ended {
    Paid,
    Declined,
    Unknown { is_charged: bool },
    NotExecuted,
}

impl Ended {
    fn of(town: &Town, key: &str, record: Option<&Value>, seen: &Seen) -> Self {
        let record = record.unwrap_or_else(|| panic!("{key} has no record"));
        let found = town.get(town.provider_address(), &format!("/charges?reference=mix/{key}"));
        let charges: Vec<_> = found["charges"]
            .as_array()
            .unwrap()
            .iter()
            .map(|charge| charge["status"].as_str().unwrap())
            .collect();
        let status = record["answer"]["status"].as_u64();
        let told = seen.0.as_ref().map(|(status, _)| u64::from(*status));
        let context = || format!("{key}: charges {charges:?}, the client was told {told:?}, {record:#}");
        match (record["state"].as_str().unwrap(), status, charges.as_slice()) {
            ("completed", Some(201), ["succeeded"]) => {
                assert!(told.is_none_or(|told| told == 201), "{}", context());
                Self::Paid
            }
            ("completed", Some(402), ["declined"]) => {
                assert!(told.is_none_or(|told| told == 402), "{}", context());
                Self::Declined
            }
            ("unknown", None, [] | ["declined"]) if told.is_none() => Self::Unknown { is_charged: false },
            ("unknown", None, ["succeeded"]) if told.is_none() => Self::Unknown { is_charged: true },
            ("failed_retryable", None, []) if told.is_none() => Self::NotExecuted,
            _ => panic!("these do not agree: {}", context()),
        }
    }
}

/// How many ended how.
#[derive(Default)]
struct Summary(BTreeMap<&'static str, usize>);

impl Summary {
    fn add(&mut self, ended: Ended) {
        let name = match ended {
            Ended::Paid => "paid",
            Ended::Declined => "declined",
            Ended::Unknown { is_charged: true } => "unknown, charged",
            Ended::Unknown { is_charged: false } => "unknown, not charged",
            Ended::NotExecuted => "not executed",
        };
        *self.0.entry(name).or_default() += 1;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<_> = self.0.iter().map(|(name, count)| format!("{count} {name}")).collect();
        f.write_str(&counts.join("; "))
    }
}

/// All records of the gateway, by their keys.
pub(crate) fn records(town: &Town, filter: &str) -> HashMap<String, Value> {
    records_at(town, town.admin_address(), filter)
}

/// The same of another gateway.
pub(crate) fn records_at(town: &Town, admin: SocketAddr, filter: &str) -> HashMap<String, Value> {
    let (mut all, mut after) = (HashMap::new(), String::new());
    loop {
        let page = town.get(admin, &format!("/api/v1/records?limit=500{filter}{after}"));
        let found = page["records"].as_array().unwrap();
        all.extend(found.iter().map(|record| (record["key"].as_str().unwrap().to_owned(), record.clone())));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return all,
        }
    }
}

fn request(key: &str) -> Request<Bytes> {
    Request::post("/payments")
        .header("host", "localhost")
        .header("authorization", "Bearer mix")
        .header("content-type", "application/json")
        .header("idempotency-key", format!("\"{key}\""))
        .body(Bytes::from_static(br#"{"amount": 100, "currency": "EUR"}"#))
        .unwrap()
}
