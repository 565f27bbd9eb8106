//! The morning after: the provider's ledger is exported, and held against the gateway's records.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use example_payments::provider::Fault;
use serde_json::Value;

use crate::town::{Memory, Town};

#[test]
fn what_was_charged_behind_the_gateways_back_is_found() {
    let town = Town::opens(Memory::None);
    let paid = town.order(100);
    paid.pays().sees(201, "succeeded");
    let declined = town.order(100);
    declined.pays_with(&[Fault::Decline]).sees(402, "declined");
    let retried = town.order(100);
    retried.pays().sees(201, "succeeded");
    retried.retries().sees_again(201, "succeeded");
    assert_eq!(differences(&town), (0, vec![]));

    // Charged, and nobody was told.
    let doubted = town.order(100);
    doubted.pays_with(&[Fault::ResetAfterCharge]).sees(504, "unknown");
    assert_eq!(
        differences(&town),
        (5, vec![difference("charged_not_completed", &doubted.key, "unknown", 1)])
    );

    // Somebody charges it once more by hand.
    assert_eq!(paid.is_charged_directly(town.provider_address(), "by hand").status, 201);
    assert_eq!(
        differences(&town),
        (
            5,
            vec![
                difference("charged_twice", &paid.key, "completed", 2),
                difference("charged_not_completed", &doubted.key, "unknown", 1),
            ]
        )
    );

    // And somebody changes the books.
    let ledger = rusqlite::Connection::open(town.folder().join("provider.db")).unwrap();
    let reference = format!("%/{}", retried.key);
    ledger.execute("UPDATE charge SET amount = 99 WHERE reference LIKE ?1", [&reference]).unwrap();
    let (code, found) = differences(&town);
    assert_eq!(code, 5);
    assert!(found.contains(&difference("amount_differs", &retried.key, "completed", 1)), "{found:?}");
    ledger.execute("DELETE FROM charge WHERE reference LIKE ?1", [&reference]).unwrap();
    let (code, found) = differences(&town);
    assert_eq!(code, 5);
    assert!(found.contains(&difference("completed_not_charged", &retried.key, "completed", 0)), "{found:?}");
}

fn difference(kind: &str, key: &str, state: &str, charges: u64) -> String {
    format!("{kind} {key} {state} {charges}")
}

/// What the command says, through the gateway's admin listener.
fn differences(town: &Town) -> (i32, Vec<String>) {
    fs::write(town.folder().join("export.csv"), export(town)).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_oncegate"))
        .env_clear()
        .current_dir(town.folder())
        .args(["compare", "--provider-export", "export.csv", "--since", "1h", "--report", "json"])
        .args(["--key-column", "key", "--reference-column", "id"])
        .args(["--status-column", "status", "--status-charged", "succeeded"])
        .args(["--amount-column", "amount", "--amount-pointer", "/amount"])
        .args(["--currency-column", "currency", "--currency-pointer", "/currency"])
        .args(["--admin", &town.admin_address().to_string()])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let found = report["differences"].as_array().unwrap().iter().map(|found| {
        let text = |name: &str| found[name].as_str().unwrap();
        difference(text("kind"), text("key"), text("state"), found["charge_count"].as_u64().unwrap())
    });
    (output.status.code().unwrap(), found.collect())
}

/// Every line of the provider's ledger. Its merchant's reference is tenant and key.
fn export(town: &Town) -> String {
    let ledger = rusqlite::Connection::open(town.folder().join("provider.db")).unwrap();
    let mut rows = ledger.prepare("SELECT no, reference, amount, currency, status FROM charge").unwrap();
    let mut export = "id,tenant,key,amount,currency,status\n".to_owned();
    let mut rows = rows.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let (no, amount): (i64, i64) = (row.get("no").unwrap(), row.get("amount").unwrap());
        let text = |name: &str| row.get::<_, String>(name).unwrap();
        let (reference, currency, status) = (text("reference"), text("currency"), text("status"));
        let (tenant, key) = reference.split_once('/').unwrap();
        writeln!(export, "ch_{no},{tenant},{key},{amount},{currency},{status}").unwrap();
    }
    export
}
