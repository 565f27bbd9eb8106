//! Stories of outcomes that nobody knew, and that became known: by a question, by a webhook, by time and the horizon.
//!
//! The gateway asks the API (`GET /payments?idempotency_key=`), which asks the provider; and it gets the provider's mail.

use std::time::{Duration, SystemTime};

use example_payments::provider::Fault;
use oncegate_test_servers::wait_until;

use crate::messenger::Pace;
use crate::order::Order;
use crate::told::step::{BEGAN, DOUBTED, FOUND, NOT_FOUND_YET, NOT_KNOWN};
use crate::told::{PAID, Told};
use crate::town::{Asks, Care, EITHER, FAR, Memory, Patience, Town};

/// Over soon after the lease.
const NEAR: &str = "1s";

/// Waits until every clock agrees that a "not found" would be believed.
fn near_horizon_passes(order: &Order<'_>) {
    let doubt = order.found().unwrap()["doubt"].take();
    let since = humantime::parse_rfc3339(doubt["since"].as_str().unwrap()).unwrap();
    let end = since + humantime::parse_duration(NEAR).unwrap() + Duration::from_secs(2);
    wait_until("the horizon is over", || SystemTime::now() > end);
}

/// The charge is made, and the answer never comes. The gateway asks, and its client's retry gets the payment.
#[test]
fn a_timeout_after_the_charge_resolves_itself_by_a_question() {
    for memory in EITHER {
        let town = Town::opens_reconciled(memory, Patience::Short, FAR);
        let order = town.order(100);
        order.pays_with(&[Fault::TimeoutAfterCharge, Fault::WebhookLost]).sees(504, "unknown");
        order.record().becomes("completed");
        order.retries().sees_again(201, "succeeded");
        order.retries().sees_again(201, "succeeded");
        order.charges().is(1);
        town.the_judge_convicts(0);
    }
}

/// Nobody is asked: only the provider's mail can settle it.
const BY_MAIL: Care<'_> = Care { asks: Asks::Nobody, ..Care::told(FAR) };

/// The same, but there is nobody to ask. The provider's mail comes, and that settles it.
#[test]
fn a_timeout_after_the_charge_resolves_itself_by_a_webhook() {
    for memory in EITHER {
        let town = Town::opens_with_care(memory, Patience::Short, BY_MAIL);
        let order = town.order(100);
        order.pays_with(&[Fault::ResetAfterCharge, Fault::WebhookLate]).sees(504, "unknown");
        order.charges().is(1);
        town.time_passes();
        let letter = town.postman.receives(&town);
        order.record().is("unknown");
        assert_eq!(letter.is_delivered_to_the_gateway(&town), (200, "settled".to_owned()));
        order.record().is("completed");
        order.retries().sees_again(201, "succeeded");
        order.charges().is(1);
        // Redelivered: it changes nothing.
        assert_eq!(letter.is_delivered_to_the_gateway(&town), (200, "confirmed".to_owned()));
        order.retries().sees_again(201, "succeeded");
        town.the_judge_convicts(0);
    }
}

/// The API is gone as well, and only mail comes: its client is answered all the same.
#[test]
fn a_webhook_settles_what_nobody_can_be_asked_about() {
    let town = Town::opens_with_care(Memory::None, Patience::Short, BY_MAIL);
    let order = town.order(100);
    order.pays_with(&[Fault::ResetAfterCharge, Fault::WebhookLate]).sees(504, "unknown");
    town.api_stops();
    order.record().is("unknown");
    town.time_passes();
    let letter = town.postman.receives(&town);
    assert_eq!(letter.is_delivered_to_the_gateway(&town), (200, "settled".to_owned()));
    order.record().is("completed");
    order.retries().sees_again(201, "succeeded");
    town.api_returns();
    order.charges().is(1);
}

/// The connection breaks, and nothing was charged. Once nothing can come any more, the same key may run again, and pays once.
#[test]
fn what_did_not_happen_may_run_again_once_nothing_can_come_any_more() {
    for memory in EITHER {
        let town = Town::opens_reconciled(memory, Patience::Short, NEAR);
        let order = town.order(100);
        order.pays_with(&[Fault::ResetBeforeCharge]).sees(504, "unknown");
        order.retries().sees(409, "outcome_unknown");
        order.charges().is(0);
        order.record().becomes("failed_retryable");
        order.retries().sees(201, "succeeded");
        order.retries().sees_again(201, "succeeded");
        order.charges().is(1);
        town.the_judge_convicts(0);
    }
}

/// ATTACKS 1: the connection breaks, the question finds nothing, and then it is charged after all. Before the horizon nobody believes
/// "not found", so no retry runs; and when the charge is there, it is found.
#[test]
fn a_charge_that_comes_late_is_found_and_not_repeated() {
    for memory in EITHER {
        let town = Town::opens_with_care(memory, Patience::Short, Care::told(FAR));
        let order = town.order(100);
        order.pays_with(&[Fault::LateCharge, Fault::WebhookLost]).sees(504, "unknown");
        order.comes_to(NOT_FOUND_YET);
        for _ in 0..5 {
            order.retries().sees(409, "outcome_unknown");
        }
        order.charges().is(0);
        town.time_passes();
        order.charges().becomes(1);
        order.retries_until_it_is_known().sees_again(201, "succeeded");
        order.is_told(Told {
            record: &[BEGAN, DOUBTED, NOT_FOUND_YET, FOUND, "completed: 201"],
            client: &["504 unknown", "409 outcome_unknown", "201 succeeded, replayed"],
            ledger: &[PAID],
        });
        town.the_judge_convicts(0);
    }
}

/// A provider that was down past the horizon looked like one that had nothing: the API had listed the payment as "unknown" either way, that was believed, and the retry
/// charged a second time. Now nobody can say as long as it is down, and when it is back the charge is found.
#[test]
fn a_provider_that_is_down_past_the_horizon_is_not_one_that_has_nothing() {
    for memory in EITHER {
        let town = Town::opens_with_care(memory, Patience::Short, Care::told(NEAR));
        let order = town.order(100);
        town.messenger.goes(Pace::KeepsQuestions);
        order.pays_with(&[Fault::ResetAfterCharge, Fault::WebhookLost]).sees(504, "unknown");
        order.charges().is(1);
        town.provider_stops();
        town.messenger.goes(Pace::AtOnce);
        // Whatever is asked from here on is asked late enough to be believed.
        near_horizon_passes(&order);
        let asked = town.messenger.questions();
        wait_until("it was asked about past the horizon, twice", || {
            order.record().is("unknown");
            town.messenger.questions() > asked + 2
        });
        order.retries().sees(409, "outcome_unknown");

        town.provider_returns();
        order.comes_to(FOUND);
        order.retries().sees_again(201, "succeeded");
        order.is_told(Told {
            record: &[BEGAN, DOUBTED, NOT_KNOWN, FOUND, "completed: 201"],
            client: &["504 unknown", "409 outcome_unknown", "201 succeeded, replayed"],
            ledger: &[PAID],
        });
        town.the_judge_convicts(0);
    }
}

/// The gateway is killed after the charge and before the answer. Started again, it finds the lapsed lease, asks, and knows.
#[test]
fn a_gateway_that_was_killed_finds_out_what_became_of_its_payments() {
    for memory in EITHER {
        let town = Town::opens_reconciled(memory, Patience::Endless, FAR);
        let order = town.order(100);
        let client = order.is_being_paid_slowly();
        town.gateway_is_killed();
        client.then().sees_nothing();
        town.time_passes();
        town.gateway_returns();
        order.charges().becomes(1);
        // Nobody has to come back for it.
        order.record().becomes("completed");
        order.retries().sees_again(201, "succeeded");
        order.charges().is(1);
        town.the_judge_convicts(0);
    }
}

/// Mail that is not the provider's, was changed on the way, or is not signed at all.
#[test]
fn mail_that_is_not_signed_is_not_believed() {
    let town = Town::opens_reconciled(Memory::None, Patience::Short, FAR);
    let order = town.order(100);
    order.pays_with(&[Fault::ResetAfterCharge]).sees(504, "unknown");
    let letter = town.postman.receives(&town);
    town.api_stops();
    let forged = [
        letter.clone().without("webhook-signature"),
        letter.clone().with_body(r#"{"type": "charge.declined"}"#),
        letter.clone().signed_with("whsec_AAAAAAAAAAAAAAAAAAAAAAAA"),
    ];
    let results = forged.map(|letter| letter.is_delivered_to_the_gateway(&town));
    assert_eq!(results.map(|(status, _)| status), [401, 401, 401]);
}

/// A webhook about a key that was never seen is kept for a while, and acknowledged as that.
#[test]
fn mail_about_a_key_that_was_never_seen_is_kept() {
    let town = Town::opens_reconciled(Memory::None, Patience::Short, FAR);
    town.order(100).pays().sees(201, "succeeded");
    let letter = town.postman.receives(&town);
    let unseen = r#"{"type": "charge.succeeded", "data": {"id": "ch_9", "merchant_key": "7zzzzzzzzzzzzzzzzzzzzzzzzzh4j1ngcvne", "status": "succeeded"}}"#;
    for event in [unseen.to_owned(), unseen.replace("charge.succeeded", "charge.failed")] {
        let letter = letter.clone().with_body(&event).signed_with(crate::town::WEBHOOK_SECRET);
        assert_eq!(letter.is_delivered_to_the_gateway(&town), (202, "kept_apart".to_owned()));
        assert_eq!(letter.is_delivered_to_the_gateway(&town), (202, "kept_apart".to_owned()));
    }
}
