//! What counts here, and the Prometheus that watches it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use oncegate_gateway::{MetricsHandle, MetricsRecorder};
use oncegate_test_servers::prometheus::{Prometheus, Watching};
use oncegate_test_servers::until;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::time::Interval;

use crate::hurried::{self, EVERY, LOOKBACK};

/// What is counted from now on. A recorder is the whole process's, so tests in one process take turns, and each has a new one.
pub(crate) struct Counting {
    handle: MetricsHandle,
    _turn: tokio::sync::MutexGuard<'static, ()>,
}

impl Counting {
    pub(crate) async fn start() -> Self {
        static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        static SWITCH: OnceLock<Switch> = OnceLock::new();
        let turn = TURN.lock().await;
        let recorder = oncegate_gateway::recorder().unwrap();
        let handle = recorder.handle();
        let switch = SWITCH.get_or_init(|| {
            let switch = Switch::default();
            assert!(metrics::set_global_recorder(switch.clone()).is_ok(), "there is another recorder");
            switch
        });
        switch.to(recorder);
        Self { handle, _turn: turn }
    }

    /// What a gateway shows.
    pub(crate) fn handle(&self) -> MetricsHandle {
        self.handle.clone()
    }

    /// A Prometheus that scrapes what is counted here, from a listener like the gateway's.
    pub(crate) async fn watched(&self) -> Watched {
        let handle = self.handle();
        let show = move || {
            handle.run_upkeep();
            std::future::ready(handle.render())
        };
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = socket.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(socket, Router::new().route("/metrics", get(show))).await });
        Watched::scraping(target)
    }
}

/// A Prometheus with the shipped rules, hurried.
pub(crate) struct Watched {
    prometheus: Prometheus,
    pace: Interval,
}

impl Watched {
    pub(crate) fn scraping(target: SocketAddr) -> Self {
        let rules = hurried::rules();
        let watching = Watching { target, rules: &rules, every: EVERY, lookback: LOOKBACK };
        // It waits, and what it scrapes must be able to go on.
        let prometheus = tokio::task::block_in_place(|| Prometheus::start(watching));
        Self { prometheus, pace: tokio::time::interval(EVERY / 4) }
    }

    /// Goes on with what an alert is about, several times a scrape, until it fires.
    pub(crate) async fn until_firing(mut self, alert: &str, mut go_on: impl AsyncFnMut()) {
        let Self { prometheus, pace } = &mut self;
        until(&format!("{alert} fires"), async || {
            pace.tick().await;
            go_on().await;
            firing(prometheus).contains(alert)
        })
        .await;
    }

    /// Waits until a query finds something.
    pub(crate) async fn until_found(&mut self, query: &str) {
        let Self { prometheus, pace } = self;
        let path = format!("/api/v1/query?query={query}");
        until(&format!("Prometheus finds {query}"), async || {
            pace.tick().await;
            ask(prometheus, &path)["result"].as_array().is_some_and(|found| !found.is_empty())
        })
        .await;
    }

    /// Waits until the first scrape, and until nothing fires any more because there was none: Prometheus takes five seconds to learn of
    /// its target, and those are not hurried.
    pub(crate) async fn until_scraped(&mut self) {
        self.until_found("api_idempotency_alarm_count").await;
        let Self { prometheus, pace } = self;
        until("nothing fires any more", async || {
            pace.tick().await;
            firing(prometheus).is_empty()
        })
        .await;
    }

    /// Waits until Prometheus has looked for so long, going on with something meanwhile. Nothing may fire.
    pub(crate) async fn stays_silent(&mut self, how_long: Duration, mut go_on: impl AsyncFnMut()) {
        let Self { prometheus, pace } = self;
        let looks = usize::try_from(how_long.as_millis() / EVERY.as_millis()).unwrap();
        let mut looked = BTreeSet::new();
        while looked.len() < looks {
            pace.tick().await;
            go_on().await;
            assert_eq!(firing(prometheus), BTreeSet::new(), "{}", prometheus.get("/api/v1/alerts"));
            let rules = rules(prometheus);
            for rule in &rules {
                assert!(rule["health"] != "err", "{rule}");
            }
            // They are evaluated one after the other, so the first stands for all.
            looked.insert(rules[0]["lastEvaluation"].as_str().unwrap().to_owned());
        }
    }

    /// Every rule, as Prometheus has read it.
    pub(crate) fn rules(&self) -> Vec<Value> {
        rules(&self.prometheus)
    }

    /// The name of every series that was scraped.
    pub(crate) fn scraped(&self) -> BTreeSet<String> {
        let names = ask(&self.prometheus, "/api/v1/label/__name__/values");
        names.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
    }
}

fn ask(prometheus: &Prometheus, path: &str) -> Value {
    let told: Value = serde_json::from_str(&prometheus.get(path)).unwrap();
    assert_eq!(told["status"], "success", "{path}: {told}");
    told["data"].clone()
}

fn rules(prometheus: &Prometheus) -> Vec<Value> {
    let groups = ask(prometheus, "/api/v1/rules")["groups"].as_array().unwrap().clone();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

fn firing(prometheus: &Prometheus) -> BTreeSet<String> {
    let alerts = ask(prometheus, "/api/v1/alerts")["alerts"].as_array().unwrap().clone();
    let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
    firing.map(|alert| alert["labels"]["alertname"].as_str().unwrap().to_owned()).collect()
}

/// The process's recorder, which is another one for every test.
#[derive(Clone, Default)]
struct Switch(Arc<RwLock<Option<MetricsRecorder>>>);

impl Switch {
    fn to(&self, recorder: MetricsRecorder) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(recorder);
    }

    fn with<T>(&self, ask: impl FnOnce(&MetricsRecorder) -> T) -> T {
        ask(self.0.read().unwrap_or_else(PoisonError::into_inner).as_ref().unwrap())
    }
}

impl Recorder for Switch {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        self.with(|recorder| recorder.register_counter(key, metadata))
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        self.with(|recorder| recorder.register_gauge(key, metadata))
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        self.with(|recorder| recorder.register_histogram(key, metadata))
    }
}
