//! One path, many spellings: protection does not depend on which one a client chooses.

use crate::client::Call;
use crate::gateway::Stage;

const ONLY_PAYMENTS: &str =
    "[defaults]\nprofile = \"off\"\n[[route]]\nmatch = \"POST /payments\"\nprofile = \"payments\"\n";

const SPELLINGS: [&str; 7] = [
    "/payments/",
    "//payments",
    "/%70ayments",
    "/a/../payments",
    "/./payments",
    "/a/%2e%2E/payments",
    "/payments/.",
];

/// Routes were found by the path as it was spelled, and most servers read these as `/payments`: with `[defaults] profile = "off"`, a
/// slash more was a payment without protection.
#[tokio::test]
async fn a_route_is_found_however_its_path_is_spelled() {
    for spelling in SPELLINGS {
        let stage = Stage::numbered(ONLY_PAYMENTS).await;
        let call = Call::post(spelling).key("0123456789abcdef-one").json("{}");
        stage.send(&call).await.expect_first(200, "run 1");
        stage.send(&call).await.expect_replay(200, "run 1");
        // A slash at the end is kept: many servers redirect to it.
        let end = if spelling.starts_with("/payments/") { "/" } else { "" };
        assert_eq!(stage.upstream.last().line, format!("POST /payments{end} HTTP/1.1"), "{spelling}");
        let keyless = stage.send(&Call::post(spelling).json("{}")).await;
        keyless.expect_problem(400, "key_missing");
        assert_eq!(stage.runs(), 1, "{spelling}");
    }
}

/// Two spellings are one request, so that the second is a replay and not another key's use.
#[tokio::test]
async fn spellings_are_one_request() {
    let stage = Stage::numbered(ONLY_PAYMENTS).await;
    let call = |path: &str| Call::post(path).key("0123456789abcdef-one").json("{}");
    stage.send(&call("/payments?a=1")).await.expect_first(200, "run 1");
    for spelling in SPELLINGS {
        stage.send(&call(&format!("{spelling}?a=1"))).await.expect_replay(200, "run 1");
        stage.send(&call(&format!("{spelling}?a=2"))).await.expect_problem(422, "key_reused");
    }
    assert_eq!(stage.runs(), 1);
}

/// What is another path to every server stays one.
#[tokio::test]
async fn other_paths_are_others() {
    let stage = Stage::numbered(ONLY_PAYMENTS).await;
    for (run, path) in ["/payments/7", "/payments%20", "/Payments", "/payments/../x"].iter().enumerate() {
        let call = Call::post(path).key("one").json("{}");
        stage.send(&call).await.expect_first(200, &format!("run {}", 2 * run + 1));
        stage.send(&call).await.expect_first(200, &format!("run {}", 2 * run + 2));
    }
}
