//! Stories in which it is not the provider that fails.

use crate::order::Order;
use crate::town::{EITHER, Memory, Town};

/// What cannot be a payment is refused before anything happens, and that answer is the key's: corrected, it is another request.
#[test]
fn a_request_that_makes_no_sense() {
    let town = Town::opens(Memory::None);
    let order = town.order(0);
    let words = "amount 0 is not between 1 and 100000000 cents";

    order.pays().sees(422, words);
    order.record().is("completed");
    order.payment().is("absent");
    order.charges().is(0);

    order.retries().sees_again(422, words);
    order.misused_for(r#"{"amount": 100, "currency": "EUR"}"#).pays().sees(422, "key_reused");
    order.payment().is("absent");
    order.charges().is(0);
}

/// One key, two amounts: the second is not paid, and is not shown what the first one got.
#[test]
fn a_key_for_another_amount() {
    let town = Town::opens(Memory::None);
    let order = town.order(100);
    order.pays().sees(201, "succeeded");
    order.misused_for(r#"{"amount": 999, "currency": "EUR"}"#).pays().sees(422, "key_reused");
    // Written otherwise, it is the same payment.
    order.misused_for(r#"{"currency":"EUR","amount":1e2}"#).pays().sees_again(201, "succeeded");
    order.charges().is(1);
}

/// Nobody listens behind the gateway: proved not executed, so the same key runs when the API is back.
#[test]
fn the_api_is_down() {
    for memory in EITHER {
        let town = Town::opens(memory);
        town.api_stops();
        let order = town.order(100);
        order.pays().sees(502, "upstream_unreachable");
        order.record().is("failed_retryable");
        order.charges().is(0);

        town.api_returns();
        order.retries().sees(201, "succeeded");
        order.record().is("completed");
        order.payment().is("succeeded");
        order.charges().is(1);
        order.retries().sees_again(201, "succeeded");
        order.charges().is(1);
    }
}

/// The API could not even connect to the provider, and says so: `Idempotency-Outcome: not-executed`.
#[test]
fn the_provider_is_down() {
    for memory in EITHER {
        let town = Town::opens(memory);
        town.provider_stops();
        let order = town.order(100);
        order.pays().sees(503, "failed");
        order.record().is("failed_retryable");
        order.payment().is("failed");

        town.provider_returns();
        order.charges().is(0);
        order.retries().sees(201, "succeeded");
        order.record().is("completed");
        order.payment().is("succeeded");
        order.charges().is(1);
    }
}

/// The client hangs up; its payment goes on, and its retry gets the answer.
#[test]
fn the_client_hangs_up() {
    let town = Town::opens(Memory::None);
    let order = town.order(100);
    order.is_being_paid_slowly().hangs_up();
    order.record().is("in_progress");
    order.charges().is(0);

    town.time_passes();
    order.retries_until_it_is_over().sees_again(201, "succeeded");
    order.record().is("completed");
    order.payment().is("succeeded");
    order.charges().is(1);
}

/// The API dies while it charges: it may have, so nobody runs it again.
#[test]
fn the_api_dies_in_the_middle() {
    for memory in EITHER {
        let town = Town::opens(memory);
        let order = town.order(100);
        let client = order.is_being_paid_slowly();
        town.api_stops();
        client.then().sees(504, "outcome_unknown");
        order.record().is("unknown");
        order.charges().is(0);

        town.api_returns();
        town.time_passes();
        order.charges().becomes(1);
        order.payment().is("succeeded");
        order.retries().sees(409, "outcome_unknown");
        order.charges().is(1);
    }
}

/// The gateway is killed with -9 while it waits for the API. Its lease lapses, and the next who asks is told that nobody knows.
#[test]
fn the_gateway_is_killed_in_the_middle() {
    for memory in EITHER {
        let town = Town::opens(memory);
        let paid = town.order(300);
        paid.pays().sees(201, "succeeded");
        let order = town.order(100);
        let client = order.is_being_paid_slowly();
        town.gateway_is_killed();
        client.then().sees_nothing();

        town.gateway_returns();
        order.retries_until_it_is_over().sees(409, "outcome_unknown");
        order.record().is("unknown");
        order.charges().is(0);

        town.time_passes();
        order.charges().becomes(1);
        order.payment().is("succeeded");
        order.retries().sees(409, "outcome_unknown");
        order.charges().is(1);
        // What was settled before is as it was.
        paid.retries().sees_again(201, "succeeded");
    }
}

/// Many clients with one key: one is charged, the others are refused, or get its answer.
#[test]
fn twenty_at_once_with_one_key() {
    for memory in EITHER {
        let town = Town::opens(memory);
        let order = town.order(100);
        let statuses = Order::are_sent_at_once(&[&order; 20]);
        assert!(statuses.iter().all(|status| matches!(status, 201 | 409)), "{statuses:?}");
        assert!(statuses.contains(&201), "{statuses:?}");
        order.retries_until_it_is_over().sees_again(201, "succeeded");
        order.record().is("completed");
        order.charges().is(1);
    }
}
