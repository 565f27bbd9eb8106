//! What is sent, what cannot be, and what is known of a try that had no answer.

use std::error::Error as _;
use std::net::TcpListener;
use std::time::Duration;

use oncegate_client::reqwest;
use oncegate_client::{Client, KeyForm, Last, Limits, Outcome};
use serde_json::json;

use crate::scripted::Scripted;
use crate::{answer, attempts, hurried, replay};

#[tokio::test]
async fn nobody_listens_nothing_was_sent_and_it_did_not_happen() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let client = hurried().limits(attempts(3)).build().unwrap();
    for host in ["127.0.0.1", "localhost", "nowhere.invalid"] {
        let outcome = client.post(&format!("http://{host}:{port}/")).run().await.unwrap();
        let Outcome::DidNotHappen(no) = outcome else { panic!("{outcome:?}") };
        assert_eq!((no.why.as_str(), no.asked.attempts), ("attempts", 3));
        let Last::NoAnswer(error) = no.last else { panic!("{:?}", no.last) };
        assert!(!error.is_sent() && error.source().is_some(), "{error:?}");
    }
    let url = format!("http://127.0.0.1:{port}/");
    let going = client.post(&url).key("begun-earlier".parse().unwrap()).run().await.unwrap();
    assert!(matches!(going, Outcome::MayHaveHappened(_)), "an earlier process may have sent it: {going:?}");
}

#[tokio::test]
async fn the_time_of_a_try_is_for_all_of_it_also_if_bytes_drip() {
    let server = Scripted::start(&json!([{ "do": "drip" }, replay()])).await;
    let limits = Limits { try_timeout: Duration::from_secs(1), ..attempts(8) };
    let outcome = hurried().limits(limits).build().unwrap().post(&server.url).run().await.unwrap();
    assert_eq!((outcome.as_str(), outcome.asked().attempts), ("happened", 2));
}

#[tokio::test]
async fn what_cannot_be_sent_is_refused_before_a_key_is_made() {
    let client = Client::new().unwrap();
    let post = || client.post("http://host/");
    let key = || "k".parse().unwrap();
    let cases = [
        (client.post("not a url"), "not an http"),
        (client.post("ftp://host/"), "not an http"),
        (client.post("http://"), "not an http"),
        (client.post("http://host:99999/"), "not an http"),
        (client.post("http://me:secret@host/"), "credentials"),
        (post().header("a", "b\r\nc: d"), "does not allow"),
        (post().header("a b", "c"), "does not allow"),
        (post().header("Idempotency-Key", "x"), "the client's to make"),
        (post().header("Content-Length", "1"), "the client's to set"),
        (post().header("Host", "other"), "the client's to set"),
        (post().body("x").json(&1), "one body"),
        (post().json(&std::collections::HashMap::from([((1, 2), 3)])), "as JSON"),
        (post().key(key()).key(key()), "one key"),
    ];
    for (operation, words) in cases {
        let error = operation.run().await.unwrap_err().to_string();
        assert!(error.starts_with("nothing was sent: ") && error.contains(words), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}

#[tokio::test]
async fn a_key_may_be_sent_bare() {
    let server = Scripted::start(&json!([answer()])).await;
    let client = hurried().key_form(KeyForm::Bare).build().unwrap();
    let outcome = client.post(&server.url).run().await.unwrap();
    assert_eq!(server.requests()[0].key(), Some(outcome.asked().key.as_str()));
}

/// Whatever the HTTP client is set to: a redirect that is followed would send the operation somewhere else.
#[tokio::test]
async fn an_http_client_of_the_caller_s_follows_no_redirects_either() {
    let server = Scripted::start(&json!([{ "status": 307, "headers": { "location": "/elsewhere" } }])).await;
    let http = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::limited(5));
    let client = hurried().http(http).build().unwrap();
    let outcome = client.post(&server.url).body("x").run().await.unwrap();
    assert_eq!(outcome.why().unwrap().as_str(), "redirected");
    assert_eq!(server.requests().len(), 1);
}

#[cfg(not(feature = "rustls"))]
#[tokio::test]
async fn https_is_refused_by_a_client_that_was_built_without_it() {
    let error = Client::new().unwrap().post("https://host/").run().await.unwrap_err();
    assert!(error.to_string().contains("needs the feature `rustls`"), "{error}");
}
