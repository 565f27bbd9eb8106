//! A node that does what it is told, request by request.
//!
//! | told | said |
//! | --- | --- |
//! | `arrive KEY` | `execute UNTIL`, `busy UNTIL`, `replay WORDS`, `unsettled`, `gone`, `unavailable` |
//! | `hold KEY` | the same, on a route where duplicates wait |
//! | `complete KEY WORDS` | `done` or `fenced` |
//! | `wait KEY` | `waiting` once the store has said 409, later as `arrive` |
//! | `forget KEY` | what was decided |
//! | `stats` | writes so far, bytes in the cache |
//! | `signals` | `some` or `none` |

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, CounterFn, Gauge, Histogram, KeyName, Metadata, Recorder, SharedString, Unit};
use oncegate_core::key::Key;
use oncegate_core::policy::Profile;
use oncegate_core::record::Reason;
use oncegate_engine::{Arrived, Engine, Held, Options, Route, Settled, Unavailable, names};
use oncegate_store::Store;
use oncegate_store_sql::PostgresStore;
use tokio::sync::Notify;

use crate::actor::{block_on, orders, say, var};
use crate::clocks::wall_s;
use crate::world::{complete, node as start, request, route, scope, words};

pub(crate) const URL: &str = "ONCEGATE_TEST_URL";
pub(crate) const LEASE_MS: &str = "ONCEGATE_TEST_LEASE_MS";
pub(crate) const WAIT_POLL_MS: &str = "ONCEGATE_TEST_WAIT_POLL_MS";

struct Node {
    engine: Engine<PostgresStore>,
    /// Duplicates are refused.
    refusing: Route,
    /// They wait, longer than any test.
    waiting: Route,
    held: HashMap<String, Held<PostgresStore>>,
    /// Says when a duplicate meets a lease.
    refused: Arc<Refusals>,
}

fn millis(name: &str, otherwise: Duration) -> Duration {
    std::env::var(name).map_or(otherwise, |millis| Duration::from_millis(millis.parse().unwrap()))
}

pub(crate) fn node() {
    let mut orders = orders();
    let refused = Arc::new(Refusals::default());
    metrics::set_global_recorder(Refused(Arc::clone(&refused))).unwrap();
    let lease = millis(LEASE_MS, Duration::from_mins(10));
    let options = Options {
        wait_poll: millis(WAIT_POLL_MS, Duration::from_millis(500)),
        cache_age_max: Duration::from_hours(1),
        ..Options::default()
    };
    block_on(async {
        let mut node = Node {
            engine: start(&var(URL), options).await,
            refusing: route(Profile::Ietf, |policy| policy.lease = lease),
            waiting: route(Profile::Lenient, |policy| {
                policy.scope = Profile::Ietf.policy().scope;
                policy.lease = lease;
                policy.wait_limit = Duration::from_mins(5);
            }),
            held: HashMap::new(),
            refused,
        };
        say(&format!("ready {}", wall_s()));
        while let Some(order) = orders.recv().await {
            let mut parts = order.splitn(3, ' ');
            let (verb, key) = (parts.next().unwrap(), parts.next().unwrap_or_default());
            node.obey(verb, key, parts.next().unwrap_or_default()).await;
        }
    });
}

impl Node {
    async fn obey(&mut self, verb: &str, key: &str, more: &str) {
        match verb {
            "arrive" => {
                let arrived = self.engine.arrive(&self.refusing, request(&self.refusing, key)).await;
                say(&self.told(key, arrived));
            }
            "hold" => {
                let arrived = self.engine.arrive(&self.waiting, request(&self.waiting, key)).await;
                say(&self.told(key, arrived));
            }
            "complete" => {
                let mut held = self.held.remove(key).unwrap();
                held.begin().unwrap();
                say(match held.settle(complete(more)).await {
                    Settled::Done(_) => "done",
                    Settled::Fenced(_) => "fenced",
                });
            }
            "wait" => self.wait(key).await,
            "forget" => {
                let (scope, key) = (scope(&self.refusing), Key::from_text(key).unwrap());
                let decision = self.engine.forget(scope, key, Reason::new("operator", "a test")).await;
                say(&format!("{:?}", decision.unwrap()));
            }
            "stats" => {
                let stats = self.engine.stats();
                say(&format!("{} {}", stats.writes, stats.cache_bytes));
            }
            "signals" => say(if self.engine.store().signals().is_some() { "some" } else { "none" }),
            other => panic!("no order {other}"),
        }
    }

    /// Once a 409 was decided, the waiter is registered and looks no more by itself: whoever settles the key must wake it.
    async fn wait(&mut self, key: &str) {
        // From here on it is heard, also before it is awaited.
        let refused = self.refused.0.notified();
        let (engine, route, wanted) =
            (self.engine.clone(), self.waiting.clone(), request(&self.waiting, key));
        let mut waiting = tokio::spawn(async move {
            let arrived = engine.arrive_or_wait(&route, wanted).await;
            say(&described(&arrived));
        });
        tokio::select! {
            () = refused => {}
            // It had no need to wait.
            ended = &mut waiting => ended.unwrap(),
        }
        say("waiting");
    }

    fn told(&mut self, key: &str, arrived: Result<Arrived<PostgresStore>, Unavailable>) -> String {
        let said = described(&arrived);
        if let Ok(Arrived::Execute(held)) = arrived {
            self.held.insert(key.to_owned(), *held);
        }
        said
    }
}

fn described(arrived: &Result<Arrived<PostgresStore>, Unavailable>) -> String {
    match arrived {
        Ok(Arrived::Execute(held)) => format!("execute {}", held.lease().until.as_micros()),
        Ok(Arrived::Busy { until }) => format!("busy {}", until.as_micros()),
        Ok(Arrived::Replay { answer, .. }) => format!("replay {}", words(answer)),
        Ok(Arrived::Unsettled { .. }) => "unsettled".to_owned(),
        Ok(Arrived::Gone { .. }) => "gone".to_owned(),
        Ok(Arrived::Mismatch { .. }) => "mismatch".to_owned(),
        Ok(Arrived::Accepted { .. }) => "accepted".to_owned(),
        Err(unavailable) => format!("unavailable {unavailable}"),
    }
}

/// The moment in what a node said, which must be this.
pub(crate) fn micros(said: &str, word: &str) -> i64 {
    let moment = said.strip_prefix(word).and_then(|rest| rest.trim_start().parse().ok());
    moment.unwrap_or_else(|| panic!("said {said:?} where {word:?} was to be heard"))
}

/// Tells whoever listens of each duplicate that is refused.
#[derive(Default)]
struct Refusals(Notify);

impl CounterFn for Refusals {
    fn increment(&self, _: u64) {
        self.0.notify_waiters();
    }

    fn absolute(&self, _: u64) {
        self.0.notify_waiters();
    }
}

/// Listens to one counter.
struct Refused(Arc<Refusals>);

impl Recorder for Refused {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &metrics::Key, _: &Metadata<'_>) -> Counter {
        if key.name() == names::IN_PROGRESS {
            Counter::from_arc(Arc::clone(&self.0))
        } else {
            Counter::noop()
        }
    }

    fn register_gauge(&self, _: &metrics::Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &metrics::Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
