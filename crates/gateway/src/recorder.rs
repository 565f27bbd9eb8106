//! What counts: the recorder behind `/metrics`, and the bounds of its histograms.
//!
//! Buckets and not quantiles: only buckets can be added up over nodes, which is what a p99 of the whole needs.
//!
//! Series with a tenant's name are kept apart: those that stand still are dropped, so that
//! invented tenants do not fill the memory.
//! All others are kept, because their counters are held by the code that counts.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};
use metrics_util::MetricKindMask;
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
pub fn install_recorder() -> Option<MetricsHandle> {
    let recorder = recorder().ok()?;
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).ok()?;
    Some(handle)
}

/// A recorder with the buckets that the shipped alerts count on. For a service that embeds the layer, to install as its own.
pub fn recorder() -> Result<MetricsRecorder, BuildError> {
    recorder_with(names::TENANT_SERIES_IDLE)
}

fn recorder_with(tenant_series_idle: Duration) -> Result<MetricsRecorder, BuildError> {
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full(names::EXECUTE_SECONDS.to_owned()), &EXECUTION_SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("seconds".to_owned()), &SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("size".to_owned()), &SIZES)?;
    let tenants = PrometheusBuilder::new().idle_timeout(MetricKindMask::COUNTER, Some(tenant_series_idle));
    Ok(MetricsRecorder { all: builder.build_recorder(), tenants: tenants.build_recorder() })
}

/// Counts for Prometheus.
pub struct MetricsRecorder {
    all: PrometheusRecorder,
    /// Counters by tenant.
    tenants: PrometheusRecorder,
}

impl MetricsRecorder {
    /// What shows the counts.
    #[must_use]
    pub fn handle(&self) -> MetricsHandle {
        MetricsHandle { all: self.all.handle(), tenants: self.tenants.handle() }
    }

    fn of(&self, name: &str) -> &PrometheusRecorder {
        if [names::DUPLICATES, names::MISUSE].contains(&name) { &self.tenants } else { &self.all }
    }
}

impl Recorder for MetricsRecorder {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, words: SharedString) {
        self.of(name.as_str()).describe_counter(name.clone(), unit, words);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, words: SharedString) {
        self.all.describe_gauge(name, unit, words);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, words: SharedString) {
        self.all.describe_histogram(name, unit, words);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        self.of(key.name()).register_counter(key, metadata)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        self.all.register_gauge(key, metadata)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        self.all.register_histogram(key, metadata)
    }
}

/// Shows the counts. Clones show the same.
#[derive(Clone)]
pub struct MetricsHandle {
    all: PrometheusHandle,
    tenants: PrometheusHandle,
}

impl MetricsHandle {
    /// All counts, in Prometheus' text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.all.render() + &self.tenants.render()
    }

    /// Bounds the memory; to be called every few seconds, also if the counts are never shown.
    pub fn run_upkeep(&self) {
        self.all.run_upkeep();
        // Series that stand still are dropped when they are shown.
        drop(self.tenants.render());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A flood of invented tenants left its series in the memory and on every page, for ever.
    #[test]
    fn series_of_tenants_that_stand_still_are_dropped_and_no_others() {
        let recorder = recorder_with(Duration::ZERO).unwrap();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            metrics::counter!(names::DUPLICATES, "scope" => "invented").increment(1);
            metrics::counter!(names::MISUSE, "scope" => "invented").increment(1);
            metrics::counter!(names::REFUSAL, "reason" => "queue").increment(1);
        });
        let series = || {
            let text = handle.render();
            [
                "api_idempotency_duplicates_count{scope=\"invented\"} 1",
                "api_idempotency_misuse_count{",
                "oncegate_refusal_count{",
            ]
            .map(|line| text.contains(line))
        };
        assert_eq!(series(), [true; 3], "{}", handle.render());
        handle.run_upkeep();
        assert_eq!(series(), [false, false, true]);
        // It is there again when it is counted again.
        metrics::with_local_recorder(&recorder, || {
            metrics::counter!(names::DUPLICATES, "scope" => "invented").increment(1);
        });
        assert_eq!(series(), [true, false, true]);
    }
}
