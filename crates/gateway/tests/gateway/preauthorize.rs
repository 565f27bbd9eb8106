//! `preauthorize`: who is asked before anything is recorded, replayed or shown, and what follows.

use std::sync::{Arc, Mutex};

use http::Version;

use crate::client::{Call, Connection};
use crate::gateway::{Stage, config, start};
use crate::http2::Both;
use crate::upstream::{Act, Gate, Refusing, Seen, Upstream, answer, ok};

const FILE: &str = "[defaults]\npreauthorize = { url = \"/auth/check\" }\n";

/// An API whose `/auth/check` answers what it is told to.
struct Guarded {
    stage: Stage,
    verdict: Arc<Mutex<Verdict>>,
}

#[derive(Clone)]
enum Verdict {
    Answer(Vec<u8>),
    Reset,
    /// Answers once the gate opens.
    Wait(Gate),
}

fn status(status: u16) -> Verdict {
    let challenges = [("www-authenticate", "Bearer error=\"invalid_token\""), ("www-authenticate", "Basic")];
    let challenges = if status == 401 { &challenges[..] } else { &[] };
    let body = if status == 204 { "" } else { "not for the client" };
    Verdict::Answer(answer(status, challenges, body))
}

impl Guarded {
    async fn start(toml: &str) -> Self {
        let verdict = Arc::new(Mutex::new(status(204)));
        let told = Arc::clone(&verdict);
        let runs = Arc::new(Mutex::new(0));
        let upstream = Upstream::start(move |seen: Seen| {
            let (told, runs) = (Arc::clone(&told), Arc::clone(&runs));
            async move {
                if !seen.line.starts_with("GET /auth/check") {
                    let mut runs = runs.lock().unwrap();
                    *runs += 1;
                    return ok(format!("run {runs}"));
                }
                let verdict = told.lock().unwrap().clone();
                match verdict {
                    Verdict::Answer(bytes) => Act::Answer(bytes),
                    Verdict::Reset => Act::Reset,
                    Verdict::Wait(gate) => {
                        gate.pass().await;
                        Act::Answer(answer(204, &[], ""))
                    }
                }
            }
        });
        Self { stage: Stage::new(upstream.await, toml).await, verdict }
    }

    fn now(&self, verdict: Verdict) {
        *self.verdict.lock().unwrap() = verdict;
    }

    /// What `/auth/check` was asked.
    fn asked(&self) -> Vec<Seen> {
        self.stage.upstream.seen().into_iter().filter(|seen| seen.line.contains("/auth/check")).collect()
    }

    /// How often the API itself was called.
    fn runs(&self) -> usize {
        self.stage.runs() - self.asked().len()
    }

    async fn send(&self, call: &Call) -> crate::reply::Reply {
        self.stage.send(call).await
    }

    async fn id_of(&self, key: &str) -> String {
        self.stage.record(key).await.unwrap()["id"].as_str().unwrap().to_owned()
    }
}

/// A revoked credential got the stored response: replays never reach the upstream.
#[tokio::test]
async fn a_revoked_credential_gets_401_in_place_of_the_stored_response() {
    let guarded = Guarded::start(FILE).await;
    guarded.send(&Call::pay("one")).await.expect_first(200, "run 1");
    guarded.send(&Call::pay("one")).await.expect_replay(200, "run 1");
    guarded.now(status(401));
    let reply = guarded.send(&Call::pay("one")).await;
    reply.expect_problem(401, "not_authorized");
    let challenges: &[&[u8]] = &[b"Bearer error=\"invalid_token\"", b"Basic"];
    assert_eq!(reply.values("www-authenticate"), challenges);
    // Nor does it make a record.
    guarded.send(&Call::pay("two")).await.expect_problem(401, "not_authorized");
    assert_eq!((guarded.runs(), guarded.stage.state("two").await), (1, None));
    guarded.now(status(403));
    let reply = guarded.send(&Call::pay("one")).await;
    reply.expect_problem(403, "not_authorized");
    assert_eq!(reply.header("www-authenticate"), None);
    guarded.now(status(200));
    guarded.send(&Call::pay("one")).await.expect_replay(200, "run 1");
    guarded.send(&Call::pay("two")).await.expect_first(200, "run 2");
    assert_eq!(guarded.asked().len(), 7);
}

#[tokio::test]
async fn without_the_setting_nobody_is_asked_and_a_revoked_credential_gets_its_replay() {
    let guarded = Guarded::start("").await;
    guarded.send(&Call::pay("one")).await.expect_first(200, "run 1");
    guarded.now(status(401));
    guarded.send(&Call::pay("one")).await.expect_replay(200, "run 1");
    assert_eq!(guarded.asked(), []);
}

/// What is not a clear yes is no.
#[tokio::test]
async fn an_authorization_service_that_fails_refuses_everything() {
    let guarded =
        Guarded::start("[defaults]\npreauthorize = { url = \"/auth/check\", timeout = \"200ms\" }").await;
    guarded.send(&Call::pay("kept")).await.expect_first(200, "run 1");
    let moved = answer(302, &[("location", "/login")], "");
    let switching = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n".to_vec();
    for verdict in [
        status(500),
        status(503),
        status(404),
        status(429),
        status(407),
        Verdict::Answer(moved),
        Verdict::Answer(switching),
        Verdict::Answer(b"garbage\r\n\r\n".to_vec()),
        Verdict::Reset,
        Verdict::Wait(Gate::new()),
    ] {
        guarded.now(verdict);
        for key in ["kept", "new"] {
            let reply = guarded.send(&Call::pay(key)).await;
            reply.expect_problem(503, "authorization_unavailable");
            reply.expect_retry_after(Some(5));
        }
        assert_eq!((guarded.runs(), guarded.stage.state("new").await), (1, None));
    }
    guarded.now(status(204));
    guarded.send(&Call::pay("new")).await.expect_first(200, "run 2");
}

#[tokio::test]
async fn an_authorization_service_that_is_down_refuses_everything() {
    let service = Refusing::new();
    let toml = format!("[defaults]\npreauthorize = {{ url = \"http://{}/check\" }}", service.addr());
    let stage = Stage::numbered(&toml).await;
    stage.send(&Call::pay("one")).await.expect_problem(503, "authorization_unavailable");
    assert_eq!((stage.runs(), stage.state("one").await), (0, None));
    // It comes up: a whole URL is asked as it stands, below no base path.
    let service = Upstream::on(service.listen(), async |_| Act::Answer(answer(200, &[], "")));
    stage.send(&Call::pay("one")).await.expect_first(200, "run 1");
    assert_eq!(service.last().line, "GET /check HTTP/1.1");
    assert_eq!(service.last().header("host"), Some(&*service.addr.to_string()));
}

/// Whose state is it? It may hold the stored response.
#[tokio::test]
async fn the_state_of_an_operation_is_protected() {
    let guarded = Guarded::start(FILE).await;
    guarded.send(&Call::pay("one")).await.expect_first(200, "run 1");
    let path = format!("/.oncegate/operations/{}", guarded.id_of("one").await);
    assert_eq!(guarded.send(&Call::get(&path)).await.status, 200);
    let asked = guarded.asked().pop().unwrap();
    assert_eq!(asked.header("oncegate-original-method"), Some("GET"));
    assert_eq!(asked.header("oncegate-original-uri"), Some(&*path));
    assert_eq!(asked.header("oncegate-original-route"), Some("POST *"));
    guarded.now(status(401));
    for method in ["GET", "DELETE"] {
        let reply = guarded.send(&Call::anonymous(method, &path).tenant("acme")).await;
        reply.expect_problem(401, "not_authorized");
        assert_eq!(reply.values("www-authenticate").len(), 2);
    }
    guarded.now(status(500));
    guarded.send(&Call::get(&path)).await.expect_problem(503, "authorization_unavailable");
    // Another tenant's is absent, and the service is not asked about it.
    let asked = guarded.asked().len();
    let other = Call::anonymous("GET", &path).tenant("other");
    guarded.send(&other).await.expect_problem(404, "operation_not_found");
    assert_eq!(guarded.asked().len(), asked);
}

#[tokio::test]
async fn what_the_service_is_asked() {
    let scope = "[scope]\nfrom = \"header\"\nheader = \"x-tenant\"\ntrusted_peers = [\"127.0.0.1\"]\nalso = [\"stripe-account\"]\n";
    let rule =
        "[defaults]\npreauthorize = { url = \"/auth/check?for=gateway\", headers = [\"X-Api-Key\"] }\n";
    let guarded = Guarded::start(&format!("{scope}{rule}[[route]]\nmatch = \"POST /payments/{{id}}\"")).await;
    let call = Call::anonymous("POST", "/a/..//payments/%37?x=1&y")
        .key("one")
        .header("x-tenant", "acme")
        .header("stripe-account", "acct_1")
        .header("authorization", "Bearer secret")
        .header("cookie", "session=1")
        .header("x-api-key", "a")
        .header("x-api-key", "b")
        .header("x-other", "not said")
        .header("oncegate-original-method", "GET")
        .header("oncegate-original-uri", "/public")
        .header("oncegate-original-route", "GET /public")
        .json("{}");
    guarded.send(&call).await.expect_first(200, "run 1");
    let asked = guarded.asked().pop().unwrap();
    assert_eq!(
        (asked.line.as_str(), asked.body.as_slice()),
        ("GET /auth/check?for=gateway HTTP/1.1", &b""[..])
    );
    for (name, value) in [
        ("host", &*guarded.stage.upstream.addr.to_string()),
        ("x-tenant", "acme"),
        ("stripe-account", "acct_1"),
        ("authorization", "Bearer secret"),
        ("cookie", "session=1"),
        ("oncegate-original-method", "POST"),
        ("oncegate-original-uri", "/payments/7?x=1&y"),
        ("oncegate-original-route", "POST /payments/{id}"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-host", "api.test"),
        ("x-forwarded-proto", "http"),
    ] {
        assert_eq!(asked.header(name), Some(value), "{name}");
    }
    assert_eq!(asked.values("x-api-key"), ["a", "b"]);
    for name in
        ["idempotency-key", "content-type", "content-length", "transfer-encoding", "x-other", "expect"]
    {
        assert_eq!(asked.values(name), [""; 0], "{name}");
    }
    // Only the gateway says them, and only to that service.
    for seen in [guarded.stage.upstream.last(), {
        guarded.send(&Call::get("/open").header("oncegate-original-method", "GET")).await;
        guarded.stage.upstream.last()
    }] {
        assert!(!seen.headers.iter().any(|(name, _)| name.starts_with("oncegate-original")), "{seen:?}");
    }
    let call = Call::pay("two").header("oncegate_original_method", "GET");
    guarded.send(&call).await.expect_problem(400, "request_malformed");
}

/// A service that decides by address saw the load balancer in place of every client.
#[tokio::test]
async fn behind_a_trusted_proxy_the_service_is_told_of_the_client() {
    let scope = "[scope]\nfrom = \"authorization\"\ntrusted_peers = [\"127.0.0.0/8\"]\n";
    let guarded = Guarded::start(&format!("{scope}{FILE}")).await;
    let call = Call::pay("one")
        .header("x-forwarded-for", "203.0.113.9")
        .header("x-forwarded-proto", "https")
        .header("x-forwarded-host", "shop.test")
        .header("forwarded", "for=203.0.113.9;proto=https");
    guarded.send(&call).await.expect_first(200, "run 1");
    let (asked, seen) = (guarded.asked().remove(0), guarded.stage.upstream.last());
    for name in ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "forwarded"] {
        assert_eq!(asked.values(name), seen.values(name), "{name}: as the upstream gets it");
    }
    assert_eq!(asked.values("x-forwarded-for").join(", "), "203.0.113.9, 127.0.0.1");
    assert_eq!(asked.values("x-forwarded-proto"), ["https"]);
    assert_eq!(asked.values("x-forwarded-host"), ["shop.test"]);
}

/// What is refused in any case, or passes to the upstream, is not asked about.
#[tokio::test]
async fn local_refusals_come_first_and_the_body_is_read_last() {
    let guarded =
        Guarded::start(&format!("{FILE}[[route]]\nmatch = \"POST /optional\"\nkey_required = false")).await;
    guarded.send(&Call::post("/payments").json("{}")).await.expect_problem(400, "key_missing");
    guarded.send(&Call::post("/payments").key("\"").json("{}")).await.expect_problem(400, "key_invalid");
    let call = Call::anonymous("POST", "/payments").key("one").json("{}");
    guarded.send(&call).await.expect_problem(401, "scope_missing");
    guarded.send(&Call::get("/payments")).await.expect_first(200, "run 1");
    guarded.send(&Call::post("/optional").json("{}")).await.expect_first(200, "run 2");
    assert_eq!(guarded.asked(), []);
    // A client that asks first is refused before it sends its body.
    guarded.now(status(401));
    let mut client = Connection::to(guarded.stage.addr()).await;
    client.write(Call::pay("one").header("expect", "100-continue").head()).await;
    client.reply().await.expect_problem(401, "not_authorized");
    // Its body is not waited for either: the service is asked while it still comes.
    let gate = Gate::new();
    guarded.now(Verdict::Wait(gate.clone()));
    let mut client = Connection::to(guarded.stage.addr()).await;
    let call = Call::pay("one");
    client.write(call.head()).await;
    gate.entered().await;
    gate.open();
    client.write(r#"{"amount":100}"#).await;
    client.reply().await.expect_first(200, "run 3");
}

/// It is asked when the request is accepted, not when it runs: then there is no caller any more.
#[tokio::test]
async fn deferred_requests_are_asked_about_when_they_are_accepted() {
    let guarded = Guarded::start(&format!("{FILE}profile = \"accepted\"\n")).await;
    guarded.now(status(401));
    guarded.send(&Call::pay("one")).await.expect_problem(401, "not_authorized");
    assert_eq!(guarded.stage.state("one").await, None);
    guarded.now(status(204));
    let reply = guarded.send(&Call::pay("one").header("prefer", "wait=0")).await;
    assert_eq!(reply.status, 202, "{reply:?}");
    guarded.now(status(401));
    guarded.stage.upstream.ran(3).await;
    assert_eq!((guarded.runs(), guarded.asked().len()), (1, 2));
    let path = reply.header("location").unwrap().to_owned();
    guarded.send(&Call::get(&path)).await.expect_problem(401, "not_authorized");
    guarded.now(status(204));
    assert_eq!(guarded.send(&Call::get(&path).header("prefer", "wait=10")).await.text(), "run 1");
}

/// A caller that the service knows by a header of its own was accepted by that header, and its
/// request ran without it.
#[tokio::test]
async fn attack_33_deferred_requests_keep_the_header_that_the_service_knows_the_caller_by() {
    let asks = "preauthorize = { url = \"/auth/check\", headers = [\"x-api-key\"] }";
    for (credentials, kept) in [("kept", Some("k-17")), ("dropped", None)] {
        let file = format!("[defaults]\n{asks}\nprofile = \"accepted\"\ncredentials = \"{credentials}\"\n");
        let guarded = Guarded::start(&file).await;
        let call = Call::pay("one").header("x-api-key", "k-17").header("prefer", "wait=0");
        assert_eq!(guarded.send(&call).await.status, 202);
        guarded.stage.upstream.ran(2).await;
        let seen = guarded.stage.upstream.last();
        assert_eq!(seen.header("x-api-key"), kept, "{credentials}: {seen:?}");
    }
}

#[tokio::test]
async fn routes_inherit_it_and_may_be_excepted() {
    let routes = "[[route]]\nmatch = \"POST /payments\"\nprofile = \"payments\"\n\
                  [[route]]\nmatch = \"POST /free\"\nprofile = \"ietf\"\npreauthorize = \"off\"\n\
                  [[route]]\nmatch = \"POST /own\"\nprofile = \"ietf\"\npreauthorize = { url = \"/auth/check/own\" }\n";
    let guarded = Guarded::start(&format!("{FILE}profile = \"off\"\n{routes}")).await;
    // `payments` wants keys of some length, and each path is another request.
    let call = |path: &str| Call::post(path).key(&format!("key-of-{}-0123456789", &path[1..])).json("{}");
    for (path, asked) in [
        ("/payments", Some("/auth/check")),
        ("/free", None),
        ("/own", Some("/auth/check/own")),
        ("/off", None),
    ] {
        let before = guarded.asked().len();
        assert_eq!(guarded.send(&call(path)).await.status, 200, "{path}");
        let lines: Vec<_> = guarded.asked()[before..].iter().map(|seen| seen.line.clone()).collect();
        let expected: Vec<_> = asked.map(|path| format!("GET {path} HTTP/1.1")).into_iter().collect();
        assert_eq!(lines, expected, "{path}");
    }
    // One connection for all questions of an upstream, beside those of requests.
    let connections = guarded.stage.upstream.connections();
    for _ in 0..5 {
        guarded.send(&call("/payments")).await.expect_replay(200, "run 1");
    }
    assert_eq!(guarded.stage.upstream.connections(), connections);
}

#[tokio::test]
async fn a_reload_takes_it_over() {
    let mut guarded = Guarded::start("").await;
    guarded.now(status(401));
    guarded.send(&Call::pay("one")).await.expect_first(200, "run 1");
    let url = format!("http://{}", guarded.stage.upstream.addr);
    guarded.stage.gateway.reload(config(&url, FILE)).unwrap();
    guarded.send(&Call::pay("one")).await.expect_problem(401, "not_authorized");
    guarded.stage.gateway.reload(config(&url, "")).unwrap();
    guarded.send(&Call::pay("one")).await.expect_replay(200, "run 1");
}

/// The operation of a route that is gone was shown unasked, or by the weaker rule of `[defaults]`.
#[tokio::test]
async fn an_operation_whose_route_is_gone_is_refused_where_callers_are_checked() {
    let asks = "preauthorize = { url = \"/auth/check\" }\n";
    let route = |path: &str| format!("[[route]]\nmatch = \"POST {path}\"\nprofile = \"accepted\"\n{asks}");
    let off = "[defaults]\nprofile = \"off\"\n";
    let mut guarded = Guarded::start(&format!("{off}{}{}", route("/payments"), route("/other"))).await;
    let reply = guarded.send(&Call::pay("one").header("prefer", "wait=10")).await;
    assert_eq!((reply.status, reply.text()), (200, "run 1"), "{reply:?}");
    let path = format!("/.oncegate/operations/{}", guarded.id_of("one").await);
    let url = format!("http://{}", guarded.stage.upstream.addr);
    let asked = guarded.asked().len();
    for file in [format!("{off}{}", route("/other")), format!("[defaults]\n{asks}")] {
        guarded.stage.gateway.reload(config(&url, &file)).unwrap();
        for method in ["GET", "DELETE"] {
            let call = Call::anonymous(method, &path).tenant("acme");
            let problem = guarded.send(&call).await.expect_problem(403, "not_authorized");
            assert!(problem["detail"].as_str().unwrap().contains("formerly"), "{problem}");
        }
    }
    assert_eq!(guarded.asked().len(), asked, "no service knows the route");
    // Its route is declared, or no caller is checked at all.
    let renamed = route("/charges").replace("profile", "formerly = [\"POST /payments\"]\nprofile");
    guarded.stage.gateway.reload(config(&url, &format!("{off}{renamed}"))).unwrap();
    assert_eq!(guarded.send(&Call::get(&path)).await.text(), "run 1");
    guarded.stage.gateway.reload(config(&url, off)).unwrap();
    assert_eq!(guarded.send(&Call::get(&path)).await.text(), "run 1");
    assert_eq!(guarded.asked().len(), asked + 1);
}

#[tokio::test]
async fn over_http_2() {
    let upstream = Both::start(None).await;
    let toml = format!("{FILE}[upstream]\nhttp = \"2\"");
    let gateway = start(&format!("http://{}/base", upstream.addr), &toml).await;
    Call::pay("one").send(gateway.address()).await.expect_first(200, "run 2");
    let asked = upstream
        .seen()
        .into_iter()
        .map(|(head, body)| (head.uri.path().to_owned(), head.version, body.len()));
    let expected = [("/base/auth/check", 0), ("/base/payments", 14)];
    let expected = expected.map(|(path, bytes)| (path.to_owned(), Version::HTTP_2, bytes));
    assert_eq!(asked.collect::<Vec<_>>(), expected);
}
