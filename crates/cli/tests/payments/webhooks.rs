//! Stories of webhooks. What the provider tells by mail settles the API's payment, also where the API was left in doubt.
//!
//! The gateway does not get any mail: to it the outcome stays unknown, and its client is told so.

use example_payments::provider::Fault;

use crate::town::{EITHER, Town};

/// The charge is made, the answer is lost, and so is the webhook: nobody knows until somebody asks.
#[test]
fn webhook_lost() {
    for memory in EITHER {
        let town = Town::opens(memory);
        let order = town.order(100);
        order.pays_with(&[Fault::ResetAfterCharge, Fault::WebhookLost]).sees(504, "unknown");
        // Another's is not lost; it comes after the one that does not.
        town.order(200).pays().sees(201, "succeeded");
        let letter = town.postman.receives(&town);
        assert!(!String::from_utf8_lossy(&letter.body).contains(&order.key));
        town.postman.has_nothing();

        town.provider_stops();
        order.payment().is("nobody can say");
        order.record().is("unknown");

        town.provider_returns();
        order.payment().is("succeeded");
        order.charges().is(1);
        order.retries().sees(409, "outcome_unknown");
        order.charges().is(1);
    }
}

/// The charge is made, the answer is lost, the provider cannot be asked; late, its webhook comes, and the API knows.
#[test]
fn webhook_late() {
    for memory in EITHER {
        let town = Town::opens(memory);
        let order = town.order(100);
        order.pays_with(&[Fault::ResetAfterCharge, Fault::WebhookLate]).sees(504, "unknown");
        order.charges().is(1);
        town.provider_stops();
        order.payment().is("nobody can say");
        town.postman.has_nothing();

        town.time_passes();
        let letter = town.postman.receives(&town);
        order.payment().is("nobody can say");
        assert_eq!(letter.is_delivered(&town), 204);
        order.payment().is("succeeded");
        order.record().is("unknown");

        order.retries().sees(409, "outcome_unknown");
        town.provider_returns();
        order.charges().is(1);
    }
}

/// The same event comes twice, as it may: the second changes nothing.
#[test]
fn webhook_twice() {
    for memory in EITHER {
        let town = Town::opens(memory);
        let order = town.order(100);
        order.pays_with(&[Fault::ErrorAfterCharge, Fault::WebhookTwice]).sees(504, "unknown");
        let letters = [town.postman.receives(&town), town.postman.receives(&town)];
        assert_eq!(letters[0].header("webhook-id"), letters[1].header("webhook-id"));
        assert_eq!(letters[0].body, letters[1].body);
        town.provider_stops();
        order.payment().is("nobody can say");
        assert_eq!(letters[0].is_delivered(&town), 204);
        order.payment().is("succeeded");
        assert_eq!(letters[1].is_delivered(&town), 204);
        order.payment().is("succeeded");

        order.retries().sees(409, "outcome_unknown");
        town.provider_returns();
        order.charges().is(1);
    }
}

/// All goes well, and the webhook tells the API what it knows: nothing changes for anybody.
#[test]
fn a_webhook_of_what_is_known() {
    for memory in EITHER {
        let town = Town::opens(memory);
        let order = town.order(100);
        order.pays_with(&[Fault::WebhookTwice]).sees(201, "succeeded");
        for _ in 0..2 {
            assert_eq!(town.postman.receives(&town).is_delivered(&town), 204);
            order.payment().is("succeeded");
            order.record().is("completed");
            order.charges().is(1);
        }
        order.retries().sees_again(201, "succeeded");
        order.charges().is(1);
    }
}

/// Anybody can send mail. What the provider has not signed, as it stands, is not believed.
#[test]
fn a_webhook_that_the_provider_did_not_sign() {
    for memory in EITHER {
        let town = Town::opens(memory);
        let order = town.order(100);
        order.pays_with(&[Fault::ResetBeforeCharge]).sees(504, "unknown");
        town.order(200).pays().sees(201, "succeeded");
        let real = town.postman.receives(&town);
        town.provider_stops();

        let claim = format!(
            r#"{{"type": "charge.succeeded", "data": {{"id": "ch_99", "reference": "ann/{}", "status": "succeeded"}}}}"#,
            order.key
        );
        let forged = real.clone().with_body(&claim);
        let somebody = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        for letter in [
            forged.clone(),
            forged.clone().without("webhook-signature"),
            forged.clone().without("webhook-timestamp"),
            forged.clone().without("webhook-id"),
            forged.clone().signed_with(somebody),
        ] {
            assert_eq!(letter.is_delivered(&town), 401);
            order.payment().is("nobody can say");
        }
        // It was the signature that was missing, and nothing else.
        assert_eq!(forged.signed_with(crate::town::WEBHOOK_SECRET).is_delivered(&town), 204);
        order.payment().is("succeeded");
    }
}
