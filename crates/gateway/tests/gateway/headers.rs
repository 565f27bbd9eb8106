//! Request headers that change who the caller is or what the request means.

use std::net::{IpAddr, Ipv4Addr};

use crate::client::{Call, Connection, send_raw};
use crate::gateway::{Stage, defaults};
use crate::reply::Reply;

const OUTSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

const HEADER: &str =
    "[scope]\nfrom = \"header\"\nheader = \"X-Tenant\"\ntrusted_peers = [\"127.0.0.1/32\"]\n";

async fn outside(stage: &Stage, call: &Call) -> Reply {
    Connection::from(OUTSIDE, stage.addr()).await.ask(call).await
}

/// A GET with `X-Tenant: victim` from any client reached the upstream, which trusts the header.
#[tokio::test]
async fn identity_headers_of_untrusted_peers_are_stripped_without_a_key_too() {
    let stage = Stage::numbered(&format!("{HEADER}{}", defaults("lenient", ""))).await;
    for call in [
        Call::get("/balance").header("x-tenant", "victim"),
        Call::anonymous("POST", "/payments").header("X-Tenant", "victim").json("{}"),
        Call::get("/balance").header("x-tenant", "victim").header("x-tenant", "other"),
    ] {
        assert_eq!(outside(&stage, &call).await.status, 200);
        let seen = stage.upstream.last();
        assert!(seen.values("x-tenant").is_empty(), "{seen:?}");
    }
    // A trusted proxy says it.
    stage.send(&Call::get("/balance").header("x-tenant", "acme")).await.expect_first(200, "run 4");
    assert_eq!(stage.upstream.last().header("x-tenant"), Some("acme"));
    // With a key it is refused, as before.
    let keyed = Call::pay("one").header("x-tenant", "victim");
    outside(&stage, &keyed).await.expect_problem(401, "scope_missing");
}

/// Servers that turn headers into variables (CGI, WSGI) read `X_Tenant` as `X-Tenant`.
#[tokio::test]
async fn names_with_underscores_that_collide_are_refused() {
    let toml =
        format!("{HEADER}[[route]]\nmatch = \"POST /x\"\nfingerprint_headers = [\"Stripe-Account\"]\n");
    let stage = Stage::numbered(&toml).await;
    for name in [
        "X_Tenant",
        "idempotency_key",
        "Idempotency_Attempt",
        "content_type",
        "Content_Length",
        "transfer_encoding",
        "x_forwarded_for",
        "X-Forwarded_Host",
        "X_HTTP_METHOD_OVERRIDE",
        "x_original_url",
        "stripe_account",
        "proxy_authorization",
        "x_forwarded_groups",
        "x-forwarded_email",
    ] {
        for call in [Call::get("/"), Call::pay("one").header("x-tenant", "acme")] {
            let problem = stage.send(&call.header(name, "1")).await.expect_problem(400, "request_malformed");
            assert!(problem["detail"].as_str().unwrap().contains("underscore"), "{name}: {problem}");
        }
    }
    assert_eq!(stage.runs(), 0, "{:?}", stage.upstream.seen());
    // Any two of one request.
    let both = Call::get("/").header("x-remote-user", "acme").header("x_remote-user", "victim");
    stage.send(&both).await.expect_problem(400, "request_malformed");
    assert_eq!(stage.runs(), 0, "{:?}", stage.upstream.seen());
    stage.send(&Call::get("/").header("x_trace", "1")).await.expect_first(200, "run 1");
}

/// The request was run later without the header that told it apart from others: for another
/// account.
#[tokio::test]
async fn headers_in_the_fingerprint_go_with_deferred_requests() {
    let rules =
        "request_headers = [\"content-type\", \"authorization\"]\nfingerprint_headers = [\"Stripe-Account\"]";
    let stage = Stage::numbered(&defaults("accepted", rules)).await;
    let call = |account: &str| Call::pay("one").header("stripe-account", account);
    let reply = stage.send(&call("acct_A")).await;
    assert_eq!(reply.status, 202, "{reply:?}");
    stage.upstream.ran(1).await;
    assert_eq!(stage.upstream.last().header("stripe-account"), Some("acct_A"));
    stage.send(&call("acct_B")).await.expect_problem(422, "key_reused");
    stage.send(&Call::pay("one")).await.expect_problem(422, "key_reused");
    assert_eq!(stage.runs(), 1);
}

/// An operation belongs to the whole tenant, not to its first source.
#[tokio::test]
async fn operations_are_shown_to_a_scope_of_several_sources() {
    let stage = Stage::numbered("[scope]\nalso = [\"Stripe-Account\"]\n").await;
    let account = |call: Call, account: &str| call.header("stripe-account", account);
    stage.send(&account(Call::pay("one"), "acct_A")).await.expect_first(200, "run 1");
    let id = stage.record("one").await.unwrap()["id"].as_str().unwrap().to_owned();
    let ask = || Call::get(&format!("/.oncegate/operations/{id}"));
    assert_eq!(stage.send(&account(ask(), "acct_A")).await.status, 200);
    stage.send(&account(ask(), "acct_B")).await.expect_problem(404, "operation_not_found");
    stage.send(&ask()).await.expect_problem(404, "operation_not_found");
    let two = account(account(ask(), "acct_A"), "acct_B");
    stage.send(&two).await.expect_problem(401, "scope_missing");
}

/// A client's own `X-Tenant` does not open another tenant's operation.
#[tokio::test]
async fn identity_headers_of_untrusted_peers_are_stripped_on_own_paths_too() {
    let stage = Stage::numbered(HEADER).await;
    stage.send(&Call::pay("one").header("x-tenant", "acme")).await.expect_first(200, "run 1");
    let id = stage.record("one").await.unwrap()["id"].as_str().unwrap().to_owned();
    let ask = Call::get(&format!("/.oncegate/operations/{id}")).header("x-tenant", "acme");
    assert_eq!(stage.send(&ask).await.status, 200);
    outside(&stage, &ask).await.expect_problem(401, "scope_missing");
    let delete = Call::anonymous("DELETE", &format!("/.oncegate/operations/{id}")).header("x-tenant", "acme");
    outside(&stage, &delete).await.expect_problem(401, "scope_missing");
}

/// With `Stripe-Account: acct_A` and then `acct_B`, the second request got the response of A.
#[tokio::test]
async fn headers_in_the_fingerprint_tell_requests_apart() {
    let stage = Stage::numbered(&defaults("ietf", "fingerprint_headers = [\"Stripe-Account\"]")).await;
    let call = |account: &str| Call::pay("one").header("stripe-account", account);
    stage.send(&call("acct_A")).await.expect_first(200, "run 1");
    stage.send(&call("acct_A")).await.expect_replay(200, "run 1");
    stage.send(&call("acct_B")).await.expect_problem(422, "key_reused");
    stage.send(&Call::pay("one")).await.expect_problem(422, "key_reused");
    stage.send(&call("acct_A").header("stripe-account", "acct_B")).await.expect_problem(422, "key_reused");
    // Also where the body is not compared.
    let rules = "fingerprint = \"none\"\nfingerprint_headers = [\"stripe-account\"]";
    let stage = Stage::numbered(&defaults("ietf", rules)).await;
    stage.send(&call("acct_A")).await.expect_first(200, "run 1");
    stage.send(&call("acct_B")).await.expect_problem(422, "key_reused");
}

#[tokio::test]
async fn a_scope_of_several_sources() {
    let stage = Stage::numbered("[scope]\nalso = [\"Stripe-Account\"]\n").await;
    let call = |account: &str| Call::pay("one").header("stripe-account", account);
    stage.send(&call("acct_A")).await.expect_first(200, "run 1");
    stage.send(&call("acct_B")).await.expect_first(200, "run 2");
    stage.send(&Call::pay("one")).await.expect_first(200, "run 3");
    stage.send(&call("acct_A")).await.expect_replay(200, "run 1");
    stage.send(&call("acct_B")).await.expect_replay(200, "run 2");
    stage.send(&Call::pay("one")).await.expect_replay(200, "run 3");
    stage.send(&call("acct_A").header("stripe-account", "b")).await.expect_problem(401, "scope_missing");
    // Without credentials it is nobody's.
    let nobody = Call::anonymous("POST", "/payments").key("one").header("stripe-account", "acct_A");
    stage.send(&nobody).await.expect_problem(401, "scope_missing");
    // The header of a trusted proxy, and the caller's own credentials, which are digested.
    let stage = Stage::numbered(&format!("{HEADER}also = [\"authorization\"]\n")).await;
    let call =
        |tenant: &str| Call::anonymous("POST", "/payments").key("one").header("x-tenant", "a").tenant(tenant);
    stage.send(&call("acme")).await.expect_first(200, "run 1");
    stage.send(&call("umbrella")).await.expect_first(200, "run 2");
    stage.send(&call("acme")).await.expect_replay(200, "run 1");
}

#[tokio::test]
async fn headers_that_change_method_or_target_are_refused_on_protected_routes() {
    let names = [
        "X-HTTP-Method-Override",
        "X-HTTP-Method",
        "X-Method-Override",
        "X-Original-URL",
        "X-Rewrite-URL",
        "X-Original-Method",
        "X-Override-URL",
    ];
    let stage = Stage::numbered("").await;
    for name in names {
        let call = Call::pay("one").header(name, "DELETE");
        let problem = stage.send(&call).await.expect_problem(400, "request_malformed");
        assert!(problem["detail"].as_str().unwrap().contains("method_override"), "{name}: {problem}");
    }
    assert_eq!(stage.runs(), 0, "{:?}", stage.upstream.seen());
    // No reading of a path makes a GET protected.
    stage.send(&Call::get("/").header("x-original-url", "/x")).await.expect_first(200, "run 1");
    let stage = Stage::numbered("[request]\nmethod_override = \"pass\"\n").await;
    stage.send(&Call::pay("one").header("x-http-method-override", "DELETE")).await.expect_first(200, "run 1");
}

/// A GET that an upstream takes for a POST, and an open path that it takes for a protected one,
/// ran without a record.
#[tokio::test]
async fn headers_that_would_make_a_request_protected_are_refused_on_open_routes() {
    let toml = "[defaults]\nprofile = \"off\"\n[[route]]\nmatch = \"POST /payments\"\nprofile = \"ietf\"\n";
    let stage = Stage::numbered(toml).await;
    let open = || Call::post("/open").json("{}");
    for call in [
        Call::get("/payments").header("X-HTTP-Method-Override", "post"),
        Call::get("/payments").header("X-HTTP-Method", "GET").header("X-HTTP-Method", " POST "),
        open().header("X-Original-URL", "/payments?a=b"),
        open().header("X-Rewrite-URL", "http://b.test/x/../payments/"),
        open().header("X-Original-URI", "/x%2f..%2fpayments"),
        open().header("X-Override-URL", "payments"),
        Call::get("/open").header("X-Method-Override", "POST").header("X-Original-URL", "/payments"),
        // What a header says is not read: upstreams read it in too many ways.
        open().header("X-Original-URL", "/elsewhere"),
        Call::get("/payments").header("X-HTTP-Method", "PUT"),
        Call::anonymous("QUERY", "/payments").header("X-HTTP-Verb", "GET, POST"),
    ] {
        let problem = stage.send(&call).await.expect_problem(400, "request_malformed");
        assert!(problem["detail"].as_str().unwrap().contains("method_override"), "{problem}");
    }
    assert_eq!(stage.runs(), 0, "{:?}", stage.upstream.seen());
    stage.send(&Call::get("/payments").header("X-Original-URL", "/x")).await.expect_first(200, "run 1");
    // Nothing is protected, so nothing can become it.
    let stage = Stage::numbered("[defaults]\nprofile = \"off\"\n").await;
    stage.send(&open().header("X-Original-URL", "/elsewhere")).await.expect_first(200, "run 1");
}

/// Without a key both reached the upstream, which might believe either.
#[tokio::test]
async fn two_headers_that_name_the_caller_are_refused_without_a_key_too() {
    let stage = Stage::numbered(HEADER).await;
    let two = Call::get("/balance").header("x-tenant", "acme").header("X-Tenant", "victim");
    let problem = stage.send(&two).await.expect_problem(401, "scope_missing");
    assert!(problem["detail"].as_str().unwrap().contains("two headers x-tenant"), "{problem}");
    let two = Call::get("/balance").tenant("umbrella");
    stage.send(&two).await.expect_problem(401, "scope_missing");
    assert_eq!(stage.runs(), 0, "{:?}", stage.upstream.seen());
}

/// `user@a` was forwarded as the Host, and `a:x` as a port.
#[tokio::test]
async fn a_host_that_is_none_is_refused() {
    let stage = Stage::numbered("[upstream]\nhost = \"client\"\n").await;
    for host in ["user@a", "a/b", "a b", "a, b", "a:x", "a\"b", "[::1", "\u{e4}"] {
        let reply = send_raw(stage.addr(), format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n")).await;
        reply.expect_problem(400, "request_malformed");
    }
    for target in ["http://user:secret@a/", "http://a:x/"] {
        let reply = send_raw(stage.addr(), format!("GET {target} HTTP/1.1\r\nhost: a\r\n\r\n")).await;
        reply.expect_problem(400, "request_malformed");
    }
    assert_eq!(stage.runs(), 0, "{:?}", stage.upstream.seen());
    for (run, host) in (1..).zip(["a.test:8080", "[::1]:80", "x_y"]) {
        let reply = send_raw(stage.addr(), format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n")).await;
        reply.expect_first(200, &format!("run {run}"));
        assert_eq!(stage.upstream.last().header("host"), Some(host));
    }
}

/// `"k9"`, `k9` and `"k9";a=1` are one record, and were three keys at the upstream.
#[tokio::test]
async fn one_spelling_of_the_key_is_forwarded() {
    let rows = [
        ("ietf", "k9", "k9"),
        ("ietf", "\"k9\"", "k9"),
        ("ietf", "\"k9\";a=1", "k9"),
        ("ietf", "\"k 9\"; a", "\"k 9\""),
        ("ietf", r#""k\"9""#, r#""k\"9""#),
        ("ietf-strict", "\"k9\";a=1", "\"k9\""),
        ("stripe", "\"k9\"", "\"k9\""),
        ("stripe", "k9;a=1", "k9;a=1"),
    ];
    for (profile, sent, forwarded) in rows {
        let stage = Stage::numbered(&defaults(profile, "")).await;
        stage.send(&Call::pay(sent)).await.expect_first(200, "run 1");
        assert_eq!(stage.upstream.last().header("idempotency-key"), Some(forwarded), "{profile} {sent}");
    }
    // A derived key is one for all spellings.
    let stage = Stage::numbered(&defaults("ietf", "forward_key = \"derived\"")).await;
    stage.send(&Call::pay("\"k9\";a=1")).await.expect_first(200, "run 1");
    let derived = stage.record("k9").await.unwrap()["derived_key"].as_str().unwrap().to_owned();
    assert_eq!(stage.upstream.last().header("idempotency-key"), Some(format!("\"{derived}\"").as_str()));
    stage.send(&Call::pay("k9")).await.expect_replay(200, "run 1");
    // Stored with a deferred request, too.
    let rules = "request_headers = [\"content-type\", \"authorization\"]\nkey_syntax = \"either\"";
    let stage = Stage::numbered(&defaults("accepted", rules)).await;
    let reply = stage.send(&Call::pay("\"k9\";a=1")).await;
    assert_eq!(reply.status, 202, "{reply:?}");
    stage.upstream.ran(1).await;
    assert_eq!(stage.upstream.last().header("idempotency-key"), Some("k9"));
}

/// Over HTTP/1.0 without a Host, the client's own X-Forwarded-Host reached the upstream.
#[tokio::test]
async fn a_forwarded_host_of_a_client_is_dropped() {
    let stage = Stage::numbered("").await;
    for (run, (head, expected)) in
        [("GET / HTTP/1.0\r\n", None), ("GET / HTTP/1.1\r\nhost: a.test\r\n", Some("a.test"))]
            .into_iter()
            .enumerate()
    {
        let mut connection = Connection::to(stage.addr()).await;
        connection.write(format!("{head}X-Forwarded-Host: evil.test\r\n\r\n")).await;
        stage.upstream.ran(run + 1).await;
        assert_eq!(stage.upstream.last().header("x-forwarded-host"), expected, "{head}");
    }
    // A trusted proxy knows what its client asked for.
    let stage = Stage::numbered(HEADER).await;
    let call = Call::get("/").header("x-forwarded-host", "shop.test");
    stage.send(&call).await.expect_first(200, "run 1");
    assert_eq!(stage.upstream.last().header("x-forwarded-host"), Some("shop.test"));
    outside(&stage, &call).await.expect_first(200, "run 2");
    assert_eq!(stage.upstream.last().header("x-forwarded-host"), Some("api.test"));
    // Also where tokens name the tenant.
    let stage = Stage::numbered("[scope]\ntrusted_peers = [\"127.0.0.1/32\"]\n").await;
    let call = call.header("x-forwarded-proto", "https").header("x-forwarded-uri", "/a");
    for (run, (is_trusted, host, proto, uri)) in
        [(true, "shop.test", "https", Some("/a")), (false, "api.test", "http", None)].into_iter().enumerate()
    {
        let reply = if is_trusted { stage.send(&call).await } else { outside(&stage, &call).await };
        reply.expect_first(200, &format!("run {}", run + 1));
        let seen = stage.upstream.last();
        assert_eq!(seen.header("x-forwarded-host"), Some(host));
        assert_eq!(seen.header("x-forwarded-proto"), Some(proto));
        assert_eq!(seen.header("x-forwarded-uri"), uri);
    }
}

/// An upstream that decides by address believed any client that said it came from 10.0.0.1.
#[tokio::test]
async fn only_trusted_peers_say_a_clients_address() {
    const NAMES: [&str; 8] = [
        "X-Forwarded-For",
        "X-Real-IP",
        "True-Client-IP",
        "X-Client-IP",
        "CF-Connecting-IP",
        "X-Cluster-Client-IP",
        "Fastly-Client-IP",
        "X-Original-Forwarded-For",
    ];
    let stage = Stage::numbered(&format!("{HEADER}{}", defaults("lenient", ""))).await;
    let call = |key: &str| {
        let call = NAMES.into_iter().fold(Call::pay(key), |call, name| call.header(name, "10.0.0.1"));
        NAMES.into_iter().fold(call, |call, name| call.header(&name.to_lowercase(), "10.0.0.2"))
    };
    let get = NAMES.into_iter().fold(Call::get("/"), |call, name| call.header(name, "10.0.0.1"));
    outside(&stage, &get).await.expect_first(200, "run 1");
    let keyless = Call::anonymous("POST", "/payments").json("{}");
    let keyless = NAMES.into_iter().fold(keyless, |call, name| call.header(name, "10.0.0.1"));
    outside(&stage, &keyless).await.expect_first(200, "run 2");
    for seen in stage.upstream.seen() {
        assert_eq!(seen.values("x-forwarded-for"), ["127.0.0.2"], "{seen:?}");
        for name in &NAMES[1..] {
            assert!(seen.values(&name.to_lowercase()).is_empty(), "{name}: {seen:?}");
        }
    }
    // A trusted proxy's stay as they are.
    stage.send(&call("one").header("x-tenant", "acme")).await.expect_first(200, "run 3");
    let seen = stage.upstream.last();
    assert_eq!(seen.values("x-forwarded-for"), ["10.0.0.1", "10.0.0.2", "127.0.0.1"]);
    for name in &NAMES[1..] {
        assert_eq!(seen.values(&name.to_lowercase()), ["10.0.0.1", "10.0.0.2"], "{name}");
    }
    // Nor in a spelling that servers read as theirs, from any peer.
    for name in NAMES {
        let odd = Call::get("/").header(&name.replace('-', "_"), "10.0.0.1");
        outside(&stage, &odd).await.expect_problem(400, "request_malformed");
        stage.send(&odd).await.expect_problem(400, "request_malformed");
    }
    assert_eq!(stage.runs(), 3);
}

/// The first was compared, and the upstream may read the second.
#[tokio::test]
async fn two_content_types_are_refused() {
    let stage = Stage::numbered("").await;
    let call = Call::pay("one").header("content-type", "text/plain");
    stage.send(&call).await.expect_problem(400, "request_malformed");
    let call = Call::get("/").header("content-type", "a/b").header("content-type", "a/b");
    stage.send(&call).await.expect_problem(400, "request_malformed");
    assert_eq!(stage.runs(), 0, "{:?}", stage.upstream.seen());
}

/// A body in chunks was dropped on the way.
#[tokio::test]
async fn the_body_of_a_get_is_kept() {
    let stage = Stage::numbered("").await;
    for method in ["GET", "HEAD", "OPTIONS", "DELETE"] {
        for call in [Call::anonymous(method, "/"), Call::anonymous(method, "/").chunked()] {
            let reply = stage.send(&call.body("a body")).await;
            assert_eq!(reply.status, 200, "{reply:?}");
            let seen = stage.upstream.last();
            assert_eq!(seen.body, b"a body", "{method}: {seen:?}");
        }
    }
    let runs = stage.runs();
    send_raw(stage.addr(), "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let seen = stage.upstream.last();
    assert_eq!(stage.runs(), runs + 1);
    assert_eq!((seen.header("content-length"), seen.header("transfer-encoding")), (None, None));
}
