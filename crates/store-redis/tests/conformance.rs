//! The Redis store passes the suite, on the Redis that a run of tests shares.

#![expect(clippy::expect_used, reason = "tests")]

use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::redis::{Client, Commands};
use oncegate_conformance::Harness;
use oncegate_store_redis::{RedisOptions, RedisStore};
use oncegate_test_servers::shared::redis_url;

/// A prefix of its own.
struct Place(String);

impl Harness for Place {
    type Store = RedisStore;

    fn start() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock past 1970").as_nanos();
        Self(format!("test-{}-{now}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    async fn open(&self) -> RedisStore {
        // Patient: the machine that runs the tests may be busy with other things.
        let options = RedisOptions::new(format!("{}?prefix={}", redis_url(), self.0));
        options.limit(Duration::from_secs(30)).open().await.expect("the store opens")
    }
}

impl Drop for Place {
    /// Leaves the shared server as it was, as well as can be.
    fn drop(&mut self) {
        let Ok(mut connection) = Client::open(redis_url()).and_then(|client| client.get_connection()) else {
            return;
        };
        let found = connection.scan_match(format!("{{{}}}:*", self.0));
        let names: Vec<String> =
            found.map(|names| names.filter_map(Result::ok).collect()).unwrap_or_default();
        for names in names.chunks(500) {
            let _: ::redis::RedisResult<()> = connection.unlink(names);
        }
    }
}

oncegate_conformance::suite!(redis, Place);
