//! What a URL opens, and what it says when it does not.

use oncegate::{AnyStore, Engine, Options, open};

#[test]
fn urls_open_the_stores_that_they_name() {
    assert!(matches!(open("memory:").unwrap(), AnyStore::Memory(_)));
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/a.db", folder.path().display());
    assert!(matches!(open(&url).unwrap(), AnyStore::Sqlite(_)));
    assert!(folder.path().join("a.db").exists(), "it was created");
}

#[test]
fn what_is_no_store_is_refused_with_what_to_do() {
    for url in
        ["", "oncegate.db", "sqlite:", "sqlite://", "sqlite://a.db?mode=memory", "mysql://x", "MEMORY:"]
    {
        let words = open(url).unwrap_err().to_string();
        assert!(words.contains("use `memory:` or `sqlite://FILE`"), "{url}: {words}");
    }
    let words = open("sqlite:///no/such/folder/a.db").unwrap_err().to_string();
    assert!(words.contains("/no/such/folder/a.db"), "it names the file: {words}");
}

/// What was recorded through one engine is replayed by the next one on the same file.
#[tokio::test]
async fn an_engine_on_a_file_remembers_across_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/a.db", folder.path().display());
    for run in 0_u32..3 {
        let engine = Engine::start(open(&url).unwrap(), Options::default()).await.unwrap();
        let once = engine.once("tests", "key", &"payload", move || async move { Ok(run) }).await.unwrap();
        assert_eq!((once.value, once.replayed), (0, run > 0));
    }
}
