//! Attacks 3 to 7 of ATTACKS.md, with the real gateway, the real provider, its mail and its ledger. Each broke an earlier draft of the rules.
//!
//! Attack 1 is in [`crate::reconciled`]: `a_charge_that_comes_late_is_found_and_not_repeated`.

use example_payments::provider::Fault;
use oncegate_test_servers::wait_until;

use crate::messenger::Pace;
use crate::order::Order;
use crate::postman::Letter;
use crate::told::step::{
    BEGAN, DOUBTED, FAILED_FOR_GOOD, FOUND, NOT_FOUND, NOT_FOUND_YET, RAN_AGAIN, TOLD, TOLD_AFTER_ALL, WOKEN,
};
use crate::told::{PAID, Told};
use crate::town::{Asks, Care, EITHER, FAR, LEASE, Memory, NEAR, Patience, Town};

const KEPT: &str = "in_progress → in_progress: happened, says webhook provider (evidence_kept)";

fn opens(memory: Memory, patience: Patience, horizon: &str) -> Town {
    Town::opens_with_care(memory, patience, Care::told(horizon))
}

/// ATTACKS 3: the provider is later than it may be. "Not found" was believed, and then it is charged after all, and the provider says so. That
/// does not bounce off: the record is completed, an alarm is raised, and the retry that was free to run gets the answer instead.
#[test]
fn what_happened_after_all_settles_a_wrong_did_not_happen() {
    for memory in EITHER {
        let town = opens(memory, Patience::Endless, NEAR);
        let order = town.order(100);
        order.pays_with(&[Fault::LateCharge]).sees(504, "unknown");
        order.comes_to(NOT_FOUND);
        town.time_passes();
        town.postman.receives(&town).is_heard(&town, 200, "settled");
        order.retries().sees_again(201, "succeeded");
        order.is_told(Told {
            record: &[BEGAN, DOUBTED, NOT_FOUND_YET, NOT_FOUND, TOLD_AFTER_ALL, "completed: 201"],
            client: &["504 unknown", "201 succeeded, replayed"],
            ledger: &[PAID],
        });
        town.the_judge_convicts(0);
    }
}

/// ATTACKS 3, with a retry that runs already when the provider says so: it is kept, and when the retry ends in doubt, that settles it. The
/// client of the retry is told of the charge that there is.
#[test]
fn what_an_older_attempt_did_settles_a_newer_one_that_ends_in_doubt() {
    for memory in EITHER {
        let town = opens(memory, Patience::Endless, NEAR);
        let order = town.order(100);
        order.pays_with(&[Fault::LateCharge]).sees(504, "unknown");
        order.comes_to(NOT_FOUND);
        town.time_passes();
        let letter = town.postman.receives(&town);
        let client = order.is_being_paid_with(&[Fault::TimeoutBeforeCharge]);
        letter.is_heard(&town, 202, "kept_as_evidence");
        order.retries().sees(409, "in_progress");
        town.api_stops();
        client.then().sees_again(201, "succeeded");
        town.api_returns();
        order.retries().sees_again(201, "succeeded");
        order.is_told(Told {
            record: &[
                BEGAN,
                DOUBTED,
                NOT_FOUND_YET,
                NOT_FOUND,
                RAN_AGAIN,
                KEPT,
                "in_progress → completed: doubted, failed",
                "completed: 201",
            ],
            client: &["504 unknown", "409 in_progress", "201 succeeded, replayed"],
            ledger: &[PAID],
        });
        town.the_judge_convicts(0);
    }
}

/// Attempt 1 fails, is being asked about, and the provider says that it is over. Attempt 2 is charged, and nobody is told.
fn fails_for_good_and_is_paid_in_doubt(town: &Town, pace: Pace) -> (Order<'_>, Letter) {
    town.messenger.goes(pace);
    let order = town.order(100);
    order.pays_with(&[Fault::ErrorBeforeCharge, Fault::WebhookFailedFirst]).sees(504, "unknown");
    town.messenger.keeps(town, 1);
    let failed = town.postman.receives(town);
    failed.is_heard(town, 200, "settled");
    order.pays_with(&[Fault::ResetAfterCharge, Fault::WebhookLost]).sees(504, "unknown");
    (order, failed)
}

/// ATTACKS 4: a question about attempt 1 found nothing, and its answer comes when attempt 2 is in doubt, and has charged. It says nothing about
/// attempt 2: the next question finds the charge.
#[test]
fn a_slow_not_found_about_an_older_attempt_settles_nothing() {
    for memory in EITHER {
        let town = Town::opens_believing_failures(memory);
        let (order, _) = fails_for_good_and_is_paid_in_doubt(&town, Pace::KeepsAnswers);
        order.charges().is(1);
        // Meanwhile it is asked about attempt 2 as well.
        town.messenger.keeps(&town, 2);
        town.messenger.lets_go_of_the_oldest();
        order.comes_to(NOT_FOUND_YET);
        town.messenger.goes(Pace::AtOnce);
        order.comes_to(FOUND);
        order.retries().sees_again(201, "succeeded");
        order.is_told(Told {
            record: &[
                BEGAN,
                DOUBTED,
                FAILED_FOR_GOOD,
                RAN_AGAIN,
                DOUBTED,
                NOT_FOUND_YET,
                FOUND,
                "completed: 201",
            ],
            client: &["504 unknown", "201 succeeded, replayed"],
            ledger: &[PAID],
        });
        town.the_judge_convicts(0);
    }
}

/// ATTACKS 4, by mail: the provider's last word on attempt 1 is delivered again when attempt 2 is in doubt, and has charged.
#[test]
fn a_redelivered_failure_of_an_older_attempt_settles_nothing() {
    for memory in EITHER {
        let town = Town::opens_believing_failures(memory);
        let (order, failed) = fails_for_good_and_is_paid_in_doubt(&town, Pace::KeepsQuestions);
        // Attempt 2 is being asked about already: all that the letter can do is to have it asked about once more.
        town.messenger.keeps(&town, 2);
        failed.is_heard(&town, 202, "woken");
        order.record().is("unknown");
        order.retries().sees(409, "outcome_unknown");
        town.messenger.goes(Pace::AtOnce);
        order.comes_to(FOUND);
        order.retries().sees_again(201, "succeeded");
        order.is_told(Told {
            record: &[
                BEGAN,
                DOUBTED,
                FAILED_FOR_GOOD,
                RAN_AGAIN,
                DOUBTED,
                "unknown → unknown: did_not_happen, says webhook provider (negative_dropped)",
                FOUND,
                "completed: 201",
            ],
            client: &["504 unknown", "409 outcome_unknown", "201 succeeded, replayed"],
            ledger: &[PAID],
        });
        town.the_judge_convicts(0);
    }
}

/// ATTACKS 5: "failed", and then "succeeded", of one payment. The first only wakes the probe, and the second stands.
#[test]
fn failed_and_then_succeeded_is_a_success() {
    for memory in EITHER {
        let town = opens(memory, Patience::Short, FAR);
        town.messenger.goes(Pace::KeepsQuestions);
        let order = town.order(100);
        order.pays_with(&[Fault::ResetAfterCharge, Fault::WebhookFailedFirst]).sees(504, "unknown");
        town.messenger.keeps(&town, 1);
        let [failed, succeeded] = town.postman.receives_failed_and_succeeded(&town);
        failed.is_heard(&town, 202, "woken");
        order.retries().sees(409, "outcome_unknown");
        succeeded.is_heard(&town, 200, "settled");
        order.retries().sees_again(201, "succeeded");
        // What the probe finds now is the same.
        town.messenger.goes(Pace::AtOnce);
        let found = "oncegate_probe_count{found=\"happened\"}";
        wait_until("the probe has found it", || town.counted(town.admin_address(), found) > 0);
        order.is_told(Told {
            record: &[BEGAN, DOUBTED, WOKEN, TOLD, "completed: 201"],
            client: &["504 unknown", "409 outcome_unknown", "201 succeeded, replayed"],
            ledger: &[PAID],
        });
        town.the_judge_convicts(0);
    }
}

/// ATTACKS 5, the other way round: "succeeded" stands, and "failed" comes too late for anything.
#[test]
fn succeeded_and_then_failed_is_a_success() {
    for memory in EITHER {
        let town = opens(memory, Patience::Short, FAR);
        town.messenger.goes(Pace::KeepsQuestions);
        let order = town.order(100);
        order.pays_with(&[Fault::ResetAfterCharge, Fault::WebhookFailedFirst]).sees(504, "unknown");
        let [failed, succeeded] = town.postman.receives_failed_and_succeeded(&town);
        succeeded.is_heard(&town, 200, "settled");
        failed.is_heard(&town, 200, "nothing_to_do");
        order.retries().sees_again(201, "succeeded");
        order.is_told(Told {
            record: &[BEGAN, DOUBTED, TOLD, "completed: 201"],
            client: &["504 unknown", "201 succeeded, replayed"],
            ledger: &[PAID],
        });
        town.the_judge_convicts(0);
    }
}

/// ATTACKS 5, where the mapping has declared "failed" to be the provider's last word, and it was not: "succeeded" stands, and raises an alarm.
#[test]
fn failed_for_good_and_then_succeeded_is_a_success() {
    for memory in EITHER {
        let town = Town::opens_believing_failures(memory);
        town.messenger.goes(Pace::KeepsQuestions);
        let order = town.order(100);
        order.pays_with(&[Fault::ResetAfterCharge, Fault::WebhookFailedFirst]).sees(504, "unknown");
        let [failed, succeeded] = town.postman.receives_failed_and_succeeded(&town);
        failed.is_heard(&town, 200, "settled");
        succeeded.is_heard(&town, 200, "settled");
        order.retries().sees_again(201, "succeeded");
        order.is_told(Told {
            record: &[BEGAN, DOUBTED, FAILED_FOR_GOOD, TOLD_AFTER_ALL, "completed: 201"],
            client: &["504 unknown", "201 succeeded, replayed"],
            ledger: &[PAID],
        });
        town.the_judge_convicts(0);
    }
}

/// ATTACKS 6: the provider says that it has charged while the gateway still waits for the API, and is thanked. Then the gateway is killed, and
/// it has nobody to ask. What it has heard is not lost with it.
#[test]
fn what_was_heard_during_the_attempt_outlives_the_gateway_and_settles_it() {
    for memory in EITHER {
        let care = Care { asks: Asks::Nobody, lease: LEASE, ..Care::told(FAR) };
        let town = Town::opens_with_care(memory, Patience::Endless, care);
        let order = town.order(100);
        let client = order.is_being_paid_with(&[Fault::TimeoutAfterCharge]);
        town.postman.receives(&town).is_heard(&town, 202, "kept_as_evidence");
        town.gateway_is_killed();
        client.then().sees_nothing();
        town.gateway_returns();
        order.record().becomes("completed");
        order.retries().sees_again(201, "succeeded");
        order.is_told(Told {
            record: &[BEGAN, KEPT, "in_progress → completed: lapsed (zombie)", "completed: 201"],
            client: &["nothing", "201 succeeded, replayed"],
            ledger: &[PAID],
        });
        town.the_judge_convicts(0);
    }
}

/// ATTACKS 7: a key is used again after its retention, and that payment is not made. The charge of its earlier life is in the ledger, and is
/// told once more. Neither the question nor the letter settles the later life with it: its client pays for itself.
#[test]
fn an_effect_of_an_earlier_life_does_not_settle_a_later_one() {
    for memory in EITHER {
        let defaults = "after_retention = \"fresh\"\nretention = \"1s\"";
        let care = Care { defaults, ..Care::told(NEAR) };
        let town = Town::opens_with_care(memory, Patience::Short, care);
        let order = town.order(100);
        order.pays().sees(201, "succeeded");
        let (letter, earlier) = (town.postman.receives(&town), order.upstream_key());
        // The later life is kept for as long as the story takes.
        town.gateway_returns_configured("retention = \"1s\"", "retention = \"1h\"");
        town.messenger.goes(Pace::KeepsQuestions);

        order.is_used_again_with(&[Fault::ResetBeforeCharge]).sees(504, "unknown");
        assert_ne!(order.upstream_key(), earlier);
        town.messenger.keeps(&town, 1);
        letter.is_heard(&town, 200, "another_life");
        order.retries().sees(409, "outcome_unknown");
        town.messenger.goes(Pace::AtOnce);
        order.comes_to(NOT_FOUND);
        order.retries().sees(201, "succeeded");
        order.is_told(Told {
            record: &[
                BEGAN,
                "completed → in_progress: ran_after_expiry",
                DOUBTED,
                "unknown → unknown: happened, says webhook provider (another_life)",
                NOT_FOUND_YET,
                NOT_FOUND,
                RAN_AGAIN,
                "completed: 201",
            ],
            client: &["504 unknown", "409 outcome_unknown", "201 succeeded"],
            ledger: &[PAID],
        });
        // Each life has been paid for once.
        let verdict = town.get(town.provider_address(), "/ledger");
        assert_eq!((&verdict["charges"], &verdict["charged_twice"]), (&2.into(), &serde_json::json!([])));
    }
}
