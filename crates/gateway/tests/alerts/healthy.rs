//! While all is well nothing fires; and whatever the rules and the dashboard ask for is there to be scraped.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::record::Record;
use oncegate_engine::{Asking, Engine, Found, Options, Probe, Route};
use oncegate_store::memory::MemoryStore;

use crate::by_gateway::{gateway, gateway_with_tls, tell_without_signature};
use crate::by_outbox::{self, DONE, Says};
use crate::by_workers::{compared, quick};
use crate::hurried::hurried;
use crate::pages;
use crate::upstream::Upstream;
use crate::watched::{Counting, Watched};
use crate::world::{
    Shaky, answer, completed, done, doubt, held, ietf, replayed, request, request_of, route, shaky, start,
};

/// A provider that knows.
struct Knowing;

impl Probe for Knowing {
    fn ask<'a>(&'a self, _: &'a Record) -> Asking<'a> {
        let answer = Arc::new(answer("it was charged"));
        Box::pin(std::future::ready(Found::Happened { answer, reference: None }))
    }
}

/// Attempts that a crash takes with it.
const CRASHED: usize = 5;

/// What happens to healthy services: a crash whose leases are swept together, a client that uses a key twice, a request that meets
/// another.
async fn some_trouble(engine: &Engine<Shaky>) {
    // Longer than a busy machine needs to grant it.
    let crashing = route(|policy| policy.lease = Duration::from_secs(2));
    for n in 0..CRASHED {
        // Forgotten, as by a process that is gone: dropped, it would settle its doubt.
        std::mem::forget(held(engine, &crashing, &format!("crash-{n}")).await);
    }
    let route = ietf();
    let holder = held(engine, &route, "busy").await;
    drop(engine.arrive(&route, request(&route, "busy")).await);
    drop(engine.arrive(&route, request_of(&route, "acme", "busy", "other")).await);
    done(holder, doubt()).await;
}

/// New keys, one of which is sent again; and rows whose retention ends soon.
async fn some_traffic(engine: &Engine<Shaky>, route: &Route, round: u32) {
    let brief = crate::world::route(|policy| policy.retention = Duration::from_millis(100));
    completed(engine, &brief, &format!("brief-{round}"), "paid").await;
    for n in 0..5 {
        completed(engine, route, &format!("k-{round}-{n}"), "paid").await;
    }
    if round.is_multiple_of(8) {
        replayed(engine, route, &format!("k-{round}-0")).await;
    }
}

/// The longest that any rule looks back, and the longest that a condition must hold; and then some.
const LONG_ENOUGH: Duration = hurried(Duration::from_mins(15 + 20 + 5));

#[tokio::test(flavor = "multi_thread")]
async fn nothing_fires_and_everything_asked_for_is_scraped() {
    let counting = Counting::start().await;
    let engine = start(shaky(), Options::default()).await;
    // Records and export agree.
    compared(&engine, 1, 0).await;
    let route = ietf();
    let probe: Arc<dyn Probe> = Arc::new(Knowing);
    let _workers = engine.start_workers(&quick(), &probe);
    // Beside it a whole gateway, which counts into the same place and shows it.
    let upstream = Upstream::numbered().await;
    let gateway = gateway(&counting, &upstream).await;
    let folder = tempfile::tempdir().unwrap();
    let in_a_month = Duration::from_hours(30 * 24);
    let _with_tls = gateway_with_tls(&counting, &upstream, folder.path(), in_a_month).await;
    let mut watched = Watched::scraping(gateway.admin_address().tcp().unwrap());
    watched.until_scraped().await;
    // And promises that are kept.
    let promising = start(MemoryStore::new(), Options::default()).await;
    let _outbox = by_outbox::outbox(&promising, Says(DONE));
    some_trouble(&engine).await;
    tell_without_signature(&gateway).await;
    let mut rounds = 0..;
    watched
        .stays_silent(LONG_ENOUGH, async || {
            let round = rounds.next().unwrap();
            by_outbox::promise(&promising, 5 * round..5 * round + 5).await;
            some_traffic(&engine, &route, round).await;
        })
        .await;
    watched.until_found("oncegate_outbox_delivery_count%3E0").await;
    watched.until_found(&format!("api_idempotency_zombie_key_count%3E={CRASHED}")).await;
    watched.until_found("api_idempotency_reconcile_resolved_count%3E0").await;

    let scraped = watched.scraped();
    let asked_for = pages::metrics_in(&crate::hurried::shipped());
    assert!(!asked_for.is_empty());
    for name in asked_for {
        assert!(scraped.contains(&name), "{name} is asked for, and only these are scraped: {scraped:#?}");
    }
    pages::each_says_what_to_do(&watched.rules());
}
