//! Stories of a webhook and a probe that say the opposite of each other, at the same time: the API's answer is on its way to the gateway when the
//! provider's mail comes.
//!
//! Whichever is first, *happened* stands, the record is settled for good, and both accounts are in its story. What is said one after the
//! other is in [`crate::attacks`].

use example_payments::provider::Fault;

use crate::messenger::Pace;
use crate::order::Order;
use crate::postman::Letter;
use crate::told::step::{BEGAN, DOUBTED, FAILED_FOR_GOOD, FOUND, NOT_FOUND, TOLD, TOLD_AFTER_ALL};
use crate::told::{PAID, Told};
use crate::town::{Care, EITHER, Memory, Patience, Town};

const FOUND_AFTER_ALL: &str = "failed_retryable → completed: happened, says probe (wrongly_released)!";
const FAILED_SAYS_THE_WEBHOOK: &str =
    "completed → completed: did_not_happen, says webhook provider (contradiction)!";
const NOT_FOUND_SAYS_THE_PROBE: &str = "completed → completed: did_not_happen, says probe (contradiction)!";

/// It is charged, the question has found that, and the provider's last word is that it has failed. Neither is at the gateway yet.
fn found_and_failed_for_good(town: &Town) -> (Order<'_>, Letter) {
    town.messenger.goes(Pace::KeepsAnswers);
    let order = town.order(100);
    order.pays_with(&[Fault::ResetAfterCharge, Fault::WebhookFailedFirst]).sees(504, "unknown");
    town.messenger.keeps(town, 1);
    let [failed, _] = town.postman.receives_failed_and_succeeded(town);
    (order, failed)
}

/// The question has found nothing, when that is believed; then it is charged all the same, and the provider says so. Neither is at the
/// gateway yet.
fn not_found_and_succeeded(town: &Town) -> (Order<'_>, Letter) {
    town.messenger.goes(Pace::KeepsAnswers);
    let order = town.order(100);
    order.pays_with(&[Fault::LateCharge]).sees(504, "unknown");
    town.messenger.keeps(town, 1);
    town.time_passes();
    (order, town.postman.receives(town))
}

/// The horizon is over at once: what is not found has not happened. But the provider is late.
fn opens_trusting_not_found(memory: Memory) -> Town {
    let town = Town::opens_with_care(memory, Patience::Short, Care::told("0s"));
    town.watches_the_clock();
    town
}

#[track_caller]
fn is_charged_once_and_told(order: &Order<'_>, accounts: [&str; 2]) {
    order.retries().sees_again(201, "succeeded");
    order.is_told(Told {
        record: &[BEGAN, DOUBTED, accounts[0], accounts[1], "completed: 201"],
        client: &["504 unknown", "201 succeeded, replayed"],
        ledger: &[PAID],
    });
    order.town.the_judge_convicts(0);
}

/// "Failed" is believed, for a moment in which nobody came back; then the charge is found.
#[test]
fn failed_for_good_by_webhook_gives_way_to_what_the_probe_found() {
    for memory in EITHER {
        let town = Town::opens_believing_failures(memory);
        let (order, failed) = found_and_failed_for_good(&town);
        failed.is_heard(&town, 200, "settled");
        order.record().is("failed_retryable");
        town.messenger.goes(Pace::AtOnce);
        order.comes_to(FOUND_AFTER_ALL);
        is_charged_once_and_told(&order, [FAILED_FOR_GOOD, FOUND_AFTER_ALL]);
    }
}

#[test]
fn what_the_probe_found_stands_against_failed_for_good_by_webhook() {
    for memory in EITHER {
        let town = Town::opens_believing_failures(memory);
        let (order, failed) = found_and_failed_for_good(&town);
        town.messenger.goes(Pace::AtOnce);
        order.comes_to(FOUND);
        failed.is_heard(&town, 200, "nothing_to_do");
        is_charged_once_and_told(&order, [FOUND, FAILED_SAYS_THE_WEBHOOK]);
    }
}

#[test]
fn what_the_webhook_says_stands_against_a_not_found_that_would_have_been_believed() {
    for memory in EITHER {
        let town = opens_trusting_not_found(memory);
        let (order, succeeded) = not_found_and_succeeded(&town);
        succeeded.is_heard(&town, 200, "settled");
        town.messenger.goes(Pace::AtOnce);
        order.comes_to(NOT_FOUND_SAYS_THE_PROBE);
        is_charged_once_and_told(&order, [TOLD, NOT_FOUND_SAYS_THE_PROBE]);
    }
}

/// The key is free, for a moment in which nobody came back; then the provider says that it is charged.
#[test]
fn a_not_found_that_was_believed_gives_way_to_what_the_webhook_says() {
    for memory in EITHER {
        let town = opens_trusting_not_found(memory);
        let (order, succeeded) = not_found_and_succeeded(&town);
        town.messenger.goes(Pace::AtOnce);
        order.comes_to(NOT_FOUND);
        succeeded.is_heard(&town, 200, "settled");
        is_charged_once_and_told(&order, [NOT_FOUND, TOLD_AFTER_ALL]);
    }
}

/// Both are let go at once, again and again, and nobody says which is to be first: each time it is one of the two stories above, and whoever
/// comes back is told of the charge.
#[test]
fn without_a_referee_what_happened_stands() {
    const ROUNDS: usize = 20;
    let town = Town::opens_believing_failures(Memory::None);
    for round in 0..ROUNDS {
        let (order, failed) = found_and_failed_for_good(&town);
        let is_heard = if round % 2 == 0 {
            let on_its_way = failed.is_on_its_way(&town);
            town.messenger.goes(Pace::AtOnce);
            on_its_way
        } else {
            town.messenger.goes(Pace::AtOnce);
            failed.is_on_its_way(&town)
        };
        assert_eq!(town.runtime.block_on(is_heard).unwrap(), 200);
        order.record().becomes("completed");
        let webhook_first = order.steps().contains(&FAILED_FOR_GOOD.to_owned());
        let accounts =
            if webhook_first { [FAILED_FOR_GOOD, FOUND_AFTER_ALL] } else { [FOUND, FAILED_SAYS_THE_WEBHOOK] };
        is_charged_once_and_told(&order, accounts);
    }
}
