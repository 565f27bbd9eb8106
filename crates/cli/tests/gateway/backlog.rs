//! A hundred thousand accepted requests wait: the gateway's memory does not grow with them, each scope's oldest goes first, and the many of one
//! tenant do not hold up the few of others.
//!
//! What this is not: the backlog is not sent by clients. It is put in by the engine, as if another gateway had accepted it: what is asked here is what it
//! costs to have it, not to get it. And not all of it is drained, but a quarter or half (`Work`); memory is bounded all the while, and the bound would be broken if
//! what was run stayed, or what waits were read. That all that is accepted ends is `payments/accepted.rs`.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::fingerprint::{self, Content, Mode};
use oncegate_core::key::Key;
use oncegate_core::policy::{Credentials, Profile};
use oncegate_core::record::StoredRequest;
use oncegate_core::scope::Operation;
use oncegate_engine::{Arrived, Engine, Options, Route};
use oncegate_test_servers::wait_until;
use tokio::task::JoinSet;

use crate::memory::memory_kib;
use crate::process::{Gateway, serve};
use crate::upstream::Upstream;
use crate::world::Place;

/// Of one tenant, and before all others.
const BUSY: usize = 100_000;
const OTHERS: usize = 100;
const EACH: usize = 3;
const BODY_BYTES: usize = 1 << 10;
const AT_ONCE: usize = 32;
/// What the gateway may use more than one with nothing to do: requests that run, what it keeps of answers, and room for an allocator that has pages of
/// its own for each thread and each size. All of what waits would be more than three times as much.
const BOUND_KIB: usize = AT_ONCE * (192 + 2) + (1 << 10) + (24 << 10);

/// How far the backlog is worked off, and what the store itself may have of the gateway's memory meanwhile.
#[derive(Clone, Copy)]
struct Work {
    requests: usize,
    store_kib: usize,
}

/// SQLite keeps the pages that it has touched, up to 2 MiB for each connection, of which one writes and three read. If bodies stayed, they would come on
/// top.
const ON_SQLITE: Work = Work { requests: 50_000, store_kib: 16 << 10 };
/// Connections, and their statements. Bodies that stayed would be more.
const ON_POSTGRESQL: Work = Work { requests: 25_000, store_kib: 8 << 10 };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_costs_no_memory_and_nobody_waits_behind_it_on_sqlite() {
    of(Place::sqlite(), ON_SQLITE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_costs_no_memory_and_nobody_waits_behind_it_on_postgresql() {
    of(Place::postgres(), ON_POSTGRESQL).await;
}

async fn of(place: Place, work: Work) {
    let upstream = Upstream::start().await;
    let file = place.configure(&upstream.url(), "");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replacen("[store]", "[store]\ncache_bytes = \"1 MiB\"", 1);
    std::fs::write(&file, text + &format!("[workers]\ndeferred_max = {AT_ONCE}\n")).unwrap();
    // What the allocator keeps for later is not what this is about: it gives back at once what it is given.
    let start = || Gateway::of(serve().env("MIMALLOC_PURGE_DELAY", "0").arg("--config").arg(&file));
    let idle = memory_kib(&start(), "VmHWM");
    fill(place.store()).await;

    upstream.shut();
    let gateway = start();
    upstream.wait_for_waiting(AT_ONCE);
    let waiting = memory_kib(&gateway, "VmHWM");
    upstream.open();
    let quiet: Vec<_> = (0..OTHERS).flat_map(|tenant| (0..EACH).map(move |n| other_key(tenant, n))).collect();
    wait_until("the others are served", || quiet.iter().rev().all(|key| upstream.acted(key) == 1));
    let served = upstream.requests();
    // As long as there is progress, there is patience.
    for count in (served..work.requests).step_by(1_000).chain([work.requests]) {
        wait_until("more are served", || upstream.requests() >= count);
    }
    // The most that it ever had, all the while.
    let working = memory_kib(&gateway, "VmHWM");
    println!(
        "{BUSY} wait: {idle} KiB idle, {waiting} KiB with {AT_ONCE} at work, {working} KiB while {} were run; all {} of the others among the \
         first {served}",
        work.requests,
        quiet.len()
    );
    for (used, allowed) in [(waiting, BOUND_KIB), (working, BOUND_KIB + work.store_kib)] {
        assert!(
            used.saturating_sub(idle) <= allowed,
            "{used} KiB, {idle} KiB idle; {allowed} more are allowed"
        );
    }
    assert!(served < 3_000, "{served} were served before the last of the others");
    drop(gateway);
    let effects = upstream.effects();
    assert!(effects.values().all(|times| *times == 1), "each once");
    let busy: Vec<usize> = effects.keys().filter_map(|key| key.strip_prefix("busy-")?.parse().ok()).collect();
    let newest = busy.iter().max().copied().unwrap_or_default();
    // They were accepted five hundred at once.
    assert!(newest < busy.len() + 500 + 2 * AT_ONCE, "oldest first: {newest} among {}", busy.len());
}

fn other_key(tenant: usize, n: usize) -> String {
    format!("other-{tenant}-{n}")
}

/// As if a gateway had accepted them, one after the other.
async fn fill(store: &str) {
    // A disk that stands still for a while is not what this is about.
    let options = Options { store_timeout: Duration::from_mins(1), ..Options::default() };
    let engine = Engine::start(oncegate::open(store).await.unwrap(), options).await.unwrap();
    let operation = Operation::new("POST *").unwrap();
    let route = Arc::new(Route::of_profile(Profile::Accepted, operation));
    let busy = (0..BUSY).map(|n| ("busy".to_owned(), format!("busy-{n}")));
    let others = (0..OTHERS)
        .flat_map(|tenant| (0..EACH).map(move |n| (format!("tenant-{tenant}"), other_key(tenant, n))));
    let all: Vec<_> = busy.chain(others).collect();
    for batch in all.chunks(500) {
        let mut accepting = JoinSet::new();
        for (tenant, key) in batch {
            let (engine, route) = (engine.clone(), Arc::clone(&route));
            let (tenant, key) = (tenant.clone(), key.clone());
            accepting.spawn(async move { accept(&engine, &route, &tenant, &key).await });
        }
        accepting.join_all().await;
    }
}

async fn accept(engine: &Engine<oncegate::AnyStore>, route: &Route, tenant: &str, key: &str) {
    let body = format!("{{\"note\":\"{}\"}}", "n".repeat(BODY_BYTES)).into_bytes();
    let content = Content { method: "POST", path: "/charges", query: None, content_type: None, body: &body };
    let fingerprint = fingerprint::of(&Mode::Raw, &content).unwrap();
    let request = StoredRequest {
        method: "POST".into(),
        target: "/charges".into(),
        headers: vec![("idempotency-key".to_owned(), key.as_bytes().to_vec())],
        body,
        credentials: Some(Credentials::Kept),
    };
    let scope = route.scope(tenant).unwrap();
    let arrival = route.arrival(scope, Key::from_text(key).unwrap(), fingerprint, Some(request));
    let arrived = engine.arrive(route, arrival).await.unwrap();
    assert!(matches!(arrived, Arrived::Accepted { is_new: true, .. }), "{arrived:?}");
}
