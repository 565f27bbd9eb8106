//! `oncegate quarantine`: windows of keys that may have been lost.

use insta::assert_snapshot;
use oncegate::{Engine, Options};
use oncegate_core::fingerprint::Fingerprint;
use oncegate_core::key::Key;
use oncegate_core::policy::Profile;
use oncegate_core::scope::Operation;
use oncegate_engine::{Arrived, Route};

use crate::desk::Desk;

const WINDOW: &str = "--since 2026-11-16T09:30:00Z --until 2026-11-16T10:15:00Z --operator ada";

/// The ids and moments that are of this run.
fn plain(text: &str) -> String {
    let is_id = |word: &str| word.starts_with('q') && word.contains('-') && word.len() > 10;
    let of_line = |line: &str| {
        let words = line.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        words
            .map(|word| {
                let end = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric() && c != '-').len();
                if is_id(&word[..end]) { format!("q…{}", &word[end..]) } else { word.to_owned() }
            })
            .collect::<String>()
    };
    text.lines().flat_map(|line| [of_line(line), "\n".to_owned()]).collect()
}

fn id(listed: &str) -> String {
    let word = listed
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
        .find(|word| word.starts_with('q') && word.len() > 10);
    word.unwrap().to_owned()
}

/// A request of this key, as a node has it that starts now.
fn arrives(desk: &Desk, key: &str) -> &'static str {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(arrives_in(desk, key))
}

async fn arrives_in(desk: &Desk, key: &str) -> &'static str {
    let url = format!("sqlite://{}", desk.path().join("oncegate.db").display());
    let engine = Engine::start(oncegate::open(&url).await.unwrap(), Options::default()).await.unwrap();
    let route = Route::of_profile(Profile::Ietf, Operation::new("POST /payments").unwrap());
    let key = Key::from_text(key).unwrap();
    let arrival = route.arrival(route.scope("acme").unwrap(), key, Fingerprint::from_parts(1, [1; 32]), None);
    let arrived = engine.arrive(&route, arrival).await.unwrap();
    match arrived {
        Arrived::Execute(_) => "runs",
        Arrived::Unsettled { parked: true, .. } => "held back",
        _ => "something else",
    }
}

/// An operator restores a backup, declares what was lost, looks at what is held back, and releases it.
#[test]
fn a_window_is_declared_listed_and_released() {
    let desk = Desk::with(vec![]);
    assert_snapshot!("quarantine_none", desk.ask("quarantine list"));
    let declared = desk.ask(&format!("quarantine {WINDOW} --reason 'the disk of db1 failed'"));
    assert_snapshot!("quarantine_declared", plain(&declared));
    let id = id(&declared);
    assert_eq!(arrives(&desk, "no-time-in-this-key"), "held back");
    assert_snapshot!("quarantine_listed", plain(&desk.ask("quarantine list")));
    let json: serde_json::Value = {
        let listed = desk.ask("quarantine list --json");
        let text = listed.split("----- stdout\n").nth(1).unwrap().split("----- stderr").next().unwrap();
        serde_json::from_str(text).unwrap()
    };
    assert_eq!(json["quarantines"][0]["since"], "2026-11-16T09:30:00Z");
    assert_eq!(json["quarantines"][0]["released_at"], serde_json::Value::Null);
    let dead = desk.ask("dead list");
    assert!(dead.contains("quarantined"), "{dead}");
    let released =
        desk.ask(&format!("quarantine release {id} --reason 'compared with the ledger' --operator ada"));
    assert_snapshot!("quarantine_released", plain(&released));
    assert_eq!(arrives(&desk, "no-time-in-this-key"), "runs");
    let again = desk.ask(&format!("quarantine release {id} --reason again --operator ada"));
    assert_snapshot!("quarantine_released_again", plain(&again));
}

#[test]
fn what_cannot_be_declared_or_released_is_said() {
    let desk = Desk::with(vec![]);
    assert_snapshot!("quarantine_nothing", desk.ask("quarantine"));
    assert_snapshot!("quarantine_no_moment", desk.ask("quarantine --since yesterday --operator ada"));
    assert_snapshot!(
        "quarantine_backwards",
        desk.ask("quarantine --since 2026-11-16T10:15:00Z --until 2026-11-16T09:30:00Z --operator ada")
    );
    assert_snapshot!("quarantine_unknown", desk.ask("quarantine release q1 --reason x --operator ada"));
    assert_snapshot!("quarantine_by_gateway", desk.run("quarantine list --admin http://127.0.0.1:1"));
    assert_snapshot!("quarantine_by_no_name", desk.ask("quarantine --since 2026-11-16T10:15:00Z"));
}
