//! Every case of the contract (`clients/contract.json`), each a test, against a server that follows the case's script.
//!
//! The waits between tries are skipped, and so is nothing else: the server is real, and so is the time of a try.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

#[path = "client/pace.rs"]
mod pace;
#[path = "client/scripted.rs"]
#[expect(dead_code, reason = "other tests need more of it")]
mod scripted;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use oncegate_client::{Client, Outcome, Why};
use oncegate_core::problem::Code;
use pace::Hurried;
use scripted::{Scripted, contract, limits};
use serde_json::{Map, Value};

const GIVEN: &str = "8e03978e-40d5-43dd-bc93-6894a57f9324";

fn main() -> ExitCode {
    let cases = contract()["cases"].as_array().unwrap().clone();
    let rows: BTreeSet<_> = cases.iter().map(|case| case["row"].as_str().unwrap().to_owned()).collect();
    let mut tests: Vec<_> = cases.into_iter().map(trial).collect();
    tests.push(Trial::test("every row of the table has its cases, and every problem its row", move || {
        the_table_is_whole(&rows);
        Ok(())
    }));
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

fn trial(case: Value) -> Trial {
    let name = format!("{}: {}", case["row"].as_str().unwrap(), case["name"].as_str().unwrap());
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(check(&case));
        Ok::<(), Failed>(())
    })
}

async fn check(case: &Value) {
    let server = Scripted::start(&case["steps"]).await;
    let limits = limits(&contract(), &case["limits"]);
    let client = Client::builder().limits(limits).pace(Hurried::default()).build().unwrap();
    let mut operation = client
        .post(&server.url)
        .header("authorization", "Bearer me")
        .json(&serde_json::json!({ "amount": 100 }));
    let is_resumed = case["resumed"] == true;
    if is_resumed {
        operation = operation.key(GIVEN.parse().unwrap());
    }
    let outcome = operation.run().await.expect("it is begun");
    let is = case["is"].as_object().unwrap();
    assert_eq!(seen(&outcome, is), *is, "{outcome:?}");
    assert_eq!(outcome.asked().key.as_str() == GIVEN, is_resumed);
    check_requests(&server, case, outcome.asked().key.as_str());
}

/// What the case speaks of.
fn seen(outcome: &Outcome, is: &Map<String, Value>) -> Map<String, Value> {
    let answer = outcome.answer();
    let all = serde_json::json!({
        "outcome": outcome.as_str(),
        "why": outcome.why().map(Why::as_str),
        "attempts": outcome.asked().attempts,
        "replayed": match outcome {
            Outcome::Happened(happened) => Some(happened.replayed),
            _ => None,
        },
        "status": answer.map(|answer| answer.status.as_u16()),
        "location": answer.and_then(|answer| answer.headers.get("location")?.to_str().ok()),
        "has_body": answer.is_some_and(|answer| answer.body.is_some()),
    });
    is.keys().map(|name| (name.clone(), all[name].clone())).collect()
}

/// One key and the same bytes each time; questions carry who asks, and nothing else.
fn check_requests(server: &Scripted, case: &Value, key: &str) {
    let requests = server.requests();
    if let Some(lines) = case["requests"].as_array() {
        let sent: Vec<_> = requests.iter().map(|asked| asked.line.as_str()).collect();
        assert_eq!(sent, lines.iter().map(|line| line.as_str().unwrap()).collect::<Vec<_>>());
    }
    let steps = case["steps"].as_array().unwrap();
    let is_forever = steps.last().unwrap()["forever"] == true;
    assert!(is_forever || requests.len() == steps.len(), "{requests:?}");
    let quoted = format!("\"{key}\"");
    for asked in requests {
        let is_post = asked.line.starts_with("POST ");
        assert_eq!(asked.headers["authorization"], "Bearer me");
        assert_eq!(asked.key(), is_post.then_some(quoted.as_str()));
        assert_eq!(asked.body, if is_post { "{\"amount\":100}" } else { "" });
    }
}

/// `not_sent` and `cancelled` need no answer, and so have no case.
fn the_table_is_whole(rows: &BTreeSet<String>) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/README.md");
    let page = std::fs::read_to_string(page).unwrap();
    let table: Vec<_> = page.lines().filter(|line| line.starts_with("| `")).collect();
    let row = |line: &str| line.split('`').nth(1).unwrap().to_owned();
    let written: BTreeSet<_> = table.iter().map(|line| row(line)).collect();
    let elsewhere = ["not_sent".to_owned(), "cancelled".to_owned()];
    assert_eq!(written, rows.iter().cloned().chain(elsewhere).collect());
    for code in Code::ALL {
        let quoted = format!("`{}`", code.name());
        assert!(table.iter().any(|line| line.contains(&quoted)), "{quoted} has no row");
    }
}
