//! One story for each way in which the provider fails to charge, or to say so.

use example_payments::provider::Fault;

use crate::town::{EITHER, Memory, Patience, Town};

/// The provider takes its time. Meanwhile the client has lost patience and sends its payment again.
#[test]
fn slow() {
    for memory in EITHER {
        let town = Town::opens(memory);
        let order = town.order(100);

        let first = order.is_being_paid_slowly();
        order.record().is("in_progress");
        order.payment().is("created");
        order.charges().is(0);

        order.retries().sees(409, "in_progress");
        order.charges().is(0);

        town.time_passes();
        first.then().sees(201, "succeeded");
        order.record().is("completed");
        order.payment().is("succeeded");
        order.charges().is(1);

        order.retries().sees_again(201, "succeeded");
        order.charges().is(1);
    }
}

/// The provider is slower than the API is patient: nobody knows, and then it charges after all.
#[test]
fn slower_than_the_api_is_patient() {
    for memory in EITHER {
        let town = Town::opens_with(memory, Patience::Short);
        let order = town.order(100);

        order.pays_with(&[Fault::Slow]).sees(504, "unknown");
        order.record().is("unknown");
        order.payment().is("unknown");
        order.charges().is(0);

        order.retries().sees(409, "outcome_unknown");
        order.charges().is(0);

        town.time_passes();
        order.charges().becomes(1);
        order.payment().is("succeeded");
        order.record().is("unknown");

        order.retries().sees(409, "outcome_unknown");
        order.charges().is(1);
    }
}

/// The answer never comes, and nothing was charged. The client cannot tell this from the next story.
#[test]
fn timeout_before_charge() {
    for memory in EITHER {
        let town = Town::opens_with(memory, Patience::Short);
        let order = town.order(100);

        order.pays_with(&[Fault::TimeoutBeforeCharge]).sees(504, "unknown");
        order.record().is("unknown");
        order.payment().is("unknown");
        order.charges().is(0);

        order.retries().sees(409, "outcome_unknown");
        order.charges().is(0);
    }
}

/// The charge is made, and the answer never comes. A retry would charge again; the gateway does not let it.
#[test]
fn timeout_after_charge() {
    for memory in EITHER {
        let town = Town::opens_with(memory, Patience::Short);
        let order = town.order(100);

        order.pays_with(&[Fault::TimeoutAfterCharge]).sees(504, "unknown");
        order.record().is("unknown");
        order.payment().is("succeeded");
        order.charges().is(1);

        order.retries().sees(409, "outcome_unknown");
        order.record().is("unknown");
        order.charges().is(1);
    }
}

/// The connection breaks, and nothing was charged. From outside this is the same as the next story, so it must end the same.
#[test]
fn reset_before_charge() {
    for memory in EITHER {
        let town = Town::opens(memory);
        let order = town.order(100);

        order.pays_with(&[Fault::ResetBeforeCharge]).sees(504, "unknown");
        order.record().is("unknown");
        order.payment().is("unknown");
        order.charges().is(0);

        order.retries().sees(409, "outcome_unknown");
        order.payment().is("unknown");
        order.charges().is(0);
    }
}

/// The connection breaks, and the charge was made.
#[test]
fn reset_after_charge() {
    for memory in EITHER {
        let town = Town::opens(memory);
        let order = town.order(100);

        order.pays_with(&[Fault::ResetAfterCharge]).sees(504, "unknown");
        order.record().is("unknown");
        order.payment().is("succeeded");
        order.charges().is(1);

        order.retries().sees(409, "outcome_unknown");
        order.charges().is(1);
    }
}

/// The connection breaks, nothing is charged, and whoever looks finds nothing; later the charge comes. "Not found" was no proof.
#[test]
fn late_charge() {
    for memory in EITHER {
        let town = Town::opens(memory);
        let order = town.order(100);

        order.pays_with(&[Fault::LateCharge]).sees(504, "unknown");
        order.record().is("unknown");
        order.payment().is("unknown");
        order.charges().is(0);

        order.retries().sees(409, "outcome_unknown");
        order.charges().is(0);

        town.time_passes();
        order.charges().becomes(1);
        order.payment().is("succeeded");

        order.retries().sees(409, "outcome_unknown");
        order.charges().is(1);
    }
}

/// A declined card is an outcome: the retry gets it again, although the card would be accepted now.
#[test]
fn decline() {
    for memory in EITHER {
        let town = Town::opens(memory);
        let order = town.order(100);

        order.pays_with(&[Fault::Decline]).sees(402, "declined");
        order.record().is("completed");
        order.payment().is("declined");
        order.charges().is(0);
        order.was_declined(1);

        order.retries().sees_again(402, "declined");
        order.record().is("completed");
        order.charges().is(0);
        order.was_declined(1);
    }
}

/// A 500, and nothing was charged. Nobody takes a 500's word for that.
#[test]
fn error_before_charge() {
    for memory in EITHER {
        let town = Town::opens(memory);
        let order = town.order(100);

        order.pays_with(&[Fault::ErrorBeforeCharge]).sees(504, "unknown");
        order.record().is("unknown");
        order.payment().is("unknown");
        order.charges().is(0);

        order.retries().sees(409, "outcome_unknown");
        order.charges().is(0);
    }
}

/// A 500, and the charge was made.
#[test]
fn error_after_charge() {
    for memory in EITHER {
        let town = Town::opens(memory);
        let order = town.order(100);

        order.pays_with(&[Fault::ErrorAfterCharge]).sees(504, "unknown");
        order.record().is("unknown");
        order.payment().is("succeeded");
        order.charges().is(1);

        order.retries().sees(409, "outcome_unknown");
        order.charges().is(1);
    }
}

/// Without the gateway the client's retry is charged again, whatever the provider remembers: to it, this is another payment. So the stories
/// above could have ended otherwise, and the judge would have said so.
#[test]
fn without_the_gateway_the_judge_convicts() {
    for memory in EITHER {
        let town = Town::opens_with(memory, Patience::Short);
        let order = town.order(100);

        order.pays_the_api_itself(&[Fault::TimeoutAfterCharge]).sees(504, "unknown");
        order.charges().is(1);
        town.the_judge_convicts(0);

        order.pays_the_api_itself(&[]).sees(201, "succeeded");
        order.record().is("absent");
        order.charges().is(2);
        town.the_judge_convicts(1);
    }
}

/// What the provider's own memory is: of its merchant's key, not of ours.
#[test]
fn the_providers_own_idempotency() {
    for (memory, charges) in [(Memory::Good, 1), (Memory::None, 2)] {
        let town = Town::opens(memory);
        let order = town.order(100);
        let first = order.is_charged_directly(town.provider_address(), "pay_1");
        let second = order.is_charged_directly(town.provider_address(), "pay_1");
        assert_eq!((first.status.as_u16(), second.status.as_u16()), (201, 201));
        assert_eq!(first.body == second.body, memory == Memory::Good);
        order.charges().is(charges);
        town.the_judge_convicts(charges - 1);
    }
}
