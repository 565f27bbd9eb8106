#![doc = include_str!("../README.md")]

mod admin;
mod ask;
pub mod audit;
pub mod comparison;
mod config;
mod contract;
mod deferred;
mod effects;
mod gateway;
pub mod job;
mod listener;
mod openapi;
pub mod operate;
mod preauthorize;
mod proxy;
mod public;
pub mod reconcile;
pub mod record;
mod recorder;
pub mod story;

pub use config::{
    Admin, Ambiguous, Authorities, Config, ConfigError, Environment, Given, HostHeader, Http, Limits, Listen,
    ListenAddress, PathCase, PathParams, RequestRules, Rule, ScopeRule, Secret, Store, TlsFiles, Trust,
    Upstream, store_url,
};
pub use contract::contract;
pub use gateway::{Gateway, Reloaded, StartError};
pub use openapi::{Described, OpenApiError, openapi};
pub use preauthorize::Preauthorize;
pub use recorder::{MetricsHandle, MetricsRecorder, install_recorder, recorder};
