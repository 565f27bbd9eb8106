//! What an operator does at a desk, gateways elsewhere hear of.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::client::within;
use crate::process::Gateway;
use crate::upstream::Upstream;
use crate::world::{Place, charge};

/// `oncegate` with these words; what it printed, and what it said.
fn oncegate(words: &[&str]) -> (String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_oncegate"))
        .env_clear()
        .args(words)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (printed, said) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{words:?}\n{printed}{said}");
    (printed, said)
}

fn shown(key: &str, place: &Place) -> Value {
    let (printed, _) = oncegate(&["keys", "show", key, "--json", "--store", place.store()]);
    serde_json::from_str(&printed).unwrap()
}

/// Holds the answer in its cache, and lets go of it long before that is too old.
async fn lets_go(gateway: &Gateway, key: &str) {
    let asking = async { while charge(key).send(gateway.address).await.is_replay() {} };
    within(asking).await;
    charge(key).send(gateway.address).await.expect_problem(410, "key_expired");
}

/// By the command itself, which is a node of its own for as long as it takes, and through one of two gateways.
async fn a_forgotten_answer_goes_from_all_caches(place: Place) {
    let upstream = Upstream::start().await;
    let gateways = [place.start(&upstream.url(), ""), place.start(&upstream.url(), "")];
    let admin = format!("http://{}", gateways[0].admin);
    let told = "the other nodes were told through the store's signals";
    for (key, flag, url, expected) in
        [("key-1", "--store", place.store(), Some(told)), ("key-2", "--admin", admin.as_str(), None)]
    {
        assert_eq!(charge(key).send(gateways[0].address).await.status, 201);
        for gateway in gateways.iter().chain(&gateways) {
            assert!(charge(key).send(gateway.address).await.is_replay());
        }
        let id = shown(key, &place)["id"].as_str().unwrap().to_owned();
        let why = ["--operator", "ada", "--reason", "of another customer", "--yes"];
        let words = [&["forget", id.as_str(), flag, url][..], &why].concat();
        let (printed, said) = oncegate(&words);
        assert!(printed.contains("The stored answer is dropped."), "{printed}");
        assert_eq!(said.contains(told), expected.is_some(), "{said}");
        for gateway in &gateways {
            lets_go(gateway, key).await;
        }
        let story = shown(key, &place)["story"].clone();
        let words = story[0]["words"].as_str().unwrap();
        assert!(words.contains("operator ada") && words.contains("of another customer"), "{story:#}");
    }
    assert_eq!(upstream.requests(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_answer_goes_from_all_caches_over_postgres() {
    a_forgotten_answer_goes_from_all_caches(Place::postgres()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_answer_goes_from_all_caches_over_redis() {
    a_forgotten_answer_goes_from_all_caches(Place::redis()).await;
}
