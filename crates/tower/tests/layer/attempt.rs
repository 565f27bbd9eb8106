//! What a handler knows of the attempt that it runs in.

use std::sync::{Arc, Mutex};

use axum::extract::Request;
use http::StatusCode;
use oncegate_core::policy::Profile;
use oncegate_store::memory::MemoryStore;
use oncegate_tower::Attempt;

use crate::client::Call;
use crate::stage::{Stage, id_of};

#[tokio::test]
async fn key_record_life_fence_and_number() {
    let seen = Arc::new(Mutex::new(Vec::<Attempt>::new()));
    let handler = {
        let seen = Arc::clone(&seen);
        move |request: Request| {
            let attempt = request.extensions().get::<Attempt>().unwrap().clone();
            assert!(attempt.permit.check().is_ok(), "it may send");
            seen.lock().unwrap().push(attempt);
            std::future::ready(StatusCode::SERVICE_UNAVAILABLE)
        }
    };
    let stage = Stage::new(MemoryStore::new(), Profile::Ietf, handler).await;
    for key in ["\"one\"", "one", "one", "two"] {
        Call::post("/").key(key).send(stage.addr).await.expect_first(503, "");
    }
    let seen = seen.lock().unwrap();
    let numbers: Vec<_> = seen.iter().map(|attempt| (attempt.key.as_str(), attempt.number)).collect();
    assert_eq!(numbers, [("one", 1), ("one", 2), ("one", 3), ("two", 1)]);
    assert!(seen[..3].is_sorted_by(|one, next| one.fence < next.fence), "fences grow: {seen:?}");
    assert!(seen[..3].iter().all(|attempt| attempt.life == seen[0].life), "one life: {seen:?}");
    assert_ne!(seen[3].life, seen[0].life);
    assert!(seen[..3].iter().all(|attempt| attempt.record == id_of("one")));
    assert_eq!(seen[3].record, id_of("two"));
}

#[tokio::test]
async fn a_protected_request_arrives_whole_and_asks_for_no_encoding() {
    let handler = |request: Request| async move {
        let (head, body) = request.into_parts();
        let values = |name: &str| format!("{:?}", head.headers.get_all(name).iter().collect::<Vec<_>>());
        let (encoding, key) = (values("accept-encoding"), values("idempotency-key"));
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        format!("{encoding} {key} {} {}", head.uri, str::from_utf8(&body).unwrap())
    };
    let stage = Stage::new(MemoryStore::new(), Profile::Ietf, handler).await;
    let call = Call::post("/payments?a=b").key("one").header("accept-encoding", b"gzip");
    let call = call.header("accept-encoding", b"br").json("[1, 2.0]").chunked();
    call.send(stage.addr).await.expect_first(200, r#"["identity"] ["one"] /payments?a=b [1, 2.0]"#);
}
