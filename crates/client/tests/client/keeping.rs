//! Keys, and where they are kept.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use oncegate_client::{FileKeep, FileKeepError, Keep, Key, Outcome};
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::scripted::Scripted;
use crate::{answer, attempts, hurried, replay};

const KEY: &str = "8e03978e-40d5-43dd-bc93-6894a57f9324";

/// A folder that is not there yet, in one that is.
struct Place {
    _parent: TempDir,
    folder: PathBuf,
}

impl Place {
    fn new() -> Self {
        let parent = tempfile::tempdir().unwrap();
        Self { folder: parent.path().join("deep/keys"), _parent: parent }
    }

    fn keep(&self) -> FileKeep {
        FileKeep::new(&self.folder)
    }

    fn files(&self) -> Vec<PathBuf> {
        files(&self.folder)
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn key(text: &str) -> Key {
    text.parse().unwrap()
}

#[tokio::test]
async fn another_operation_has_another_key() {
    let server = Scripted::start(&json!([answer(), answer()])).await;
    let client = hurried().build().unwrap();
    let first = client.post(&server.url).run().await.unwrap();
    let second = client.post(&server.url).run().await.unwrap();
    assert_ne!(first.asked().key, second.asked().key);
    let sent: HashSet<_> = server.requests().iter().map(|asked| asked.key().unwrap().to_owned()).collect();
    assert_eq!(sent.len(), 2);
}

/// A place that is full.
struct Full;

impl Keep for Full {
    type Error = io::Error;

    async fn load(&self, _: &str) -> io::Result<Option<Key>> {
        Ok(None)
    }

    async fn save(&self, _: &str, _: &Key) -> io::Result<Key> {
        Err(io::ErrorKind::StorageFull.into())
    }

    async fn forget(&self, _: &str, _: &Key) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn the_key_is_kept_before_the_first_byte_is_sent() {
    let server = Scripted::start(&json!([answer()])).await;
    let client = hurried().keep(Full).build().unwrap();
    let error = client.post(&server.url).named("a").run().await.unwrap_err();
    assert!(error.to_string().contains("nothing was sent"), "{error}");
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn what_comes_back_to_a_kept_key_may_have_happened_before() {
    let place = Place::new();
    let server = Scripted::start(&json!([{ "do": "reset" }, { "status": 403 }])).await;
    let client = hurried().limits(attempts(1)).keep(place.keep()).build().unwrap();
    let first = client.post(&server.url).named("a").run().await.unwrap();
    let second = client.post(&server.url).named("a").run().await.unwrap();
    assert_eq!((first.as_str(), second.as_str()), ("may_have_happened", "may_have_happened"));
    assert_eq!((&first.asked().key, second.why().unwrap().as_str()), (&second.asked().key, "refused"));
}

#[tokio::test]
async fn a_key_is_forgotten_when_the_caller_has_taken_note_of_a_certain_outcome_and_not_before() {
    let place = Place::new();
    let server = Scripted::start(&json!([{ "do": "reset" }, replay(), answer()])).await;
    let client = hurried().keep(place.keep()).build().unwrap();
    let run = || client.post(&server.url).named("a");
    let in_doubt = run().limits(attempts(1)).run().await.unwrap();
    assert!(!client.done(&in_doubt).await.unwrap());
    assert_eq!(place.keep().load("a").await.unwrap().as_ref(), Some(&in_doubt.asked().key));
    let known = run().run().await.unwrap();
    assert_eq!(known.asked().key, in_doubt.asked().key);
    assert_eq!(
        place.keep().load("a").await.unwrap().as_ref(),
        Some(&known.asked().key),
        "a caller that dies now asks with the same key"
    );
    assert!(client.done(&known).await.unwrap());
    assert_eq!(place.keep().load("a").await.unwrap(), None);
    assert!(client.done(&known).await.unwrap(), "twice is as good as once");
    let another = run().run().await.unwrap();
    assert_ne!(another.asked().key, known.asked().key);
}

/// Two workers were refused under one key. One is done with it and begins anew; then the other says that it is done.
#[tokio::test]
async fn a_late_done_does_not_forget_the_key_of_the_next_operation_under_its_name() {
    let place = Place::new();
    let (first, second) =
        (json!({ "status": 402, "kept": true }), json!({ "status": 402, "replayed": true }));
    let server = Scripted::start(&json!([first, second, { "do": "reset" }, replay()])).await;
    let client = hurried().keep(place.keep()).build().unwrap();
    let run = || client.post(&server.url).named("a");
    let (mine, other) = (run().run().await.unwrap(), run().run().await.unwrap());
    assert_eq!((mine.as_str(), other.as_str()), ("did_not_happen", "did_not_happen"));
    assert_eq!(mine.asked().key, other.asked().key);
    assert!(client.done(&mine).await.unwrap());
    let anew = run().limits(attempts(1)).run().await.unwrap();
    assert_eq!(anew.as_str(), "may_have_happened");
    for _ in 0..2 {
        assert!(client.done(&other).await.unwrap());
        assert_eq!(place.keep().load("a").await.unwrap().as_ref(), Some(&anew.asked().key));
    }
    assert_eq!(run().run().await.unwrap().asked().key, anew.asked().key);
    assert_eq!(place.files().len(), 1, "nothing is left aside");
}

#[tokio::test]
async fn an_operation_without_a_name_has_nothing_to_forget() {
    let place = Place::new();
    let server = Scripted::start(&json!([answer()])).await;
    let client = hurried().keep(place.keep()).build().unwrap();
    let outcome = client.post(&server.url).run().await.unwrap();
    assert!(matches!(outcome, Outcome::Happened(_)));
    assert!(!client.done(&outcome).await.unwrap());
    assert!(!place.folder.exists(), "nothing was written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_who_begin_the_same_operation_at_once_all_get_one_key() {
    let place = Place::new();
    let saves = (0..100).map(|number| {
        let keep = place.keep();
        tokio::spawn(async move { keep.save("a", &key(&format!("key-{number}"))).await.unwrap() })
    });
    let saves: Vec<_> = saves.collect();
    let mut kept = HashSet::new();
    for save in saves {
        kept.insert(save.await.unwrap());
    }
    assert_eq!(kept.len(), 1);
    assert_eq!(place.files().len(), 1, "no drafts are left");
}

#[tokio::test]
async fn a_key_file_that_cannot_be_read_stops_the_operation_before_anything_is_sent() {
    let place = Place::new();
    place.keep().save("a", &key(KEY)).await.unwrap();
    let file = place.files().remove(0);
    let server = Scripted::start(&json!([answer()])).await;
    let client = hurried().keep(place.keep()).build().unwrap();
    let damages =
        ["", "{\"name\":\"a\"", "{\"name\":\"b\",\"key\":\"k\"}", "{\"name\":\"a\",\"key\":\"\"}", "[]"];
    for damage in damages {
        std::fs::write(&file, damage).unwrap();
        let error = client.post(&server.url).named("a").run().await.unwrap_err();
        let words = error.to_string();
        assert!(words.contains("nothing was sent") && words.contains("cannot be read"), "{words}");
    }
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    let error = client.post(&server.url).named("a").run().await.unwrap_err();
    assert!(
        error.to_string().contains("nothing was sent"),
        "what is no file is not as good as none: {error}"
    );
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn key_files_are_the_same_in_every_language() {
    let place = Place::new();
    place.keep().save("order 17 ü", &key(KEY)).await.unwrap();
    let name = "eedf279b3f4be4775e56b001ad8e31364a0438c05839fc7ff84cd147f5588e8e.json";
    assert_eq!(place.files(), [place.folder.join(name)]);
    let kept: Value = serde_json::from_slice(&std::fs::read(place.folder.join(name)).unwrap()).unwrap();
    assert_eq!(kept, json!({ "name": "order 17 ü", "key": KEY }));
    // As Python writes it, and with what a later version may add.
    std::fs::write(
        place.folder.join(name),
        format!("{{\"name\": \"order 17 \\u00fc\", \"key\": \"{KEY}\", \"since\": 1}}\n"),
    )
    .unwrap();
    assert_eq!(place.keep().load("order 17 ü").await.unwrap(), Some(key(KEY)));
}

#[cfg(unix)]
#[tokio::test]
async fn a_key_is_for_its_owner_s_eyes_only() {
    use std::os::unix::fs::PermissionsExt as _;

    let place = Place::new();
    place.keep().save("a", &key(KEY)).await.unwrap();
    let mode = std::fs::metadata(&place.files()[0]).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn a_folder_that_cannot_be_made_is_an_error_that_names_the_file() {
    let parent = tempfile::tempdir().unwrap();
    std::fs::write(parent.path().join("file"), "").unwrap();
    let keep = FileKeep::new(parent.path().join("file/keys"));
    let error = keep.save("a", &key(KEY)).await.unwrap_err();
    assert!(matches!(error, FileKeepError::Io { .. }) && error.to_string().contains("file/keys"), "{error}");
}

/// Keeps, looks, forgets; each name by itself.
async fn round_trip(names: &[String]) {
    let place = Place::new();
    let keep = place.keep();
    for (number, name) in names.iter().enumerate() {
        let mine = key(&format!("key-{number}"));
        assert_eq!(keep.load(name).await.unwrap(), None, "{name:?}");
        assert_eq!(keep.save(name, &mine).await.unwrap(), mine);
        assert_eq!(keep.save(name, &key("another")).await.unwrap(), mine, "the first stays");
    }
    for (number, name) in names.iter().enumerate() {
        let mine = key(&format!("key-{number}"));
        keep.forget(name, &key("another")).await.unwrap();
        assert_eq!(keep.load(name).await.unwrap().as_ref(), Some(&mine), "only what is named is forgotten");
        keep.forget(name, &mine).await.unwrap();
        assert_eq!(keep.load(name).await.unwrap(), None);
    }
    assert!(place.files().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn any_name_is_a_name_of_its_own(names in prop::collection::hash_set(any::<String>(), 1..6)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(round_trip(&names.into_iter().collect::<Vec<_>>()));
    }
}
