//! The storm: thousands of payments, every fault of the provider by the dice, and a provider that remembers nothing. Meanwhile the gateway
//! is killed again and again, the clock is stepped forward and back by an hour, and the database rejects writes. Then it clears up by
//! itself: nothing stays in progress, and no outcome stays unknown. The provider's ledger is the judge.

use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;

use example_payments::provider::{Fault, Faults};
use oncegate_test_servers::wait_until;
use serde_json::{Value, json};

use crate::database::Database;
use crate::gateway::store_of;
use crate::mix::{Crowd, Seen, records};
use crate::town::Town;

const PAYMENTS: usize = 2_000;
const CLIENTS: usize = 32;
/// Sent so often while it storms; and again when it is over.
const TRIES: usize = 2;
/// Far longer than anything in this town is late, also on a machine that stands still for a while.
const HORIZON: &str = "20s";
/// Far longer than the horizon and every lease.
const STEP_S: i64 = 3_600;

#[test]
fn after_the_storm_every_outcome_is_known_on_sqlite() {
    storm(&Database::sqlite());
}

#[test]
fn after_the_storm_every_outcome_is_known_on_postgresql() {
    storm(&Database::postgres());
}

#[test]
fn after_the_storm_every_outcome_is_known_on_redis() {
    storm(&Database::redis());
}

/// What goes wrong besides the provider, in this order, evenly over the payments.
const TROUBLES: [Trouble; 7] = [
    Trouble::Kill,
    Trouble::WritesAreRejected,
    Trouble::ClockForward,
    Trouble::WritesAreAccepted,
    Trouble::Kill,
    Trouble::ClockBack,
    Trouble::Kill,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Kill,
    /// About one write of fifty, from now on.
    WritesAreRejected,
    WritesAreAccepted,
    ClockForward,
    /// A node that has seen the later time grants nothing until the clock is there again: its operator restarts it.
    ClockBack,
}

fn storm(database: &Database) {
    let town = database.opens_a_town(HORIZON);
    let faults = Fault::ALL.map(|fault| (fault, if fault.is_of_webhook() { 0.1 } else { 0.04 }));
    town.put(town.provider_address(), "/faults", &serde_json::to_value(Faults(faults.into())).unwrap());
    let crowd = Crowd::new(town.gateway_address());
    let keys = |client: usize| {
        (client..PAYMENTS).step_by(CLIENTS).map(|payment| format!("storm-{payment:04}-payment")).collect()
    };
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| town.runtime.spawn(Arc::clone(&crowd).client(keys(client), TRIES)))
        .collect();
    for (n, trouble) in TROUBLES.into_iter().enumerate() {
        crowd
            .wait_for(&town, "payments", |count| count.payments >= (n + 1) * PAYMENTS / (TROUBLES.len() + 1));
        match trouble {
            Trouble::Kill => crowd.kill_the_gateway(&town),
            Trouble::WritesAreRejected => database.reject_writes(&town),
            Trouble::WritesAreAccepted => database.accept_writes(&town),
            Trouble::ClockForward => {
                database.set_clock_off_s(STEP_S);
                Database::wait_for_step(&town, "forward");
            }
            Trouble::ClockBack => {
                database.set_clock_off_s(0);
                Database::wait_for_step(&town, "back");
                crowd.kill_the_gateway(&town);
            }
        }
    }
    let mut seen = HashMap::new();
    for client in clients {
        seen.extend(town.runtime.block_on(client).unwrap());
    }
    assert_eq!(seen.len(), PAYMENTS);

    // The clock is past all that it has ever shown, so that every lease ends.
    database.set_clock_off_s(2 * STEP_S);
    // It clears up by itself: no operator acts.
    for state in ["in_progress", "unknown"] {
        wait_until(&format!("nothing is {state}"), || records(&town, &format!("&state={state}")).is_empty());
    }
    town.put(town.provider_address(), "/faults", &json!({}));
    // A client that has not been told yet comes back until it is.
    let mut told_later = 0;
    for (key, seen) in seen.iter_mut().filter(|(_, seen)| seen.0.is_none()) {
        told_later += 1;
        wait_until(&format!("{key} is told"), || {
            town.runtime.block_on(crowd.ask(key, seen));
            seen.0.is_some()
        });
    }
    judge(&town, &seen);
    is_sound(&town);
    println!("{PAYMENTS} payments, {}, {told_later} told after the storm", *crowd.count.borrow());
}

/// What an operator types to check the store, while the gateway serves.
pub(crate) fn is_sound(town: &Town) {
    let told = Command::new(env!("CARGO_BIN_EXE_oncegate"))
        .args(["store", "check", "--store", &store_of(town.folder())])
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&told.stdout);
    assert!(told.status.success(), "{shown}{}", String::from_utf8_lossy(&told.stderr));
    assert!(shown.contains("The store is sound."), "{shown}");
}

/// Record, ledger and client agree on every payment, and nobody was charged twice.
fn judge(town: &Town, seen: &HashMap<String, Seen>) {
    let records = records(town, "&body=true");
    assert_eq!(records.len(), PAYMENTS);
    for (key, seen) in seen {
        let record = &records[key];
        let reference = record["derived_key"].as_str().unwrap();
        let found = town.get(town.provider_address(), &format!("/charges?reference=mix/{reference}"));
        let charges = found["charges"].as_array().unwrap();
        let told = seen.0.as_ref().map(|(status, _)| *status);
        let context = || format!("{key}: charges {charges:?}, told {told:?}, {record:#}");
        let [charge] = &charges[..] else { panic!("not one charge: {}", context()) };
        let expected = if charge["status"] == "succeeded" { 201 } else { 402 };
        assert_eq!((record["state"].as_str(), told), (Some("completed"), Some(expected)), "{}", context());
        assert_eq!(record["answer"]["status"], expected, "{}", context());
        // The payment, as the API tells of it, or the charge, as the provider does: both name the charge.
        let answer: Value = serde_json::from_str(record["answer"]["body"].as_str().unwrap()).unwrap();
        let named = answer.get("charge").unwrap_or(&answer["id"]);
        assert_eq!((named, &answer["amount"]), (&charge["id"], &charge["amount"]), "{}", context());
    }
    town.the_judge_convicts(0);
}
