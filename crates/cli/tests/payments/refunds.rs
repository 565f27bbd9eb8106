//! Stories of refunds: a POST like any other, and money all the same.

use example_payments::provider::Fault;

use crate::order::Order;
use crate::town::{EITHER, Memory, Patience, Town};

#[test]
fn a_refund_and_its_retry() {
    for memory in EITHER {
        let town = Town::opens(memory);
        let order = town.order(500);
        order.pays().sees(201, "succeeded");
        let refund = order.refund(200);

        refund.pays().sees(201, "succeeded");
        refund.record().is("completed");
        refund.payment().is("succeeded");
        refund.charges().is(1);

        refund.retries().sees_again(201, "succeeded");
        refund.charges().is(1);
        order.charges().is(1);
        town.the_judge_convicts(0);
    }
}

/// The money went back, and nobody heard: what may have been refunded is not refunded again, under this key or another.
#[test]
fn a_refund_whose_answer_is_lost() {
    for memory in EITHER {
        let town = Town::opens_with(memory, Patience::Short);
        let order = town.order(500);
        order.pays().sees(201, "succeeded");
        let refund = order.refund(400);

        refund.pays_with(&[Fault::TimeoutAfterCharge]).sees(504, "unknown");
        refund.record().is("unknown");
        refund.charges().is(1);
        refund.retries().sees(409, "outcome_unknown");
        refund.charges().is(1);

        let another = order.refund(400);
        another.pays().sees(422, "only 100 of the payment is left to be refunded");
        another.record().is("completed");
        another.payment().is("absent");
        another.charges().is(0);
        refund.payment().is("succeeded");
    }
}

#[test]
fn a_refund_of_more_than_was_paid() {
    let town = Town::opens(Memory::None);
    let order = town.order(500);
    order.pays().sees(201, "succeeded");
    let refund = order.refund(501);
    refund.pays().sees(422, "only 500 of the payment is left to be refunded");
    refund.record().is("completed");
    refund.payment().is("absent");
    refund.charges().is(0);
    refund.retries().sees_again(422, "only 500 of the payment is left to be refunded");
    order.refund(500).pays().sees(201, "succeeded");
    order.refund(1).pays().sees(422, "only 0 of the payment is left to be refunded");
}

/// Eight keys, so the gateway lets all of them through; it is the API's own book that must not be refunded twice.
#[test]
fn refunds_at_once_under_keys_of_their_own() {
    let town = Town::opens(Memory::None);
    let order = town.order(500);
    order.pays().sees(201, "succeeded");
    let refunds: Vec<Order<'_>> = (0..8).map(|_| order.refund(500)).collect();
    let statuses = Order::are_sent_at_once(&refunds.iter().collect::<Vec<_>>());
    assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 422).count(), 7, "{statuses:?}");
}
