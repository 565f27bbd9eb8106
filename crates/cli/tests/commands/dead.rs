//! `oncegate dead`

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use insta::assert_snapshot;
use oncegate_core::identity::Token;
use oncegate_core::record::{Reason, Record, State};
use oncegate_core::scope::Operation;
use oncegate_core::time::Timestamp;
use oncegate_store::jobs::{Became, Claim, Job, JobId, Jobs as _, Report};

use crate::acts::{VERSION, steady};
use crate::desk::{Desk, seen};
use crate::records;
use crate::terminal::typing;

const WHY: &str = "--operator ada --reason 'the provider is back'";

/// Parked so long ago, counted from now.
fn parked(key: &str, age: Duration) -> Record {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let since = Timestamp::from_micros(i64::try_from(now.saturating_sub(age).as_micros()).unwrap());
    let record = records::parked(key);
    let State::Unknown(doubt) = record.state else { panic!("not in doubt") };
    Record { state: State::Unknown(oncegate_core::record::Doubt { since, ..doubt }), ..record }
}

fn hours(count: u64) -> Duration {
    Duration::from_hours(count) + Duration::from_mins(10)
}

fn refund(key: &str) -> Record {
    Record { operation: Operation::new("POST /refunds").unwrap(), ..parked(key, hours(3)) }
}

fn desk() -> Desk {
    let hostile = Reason::new("upstream_answer", "bad\nop_fake  0 s  \x1b[2Jcleared");
    Desk::with(vec![
        parked("order-1", hours(72)),
        records::doubted("order-2"),
        refund("refund-3"),
        Record { last_error: Some(hostile), ..parked("order-4", hours(5)) },
        records::paid("acme", "order-5"),
    ])
}

#[test]
fn what_waits_for_an_operator_is_listed() {
    let desk = desk();
    assert_snapshot!("list", desk.ask("dead list"));
    assert_snapshot!("list_of_a_route", desk.ask("dead list --operation 'POST /refunds'"));
    assert_snapshot!("list_nothing", desk.ask("dead list --scope nobody"));
    let first = desk.ask("dead list --limit 2");
    let (_, after) = first.split_once("there are more: --after ").unwrap();
    let rest = desk.ask(&format!("dead list --after {}", after.trim()));
    assert!(rest.contains("order-1") && !rest.contains("there are more"), "{rest}");
    let json = desk.command("dead list --json --store sqlite://oncegate.db").output().unwrap().stdout;
    let page: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(page["records"].as_array().unwrap().len(), 3);
    assert_eq!(page["records"][0]["version"], VERSION);
    assert_snapshot!("list_bad_cursor", desk.ask("dead list --after yesterday"));
}

#[test]
fn one_is_shown_with_what_can_be_done() {
    let desk = Desk::with(vec![
        records::parked("order-1"),
        records::doubted("order-2"),
        records::paid("acme", "order-3"),
    ]);
    assert_snapshot!("show", desk.ask("dead show order-1"));
    assert_snapshot!("show_still_asked", desk.ask("dead show order-2"));
    assert_snapshot!("show_completed", desk.ask("dead show order-3"));
    assert_snapshot!("show_no_key", desk.ask("dead show order-4"));
    assert_eq!(desk.ask("dead show order-1 --json"), desk.ask("keys show order-1 --json"));
}

#[test]
fn one_is_asked_about_again() {
    let record = records::parked("order-1");
    let line = format!("dead retry {} --version {VERSION} {WHY}", record.id);
    let desk = Desk::with(vec![record]);
    assert_snapshot!("retry", steady(&desk.ask(&line)));
    assert_snapshot!("retry_again", steady(&desk.ask(&line)));
    assert_snapshot!("retry_shown", steady(&desk.ask("dead show order-1")));
    assert_snapshot!("retry_list", desk.ask("dead list"));
}

#[test]
fn all_of_a_route_are_asked_about_again() {
    let desk = desk();
    let line = format!("dead retry --all --operation 'POST /payments' {WHY}");
    assert_snapshot!("all_not_asked", desk.ask(&line));
    let with_store = format!("{line} --store sqlite://oncegate.db");
    let output = typing(&mut desk.command(&with_store), "no\n");
    assert_snapshot!("all_typed_no", seen(&output));
    assert_eq!(desk.ask("dead list").matches("order-").count(), 2, "none was touched");
    assert_snapshot!("all_yes", desk.ask(&format!("{line} --yes")));
    let left = desk.ask("dead list");
    assert!(left.contains("refund-3") && !left.contains("order-"), "{left}");
    for key in ["order-1", "order-4"] {
        let story = desk.ask(&format!("keys show {key}"));
        assert!(
            story.contains("operator ada: to be asked about again; reason: \"the provider is back\""),
            "{story}"
        );
    }
    assert!(!desk.ask("keys show order-2").contains("operator"), "it was no dead letter");
    assert_snapshot!("all_nothing", desk.ask(&format!("{line} --yes")));
}

/// Of the request `order-1`: given up by its provider, and promised so long ago.
fn park_job(desk: &Desk) -> JobId {
    park_jobs(desk, "charge", 0..1)[0]
}

/// The promises with these numbers.
fn park_jobs(desk: &Desk, effect: &str, numbers: std::ops::Range<u32>) -> Vec<JobId> {
    let (record, token) = (records::parked("order-1"), Token::from_bytes([3; 16]));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().saturating_sub(hours(3));
    let now = Timestamp::from_micros(i64::try_from(now.as_micros()).unwrap());
    let ids: Vec<_> = numbers.map(|n| JobId::of(record.life, n)).collect();
    let payload = b"{\"amount\":100}";
    let promised = |id: &JobId| Job::promised(*id, effect, payload.to_vec(), (record.id, record.life), now);
    let jobs: Vec<_> = ids.iter().map(promised).collect();
    let url = format!("sqlite://{}", desk.path().join("oncegate.db").display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = oncegate::open(&url).await.unwrap();
        store.promise(&jobs).await.unwrap();
        let claim = Claim { token, effects: &[effect], span: hours(1), limit: jobs.len(), again: 0 };
        assert_eq!(store.claim(&claim).await.unwrap().len(), jobs.len());
        let refused = Reason::new("refused", "no such account\n\x1b[2J");
        let report = |id: &JobId| Report { id: *id, became: Became::Parked(refused.clone()) };
        let reports: Vec<_> = ids.iter().map(report).collect();
        assert!(store.report(token, &reports).await.unwrap().iter().all(|landed| *landed));
    });
    ids
}

/// The ids of all pages, each as it was listed.
fn pages(desk: &Desk, limit: usize) -> Vec<Vec<String>> {
    let (mut pages, mut after) = (Vec::new(), String::new());
    loop {
        let line = format!("dead list --json --limit {limit} {after} --store sqlite://oncegate.db");
        let page: serde_json::Value =
            serde_json::from_slice(&desk.command(&line).output().unwrap().stdout).unwrap();
        let listed = [&page["records"], &page["jobs"]].into_iter().filter_map(|list| list.as_array());
        pages.push(listed.flatten().map(|one| one["id"].as_str().unwrap().to_owned()).collect());
        match page["next"].as_str() {
            Some(next) => after = format!("--after {next}"),
            None => return pages,
        }
    }
}

#[test]
fn jobs_are_listed_behind_the_records_page_by_page() {
    let desk = desk();
    let jobs: Vec<_> = park_jobs(&desk, "charge", 0..5).iter().map(ToString::to_string).collect();
    let listed = pages(&desk, 2);
    let all: Vec<_> = listed.iter().flatten().cloned().collect();
    assert_eq!((all.len(), &all[3..]), (8, &jobs[..]), "three records, then the jobs, each once");
    assert_eq!(listed.iter().map(Vec::len).collect::<Vec<_>>(), [2, 3, 2, 1], "a page is two of a kind");
    let first = desk.ask(&format!("dead list --limit 4 --after {}", jobs[0]));
    assert!(first.contains(&jobs[4]) && !first.contains("there are more"), "{first}");
    assert!(desk.ask(&format!("dead list --after {}", jobs[4])).contains("no more dead letters"));
}

/// More than one page of them.
#[test]
fn all_jobs_of_an_effect_are_tried_again_and_no_others() {
    let desk = Desk::with(vec![parked("order-2", hours(1))]);
    park_jobs(&desk, "mail", 0..501);
    let charge = park_jobs(&desk, "charge", 501..502)[0].to_string();
    let line = format!("dead retry --all --effect mail {WHY}");
    let asked = desk.ask(&line);
    assert!(asked.contains("Say --yes"), "{asked}");
    assert_eq!(pages(&desk, 500).concat().len(), 503, "none was touched");
    let done = desk.ask(&format!("{line} --yes --json"));
    assert!(done.contains("\"done\": 501,\n  \"refused\": 0"), "{}", &done[..200]);
    assert_eq!(pages(&desk, 500).concat()[1..], [charge]);
    assert_snapshot!("jobs_none", desk.ask(&format!("{line} --yes")));
    // Who retries a scope is told of what it does not reach.
    assert_snapshot!("jobs_left", steady(&desk.ask(&format!("dead retry --all --scope acme --yes {WHY}"))));
}

#[test]
fn a_job_that_was_given_up_is_listed_shown_and_tried_again() {
    let desk = Desk::with(vec![records::paid("acme", "order-1")]);
    let id = park_job(&desk);
    assert_snapshot!("job_list", desk.ask("dead list"));
    assert_snapshot!("job_show", steady(&desk.ask(&format!("dead show {id} --body"))));
    let json = desk.command("dead list --json --store sqlite://oncegate.db").output().unwrap().stdout;
    let page: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(page["jobs"][0]["id"], id.to_string());
    assert_eq!(page["jobs"][0]["last_error"]["code"], "refused");
    assert!(page["jobs"][0]["payload"].is_null(), "customers' data");
    assert_eq!(desk.ask("dead list --scope acme"), desk.ask("dead list --scope nobody"), "jobs have none");
    let line = format!("dead retry {id} {WHY}");
    assert_snapshot!("job_retry_not_asked", steady(&desk.ask(&line)));
    assert_snapshot!("job_retry", desk.ask(&format!("{line} --yes")));
    assert_snapshot!("job_retry_again", desk.ask(&format!("{line} --yes")));
    assert_snapshot!("job_retry_version", desk.ask(&format!("{line} --version {VERSION}")));
    assert_snapshot!("job_nobody", desk.ask("dead show job_00000000000000000000000000"));
    assert!(desk.ask("dead list").contains("no dead letters"));
    let story = desk.ask("keys show order-1");
    let told = format!("operator ada: to be asked about again; reason: \"{id}: the provider is back\"");
    assert!(story.contains(&told), "{story}");
}

/// There was no way to end one: a job that its provider refuses for good was parked again, and its alert never went out.
#[test]
fn a_job_that_was_given_up_is_ended() {
    let desk = Desk::with(vec![records::paid("acme", "order-1")]);
    let id = park_job(&desk);
    let why = "--operator ada --reason 'the customer has left'";
    let line = format!("dead withdraw {id} {why}");
    assert_snapshot!("job_withdraw_not_asked", steady(&desk.ask(&line)));
    assert_snapshot!("job_withdraw_no_reason", desk.ask(&format!("dead withdraw {id} --operator ada --yes")));
    assert_snapshot!(
        "job_withdraw_record",
        desk.ask(&format!("dead withdraw {} {why} --yes", records::parked("order-1").id))
    );
    assert!(desk.ask("dead list").contains(&id.to_string()), "none was touched");
    assert_snapshot!("job_withdraw", desk.ask(&format!("{line} --yes")));
    assert_snapshot!("job_withdraw_again", desk.ask(&format!("{line} --yes")));
    assert_snapshot!("job_withdraw_shown", steady(&desk.ask(&format!("dead show {id}"))));
    assert!(desk.ask("dead list").contains("no dead letters"));
    let story = desk.ask("keys show order-1");
    let told = format!(
        "operator ada: a promise of its is withdrawn, and not kept any more; reason: \"{id}: the customer has left\""
    );
    assert!(story.contains(&told), "{story}");
    // For programs.
    let other = park_jobs(&desk, "charge", 1..2)[0];
    let json =
        desk.command(&format!("dead withdraw {other} {why} --yes --json --store sqlite://oncegate.db"));
    let done: serde_json::Value = serde_json::from_slice(&{ json }.output().unwrap().stdout).unwrap();
    assert_eq!((&done["job"]["stage"], &done["job"]["id"]), (&"withdrawn".into(), &other.to_string().into()));
}

/// More than one page of them.
#[test]
fn all_means_all() {
    let records: Vec<_> = (0..501).map(|n| parked(&format!("order-{n}"), hours(3))).collect();
    let desk = Desk::with(records);
    let done = desk.ask(&format!("dead retry --all --scope acme --yes --json {WHY}"));
    assert!(done.contains("\"done\": 501,\n  \"refused\": 0"), "{}", &done[..200]);
    assert!(desk.ask("dead list").contains("no dead letters"));
}

#[test]
fn bad_input() {
    let desk = desk();
    let id = records::parked("order-1").id;
    for (name, line) in [
        ("retry_nothing", format!("dead retry {WHY}")),
        ("retry_all_of_what", format!("dead retry --all --yes {WHY}")),
        ("retry_all_of_both", format!("dead retry --all --scope acme --effect charge --yes {WHY}")),
        ("retry_one_of_an_effect", format!("dead retry {id} --effect charge --yes {WHY}")),
        ("retry_both", format!("dead retry {id} --all --scope acme {WHY}")),
        ("retry_one_of_a_scope", format!("dead retry {id} --scope acme --yes {WHY}")),
        ("retry_all_of_a_version", format!("dead retry --all --scope acme --version 17 {WHY}")),
        ("retry_no_reason", format!("dead retry {id} --yes")),
        ("retry_empty_reason", "dead retry --all --scope acme --yes --operator ada --reason ''".to_owned()),
        ("retry_completed", format!("dead retry {} --yes {WHY}", records::paid("acme", "order-5").id)),
    ] {
        assert_snapshot!(name, steady(&desk.ask(&line)));
    }
    assert_eq!(
        desk.ask("dead list").matches("op_").count(),
        4,
        "none was touched: three, and one in an error"
    );
}
