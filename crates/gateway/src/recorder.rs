//! What counts: the recorder behind `/metrics`, and the bounds of its histograms.
//!
//! Buckets and not quantiles: only buckets can be added up over nodes, which is what a p99 of the whole needs.

use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};
use oncegate_engine::names;

/// Seconds of what is the gateway's own: from a replay to a store in trouble.
const SECONDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];
/// Seconds of executions. They are held against deadlines, by default a quarter of an hour, so the bounds reach far and lie
/// close: within a bucket a quantile is a guess, and past the last bound it stays there.
const EXECUTION_SECONDS: [f64; 26] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0,
    120.0, 180.0, 300.0, 450.0, 600.0, 900.0, 1800.0, 3600.0,
];
const SIZES: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0, 512.0];

/// Makes this process count, and returns what [`Gateway::start`](crate::Gateway::start) shows at `/metrics`. None if the
/// process has a recorder already.
#[must_use]
pub fn install_recorder() -> Option<PrometheusHandle> {
    let recorder = recorder().ok()?;
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).ok()?;
    Some(handle)
}

/// A recorder with the buckets that the shipped alerts count on. For a service that embeds the layer, to install as its own.
pub fn recorder() -> Result<PrometheusRecorder, BuildError> {
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full(names::EXECUTE_SECONDS.to_owned()), &EXECUTION_SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("seconds".to_owned()), &SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("size".to_owned()), &SIZES)?;
    Ok(builder.build_recorder())
}
