//! A clock that a test sets while servers run by it.

use std::time::{Duration, SystemTime};

use oncegate_test_servers::{FakeClock, Postgres, wait_until};

const HOUR_S: i64 = 3_600;

fn true_time_s() -> i64 {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX)
}

/// By how many seconds a server's clock is off, within half an hour.
fn check(clock: &FakeClock, shown_s: impl Fn() -> i64) {
    for offset_s in [0, HOUR_S, -HOUR_S, 2 * HOUR_S] {
        clock.set_offset_s(offset_s);
        wait_until(&format!("the clock is off by {offset_s} s"), || {
            (shown_s() - true_time_s() - offset_s).abs() < HOUR_S / 2
        });
    }
}

#[test]
fn postgres_runs_by_a_clock_that_is_set() {
    let clock = FakeClock::new();
    let server = Postgres::start_by_clock(&[], &clock);
    check(&clock, || {
        server.sql("SELECT extract(epoch FROM clock_timestamp())::bigint").parse().unwrap_or(i64::MIN)
    });
}
