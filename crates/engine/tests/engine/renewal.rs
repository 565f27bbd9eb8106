//! Leases are renewed while the work goes on, up to the attempt's deadline. On the real clock.

use std::time::Duration;

use oncegate_core::decide::Decision;
use oncegate_engine::{Arrived, LeaseEnded, Options};
use oncegate_store::faulty::Fault;
use oncegate_store::memory::MemoryStore;
use oncegate_test_servers::until;

use crate::world::{
    answer, complete, done, held, id, replayed, request, route, row, shaky, soon, start, sweep,
};

const LEASE: Duration = Duration::from_millis(300);

/// Work that takes several leases. Nobody gets in meanwhile, the sweeper finds nothing, and it completes as usual.
#[tokio::test]
async fn long_work_keeps_its_lease() {
    let engine = start(MemoryStore::new(), Options::default()).await;
    let route = route(|policy| policy.lease = LEASE);
    let mut holder = held(&engine, &route, "k").await;
    holder.begin().unwrap();
    let permit = holder.permit();
    let first_end = holder.lease().until;
    let outlasts = until("the work has outlasted its lease", async || {
        let arrived = engine.arrive(&route, request(&route, "k")).await.unwrap();
        assert!(matches!(arrived, Arrived::Busy { .. }), "{arrived:?}");
        assert_eq!(sweep(&engine, id(&route, "k")).await, Decision::Nothing);
        engine.now().at > first_end.plus(LEASE)
    });
    soon(holder.run(outlasts)).await;
    assert_eq!(permit.check(), Ok(()));
    done(holder, complete("slow")).await;
    assert_eq!(*replayed(&engine, &route, "k").await, answer("slow"));
}

/// A hung upstream is not renewed for ever: at the deadline the lease ends, and the record can be swept.
#[tokio::test]
async fn no_lease_is_renewed_past_the_deadline() {
    let engine = start(MemoryStore::new(), Options::default()).await;
    let deadline = 2 * LEASE;
    let route = route(|policy| (policy.lease, policy.attempt_deadline) = (LEASE, deadline));
    let mut holder = held(&engine, &route, "k").await;
    holder.begin().unwrap();
    let permit = holder.permit();
    let (first_end, end) = (holder.lease().until, holder.lease().attempt_deadline);
    let ended = until("the lease has ended", async || {
        let until = row(&engine, id(&route, "k")).await.grant.unwrap().lease_until;
        assert!(until <= end);
        permit.check() == Err(LeaseEnded)
    });
    soon(holder.run(ended)).await;
    let until = row(&engine, id(&route, "k")).await.grant.unwrap().lease_until;
    assert!(first_end < until, "it was renewed");
    assert_eq!(until, end, "up to the deadline");
    oncegate_test_servers::until("the record is swept", async || {
        sweep(&engine, id(&route, "k")).await == Decision::Done
    })
    .await;
    done(holder, complete("late but true")).await;
}

/// The store is away while a lease should be renewed. It is tried again, and the lease goes on.
#[tokio::test]
async fn a_renewal_that_fails_is_tried_again() {
    for fault in [Fault::BeforeWrite, Fault::AcknowledgementLost, Fault::ConnectionLost, Fault::CrashBefore] {
        let store = shaky();
        let engine = start(store.clone(), Options::default()).await;
        let route = route(|policy| policy.lease = Duration::from_secs(3));
        let mut holder = held(&engine, &route, "k").await;
        holder.begin().unwrap();
        let first_end = holder.lease().until;
        store.queue(fault);
        let renewed = async {
            store.until_applied(2).await;
            store.revive();
            until("the lease goes on", async || {
                row(&engine, id(&route, "k")).await.grant.unwrap().lease_until > first_end
            })
            .await;
            // And the holder knows it, also where only the acknowledgement was lost.
            store.until_applied(3).await;
        };
        soon(holder.run(renewed)).await;
        assert_eq!(holder.permit().check(), Ok(()), "{fault:?}");
        done(holder, complete("paid")).await;
    }
}

/// The store stays away past the lease's end: nothing may be sent any more. The holder still settles when the store is back.
#[tokio::test]
async fn a_lease_that_could_not_be_renewed_ends() {
    let store = shaky();
    let engine = start(store.clone(), Options::default()).await;
    let route = route(|policy| policy.lease = LEASE);
    let mut holder = held(&engine, &route, "k").await;
    holder.begin().unwrap();
    let permit = holder.permit();
    store.queue(Fault::CrashBefore);
    soon(holder.run(until("the lease has ended", async || permit.check() == Err(LeaseEnded)))).await;
    store.revive();
    soon(done(holder, complete("late but true"))).await;
    assert_eq!(*replayed(&engine, &route, "k").await, answer("late but true"));
}

/// A renewal is on its way when the work ends: it does not get into the way of the settlement.
#[tokio::test]
async fn a_renewal_under_way_does_not_hinder_the_settlement() {
    let store = shaky();
    let engine = start(store.clone(), Options::default()).await;
    let route = route(|policy| policy.lease = Duration::from_secs(3));
    let mut holder = held(&engine, &route, "k").await;
    holder.begin().unwrap();
    store.queue(Fault::Delayed);
    soon(holder.run(store.until_delayed(1))).await;
    store.let_go();
    soon(done(holder, complete("paid"))).await;
    assert_eq!(*replayed(&engine, &route, "k").await, answer("paid"));
}
