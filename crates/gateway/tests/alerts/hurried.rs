//! The shipped rules, with every duration shortened by one factor: windows, offsets, and how long a condition must hold.
//!
//! Numbers in expressions stay as they are: what counts seconds of the store's clock is produced by turning that clock.

use std::path::{Path, PathBuf};
use std::time::Duration;

use regex_lite::{Captures, Regex};

/// By so much everything is quicker: five minutes are two seconds.
pub(crate) const FACTOR: u32 = 150;

/// What would be a scrape every 30 s.
pub(crate) const EVERY: Duration = hurried(Duration::from_secs(30));
/// What would be Prometheus' own five minutes.
pub(crate) const LOOKBACK: Duration = hurried(Duration::from_mins(5));

/// How long this is, here.
pub(crate) const fn hurried(duration: Duration) -> Duration {
    duration.checked_div(FACTOR).unwrap()
}

/// The shipped rules' file.
pub(crate) fn file() -> PathBuf {
    root().join("deploy/prometheus/oncegate.rules.yml")
}

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The shipped rules' text.
pub(crate) fn shipped() -> String {
    std::fs::read_to_string(file()).unwrap()
}

/// The names of the alerts, in order.
pub(crate) fn alerts() -> Vec<String> {
    let name = Regex::new(r"- alert: (\w+)").unwrap();
    name.captures_iter(&shipped()).map(|found| found[1].to_owned()).collect()
}

/// The shipped rules, hurried.
pub(crate) fn rules() -> String {
    // In this order in every match: what comes before a duration, and the duration.
    let durations = Regex::new(r"(\[|offset |for: |interval: )([0-9]+)([smhd])\b").unwrap();
    let shorten = |found: &Captures<'_>| {
        let seconds = match &found[3] {
            "s" => 1,
            "m" => 60,
            "h" => 3_600,
            _ => 86_400,
        };
        let duration = Duration::from_secs(found[2].parse::<u64>().unwrap() * seconds);
        format!("{}{}ms", &found[1], hurried(duration).as_millis())
    };
    durations.replace_all(&shipped(), shorten).into_owned()
}

#[test]
fn only_durations_are_hurried() {
    let numbers = Regex::new(r"[0-9]+(ms|[smhd])\b").unwrap();
    let without = |text: &str| numbers.replace_all(text, "_").into_owned();
    assert_eq!(without(&rules()), without(&shipped()));
    assert!(rules().contains("increase(api_idempotency_store_error_count[2000ms])"), "{}", rules());
    let left = Regex::new(r"(\[|offset |for: )[0-9]+[smhd]\b").unwrap();
    assert_eq!(left.find(&rules()).map(|found| found.as_str().to_owned()), None);
}
