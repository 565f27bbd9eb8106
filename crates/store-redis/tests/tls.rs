//! TLS to a real server: verified, or refused before anything is sent.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use oncegate_conformance::samples::{FAR_AHEAD, LONG_AGO, id, moved_to, reserved};
use oncegate_core::record::StateKind;
use oncegate_store::shared_cache::{Kept, Realm, SharedCache as _};
use oncegate_store::signals::{Heard, Signal};
use oncegate_store::{Effect, Outcome, Store as _, Write};
use oncegate_store_redis::{RedisCacheOptions, RedisOptions, RedisStore};
use oncegate_test_servers::{Certificate, Redis, until};

async fn open(url: &str) -> oncegate_store::Result<RedisStore> {
    RedisOptions::new(url).limit(Duration::from_secs(30)).open().await
}

fn url(server: &Redis, host: &str, authority: &Path) -> String {
    format!("rediss://{host}:{}/?tls_ca={}", server.tls().0, authority.display())
}

#[tokio::test]
async fn a_store_over_tls_keeps_rows_and_hears_signals() {
    let server = Redis::start_with_tls();
    for host in ["localhost", "127.0.0.1"] {
        let store = open(&url(&server, host, &server.tls().1.authority)).await.expect("the store opens");
        let record = reserved(host, 1, LONG_AGO);
        let applied = store.apply(&[Write::insert(Arc::new(record.clone()))]).await.expect("applied");
        assert_eq!(applied, [Outcome::Applied]);
        let read = store.read(&[id(host)]).await.expect("read").pop().expect("a place");
        assert_eq!(read.expect("it can be read"), Some(record));
        let signals = store.signals().expect("Redis carries signals");
        assert_eq!(signals.hear().await, Heard::Gap, "it listens, by a connection of its own");
        signals.tell(&[Signal::Settled(id(host))]).await.expect("told");
        assert_eq!(signals.hear().await, Heard::Signals(vec![Signal::Settled(id(host))]));
        let shown = format!("{store:?}");
        assert!(shown.contains(&format!("rediss://{host}:")), "{shown}");
    }
}

#[tokio::test]
async fn a_shared_cache_over_tls() {
    let server = Redis::start_with_tls();
    let cache = RedisCacheOptions::new(url(&server, "localhost", &server.tls().1.authority));
    let cache = cache.limit(Duration::from_secs(10)).start().expect("the cache starts");
    let record = moved_to(&reserved("a", 1, LONG_AGO), StateKind::Completed, FAR_AHEAD);
    let kept = Kept { realm: Realm::from_bytes([3; 16]), record: record.into(), shown_at: LONG_AGO };
    until("what was put is there", async || {
        cache.put(kept.clone());
        cache.get(id("a")).await.is_some()
    })
    .await;
}

/// Another authority, another name, no TLS at all: nothing is sent, and nothing is stored.
#[tokio::test]
async fn a_server_that_proves_nothing_is_refused() {
    let server = Redis::start_with_tls();
    let (port, own) = server.tls();
    let folder = std::env::temp_dir().join(format!("oncegate-other-authority-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let other = Certificate::new(&folder);
    for url in [
        url(&server, "localhost", &other.authority),
        // By the system's certificates.
        format!("rediss://localhost:{port}/"),
        // The certificate is for 127.0.0.1 and localhost.
        url(&server, "127.0.0.2", &own.authority),
    ] {
        let error = open(&url).await.expect_err(&url);
        let words = error.to_string();
        assert!(words.contains("certificate") || words.contains("refused"), "{url}: {words}");
        assert_eq!(error.effect(), Effect::None);
    }
    // In clear text to the port for TLS.
    assert!(open(&format!("redis://localhost:{port}/")).await.is_err());
    assert_eq!(server.command(&["DBSIZE"]), "0");
    std::fs::remove_dir_all(&folder).expect("the folder can be removed");
}
