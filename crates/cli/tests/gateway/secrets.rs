//! A deferred request's credentials are in the store, and in nothing that the gateway or a command
//! shows.

use std::process::{Command, Stdio};

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use tokio::sync::mpsc;

use crate::process::{Gateway, serve};
use crate::world::{Place, charge};

const SECRETS: [&str; 3] = ["canary-token", "canary-session", "canary-tenant-header"];

/// What a command prints and says.
fn oncegate(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_oncegate"))
        .env_clear()
        .args(words)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{words:?}\n{}", String::from_utf8_lossy(&text));
    String::from_utf8(text).unwrap()
}

#[track_caller]
fn shows_no_secret(place: &str, text: &str) {
    assert!(!text.is_empty(), "{place} shows nothing");
    for secret in SECRETS {
        let line = text.lines().find(|line| line.contains(secret));
        assert_eq!(line, None, "{place}");
    }
}

/// It waits, is run, refused, run again and parked, with every word of the log written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attack_33_stored_credentials_are_in_no_output() {
    let place = Place::sqlite();
    let (came, mut coming) = mpsc::unbounded_channel();
    let refuse = async move |headers: HeaderMap| {
        came.send(headers).unwrap();
        StatusCode::UNAUTHORIZED
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(refuse)).await.unwrap() });
    let rules = "[defaults]\nprofile = \"accepted\"\nrequest_headers = [\"x-route\"]\n";
    let config = place.configure(&upstream, rules);
    let gateway = Gateway::of(serve().arg("--config").arg(config).env("ONCEGATE_LOG", "trace"));

    let call = charge("one")
        .header("authorization", b"Bearer canary-token")
        .header("cookie", b"session=canary-session")
        .header("x-route", b"canary-tenant-header");
    assert_eq!(call.send(gateway.address).await.status, 202);
    for _ in 0..2 {
        let headers = coming.recv().await.unwrap();
        assert_eq!(headers["authorization"], "Bearer canary-token");
        assert_eq!(headers["cookie"], "session=canary-session");
        assert_eq!(headers["x-route"], "canary-tenant-header");
        for command in ["keys show one --json --body", "keys list --json"] {
            let words: Vec<_> = command.split(' ').chain(["--store", place.store()]).collect();
            shows_no_secret(command, &oncegate(&words));
        }
    }
    tokio::task::block_in_place(|| gateway.wait_for_state("one", "unknown"));
    gateway.hear("deferred request parked");

    let id = gateway.record("one").unwrap()["id"].as_str().unwrap().to_owned();
    let commands = ["keys show one", "keys list", "dead list", "dead list --json", "dead show one"];
    let admin = format!("http://{}", gateway.admin);
    for command in commands {
        for source in [["--store", place.store()], ["--admin", &admin]] {
            let words: Vec<_> = command.split(' ').chain(source).collect();
            shows_no_secret(command, &oncegate(&words));
        }
    }
    let pages = [
        "/api/v1/records?key=one&body=true",
        "/api/v1/records/ID?body=true",
        "/api/v1/records/ID/story",
        "/metrics",
    ];
    for page in pages {
        let (status, text) = gateway.look(&page.replace("ID", &id));
        assert_eq!(status, 200, "{page}: {text}");
        shows_no_secret(page, &text);
    }
    // The client's own view.
    let shown = call.send(gateway.address).await;
    shows_no_secret("the 202", &String::from_utf8(shown.body).unwrap());
    shows_no_secret("the log", &gateway.said());
    // They are where they must be, or the test proves nothing.
    let folder = std::fs::read_dir(place.path()).unwrap();
    let mut files = folder.map(|file| std::fs::read(file.unwrap().path()).unwrap());
    let is_stored = |bytes: Vec<u8>| bytes.windows(12).any(|found| found == b"canary-token");
    assert!(files.any(is_stored));
}
