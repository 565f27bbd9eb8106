//! Each fault alone, behind a gateway that finds out: the exact sequence of the record's states, what the client saw, and what was charged.
//!
//! The record's steps are its audit trail, with first executions; an attempt that ends as it should is no step of it, and so the last line
//! is what the record is. In [`crate::faults`] the same faults meet a gateway that has nobody to ask.

use std::any::type_name;

use example_payments::provider::Fault;
use oncegate_test_servers::wait_until;

use crate::messenger::Pace;
use crate::order::Order;
use crate::told::step::{BEGAN, DOUBTED, FOUND, LAPSED, NOT_FOUND, NOT_FOUND_YET, RAN_AGAIN};
use crate::told::{PAID, Told};
use crate::town::{Care, EITHER, FAR, LEASE, Memory, NEAR, Patience, Town};

fn opens(memory: Memory, patience: Patience, horizon: &str) -> Town {
    Town::opens_with_care(memory, patience, Care::told(horizon))
}

/// Does not compile while a fault has no story.
fn story_of(fault: Fault) -> &'static str {
    match fault {
        Fault::Slow => name_of(slow),
        Fault::TimeoutBeforeCharge => name_of(timeout_before_charge),
        Fault::TimeoutAfterCharge => name_of(timeout_after_charge),
        Fault::ResetBeforeCharge => name_of(reset_before_charge),
        Fault::ResetAfterCharge => name_of(reset_after_charge),
        Fault::LateCharge => name_of(late_charge),
        Fault::Decline => name_of(decline),
        Fault::ErrorBeforeCharge => name_of(error_before_charge),
        Fault::ErrorAfterCharge => name_of(error_after_charge),
        Fault::WebhookLost => name_of(webhook_lost),
        Fault::WebhookLate => name_of(webhook_late),
        Fault::WebhookTwice => name_of(webhook_twice),
        Fault::WebhookFailedFirst => name_of(webhook_failed_first),
    }
}

fn name_of<F: Fn()>(_story: F) -> &'static str {
    type_name::<F>().rsplit("::").next().unwrap()
}

#[test]
fn every_fault_has_a_story_of_its_own() {
    for fault in Fault::ALL {
        assert_eq!(story_of(fault), fault.name().replace('-', "_"));
    }
}

/// The client has lost patience and sends its payment again while the first is on its way.
#[test]
fn slow() {
    for memory in EITHER {
        let town = opens(memory, Patience::Endless, FAR);
        let order = town.order(100);
        let first = order.is_being_paid_slowly();
        order.retries().sees(409, "in_progress");
        town.time_passes();
        first.then().sees(201, "succeeded");
        order.retries().sees_again(201, "succeeded");
        order.is_told(Told {
            record: &[BEGAN, "completed: 201"],
            client: &["409 in_progress", "201 succeeded", "201 succeeded, replayed"],
            ledger: &[PAID],
        });
    }
}

/// The API gives up before the provider has charged. "Not found" is too early to be believed, and then the charge is found.
#[test]
fn slower_than_the_api_is_patient() {
    for memory in EITHER {
        let town = opens(memory, Patience::Short, FAR);
        let order = town.order(100);
        order.pays_with(&[Fault::Slow]).sees(504, "unknown");
        order.comes_to(NOT_FOUND_YET);
        order.retries().sees(409, "outcome_unknown");
        town.time_passes();
        order.comes_to(FOUND);
        order.retries().sees_again(201, "succeeded");
        order.is_told(Told {
            record: &[BEGAN, DOUBTED, NOT_FOUND_YET, FOUND, "completed: 201"],
            client: &["504 unknown", "409 outcome_unknown", "201 succeeded, replayed"],
            ledger: &[PAID],
        });
    }
}

/// Nothing is charged, and nobody says so. After the horizon "not found" is believed, and the retry pays.
fn is_not_charged_and_nobody_says_so(fault: Fault) {
    for memory in EITHER {
        let town = opens(memory, Patience::Short, NEAR);
        let order = town.order(100);
        order.pays_with(&[fault]).sees(504, "unknown");
        order.retries().sees(409, "outcome_unknown");
        order.comes_to(NOT_FOUND);
        order.retries().sees(201, "succeeded");
        order.retries().sees_again(201, "succeeded");
        order.is_told(Told {
            record: &[BEGAN, DOUBTED, NOT_FOUND_YET, NOT_FOUND, RAN_AGAIN, "completed: 201"],
            client: &["504 unknown", "409 outcome_unknown", "201 succeeded", "201 succeeded, replayed"],
            ledger: &[PAID],
        });
    }
}

#[test]
fn timeout_before_charge() {
    is_not_charged_and_nobody_says_so(Fault::TimeoutBeforeCharge);
}

#[test]
fn reset_before_charge() {
    is_not_charged_and_nobody_says_so(Fault::ResetBeforeCharge);
}

/// Nobody takes a 500's word for it, either way.
#[test]
fn error_before_charge() {
    is_not_charged_and_nobody_says_so(Fault::ErrorBeforeCharge);
}

/// It is charged, and nobody says so. The first question finds it, and no retry charges again.
fn is_charged_and_nobody_says_so(fault: Fault) {
    for memory in EITHER {
        let town = opens(memory, Patience::Short, FAR);
        town.messenger.goes(Pace::KeepsQuestions);
        let order = town.order(100);
        order.pays_with(&[fault]).sees(504, "unknown");
        order.retries().sees(409, "outcome_unknown");
        // The API may have lost patience before it was booked.
        order.charges().becomes(1);
        town.messenger.goes(Pace::AtOnce);
        order.comes_to(FOUND);
        order.retries().sees_again(201, "succeeded");
        order.is_told(Told {
            record: &[BEGAN, DOUBTED, FOUND, "completed: 201"],
            client: &["504 unknown", "409 outcome_unknown", "201 succeeded, replayed"],
            ledger: &[PAID],
        });
    }
}

#[test]
fn timeout_after_charge() {
    is_charged_and_nobody_says_so(Fault::TimeoutAfterCharge);
}

#[test]
fn reset_after_charge() {
    is_charged_and_nobody_says_so(Fault::ResetAfterCharge);
}

#[test]
fn error_after_charge() {
    is_charged_and_nobody_says_so(Fault::ErrorAfterCharge);
}

/// Whoever asks finds nothing, and then it is charged. Nobody has believed that nothing had happened.
#[test]
fn late_charge() {
    for memory in EITHER {
        let town = opens(memory, Patience::Endless, FAR);
        let order = town.order(100);
        order.pays_with(&[Fault::LateCharge]).sees(504, "unknown");
        order.comes_to(NOT_FOUND_YET);
        order.retries().sees(409, "outcome_unknown");
        town.time_passes();
        order.comes_to(FOUND);
        order.retries().sees_again(201, "succeeded");
        order.is_told(Told {
            record: &[BEGAN, DOUBTED, NOT_FOUND_YET, FOUND, "completed: 201"],
            client: &["504 unknown", "409 outcome_unknown", "201 succeeded, replayed"],
            ledger: &[PAID],
        });
    }
}

/// A refusal is an outcome, and is replayed as one.
#[test]
fn decline() {
    for memory in EITHER {
        let town = opens(memory, Patience::Endless, FAR);
        let order = town.order(100);
        order.pays_with(&[Fault::Decline]).sees(402, "declined");
        order.retries().sees_again(402, "declined");
        order.is_told(Told {
            record: &[BEGAN, "completed: 402"],
            client: &["402 declined", "402 declined, replayed"],
            ledger: &["100 EUR declined"],
        });
    }
}

/// All is known without any mail.
#[test]
fn webhook_lost() {
    for memory in EITHER {
        let town = opens(memory, Patience::Endless, FAR);
        let order = town.order(100);
        order.pays_with(&[Fault::WebhookLost]).sees(201, "succeeded");
        // Another's mail, which comes after the one that does not.
        let another = town.order(200);
        another.pays().sees(201, "succeeded");
        let letter = town.postman.receives(&town);
        assert!(String::from_utf8_lossy(&letter.body).contains(&another.upstream_key()));
        order.retries().sees_again(201, "succeeded");
        order.is_told(Told {
            record: &[BEGAN, "completed: 201"],
            client: &["201 succeeded", "201 succeeded, replayed"],
            ledger: &[PAID],
        });
    }
}

#[test]
fn webhook_late() {
    for memory in EITHER {
        let town = opens(memory, Patience::Endless, FAR);
        let order = town.order(100);
        order.pays_with(&[Fault::WebhookLate]).sees(201, "succeeded");
        town.postman.has_nothing();
        town.time_passes();
        town.postman.receives(&town).is_heard(&town, 200, "confirmed");
        is_paid_and_told_of_nothing_else(&order);
    }
}

#[test]
fn webhook_twice() {
    for memory in EITHER {
        let town = opens(memory, Patience::Endless, FAR);
        let order = town.order(100);
        order.pays_with(&[Fault::WebhookTwice]).sees(201, "succeeded");
        town.postman.receives(&town).is_heard(&town, 200, "confirmed");
        town.postman.receives(&town).is_heard(&town, 200, "confirmed");
        is_paid_and_told_of_nothing_else(&order);
    }
}

/// "Failed" about what has succeeded wakes nobody, and leaves no trace.
#[test]
fn webhook_failed_first() {
    for memory in EITHER {
        let town = opens(memory, Patience::Endless, FAR);
        let order = town.order(100);
        order.pays_with(&[Fault::WebhookFailedFirst]).sees(201, "succeeded");
        let [failed, succeeded] = town.postman.receives_failed_and_succeeded(&town);
        failed.is_heard(&town, 200, "nothing_to_do");
        succeeded.is_heard(&town, 200, "confirmed");
        is_paid_and_told_of_nothing_else(&order);
    }
}

fn is_paid_and_told_of_nothing_else(order: &Order<'_>) {
    order.retries().sees_again(201, "succeeded");
    order.is_told(Told {
        record: &[BEGAN, "completed: 201"],
        client: &["201 succeeded", "201 succeeded, replayed"],
        ledger: &[PAID],
    });
}

/// Killed while the provider charges. Its lease lapses, the question finds the charge, and nobody had to come back for that.
#[test]
fn the_gateway_is_killed_in_the_middle_of_a_charge() {
    for memory in EITHER {
        let care = Care { lease: LEASE, ..Care::told(FAR) };
        let town = Town::opens_with_care(memory, Patience::Endless, care);
        let order = town.order(100);
        let client = order.is_being_paid_slowly();
        town.gateway_is_killed();
        client.then().sees_nothing();
        town.time_passes();
        wait_until("it is charged", || town.get(town.provider_address(), "/ledger")["still_to_come"] == 0);
        town.gateway_returns();
        order.comes_to(FOUND);
        order.retries().sees_again(201, "succeeded");
        order.is_told(Told {
            record: &[BEGAN, LAPSED, FOUND, "completed: 201"],
            client: &["nothing", "201 succeeded, replayed"],
            ledger: &[PAID],
        });
    }
}
