//! Hostile requests as raw bytes, and what must hold for every one of them.
//!
//! The requests are data: see `README.md` here for how to add one. Each runs as it is written,
//! and over HTTP/1.1 also one byte at a time, one line at a time, and, if it is refused, followed
//! by a flood that the client sends before it reads anything. For every run:
//!
//! 1. What the upstream received is exactly the requests that the case names, by a parser that
//!    accepts no second reading (`strict.rs`).
//! 2. Every request at the upstream that a route protects, also by the readings of lenient
//!    servers (`readings.rs`), has a record in the store, and its attempt ran once.
//! 3. Every refusal reaches the client: a status and a problem document.
//! 4. The gateway answers a usual request afterwards.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod answer;
mod case;
mod client;
mod frames;
mod notation;
mod readings;
mod stage;
mod strict;
mod upstream;

use std::collections::BTreeMap;

use case::{Case, Setup};
use futures_util::future::join_all;
use stage::Stage;

/// Gateways per setup: each runs its share of the cases, one after the other.
const LANES: usize = 6;

/// Runs every case of one setup, and reports all failures at once.
async fn run(setup: &str) {
    let setups = Setup::all();
    let described = setups.get(setup).unwrap_or_else(|| panic!("no setup {setup:?}"));
    let cases: Vec<Case> = Case::all().into_iter().filter(|case| case.gateway == setup).collect();
    assert!(!cases.is_empty(), "no case uses the setup {setup:?}");
    let lanes = (0..LANES).map(|lane| {
        let share: Vec<&Case> = cases.iter().skip(lane).step_by(LANES).collect();
        async move {
            if share.is_empty() {
                return Vec::new();
            }
            let mut stage = Stage::start(described).await;
            for case in share {
                stage.run(case).await;
            }
            stage.finish().await
        }
    });
    let failures: Vec<String> = join_all(lanes).await.concat();
    assert!(failures.is_empty(), "{} failures:\n\n{}", failures.len(), failures.join("\n\n"));
}

macro_rules! setups {
    ($($name:ident),* $(,)?) => {
        $(#[tokio::test]
        async fn $name() {
            run(stringify!($name)).await;
        })*

        const SETUPS: &[&str] = &[$(stringify!($name)),*];
    };
}

// One test per setup of `setups.toml`.
setups!(protected, routes, exact, lenient, base, identity, slow);

#[test]
fn there_are_at_least_150_cases_with_different_names() {
    let cases = Case::all();
    assert!(cases.len() >= 150, "{} cases", cases.len());
    let mut places = BTreeMap::new();
    for case in &cases {
        let other = places.insert(&case.name, &case.file);
        assert_eq!(other, None, "two cases are called {:?}", case.name);
    }
}

#[test]
fn every_setup_is_a_test_and_every_case_has_a_setup() {
    let setups: Vec<String> = Setup::all().into_keys().collect();
    let mut tests = SETUPS.to_vec();
    tests.sort_unstable();
    assert_eq!(setups, tests);
    for case in Case::all() {
        assert!(setups.contains(&case.gateway), "{}: no setup {:?}", case.name, case.gateway);
    }
}
