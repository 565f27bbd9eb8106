//! Attack 29, by atomic handlers: a backup was restored, and keys of the lost time must not run.

use std::time::Duration;

use oncegate_core::decide::QUARANTINED;
use oncegate_core::policy::Profile;
use oncegate_core::record::State;
use oncegate_core::time::Timestamp;
use oncegate_engine::{Operator, ReleasedQuarantine, Settlement};

use crate::client::Call;
use crate::earlier::{reason, reserved};
use crate::node::{Node, simple};

const HOUR: Duration = Duration::from_hours(1);

fn ada() -> Operator {
    Operator { name: "ada".into(), reason: "restored last night's backup".into() }
}

fn call(key: &str) -> Call {
    Call::post("/charges").key(key)
}

/// A UUID of version 7, made at this moment.
fn key_of(at: Timestamp) -> String {
    let millis = at.as_micros() / 1_000;
    format!("{:08x}-{:04x}-7abc-8def-0123456789ab", millis >> 16, millis & 0xffff)
}

/// The key is held back, also from a retry, and an operator sees why.
async fn is_held_back<B: crate::base::Base>(node: &Node<B>, key: &str) {
    for _ in 0..2 {
        call(key).send(node.addr).await.expect_problem(409, "outcome_unknown");
    }
    let record = node.record(key).await.unwrap();
    assert!(matches!(&record.state, State::Unknown(doubt) if doubt.parked), "{record:?}");
    assert_eq!(record.last_error.unwrap().code(), QUARANTINED);
}

on_both! {
    async fn attack_29_keys_of_a_quarantine_are_held_back_from_atomic_handlers<B: Base>() {
        let base = B::start().await;
        let node = simple(&base, Profile::Ietf).await;
        let now = node.engine.now().at;
        let (since, until) = (now.minus(2 * HOUR), now.minus(HOUR));
        let window = node.engine.declare_quarantine(since, until, &ada()).await.unwrap();
        let inside = key_of(since.plus(Duration::from_mins(1)));
        is_held_back(&node, &inside).await;
        is_held_back(&node, "no-time-at-all").await;
        // A node that starts reads the quarantine first.
        let next = simple(&base, Profile::Ietf).await;
        let other = key_of(until.minus(Duration::from_mins(1)));
        is_held_back(&next, &other).await;
        assert_eq!((node.runs(), next.runs(), base.charges().await.len()), (0, 0, 0));
        // Keys of other times run.
        let after = key_of(now);
        call(&after).send(node.addr).await.expect_first(200, "run 1");

        let released = node.engine.release_quarantine(&window.id, &ada()).await.unwrap();
        assert_eq!(released, ReleasedQuarantine { was_active: true, keys: 3 });
        call(&inside).send(node.addr).await.expect_first(200, "run 2");
        let mut charged = [inside, after];
        charged.sort();
        assert_eq!(base.charges().await, charged);
    }

    /// Once the store was restored, nothing runs and nothing is replayed until the process is restarted.
    async fn attack_29_atomic_handlers_refuse_everything_after_a_restore<B: Base>() {
        let base = B::start().await;
        let node = simple(&base, Profile::Ietf).await;
        call("paid").send(node.addr).await.expect_first(200, "run 1");
        node.engine.check_history().await.unwrap();
        base.lose_watermarks().await;
        node.engine.check_history().await.unwrap();
        for key in ["paid", "new"] {
            call(key).send(node.addr).await.expect_problem(503, "store_unavailable");
        }
        assert_eq!((node.runs(), base.charges().await), (1, vec!["paid".to_owned()]));
    }

    /// In the lost time its retry may have run.
    async fn attack_29_a_released_key_is_held_back_from_atomic_handlers<B: Base>() {
        let base = B::start().await;
        let held = reserved(base.store().await, Profile::Ietf.policy()).await;
        drop(held.settle(Settlement::Release { reason: reason(), backoff: Duration::ZERO }).await);
        let node = simple(&base, Profile::Ietf).await;
        let now = node.engine.now().at;
        node.engine.declare_quarantine(now.minus(HOUR), now, &ada()).await.unwrap();
        call("k").send(node.addr).await.expect_problem(409, "outcome_unknown");
        assert_eq!((node.runs(), base.charges().await.len()), (0, 0));
    }
}
