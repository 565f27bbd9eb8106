//! A clock that a test sets while servers run by it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, SystemTime};

use oncegate_test_servers::{FakeClock, Postgres, Redis, RedisClock, wait_until};

const HOUR_S: i64 = 3_600;

fn true_time_s() -> i64 {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX)
}

/// By how many seconds a server's clock is off, within half an hour.
fn check(set_offset_s: impl Fn(i64), shown_s: impl Fn() -> i64) {
    for offset_s in [0, HOUR_S, -HOUR_S, 2 * HOUR_S] {
        set_offset_s(offset_s);
        wait_until(&format!("the clock is off by {offset_s} s"), || {
            (shown_s() - true_time_s() - offset_s).abs() < HOUR_S / 2
        });
    }
}

#[test]
fn postgres_runs_by_a_clock_that_is_set() {
    let clock = FakeClock::new();
    let server = Postgres::start_by_clock(&[], &clock);
    check(
        |offset_s| clock.set_offset_s(offset_s),
        || server.sql("SELECT extract(epoch FROM clock_timestamp())::bigint").parse().unwrap_or(i64::MIN),
    );
}

#[test]
fn a_redis_server_tells_the_time_that_is_set() {
    let server = Redis::start(&[]);
    let clock = RedisClock::of(&server);
    let address = clock.url().trim_start_matches("redis://").trim_end_matches('/').to_owned();
    let shown_s = || {
        let mut connection = TcpStream::connect(&address).ok()?;
        connection.write_all(b"*1\r\n$4\r\nTIME\r\n").ok()?;
        let mut bytes = [0; 256];
        let length = connection.read(&mut bytes).ok()?;
        String::from_utf8_lossy(&bytes[..length]).lines().nth(2)?.parse().ok()
    };
    check(|offset_s| clock.set_offset_s(offset_s), || shown_s().unwrap_or(i64::MIN));
}
