//! A replay is the first answer, byte for byte.

use crate::client::{Call, Connection};
use crate::gateway::{Stage, defaults};
use crate::upstream::{Act, Upstream, answer};

async fn answering(headers: &[(&str, &str)], body: &[u8], toml: &str) -> Stage {
    let bytes = answer(201, headers, body);
    let upstream = Upstream::start(move |_| std::future::ready(Act::Answer(bytes.clone()))).await;
    Stage::new(upstream, toml).await
}

const HEADERS: [(&str, &str); 9] = [
    ("content-type", "application/octet-stream"),
    ("link", "</a>; rel=next, </b>"),
    ("link", "</c>"),
    ("x-odd", "tab\tand \"quotes\""),
    ("location", "/payments/7"),
    ("set-cookie", "a=1; Path=/"),
    ("set-cookie", "b=2, c"),
    ("date", "Mon, 16 Nov 2026 00:00:00 GMT"),
    ("idempotency-replayed", "maybe"),
];

#[tokio::test]
async fn byte_for_byte_with_repeated_headers() {
    let body: Vec<u8> = (0..=255).cycle().take(10_000).collect();
    let stage = answering(&HEADERS, &body, "").await;
    let first = stage.send(&Call::pay("one")).await;
    let again = stage.send(&Call::pay("one")).await;
    assert_eq!((first.status, &first.body), (201, &body));
    assert_eq!(first.values("link"), [&b"</a>; rel=next, </b>"[..], b"</c>"]);
    assert_eq!(first.values("set-cookie").len(), 2, "the first client gets its cookies");
    assert_eq!(first.header("date"), Some("Mon, 16 Nov 2026 00:00:00 GMT"));
    assert_eq!((first.is_replay(), again.is_replay()), (false, true));
    assert_eq!(again.values("set-cookie").len(), 0, "another may be asking by now");
    assert_ne!(again.header("date"), first.header("date"), "it is not then any more");
    let mut without_cookies = first.in_common();
    without_cookies.headers.retain(|(name, _)| name != "set-cookie");
    assert_eq!(again.in_common(), without_cookies);
    assert_eq!(stage.runs(), 1);
}

#[tokio::test]
async fn cookies_where_they_are_asked_for() {
    let stage = answering(&HEADERS, b"x", &defaults("ietf", "keep_cookies = true")).await;
    let first = stage.send(&Call::pay("one")).await;
    let again = stage.send(&Call::pay("one")).await;
    assert_eq!(again.values("set-cookie"), [&b"a=1; Path=/"[..], b"b=2, c"]);
    assert_eq!(again.in_common(), first.in_common());
}

#[tokio::test]
async fn answers_without_a_body() {
    for status in [204, 304] {
        let bytes = format!("HTTP/1.1 {status} Nothing\r\nx-kept: 1\r\n\r\n").into_bytes();
        let upstream = Upstream::start(move |_| std::future::ready(Act::Answer(bytes.clone()))).await;
        let stage = Stage::new(upstream, "").await;
        // All by one connection, so that a byte too many would be seen.
        let mut connection = Connection::to(stage.addr()).await;
        let first = connection.ask(&Call::pay("one")).await;
        let again = connection.ask(&Call::pay("one")).await;
        first.expect_first(status, "");
        again.expect_replay(status, "");
        assert_eq!(first.in_common(), again.in_common());
        connection.ask(&Call::get("/")).await.expect_first(status, "");
        assert_eq!((stage.runs(), stage.upstream.connections()), (2, 1));
    }
}

/// The store is asked after a restart, not only the cache.
#[tokio::test]
async fn after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let toml = format!("[store]\nurl = \"sqlite://{}/records.db\"\n", folder.path().display());
    let stage = answering(&HEADERS, b"\x00\xff", &toml).await;
    let first = stage.send(&Call::pay("one")).await;
    let Stage { gateway, upstream } = stage;
    assert!(gateway.shut_down().await);
    let stage = Stage::new(upstream, &toml).await;
    let again = stage.send(&Call::pay("one")).await;
    assert!(again.is_replay());
    let mut without_cookies = first.in_common();
    without_cookies.headers.retain(|(name, _)| name != "set-cookie");
    assert_eq!(again.in_common(), without_cookies);
    assert_eq!(stage.runs(), 1);
}
