//! A backup is restored under a running gateway while clients pay. The gateway refuses to go on, an operator declares
//! what may be lost, and settles it by the provider's ledger. Every payment is charged once.

use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;

use example_payments::provider::{Fault, Faults};
use hyper::Request;
use hyper::body::Bytes;
use oncegate_test_servers::wait_until;
use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};

use crate::database::Database;
use crate::gateway::store_of;
use crate::mix::{Crowd, records};
use crate::town::{FOREVER, Town};

const PAYMENTS: usize = 600;
const CLIENTS: usize = 16;
const TRIES: usize = 2;
const HORIZON: &str = "10s";

#[test]
fn after_a_restore_no_payment_is_charged_twice_on_sqlite() {
    restore_while_clients_pay(&Database::sqlite());
}

#[test]
fn after_a_restore_no_payment_is_charged_twice_on_postgresql() {
    restore_while_clients_pay(&Database::postgres());
}

#[test]
fn after_a_restore_no_payment_is_charged_twice_on_redis() {
    restore_while_clients_pay(&Database::redis());
}

fn restore_while_clients_pay(database: &Database) {
    let town = database.opens_a_town(HORIZON);
    let faults = Fault::ALL.map(|fault| (fault, if fault.is_of_webhook() { 0.1 } else { 0.04 }));
    town.put(town.provider_address(), "/faults", &serde_json::to_value(Faults(faults.into())).unwrap());
    let crowd = Crowd::new(town.gateway_address());
    let keys = |client: usize| {
        (client..PAYMENTS).step_by(CLIENTS).map(|payment| format!("lost-{payment:04}-payment")).collect()
    };
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| town.runtime.spawn(Arc::clone(&crowd).client(keys(client), TRIES)))
        .collect();
    crowd.wait_for(&town, "payments", |count| count.payments >= PAYMENTS / 4);
    database.back_up(&town);
    crowd.wait_for(&town, "payments", |count| count.payments >= PAYMENTS / 2);
    database.restore(&town);
    wait_until("the gateway notices", || town.counted(town.admin_address(), "oncegate_store_restored ") == 1);

    crowd.while_the_gateway_is_down(&town, || declare_the_loss(&town));
    let mut seen = HashMap::new();
    for client in clients {
        seen.extend(town.runtime.block_on(client).unwrap());
    }
    town.put(town.provider_address(), "/faults", &json!({}));
    wait_until("nothing is still to come", || {
        town.get(town.provider_address(), "/ledger")["still_to_come"] == 0
    });

    let mut held_back = settle_what_is_held_back(&town);
    for state in ["in_progress", "unknown"] {
        wait_until(&format!("nothing is {state}"), || records(&town, &format!("&state={state}")).is_empty());
    }
    for (key, seen) in seen.iter_mut().filter(|(_, seen)| seen.0.is_none()) {
        wait_until(&format!("{key} is told"), || {
            town.runtime.block_on(crowd.ask(key, seen));
            held_back += settle_what_is_held_back(&town);
            seen.0.is_some()
        });
    }
    // Clients that had used up their tries before the gateway came back have asked again just now.
    assert!(held_back > 0, "nothing was held back");
    let records = records(&town, "");
    for (key, seen) in &seen {
        let told = seen.0.as_ref().map(|(status, _)| *status);
        // A client that was told before the restore, and did not come back, has no record: its charge stands.
        let id = records.get(key).map(|record| record["id"].as_str().unwrap().to_owned());
        let charges = id.map(|id| charges(&town, &id));
        let statuses: Option<Vec<_>> =
            charges.map(|all| all.iter().map(|charge| charge["status"].clone()).collect());
        let expected = if told == Some(201) { "succeeded" } else { "declined" };
        assert!(statuses.is_none_or(|all| all == [expected]), "{key}: told {told:?}, {records:#?}");
    }
    let twice = charged_twice(&town);
    assert!(twice.is_empty(), "charged twice: {twice:?}");
    crate::storm::is_sound(&town);
    println!("{PAYMENTS} payments, {}, {held_back} held back after the restore", *crowd.count.borrow());
}

/// What an operator types.
fn declare_the_loss(town: &Town) {
    let told = Command::new(env!("CARGO_BIN_EXE_oncegate"))
        .args(["quarantine", "--since", "2020-01-01T00:00:00Z", "--reason", "restored a backup"])
        .args(["--operator", "ann", "--store", &store_of(town.folder())])
        .output()
        .unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
}

/// Settles each record that waits for an operator by what the provider has charged for it. Says how many there were.
fn settle_what_is_held_back(town: &Town) -> usize {
    let parked = records(town, "&parked=true");
    for record in parked.values() {
        let id = record["id"].as_str().unwrap();
        let mut wish = json!({
            "version": record["version"], "operator": "ann", "reason": "looked into the ledger",
            "outcome": "did_not_happen",
        });
        if let Some(charge) = charges(town, id).first() {
            let status = if charge["status"] == "succeeded" { 201 } else { 402 };
            wish["outcome"] = json!("happened");
            wish["response"] = json!({ "status": status, "body": charge.to_string() });
        }
        let request = Request::post(format!("/api/v1/records/{id}/resolve"))
            .header("host", "localhost")
            .header("content-type", "application/json")
            .body(Bytes::from(wish.to_string()))
            .unwrap();
        let reply = town.send(town.admin_address(), request).unwrap();
        assert_eq!(reply.status, 200, "{}", reply.json());
    }
    parked.len()
}

fn ledger(town: &Town) -> Connection {
    let file = town.folder().join("provider.db");
    let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    connection.busy_timeout(FOREVER).unwrap();
    connection
}

/// The charges of a record, in whichever life: the key that the provider is sent begins with the record's id.
fn charges(town: &Town, id: &str) -> Vec<Value> {
    let ledger = ledger(town);
    let mut query = ledger
        .prepare("SELECT no, status, amount FROM charge WHERE reference LIKE ?1 || '%' ORDER BY no")
        .unwrap();
    let reference = format!("mix/{}", id.trim_start_matches("op_"));
    let charge = |row: &rusqlite::Row<'_>| {
        let (no, status, amount): (i64, String, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(json!({ "id": format!("ch_{no}"), "status": status, "amount": amount }))
    };
    query.query_map([reference], charge).unwrap().map(Result::unwrap).collect()
}

/// The records that were charged more than once, over all their lives.
fn charged_twice(town: &Town) -> Vec<String> {
    let ledger = ledger(town);
    let mut query = ledger
        .prepare("SELECT substr(reference, 1, 30) AS record FROM charge GROUP BY record HAVING count(*) > 1")
        .unwrap();
    query.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}
