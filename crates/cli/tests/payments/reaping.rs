//! Stories of what is past its retention: removed, or buried, while others pay. Exactly that, and not before its time.
//!
//! Some of the old keys are used again before the reaper comes by, and some after it; what is kept for an hour is asked for all the while.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use oncegate_test_servers::wait_until;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::mix::{Crowd, Seen, records};
use crate::order::Order;
use crate::town::{Care, FAR, Memory, Patience, Town};

const SHORT: &str = "retention = \"5s\"";
const LONG: &str = "retention = \"1h\"";
/// Old keys that are used again as soon as they may be.
const AGAIN: usize = 10;
/// Old keys that are left alone.
const LEFT: usize = 30;
const KEPT: usize = 20;
const CLIENTS: usize = 2;

/// What follows retention.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    Fresh,
    Gone,
}

/// A payment, and when its retention ends.
struct Paid<'a> {
    order: Order<'a>,
    end: String,
}

#[test]
fn exactly_what_is_past_retention_is_removed_while_traffic_flows_and_its_keys_are_new_ones() {
    let town = opens(After::Fresh);
    let paid = reaped_while_traffic_flows(&town, After::Fresh);
    // Each of the keys that were used again has been paid twice, and each of them once in a life.
    let before = charges(&town);
    assert_eq!(before, 2 * AGAIN + LEFT + KEPT + paid.by_others);
    for Paid { order, .. } in &paid.left {
        order.record().is("absent");
        order.is_used_again_with(&[]).sees(201, "succeeded");
        order.retries().sees_again(201, "succeeded");
        order.charges().is(1);
    }
    assert_eq!(charges(&town), before + LEFT);
    town.the_judge_convicts(0);
}

#[test]
fn exactly_what_is_past_retention_is_buried_while_traffic_flows_and_its_keys_are_gone() {
    let town = opens(After::Gone);
    let paid = reaped_while_traffic_flows(&town, After::Gone);
    for Paid { order, .. } in paid.left.iter().chain(&paid.again) {
        order.retries().sees(410, "key_expired");
        // Whatever it is used for.
        order.misused_for(r#"{"amount": 999, "currency": "EUR"}"#).pays().sees(410, "key_expired");
        order.charges().is(1);
    }
    assert_eq!(charges(&town), AGAIN + LEFT + KEPT + paid.by_others);
    town.the_judge_convicts(0);
}

fn opens(after: After) -> Town {
    let after = match after {
        After::Fresh => "after_retention = \"fresh\"",
        After::Gone => "after_retention = 410\ntombstone = \"1h\"",
    };
    let defaults = format!("{SHORT}\n{after}");
    let care = Care { defaults: &defaults, workers: "reap_every = \"100ms\"", ..Care::told(FAR) };
    Town::opens_with_care(Memory::None, Patience::Endless, care)
}

/// What there was, after the reaper has come by.
struct Reaped<'a> {
    again: Vec<Paid<'a>>,
    left: Vec<Paid<'a>>,
    /// Payments of the traffic.
    by_others: usize,
}

fn reaped_while_traffic_flows(town: &Town, after: After) -> Reaped<'_> {
    let (again, left) = (are_paid(town, AGAIN), are_paid(town, LEFT));
    town.gateway_returns_configured(SHORT, LONG);
    let kept = are_paid(town, KEPT);
    let traffic = Traffic::starts(town);
    traffic.flows(town);

    let mut used = 0;
    wait_until("what is past retention is reaped", || {
        let listed = listed(town, &kept[0].order);
        let now = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
        for Paid { order, end } in again.iter().chain(&left) {
            let is_reaped = after.is_reaped(listed.get(&order.key));
            assert!(!is_reaped || *end <= now, "{} is reaped at {now}, before {end}", order.key);
        }
        for Paid { order, .. } in kept.iter().chain(after.stays(&again[..used])) {
            assert_eq!(listed[&order.key]["state"], "completed", "{}", order.key);
        }
        // As soon as they may be: the reaper leaves them alone for a second more.
        while let Some(paid) = again.get(used).filter(|paid| paid.end <= now) {
            after.is_seen(&paid.order);
            used += 1;
        }
        used == AGAIN && left.iter().all(|paid| after.is_reaped(listed.get(&paid.order.key)))
    });
    traffic.flows(town);

    for Paid { order, .. } in kept.iter().chain(after.stays(&again)) {
        order.retries().sees_again(201, "succeeded");
        order.charges().is(1);
    }
    let by_others = traffic.ends(town);
    Reaped { again, left, by_others }
}

impl After {
    /// By whoever uses an old key again.
    fn is_seen(self, order: &Order<'_>) {
        match self {
            Self::Fresh => order.is_used_again_with(&[]).sees(201, "succeeded"),
            Self::Gone => order.is_used_again_with(&[]).sees(410, "key_expired"),
        }
    }

    /// What was used again, and so is there to stay.
    const fn stays<'p, 't>(self, used: &'p [Paid<'t>]) -> &'p [Paid<'t>] {
        match self {
            Self::Fresh => used,
            Self::Gone => &[],
        }
    }

    /// What the reaper leaves of a record.
    fn is_reaped(self, record: Option<&Value>) -> bool {
        match self {
            Self::Fresh => record.is_none(),
            // A record past retention is said to be expired before the reaper has come by; but then it still has its answer.
            Self::Gone => record.is_some_and(|row| row["state"] == "expired" && row["answer"].is_null()),
        }
    }
}

fn are_paid(town: &Town, count: usize) -> Vec<Paid<'_>> {
    let paid = (0..count).map(|_| {
        let order = town.order(100);
        order.pays().sees(201, "succeeded");
        let end = order.found().unwrap()["expires_at"].as_str().unwrap().to_owned();
        Paid { order, end }
    });
    paid.collect()
}

/// The records of whoever has paid this.
fn listed(town: &Town, order: &Order<'_>) -> HashMap<String, Value> {
    let scope = order.found().unwrap()["scope"].as_str().unwrap().to_owned();
    records(town, &format!("&scope={scope}"))
}

/// All that the provider has ever charged.
fn charges(town: &Town) -> usize {
    let charges = town.get(town.provider_address(), "/ledger")["charges"].as_u64().unwrap();
    usize::try_from(charges).unwrap()
}

/// Others, who pay one order after the other, each sent twice.
struct Traffic {
    crowd: Arc<Crowd>,
    is_over: watch::Sender<bool>,
    clients: Vec<JoinHandle<Vec<(String, Seen)>>>,
}

impl Traffic {
    fn starts(town: &Town) -> Self {
        let (crowd, is_over) = (Crowd::new(town.gateway_address()), watch::Sender::new(false));
        let clients = (0..CLIENTS).map(|client| {
            let (crowd, is_over) = (Arc::clone(&crowd), is_over.subscribe());
            town.runtime.spawn(async move {
                let mut all = Vec::new();
                while !*is_over.borrow() {
                    let key = format!("flow-{client}-{:05}-payment", all.len());
                    all.extend(Arc::clone(&crowd).client(vec![key], 2).await);
                }
                all
            })
        });
        let clients = clients.collect();
        Self { crowd, is_over, clients }
    }

    /// Waits for some more payments.
    fn flows(&self, town: &Town) {
        let so_far = self.crowd.count.borrow().payments;
        self.crowd.wait_for(town, "more payments", |count| count.payments >= so_far + 20);
    }

    /// Everybody was told of every payment, and all of them are there. Says how many.
    fn ends(self, town: &Town) -> usize {
        self.is_over.send_replace(true);
        let mut seen = HashMap::new();
        for client in self.clients {
            seen.extend(town.runtime.block_on(client).unwrap());
        }
        let there = records(town, "&state=completed");
        for (key, Seen(told)) in &seen {
            assert_eq!(told.as_ref().map(|(status, _)| *status), Some(201), "{key}");
            assert_eq!(there[key]["answer"]["status"], 201, "{key}");
        }
        seen.len()
    }
}
