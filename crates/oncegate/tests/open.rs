//! What a URL opens, and what it says when it does not.

#![expect(clippy::unwrap_used, reason = "tests")]

use oncegate::{AnyStore, Engine, Options, open};
use oncegate_test_servers::shared;

#[tokio::test]
async fn urls_open_the_stores_that_they_name() {
    assert!(matches!(open("memory:").await.unwrap(), AnyStore::Memory(_)));
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/a.db", folder.path().display());
    assert!(matches!(open(&url).await.unwrap(), AnyStore::Sqlite(_)));
    assert!(folder.path().join("a.db").exists(), "it was created");
    assert!(matches!(open(&postgres_url("urls")).await.unwrap(), AnyStore::Postgres(_)));
    assert!(matches!(open(&redis_url("urls")).await.unwrap(), AnyStore::Redis(_)));
}

#[tokio::test]
async fn what_is_no_store_is_refused_with_what_to_do() {
    let urls = [
        "",
        "oncegate.db",
        "memory",
        "memory:x",
        "sqlite:",
        "sqlite://",
        "sqlite://a.db?mode=memory",
        "mysql://me:sesame@x",
        "MEMORY:",
    ];
    for url in urls {
        let words = open(url).await.unwrap_err().to_string();
        assert!(
            words.contains("use `memory:`, `sqlite://FILE`, `postgres://…` or `redis://…`"),
            "{url}: {words}"
        );
        assert!(!words.contains("sesame"), "{words}");
    }
    let words = open("sqlite:///no/such/folder/a.db").await.unwrap_err().to_string();
    assert!(words.contains("/no/such/folder/a.db"), "it names the file: {words}");
}

/// A server that is not there is said to be so, and no secret with it.
#[tokio::test]
async fn a_server_that_is_not_there_is_said_to_be_so() {
    for url in ["postgres://me:sesame@127.0.0.1:1/db", "redis://me:sesame@127.0.0.1:1/"] {
        let words = open(url).await.unwrap_err().to_string();
        assert!(words.contains("nothing was written"), "{words}");
        assert!(!words.contains("sesame"), "{words}");
    }
}

/// What was recorded through one engine is replayed by the next one on the same rows.
#[tokio::test]
async fn an_engine_remembers_across_restarts_on_every_store_that_keeps_anything() {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite://{}/a.db", folder.path().display());
    for url in [file, postgres_url("restarts"), redis_url("restarts")] {
        for run in 0_u32..3 {
            let engine = Engine::start(open(&url).await.unwrap(), Options::default()).await.unwrap();
            let once = engine.once("tests", "key", &"payload", move || async move { Ok(run) }).await.unwrap();
            assert_eq!((once.value, once.replayed), (0, run > 0), "{url}");
        }
    }
}

/// A place of its own in the shared server; somebody's own server may have seen an earlier run.
fn postgres_url(name: &str) -> String {
    with(&shared::postgres_url(), &format!("schema={}", fresh(name)))
}

fn redis_url(name: &str) -> String {
    with(&shared::redis_url(), &format!("prefix={}", fresh(name)))
}

fn with(url: &str, parameter: &str) -> String {
    let sign = if url.contains('?') { '&' } else { '?' };
    format!("{url}{sign}{parameter}")
}

fn fresh(name: &str) -> String {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    format!("{name}_{}_{}", std::process::id(), since_epoch.as_nanos())
}
