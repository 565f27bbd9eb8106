//! Stories of those who find out: one that dies between its question and its verdict, and two over the same records.
//!
//! A question is claimed by a write with an end. Until then nobody else asks; afterwards somebody does, whatever has become of the one that had
//! claimed it. Whoever comes second finds the record settled, and leaves it as it is.

use example_payments::provider::Fault;
use oncegate_test_servers::{Postgres, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::gateway::Gateway;
use crate::messenger::Pace;
use crate::order::Order;
use crate::told::step::{BEGAN, DOUBTED, FOUND, NOT_FOUND_YET, WOKEN};
use crate::told::{PAID, Told};
use crate::town::{Care, FAR, Memory, Patience, Town};

/// Long enough to be killed meanwhile, also on a busy machine; and the claim is over ten seconds after it.
const TIMEOUT: &str = "10s";
const PASSES: &str = "oncegate_worker_pass_count{worker=\"reconciler\"}";
const QUESTIONS: &str = "oncegate_probe_count";

/// A provider that remembers nothing, so that whatever is done twice is charged twice.
fn opens_over(store: Option<&str>, care: Care<'_>) -> Town {
    Town::opens_with_care_over(store, Memory::None, Patience::Short, care)
}

/// Paid, and nobody knows: the gateway has asked, the API has answered, and the messenger keeps the answer.
fn is_being_asked_about<'a>(town: &'a Town, faults: &[Fault]) -> Order<'a> {
    town.messenger.goes(Pace::KeepsAnswers);
    let order = town.order(100);
    order.pays_with(faults).sees(504, "unknown");
    town.messenger.keeps(town, 1);
    order
}

/// The first moment at which somebody else may ask: the question itself is over by then.
fn end_of_claim(order: &Order<'_>) -> String {
    let doubt = order.found().unwrap()["doubt"].take();
    let [since, end] = ["since", "reconcile_after"].map(|name| doubt[name].as_str().unwrap());
    let [from, to] = [since, end].map(|moment| humantime::parse_rfc3339(moment).unwrap());
    assert!(
        to.duration_since(from).unwrap() > humantime::parse_duration(TIMEOUT).unwrap(),
        "{since} to {end}"
    );
    end.to_owned()
}

/// By whoever asked when the claim was over. Moments are written so that the later one is the greater text.
#[track_caller]
fn is_settled_after(order: &Order<'_>, claim: &str) {
    let record = order.found().unwrap();
    assert!(record["settled_at"].as_str().unwrap() >= claim, "the claim ends at {claim}: {record:#}");
    order.is_settled_once();
}

fn is_found_and_charged_once(order: &Order<'_>) {
    order.retries().sees_again(201, "succeeded");
    order.is_told(Told {
        record: &[BEGAN, DOUBTED, FOUND, "completed: 201"],
        client: &["504 unknown", "409 outcome_unknown", "201 succeeded, replayed"],
        ledger: &[PAID],
    });
    order.is_settled_once();
    order.town.the_judge_convicts(0);
}

/// The API has said that it was charged, and the gateway is killed before it has heard it. Started again, it does not know that it has asked;
/// its claim does. When that is over it asks once more, and that answer settles it.
#[test]
fn a_reconciler_that_is_killed_between_question_and_verdict_asks_again_when_its_claim_is_over() {
    let town = opens_over(None, Care { timeout: TIMEOUT, ..Care::told(FAR) });
    let order = is_being_asked_about(&town, &[Fault::ResetAfterCharge, Fault::WebhookLost]);
    let claim = end_of_claim(&order);
    town.gateway_is_killed();
    town.messenger.goes(Pace::AtOnce);
    town.gateway_returns();
    order.retries().sees(409, "outcome_unknown");
    order.comes_to(FOUND);
    is_settled_after(&order, &claim);
    is_found_and_charged_once(&order);
    assert_eq!(town.messenger.questions(), 2, "the one that was lost, and the one that settled it");
}

#[test]
fn of_two_gateways_one_asks_and_the_other_leaves_it_to_it_on_sqlite() {
    one_asks_and_the_other_leaves_it_to_it(None);
}

#[test]
fn of_two_gateways_one_asks_and_the_other_leaves_it_to_it_on_postgresql() {
    let server = Postgres::start(&[]);
    one_asks_and_the_other_leaves_it_to_it(Some(&server.url()));
}

/// As long as one of them waits for an answer, the other looks again and again, and does not ask.
fn one_asks_and_the_other_leaves_it_to_it(store: Option<&str>) {
    let town = opens_over(store, Care::told(FAR));
    let first = town.a_second_gateway_opens();
    let order = is_being_asked_about(&town, &[Fault::ResetAfterCharge, Fault::WebhookLost]);
    let passes = || [first.admin, town.admin_address()].map(|by| town.counted(by, PASSES));
    let before = passes();
    wait_until("the one that does not ask has looked ten times", || {
        assert_eq!(town.messenger.questions(), 1);
        passes().into_iter().zip(before).any(|(now, before)| now >= before + 10)
    });
    order.retries().sees(409, "outcome_unknown");
    town.messenger.goes(Pace::AtOnce);
    order.comes_to(FOUND);
    is_found_and_charged_once(&order);
    assert_eq!(town.messenger.questions(), 1);
}

#[test]
fn two_gateways_never_ask_about_a_payment_at_the_same_time_on_sqlite() {
    never_ask_at_the_same_time(None);
}

#[test]
fn two_gateways_never_ask_about_a_payment_at_the_same_time_on_postgresql() {
    let server = Postgres::start(&[]);
    never_ask_at_the_same_time(Some(&server.url()));
}

/// Payments that are not found for a while are asked about again and again, by whoever sees first that it is time; then they are charged, and
/// each of them is settled by one.
fn never_ask_at_the_same_time(store: Option<&str>) {
    const PAYMENTS: usize = 8;
    const ROUNDS: usize = 20;
    let town = opens_over(store, Care::told(FAR));
    let first = town.a_second_gateway_opens();
    let orders: Vec<_> = (0..PAYMENTS).map(|_| town.order(100)).collect();
    for order in &orders {
        order.pays_with(&[Fault::LateCharge]).sees(504, "unknown");
    }
    wait_until("both have asked often", || {
        let both = [first.admin, town.admin_address()].map(|by| town.counted(by, QUESTIONS));
        both.iter().all(|asked| *asked >= PAYMENTS) && town.messenger.questions() >= ROUNDS * PAYMENTS
    });
    assert_eq!(town.messenger.most_at_once(), 1);
    town.time_passes();
    for order in &orders {
        order.comes_to(FOUND);
        order.retries().sees_again(201, "succeeded");
        order.is_told(Told {
            record: &[BEGAN, DOUBTED, NOT_FOUND_YET, FOUND, "completed: 201"],
            client: &["504 unknown", "201 succeeded, replayed"],
            ledger: &[PAID],
        });
        order.is_settled_once();
    }
    assert_eq!(town.messenger.most_at_once(), 1);
    town.the_judge_convicts(0);
}

#[test]
fn a_reconciler_that_stood_still_past_its_claim_changes_nothing_on_sqlite() {
    stands_still_past_its_claim(None);
}

#[test]
fn a_reconciler_that_stood_still_past_its_claim_changes_nothing_on_postgresql() {
    let server = Postgres::start(&[]);
    stands_still_past_its_claim(Some(&server.url()));
}

/// A host that was suspended, say. The other gateway asks when the claim is over, and settles it; then the first one goes on, and has its answer.
fn stands_still_past_its_claim(store: Option<&str>) {
    let town = opens_over(store, Care { timeout: TIMEOUT, ..Care::told(FAR) });
    let order = is_being_asked_about(&town, &[Fault::ResetAfterCharge, Fault::WebhookLost]);
    let claim = end_of_claim(&order);
    let first = town.a_second_gateway_opens();
    signal(&first, Signal::STOP);
    town.messenger.goes(Pace::KeepsWhatItHas);
    order.retries().sees(409, "outcome_unknown");
    order.comes_to(FOUND);
    is_settled_after(&order, &claim);
    let settled = seen_by_operators(&order);
    town.messenger.goes(Pace::AtOnce);
    signal(&first, Signal::CONT);
    has_asked(&town, &first);
    assert_eq!(seen_by_operators(&order), settled);
    is_found_and_charged_once(&order);
    assert_eq!(town.messenger.questions(), 2);
}

/// The provider's "failed" makes the other gateway ask, while the first one's answer is still on its way. It is the same answer, and comes when
/// all is settled.
#[test]
fn what_another_has_found_meanwhile_stands_and_is_not_told_twice() {
    let town = opens_over(None, Care::told(FAR));
    let order = is_being_asked_about(&town, &[Fault::ResetAfterCharge, Fault::WebhookFailedFirst]);
    let (first, settled) = is_settled_by_a_second(&town, &order);
    town.messenger.goes(Pace::AtOnce);
    has_asked(&town, &first);
    assert_eq!(seen_by_operators(&order), settled);
    order.retries().sees_again(201, "succeeded");
    order.is_told(Told {
        record: &[BEGAN, DOUBTED, WOKEN, FOUND, "completed: 201"],
        client: &["504 unknown", "201 succeeded, replayed"],
        ledger: &[PAID],
    });
    order.is_settled_once();
    town.the_judge_convicts(0);
}

/// The same, but the first one was told that there is nothing, when that would have been believed; and then it was charged. What the second one
/// found stands, and that the first one disagrees is told.
#[test]
fn what_another_has_found_meanwhile_stands_against_a_slow_not_found() {
    let town = opens_over(None, Care::told("0s"));
    let order = is_being_asked_about(&town, &[Fault::LateCharge, Fault::WebhookFailedFirst]);
    town.time_passes();
    order.charges().becomes(1);
    let (first, (record, _)) = is_settled_by_a_second(&town, &order);
    town.messenger.goes(Pace::AtOnce);
    has_asked(&town, &first);
    assert_eq!(order.found(), record);
    order.retries().sees_again(201, "succeeded");
    let disagrees = "completed → completed: did_not_happen, says probe (contradiction)!";
    order.is_told(Told {
        record: &[BEGAN, DOUBTED, WOKEN, FOUND, disagrees, "completed: 201"],
        client: &["504 unknown", "201 succeeded, replayed"],
        ledger: &[PAID],
    });
    order.is_settled_once();
    town.the_judge_convicts(0);
}

/// Returns the first gateway, which still waits for its answer, and what operators see.
fn is_settled_by_a_second(town: &Town, order: &Order<'_>) -> (Gateway, (Option<Value>, Vec<Value>)) {
    let [failed, _] = town.postman.receives_failed_and_succeeded(town);
    let first = town.a_second_gateway_opens();
    town.messenger.goes(Pace::KeepsWhatItHas);
    failed.is_heard(town, 202, "woken");
    order.comes_to(FOUND);
    (first, seen_by_operators(order))
}

/// The record with its version, and its whole story.
fn seen_by_operators(order: &Order<'_>) -> (Option<Value>, Vec<Value>) {
    (order.found(), order.story())
}

/// Waits until this gateway is done with its only question: it is counted when the verdict is written, or is not to be.
fn has_asked(town: &Town, gateway: &Gateway) {
    wait_until("its question is over", || town.counted(gateway.admin, QUESTIONS) == 1);
}

fn signal(gateway: &Gateway, signal: Signal) {
    kill_process(Pid::from_child(&gateway.child), signal).unwrap();
}
