//! A gateway in this process, in front of an upstream.

use std::net::SocketAddr;

use oncegate_gateway::{Config, Environment, Gateway, Given, MetricsHandle, Secret};
use serde_json::Value;

use crate::client::Call;
use crate::metrics;
use crate::reply::Reply;
use crate::upstream::Upstream;

/// Both, running.
pub(crate) struct Stage {
    pub(crate) gateway: Gateway,
    pub(crate) upstream: Upstream,
}

/// What the gateway and a provider share.
pub(crate) const PROVIDER_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// What they will.
pub(crate) const PROVIDER_SECRET_NEXT: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

/// A file's text, checked: ports of its own, and a store in memory if it names none.
pub(crate) fn config(upstream: &str, toml: &str) -> Config {
    config_with(
        upstream,
        toml,
        &[("PROVIDER_SECRET", PROVIDER_SECRET), ("PROVIDER_SECRET_NEXT", PROVIDER_SECRET_NEXT)],
    )
}

/// The same with these variables in the environment.
fn config_with(upstream: &str, toml: &str, secrets: &[(&str, &str)]) -> Config {
    let secrets = secrets.iter().map(|(name, secret)| ((*name).to_owned(), Secret::new(*secret)));
    let given = Given {
        environment: Environment::Only(secrets.collect()),
        upstream: Some(upstream.to_owned()),
        listen: Some("127.0.0.1:0".to_owned()),
        admin: Some("127.0.0.1:0".to_owned()),
        store: (!toml.contains("[store]")).then(|| Secret::new("memory:")),
        ..Given::default()
    };
    Config::parse(None, toml, &given).unwrap_or_else(|error| panic!("{error}"))
}

/// A gateway in front of this address.
pub(crate) async fn start(upstream: &str, toml: &str) -> Gateway {
    Box::pin(Gateway::start(config(upstream, toml), None)).await.unwrap_or_else(|error| panic!("{error}"))
}

/// A gateway with these variables in its environment.
pub(crate) async fn start_with(upstream: &str, toml: &str, secrets: &[(&str, &str)]) -> Gateway {
    let config = config_with(upstream, toml, secrets);
    Gateway::start(config, None).await.unwrap_or_else(|error| panic!("{error}"))
}

/// The same with metrics.
pub(crate) async fn start_measured(upstream: &str, toml: &str, recorder: MetricsHandle) -> Gateway {
    let started = Gateway::start(config(upstream, toml), Some(recorder)).await;
    started.unwrap_or_else(|error| panic!("{error}"))
}

/// In front of this address, without TLS.
pub(crate) async fn in_front_of(upstream: SocketAddr, toml: &str) -> Gateway {
    start(&format!("http://{upstream}"), toml).await
}

/// What all of the defaults are, but these.
pub(crate) fn defaults(profile: &str, rules: &str) -> String {
    format!("[defaults]\nprofile = \"{profile}\"\n{rules}\n")
}

impl Stage {
    pub(crate) async fn new(upstream: Upstream, toml: &str) -> Self {
        Self { gateway: in_front_of(upstream.addr, toml).await, upstream }
    }

    /// In front of one that says which run it is.
    pub(crate) async fn numbered(toml: &str) -> Self {
        Self::new(Upstream::numbered().await, toml).await
    }

    /// The same with metrics.
    pub(crate) async fn measured(toml: &str, recorder: MetricsHandle) -> Self {
        Self::measured_in_front_of(Upstream::numbered().await, toml, recorder).await
    }

    pub(crate) async fn measured_in_front_of(
        upstream: Upstream,
        toml: &str,
        recorder: MetricsHandle,
    ) -> Self {
        let gateway = start_measured(&format!("http://{}", upstream.addr), toml, recorder).await;
        Self { gateway, upstream }
    }

    /// A counter by its name and labels, as Prometheus reads it; 0 where it is not there.
    pub(crate) async fn counter(&self, series: &str) -> u64 {
        metrics::counter(&self.gateway, series).await
    }

    /// So many requests were refused for this reason on this route.
    pub(crate) async fn refusals(&self, reason: &str, route: &str) -> u64 {
        metrics::refusals(&self.gateway, reason, route).await
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.gateway.address()
    }

    pub(crate) async fn send(&self, call: &Call) -> Reply {
        call.send(self.addr()).await
    }

    pub(crate) fn runs(&self) -> usize {
        self.upstream.runs()
    }

    /// The record of a key, as operators see it.
    pub(crate) async fn record(&self, key: &str) -> Option<Value> {
        record(&self.gateway, key).await
    }

    /// Its state.
    pub(crate) async fn state(&self, key: &str) -> Option<String> {
        state(&self.gateway, key).await
    }
}

/// Asks the admin listener.
pub(crate) async fn admin(gateway: &Gateway, path: &str) -> Reply {
    Call::operator("GET", path).send(gateway.admin_address().tcp().unwrap()).await
}

pub(crate) async fn record(gateway: &Gateway, key: &str) -> Option<Value> {
    let reply = admin(gateway, &format!("/api/v1/records?key={key}")).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let records = reply.json()["records"].as_array().unwrap().clone();
    assert!(records.len() < 2, "several records: {records:?}");
    records.into_iter().next()
}

pub(crate) async fn state(gateway: &Gateway, key: &str) -> Option<String> {
    let record = record(gateway, key).await?;
    Some(record["state"].as_str().unwrap().to_owned())
}
