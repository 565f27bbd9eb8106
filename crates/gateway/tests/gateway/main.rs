//! A gateway in front of a real upstream, over real sockets: what clients get, what the upstream sees, what is recorded.
//!
//! Nothing here waits for time to pass, but where time is what is tested. Upstreams stop at a gate, and the test lets them go on.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod acts;
mod admin;
mod admin_access;
mod audit;
mod bodies;
mod certificates;
mod chunks;
mod client;
mod credentials;
mod deferred;
mod effects;
mod failures;
mod forwarding;
mod frames;
mod gateway;
mod headers;
mod hosts;
mod http1;
mod http2;
mod idle;
mod keys;
mod limits;
mod malformed;
mod metrics;
mod openapi;
mod operations;
mod pooling;
mod preauthorize;
mod profiles;
mod readers;
mod refusals;
mod reload;
mod replay;
mod reply;
mod reuse;
mod scope;
mod shutdown;
mod slow;
mod spelling;
mod store;
mod streaming;
mod streams;
mod targets;
mod tls;
mod truncated;
mod upgrade;
mod upstream;
mod versions;
mod webhooks;
mod wire;
