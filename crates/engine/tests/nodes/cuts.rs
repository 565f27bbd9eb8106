//! A connection that is cut exactly in a COMMIT, before the server has it or before its acknowledgement is back.
//!
//! A is cut off; B talks to the server directly, and sees what is there.

use std::time::{Duration, Instant};

use oncegate_core::policy::Profile;
use oncegate_core::record::State;
use oncegate_engine::{Arrived, Engine, Options, Route, Settled};
use oncegate_store_sql::PostgresStore;
use oncegate_test_servers::{Cut, TcpProxy, shared, until_some};

use crate::actor::block_on;
use crate::schema::{Schema, own_schema};
use crate::world::{complete, completed, granted, id, node, replayed, request, route, words};

/// With its end: `READ COMMITTED` stands in each `BEGIN`, and a cut there leaves out the commit whenever the two are sent apart.
const COMMIT: &[u8] = b"COMMIT\0";
const MODES: [Cut; 2] = [Cut::BeforeSending, Cut::AfterSending];
/// The promise.
const FREE_WITHIN: Duration = Duration::from_secs(2);
/// How many connections A tries to open before an outage ends. Whoever settles or cleans up has made its seventh by then, and pauses
/// for as long as it ever will; the others are of whoever listens.
const TRIES: u64 = 14;

struct World {
    proxy: TcpProxy,
    route: Route,
    a: Engine<PostgresStore>,
    b: Engine<PostgresStore>,
    /// Last, so that it goes after those who use it.
    _schema: Schema,
}

impl World {
    /// A's connections are open: the next COMMIT is that of its next write.
    async fn new(doubt_patience: Duration) -> Self {
        let server = shared::postgres_url();
        let schema = own_schema(&server);
        let proxy = TcpProxy::start(&server);
        let b = node(&schema.url, Options::default()).await;
        let a = node(&proxy.url_of(&schema.url), Options { doubt_patience, ..Options::default() }).await;
        let world = Self { proxy, route: route(Profile::Ietf, |_| ()), a, b, _schema: schema };
        completed(granted(world.arrive(&world.a, "warm").await), "up").await;
        world
    }

    async fn arrive(&self, engine: &Engine<PostgresStore>, key: &str) -> Arrived<PostgresStore> {
        engine.arrive(&self.route, request(&self.route, key)).await.unwrap()
    }

    /// Asks until the key is granted, refused with 409 or 503 meanwhile; how long that took.
    async fn until_free(&self, engine: &Engine<PostgresStore>, key: &str) -> Duration {
        let started = Instant::now();
        let held = until_some("the key is free", async || {
            match engine.arrive(&self.route, request(&self.route, key)).await {
                Ok(Arrived::Execute(held)) => Some(held),
                Ok(Arrived::Busy { .. }) | Err(_) => None,
                Ok(other) => panic!("{other:?}"),
            }
        })
        .await;
        let took = started.elapsed();
        completed(*held, "paid at last").await;
        took
    }

    /// Until A has tried so often to connect that its pauses are as long as they get; how long that was.
    fn outage(&self) -> Duration {
        let started = Instant::now();
        // A goes on meanwhile, on the runtime's own threads.
        tokio::task::block_in_place(|| self.proxy.wait_until_refused(TRIES));
        started.elapsed()
    }

    /// Both replay these words, and the row is completed with them.
    async fn check(&self, key: &str, expected: &str) {
        for engine in [&self.a, &self.b] {
            assert_eq!(replayed(self.arrive(engine, key).await), expected);
        }
        let row = self.b.read(id(&self.route, key)).await.unwrap().unwrap();
        let State::Completed(answer) = &row.state else { panic!("{row:?}") };
        assert_eq!(words(answer), expected);
    }
}

/// The reserve is tried again with its own token, finds itself or takes the place, and is granted: once.
pub(crate) fn reserve() {
    for mode in MODES {
        block_on(async {
            let world = World::new(Duration::from_mins(1)).await;
            world.proxy.cut_at(COMMIT, 1, mode);
            let held = granted(world.arrive(&world.a, "k").await);
            world.proxy.fired();
            assert_eq!(held.lease().attempt, 1, "{mode:?}");
            let seen = world.arrive(&world.b, "k").await;
            assert!(matches!(seen, Arrived::Busy { .. }), "{mode:?}: {seen:?}");
            completed(held, "paid").await;
            world.check("k", "paid").await;
        });
    }
}

/// The client is told 503 at once, and the reserve is cleaned up behind its back.
pub(crate) fn reserve_given_up() {
    for (mode, asks) in MODES.into_iter().flat_map(|mode| [(mode, "a"), (mode, "b")]) {
        block_on(async {
            let world = World::new(Duration::ZERO).await;
            world.proxy.cut_at(COMMIT, 1, mode);
            let told = world.a.arrive(&world.route, request(&world.route, "k")).await;
            assert!(told.is_err(), "{mode:?}: {told:?}");
            world.proxy.fired();
            let took = world.until_free(if asks == "a" { &world.a } else { &world.b }, "k").await;
            println!("reserve, {mode:?}, told 503: the key works on {asks} after {took:?}");
            assert!(took < FREE_WITHIN, "{mode:?}, {asks}: {took:?}");
            world.check("k", "paid at last").await;
        });
    }
}

/// The 503 leaves while nothing gets through any more; the clean-up comes when something does.
pub(crate) fn reserve_in_an_outage() {
    for mode in MODES {
        block_on(async {
            let world = World::new(Duration::from_millis(300)).await;
            world.proxy.cut_off_at(COMMIT, 1, mode);
            let told = world.a.arrive(&world.route, request(&world.route, "k")).await;
            assert!(told.is_err(), "{mode:?}: {told:?}");
            world.proxy.fired();
            assert!(world.a.stats().behind > 0, "{mode:?}: nobody cleans up");
            let seen = world.arrive(&world.b, "k").await;
            let outage = world.outage();
            match (mode, seen) {
                // It has landed, and is in everybody's way until A can say that nobody runs it.
                (Cut::AfterSending, Arrived::Busy { .. }) => {
                    let still = world.arrive(&world.b, "k").await;
                    assert!(matches!(still, Arrived::Busy { .. }), "{still:?}");
                    world.proxy.mend();
                    let took = world.until_free(&world.b, "k").await;
                    println!("reserve in an outage of {outage:?}: the key works {took:?} after its end");
                    assert!(took < FREE_WITHIN, "{took:?}");
                    world.check("k", "paid at last").await;
                }
                // It has not, B runs it, and the clean-up leaves B's lease alone.
                (Cut::BeforeSending, Arrived::Execute(held)) => {
                    world.proxy.mend();
                    world.a.quiet().await;
                    let seen = world.arrive(&world.a, "k").await;
                    assert!(matches!(seen, Arrived::Busy { .. }), "{seen:?}");
                    completed(*held, "paid by b").await;
                    world.check("k", "paid by b").await;
                }
                (_, seen) => panic!("{mode:?}: {seen:?}"),
            }
            world.a.quiet().await;
        });
    }
}

/// The completion is found recorded, or is recorded.
pub(crate) fn completion() {
    for mode in MODES {
        block_on(async {
            let world = World::new(Duration::from_millis(300)).await;
            let mut held = granted(world.arrive(&world.a, "k").await);
            let fence = held.fence();
            held.begin().unwrap();
            world.proxy.cut_at(COMMIT, 1, mode);
            let Settled::Done(row) = held.settle(complete("paid")).await else { panic!("{mode:?}") };
            world.proxy.fired();
            let kept = world.b.read(row.id).await.unwrap().unwrap();
            assert_eq!(kept, *row, "{mode:?}: the row is the one that was told");
            assert_eq!(kept.fence, fence, "{mode:?}");
            world.check("k", "paid").await;
        });
    }
}

/// The holder keeps trying while nothing gets through, and is done soon after.
pub(crate) fn completion_in_an_outage() {
    for mode in MODES {
        block_on(async {
            let world = World::new(Duration::from_millis(300)).await;
            let mut held = granted(world.arrive(&world.a, "k").await);
            held.begin().unwrap();
            world.proxy.cut_off_at(COMMIT, 1, mode);
            let patience = Duration::from_millis(300);
            let told = held.settle_within(complete("paid"), patience).await;
            assert!(told.is_err(), "{mode:?}: {told:?}");
            world.proxy.fired();
            let outage = world.outage();
            match (mode, world.arrive(&world.b, "k").await) {
                (Cut::BeforeSending, Arrived::Busy { .. }) => {}
                (Cut::AfterSending, Arrived::Replay { answer, .. }) => assert_eq!(words(&answer), "paid"),
                (_, seen) => panic!("{mode:?}: {seen:?}"),
            }
            world.proxy.mend();
            let mended = Instant::now();
            world.a.quiet().await;
            let took = mended.elapsed();
            println!("completion in an outage of {outage:?}, {mode:?}: recorded {took:?} after its end");
            assert!(took < FREE_WITHIN, "{took:?}");
            world.check("k", "paid").await;
        });
    }
}
