//! Whose key it is.

use std::net::{IpAddr, Ipv4Addr};

use oncegate_test_servers::until;

use crate::client::{Call, Connection};
use crate::gateway::{Stage, admin};
use crate::reply::Reply;
use crate::reuse::Log;

/// A neighbour on the loopback network.
const OUTSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const INSIDE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

const HEADER: &str =
    "[scope]\nfrom = \"header\"\nheader = \"X-Tenant\"\ntrusted_peers = [\"127.0.0.1/32\"]\n";

fn call() -> Call {
    Call::anonymous("POST", "/payments").key("one").json("{}")
}

async fn from(own: IpAddr, stage: &Stage, call: &Call) -> Reply {
    Connection::from(own, stage.addr()).await.ask(call).await
}

async fn tenants(stage: &Stage) -> Vec<String> {
    let page = admin(&stage.gateway, "/api/v1/records").await.json();
    let records = page["records"].as_array().unwrap().iter();
    let mut tenants: Vec<_> = records.map(|row| row["tenant"].as_str().unwrap().to_owned()).collect();
    tenants.sort();
    tenants
}

#[tokio::test]
async fn tenants_are_told_apart_by_their_credentials() {
    let stage = Stage::numbered("").await;
    stage.send(&call().tenant("acme")).await.expect_first(200, "run 1");
    stage.send(&call().tenant("umbrella")).await.expect_first(200, "run 2");
    stage.send(&call().tenant("acme")).await.expect_replay(200, "run 1");
    stage.send(&call().tenant("umbrella")).await.expect_replay(200, "run 2");
    // Hashed: nobody reads a credential out of the store.
    for tenant in tenants(&stage).await {
        let digest = tenant.strip_prefix("authorization:").unwrap();
        assert!(digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()), "{tenant}");
    }
    // The upstream gets the credentials themselves.
    assert_eq!(stage.upstream.last().header("authorization"), Some("Bearer umbrella"));
}

#[tokio::test]
async fn a_header_is_believed_from_trusted_peers() {
    let stage = Stage::numbered(HEADER).await;
    let acme = call().header("x-tenant", "acme");
    from(INSIDE, &stage, &acme).await.expect_first(200, "run 1");
    from(INSIDE, &stage, &acme).await.expect_replay(200, "run 1");
    from(INSIDE, &stage, &call().header("x-tenant", "umbrella")).await.expect_first(200, "run 2");
    assert_eq!(tenants(&stage).await, ["x-tenant:acme", "x-tenant:umbrella"]);

    // From elsewhere it could be anybody's word.
    let spoofed = from(OUTSIDE, &stage, &acme).await;
    let problem = spoofed.expect_problem(401, "scope_missing");
    assert!(problem["detail"].as_str().unwrap().contains("scope.trusted_peers"), "{problem}");
    // Whoever else vouches for it.
    let vouched = acme.clone().header("x-forwarded-for", "127.0.0.1").header("forwarded", "for=127.0.0.1");
    from(OUTSIDE, &stage, &vouched).await.expect_problem(401, "scope_missing");
    from(OUTSIDE, &stage, &call().tenant("acme")).await.expect_problem(401, "scope_missing");
    assert_eq!(stage.runs(), 2);
}

#[tokio::test]
async fn a_header_that_does_not_say_who() {
    let stage = Stage::numbered(HEADER).await;
    let two = call().header("x-tenant", "acme").header("x-tenant", "acme");
    let wrong = [
        call(),
        two,
        call().header("x-tenant", ""),
        call().header("x-tenant", "  "),
        call().header("x-tenant", b"\xe9"),
    ];
    for call in wrong {
        let reply = from(INSIDE, &stage, &call).await;
        let problem = reply.expect_problem(401, "scope_missing");
        assert!(problem["detail"].as_str().unwrap().contains("x-tenant"), "{problem}");
        assert!(reply.header("www-authenticate").is_some());
    }
    assert_eq!((stage.runs(), tenants(&stage).await.len()), (0, 0));
}

/// `also = ["x-api-key"]` put the key itself into the tenant's name, which lists, metrics and the
/// audit trail show.
#[tokio::test]
async fn further_headers_of_a_tenant_are_digested() {
    const SECRET: &str = "sk_live_4f9aXQ";
    let log = Log::of_process();
    let scope = "[scope]\nalso = [\"X-Api-Key\"]\nalso_public = [\"Stripe-Account\"]\n\
                 [workers]\naudit_executions = true\n";
    let stage = Stage::measured(scope, crate::metrics::recorder()).await;
    let by = |secret: &str| {
        let call = Call::anonymous("POST", "/payments").tenant("acme").key("one").json("{}");
        call.header("x-api-key", secret).header("stripe-account", "acct_17")
    };
    stage.send(&by(SECRET)).await.expect_first(200, "run 1");
    stage.send(&by(SECRET)).await.expect_replay(200, "run 1");
    let other = by(SECRET).body("[]");
    stage.send(&other).await.expect_problem_of_operation(422, "key_reused");
    stage.send(&by("other")).await.expect_first(200, "run 2");
    let none = call().tenant("acme").header("stripe-account", "acct_17");
    stage.send(&none).await.expect_first(200, "run 3");
    // In any of these an upstream gets it.
    assert!(stage.upstream.seen()[0].header("x-api-key") == Some(SECRET));

    let names = tenants(&stage).await;
    assert!(names.iter().all(|name| !name.contains(SECRET)), "{names:?}");
    let of_key = |name: &String| {
        let (main, also) = name.split_once("+x-api-key").unwrap();
        let (digest, account) = also.split_once('+').unwrap();
        assert!(main.starts_with("authorization:") && account == "stripe-account:acct_17", "{name}");
        digest.to_owned()
    };
    let mut digests: Vec<_> = names.iter().map(of_key).collect();
    digests.sort();
    let [absent, one, two] = &digests[..] else { panic!("{digests:?}") };
    let is_digest = |text: &str| {
        let hex = text.strip_prefix('=').unwrap();
        hex.len() == 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    assert!(absent.is_empty() && is_digest(one) && is_digest(two) && one != two, "{digests:?}");

    // Nothing that an operator or a client sees has the secret.
    let page = admin(&stage.gateway, "/api/v1/records").await.json();
    let records = page["records"].as_array().unwrap();
    let mine = records.iter().find(|row| row["tenant"].as_str().unwrap().contains(one)).unwrap();
    let id = mine["id"].as_str().unwrap();
    let told = async || {
        !admin(&stage.gateway, "/api/v1/audit?act=key_reused").await.text().contains("\"entries\":[]")
    };
    until("the reuse is in the trail", told).await;
    let mut shown = log.lines().join("\n");
    for path in [
        "/api/v1/records?body=true".to_owned(),
        format!("/api/v1/records/{id}?body=true"),
        format!("/api/v1/records/{id}/story"),
        "/api/v1/audit".to_owned(),
        "/api/v1/counts".to_owned(),
        "/metrics".to_owned(),
    ] {
        let reply = admin(&stage.gateway, &path).await;
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        shown.push_str(reply.text());
    }
    let own = Call::anonymous("GET", &format!("/.oncegate/operations/{id}")).tenant("acme");
    let own = own.header("x-api-key", SECRET).header("stripe-account", "acct_17");
    let own = stage.send(&own).await;
    assert_eq!(own.status, 200, "{own:?}");
    shown.push_str(own.text());
    assert!(shown.contains("acct_17") && shown.contains("api_idempotency_duplicates_count"), "{shown}");
    assert!(!shown.contains(SECRET), "{shown}");
}

#[tokio::test]
async fn those_who_show_nothing_may_share() {
    let stage = Stage::numbered("[scope]\nanonymous = \"share\"").await;
    stage.send(&call()).await.expect_first(200, "run 1");
    stage.send(&call()).await.expect_replay(200, "run 1");
    stage.send(&call().tenant("acme")).await.expect_first(200, "run 2");
    // What cannot be read is not nothing.
    let two = call().tenant("acme").tenant("umbrella");
    stage.send(&two).await.expect_problem(401, "scope_missing");
    assert_eq!(stage.runs(), 2);
    assert!(tenants(&stage).await.contains(&"anonymous".to_owned()));
}

/// Nobody becomes everybody by a header that is not believed.
#[tokio::test]
async fn a_spoofed_header_does_not_share() {
    let stage = Stage::numbered(&format!("{HEADER}anonymous = \"share\"")).await;
    from(OUTSIDE, &stage, &call()).await.expect_first(200, "run 1");
    from(INSIDE, &stage, &call()).await.expect_replay(200, "run 1");
    let spoofed = call().header("x-tenant", "acme");
    from(OUTSIDE, &stage, &spoofed).await.expect_problem(401, "scope_missing");
    // And nobody's name is the others' place.
    from(INSIDE, &stage, &call().header("x-tenant", "anonymous")).await.expect_first(200, "run 2");
}

#[tokio::test]
async fn by_tenant_and_operation() {
    let toml = "[defaults]\nscope = \"tenant+operation\"\n[[route]]\nmatch = \"POST /refunds\"\n";
    let stage = Stage::numbered(toml).await;
    stage.send(&Call::post("/payments").key("one").json("{}")).await.expect_first(200, "run 1");
    stage.send(&Call::post("/refunds").key("one").json("{}")).await.expect_first(200, "run 2");
    stage.send(&Call::post("/refunds").key("one").json("{}")).await.expect_replay(200, "run 2");
    // Elsewhere it is one space of keys.
    let stage = Stage::numbered("[[route]]\nmatch = \"POST /refunds\"\n").await;
    stage.send(&Call::post("/payments").key("one").json("{}")).await.expect_first(200, "run 1");
    stage.send(&Call::post("/refunds").key("one").json("{}")).await.expect_problem(422, "key_reused");
}

/// Attack 22: the text of a route was part of a key's identity. A reload that renamed it made a
/// retry a new request.
#[tokio::test]
async fn attack_22_a_reload_that_changes_the_text_of_a_route_leaves_its_keys_as_they_are() {
    let file = |routes: &str| format!("[defaults]\nprofile = \"lenient\"\n{routes}");
    let mut stage = Stage::numbered(&file("")).await;
    let call = Call::post("/orders/7").key("one").json("{}");
    stage.send(&call).await.expect_first(200, "run 1");
    for route in ["POST /orders/{id}", "POST /orders/{order}", "POST /{kind}/7", "POST /orders/7"] {
        crate::reload::reload(&mut stage, &file(&format!("[[route]]\nmatch = \"{route}\"")));
        stage.send(&call).await.expect_replay(200, "run 1");
    }
    crate::reload::reload(&mut stage, &file(""));
    // Another spelling of the path is the same request, and another path another.
    stage.send(&Call::post("//orders/%37").key("one").json("{}")).await.expect_replay(200, "run 1");
    stage.send(&Call::post("/orders/8").key("one").json("{}")).await.expect_first(200, "run 2");
}

/// `Authorization` with nothing in it was hashed like any other, so that all who sent it were one tenant and got each other's answers.
#[tokio::test]
async fn credentials_with_nothing_in_them_are_nobodys() {
    for toml in ["", "[scope]\nanonymous = \"share\""] {
        let stage = Stage::numbered(toml).await;
        for blank in ["", " ", "\t  "] {
            let reply = stage.send(&call().header("authorization", blank)).await;
            reply.expect_problem(401, "scope_missing");
        }
        assert_eq!((stage.runs(), tenants(&stage).await.len()), (0, 0), "{toml}");
    }
}
