//! Who reaches the admin listener, and what a caller without a right to it learns.

use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;

use oncegate_gateway::{Config, Gateway, Given, ListenAddress, Secret};
use oncegate_test_servers::{Redis, TcpProxy};
use serde_json::json;

use crate::client::{Call, Connection, send_raw, within};
use crate::gateway::{Stage, admin};
use crate::http1::Http1;
use crate::http2;
use crate::tls::Certificates;

const TOKEN: &str = "0123456789abcdef";

/// Everything that shows or changes records or metrics, as method and path: what the interface's
/// own document says, which a test holds against the routes.
async fn guarded(stage: &Stage) -> Vec<String> {
    let document = admin(&stage.gateway, "/api/v1/openapi.json").await.json();
    let mut lines = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let prefix = if path.starts_with("/api/v1/jobs/") { "job" } else { "op" };
        let path = path.replace("{id}", &format!("{prefix}_00000000000000000000000000"));
        let methods = methods.as_object().unwrap().iter();
        let methods = methods.filter(|(_, operation)| operation["security"] != json!([]));
        lines.extend(methods.map(|(method, _)| format!("{} {path}", method.to_uppercase())));
    }
    for line in ["GET /metrics", "GET /api/v1/audit", "POST /api/v1/comparisons"] {
        assert!(lines.iter().any(|one| one == line), "{line}: {lines:?}");
    }
    assert!(!lines.iter().any(|line| line.contains("healthz") || line.contains("readyz")), "{lines:?}");
    lines
}

/// A page at evil.example let its name resolve to 127.0.0.1. The browser took what it asked for as
/// coming from the page's own origin, and the page read every record.
#[tokio::test]
async fn without_a_token_only_a_loopback_host_is_served() {
    let stage = Stage::numbered("").await;
    let to = stage.gateway.admin_address().tcp().unwrap();
    let foreign = [
        "evil.example",
        "evil.example:9090",
        "localhost.evil.example",
        "127.0.0.1.evil.example:9090",
        "127.0.0.1@evil.example",
        "127.0.0.1:80@evil.example",
        "127.0.0.1:port",
        "127.0.0.1:99999",
        "128.0.0.1",
        "0.0.0.0",
        "192.0.2.1:9090",
        "[::2]",
        "[::1",
        "::1",
        "",
    ];
    for line in guarded(&stage).await {
        for host in foreign {
            let request = format!("{line} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n");
            let reply = send_raw(to, request).await;
            assert_eq!(reply.status, 421, "{line} {host:?}: {reply:?}");
            assert_eq!(reply.header("content-type"), Some("application/problem+json"));
            let detail = reply.json()["detail"].as_str().unwrap().to_owned();
            assert!(detail.contains("127.0.0.1") && detail.contains("admin.token_file"), "{detail}");
        }
    }
    for request in [
        "GET http://evil.example/metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "GET http://evil.example/metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n",
        "GET /metrics HTTP/1.1\r\n\r\n",
    ] {
        let reply = send_raw(to, request).await;
        assert_eq!(reply.status, 421, "{request:?}: {reply:?}");
    }
    for host in
        ["127.0.0.1", "127.0.0.1:9090", "127.8.9.10:1", "localhost", "LocalHost:9090", "[::1]", "[::1]:9090"]
    {
        let reply = send_raw(to, format!("GET /api/v1/counts HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        assert_eq!(reply.status, 200, "{host}");
    }
    // Probes of an orchestrator come with the pod's address.
    for path in ["/healthz", "/readyz"] {
        let reply = send_raw(to, format!("GET {path} HTTP/1.1\r\nHost: 10.1.2.3:9090\r\n\r\n")).await;
        assert_eq!(reply.status, 200, "{path}");
    }
}

#[tokio::test]
async fn without_a_token_no_page_of_another_origin_is_served() {
    let stage = Stage::numbered("").await;
    let to = stage.gateway.admin_address().tcp().unwrap();
    for line in guarded(&stage).await {
        for origin in ["http://evil.example", "https://localhost.evil.example:9090", "null", ""] {
            let request = format!(
                "{line} HTTP/1.1\r\nHost: 127.0.0.1:9090\r\nOrigin: {origin}\r\nContent-Length: 0\r\n\r\n"
            );
            let reply = send_raw(to, request).await;
            assert_eq!(reply.status, 403, "{line} {origin:?}: {reply:?}");
            assert_eq!(reply.header("content-type"), Some("application/problem+json"));
        }
    }
    for origin in ["http://localhost:9090", "https://127.0.0.1", "http://[::1]:9090"] {
        let request =
            format!("GET /api/v1/counts HTTP/1.1\r\nHost: localhost:9090\r\nOrigin: {origin}\r\n\r\n");
        assert_eq!(send_raw(to, request).await.status, 200, "{origin}");
    }
}

/// Other machines use other names, and prove that they may by the token.
#[tokio::test]
async fn with_a_token_any_host_is_served() {
    let stage = Stage::numbered(&format!("[admin]\ntoken = \"{TOKEN}\"")).await;
    let call = Call::anonymous("GET", "/api/v1/counts").header("origin", "https://ops.example.com");
    assert_eq!(call.send(stage.gateway.admin_address().tcp().unwrap()).await.status, 401);
    let call = call.header("authorization", format!("Bearer {TOKEN}"));
    assert_eq!(call.send(stage.gateway.admin_address().tcp().unwrap()).await.status, 200);
}

/// The store's error names hosts, users and files.
#[tokio::test(flavor = "multi_thread")]
async fn readiness_tells_the_cause_only_to_callers_that_may_see_records() {
    let redis = Redis::start(&[]);
    let cable = TcpProxy::start(&redis.url());
    let address = cable.url_of(&redis.url());
    for (section, is_open) in [("", true), ("[admin]\ntoken = \"0123456789abcdef\"\n", false)] {
        let stage = Stage::numbered(&format!("{section}[store]\nurl = \"{address}\"")).await;
        let to = stage.gateway.admin_address().tcp().unwrap();
        cable.cut();
        let ready = |host: &str, header: &str| {
            let request = format!("GET /readyz HTTP/1.1\r\nHost: {host}\r\n{header}\r\n");
            async move { send_raw(to, request).await }
        };
        let expected = json!({ "ready": false, "store": "not ready", "load": "ok", "life": "ok" });
        let foreign = ready("evil.example", "").await;
        assert_eq!((foreign.status, foreign.json()), (503, expected.clone()));
        let local = ready("127.0.0.1", "").await;
        let token = ready("evil.example", "Authorization: Bearer 0123456789abcdef\r\n").await;
        let (told, untold) = if is_open { (local, token) } else { (token, local) };
        assert_eq!((untold.status, untold.json()), (503, expected));
        assert_eq!((told.status, &told.json()["store"]), (503, &json!("not ready")));
        let why = told.json()["store_error"].as_str().unwrap().to_owned();
        assert!(why.contains("127.0.0.1"), "{why}");
        cable.mend();
    }
}

/// One connection that said nothing, or half a head, was held for ever.
#[tokio::test]
async fn slow_and_idle_operators_are_closed_and_make_room() {
    let limits = "[listen]\nheader_timeout = \"100ms\"\nbody_timeout = \"100ms\"\nidle_timeout = \"100ms\"\n\
                  [admin]\nconnections_max = 1";
    let stage = Stage::numbered(limits).await;
    let to = stage.gateway.admin_address().tcp().unwrap();
    let mut silent = Connection::to(to).await;
    // Let in when there is room again.
    let mut half = Connection::to(to).await;
    half.write("GET /healthz HTTP/1.1\r\nHost: ").await;
    silent.closed().await;
    assert_eq!(half.reply().await.status, 408);
    half.closed().await;
    let mut idle = Connection::to(to).await;
    assert_eq!(idle.ask(&Call::operator("GET", "/healthz")).await.status, 200);
    idle.closed().await;
    let mut stopped = Connection::to(to).await;
    let act = Call::operator("POST", "/api/v1/records/op_00000000000000000000000000/retry").json("{ }");
    stopped.write(act.head()).await;
    stopped.write("{").await;
    assert_eq!(within(stopped.reply()).await.status, 413);
    drop(stopped);
    assert_eq!(admin(&stage.gateway, "/healthz").await.status, 200);
}

#[test]
fn off_loopback_tls_or_an_explicit_plaintext_is_asked_for() {
    let parse = |toml: &str| {
        let given = Given { upstream: Some("http://127.0.0.1:1".to_owned()), ..Given::default() };
        Config::parse(None, toml, &given)
    };
    for address in ["0.0.0.0:9090", "[::]:9090", "192.0.2.1:9090"] {
        let open = format!("[admin]\naddress = \"{address}\"\ntoken = \"{TOKEN}\"\n");
        let error = parse(&open).unwrap_err().to_string();
        assert!(error.contains("admin.tls_certificate") && error.contains("plaintext = true"), "{error}");
        let plain = parse(&format!("{open}plaintext = true")).unwrap();
        let warned =
            plain.warnings.iter().find(|warning| warning.starts_with("line 4: admin.plaintext = true"));
        assert!(warned.is_some_and(|words| words.contains("tls_certificate")), "{:?}", plain.warnings);
        let tls = "tls_certificate = \"a.pem\"\ntls_key = \"b.pem\"\n";
        assert!(parse(&format!("{open}{tls}")).is_ok());
        let error = parse(&format!("[admin]\naddress = \"{address}\"\n{tls}")).unwrap_err().to_string();
        assert!(error.contains("admin.token_file"), "{error}");
    }
    let local = parse("[admin]\naddress = \"127.0.0.1:9090\"\nplaintext = true").unwrap();
    assert!(local.warnings.iter().all(|warning| !warning.contains("plaintext")), "{:?}", local.warnings);
}

/// The same listener as the clients': HTTP/1.1 and HTTP/2 over TLS, and no clear text beside it.
#[tokio::test]
async fn operators_come_by_tls() {
    let certificates = Certificates::new();
    let toml = format!("[admin]\ntoken = \"{TOKEN}\"\n{}", certificates.files());
    let stage = Stage::numbered(&toml).await;
    let to = stage.gateway.admin_address().tcp().unwrap();
    let token = format!("Bearer {TOKEN}");
    let mut one = Http1::over(certificates.connect(to, "http/1.1").await).await;
    assert_eq!(one.get("/api/v1/counts", &[("host", "localhost")]).await.status, 401);
    let headers = [("host", "gateway.test"), ("authorization", token.as_str())];
    assert_eq!(one.get("/api/v1/counts", &headers).await.status, 200);
    let mut two = http2::over(certificates.connect(to, "h2").await).await;
    let request = http::Request::get("https://localhost/api/v1/counts")
        .header("authorization", token)
        .body(http_body_util::Empty::new().into())
        .unwrap();
    assert_eq!(http2::ask(&mut two, request).await.status, 200);
    let mut clear = Connection::to(to).await;
    clear.write("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert!(clear.try_reply().await.is_err(), "no answer in clear text");
}

/// HTTP/2 says the host in `:authority`.
#[tokio::test]
async fn without_a_token_http2_is_asked_for_its_host_too() {
    let stage = Stage::numbered("").await;
    let to = stage.gateway.admin_address().tcp().unwrap();
    let mut client = http2::connect(to).await;
    for (host, status) in [("evil.example", 421), ("evil.example:9090", 421), ("127.0.0.1:9090", 200)] {
        let request = http::Request::get(format!("http://{host}/api/v1/counts"))
            .body(http_body_util::Empty::new().into())
            .unwrap();
        assert_eq!(http2::ask(&mut client, request).await.status, status, "{host}");
    }
}

async fn start_on(socket: &Path) -> Result<Gateway, String> {
    let given = Given {
        upstream: Some("http://127.0.0.1:1".to_owned()),
        listen: Some("127.0.0.1:0".to_owned()),
        store: Some(Secret::new("memory:")),
        ..Given::default()
    };
    let toml = format!("[admin]\naddress = \"unix:{}\"", socket.display());
    let config = Config::parse(None, &toml, &given).unwrap();
    Gateway::start(config, None).await.map_err(|error| error.to_string())
}

async fn ask_on(socket: &Path, host: &str) -> u16 {
    let stream = within(tokio::net::UnixStream::connect(socket)).await.unwrap();
    Http1::over(stream).await.get("/api/v1/counts", &[("host", host)]).await.status
}

#[tokio::test]
async fn a_unix_socket_is_for_this_user_and_replaces_only_a_dead_one() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("admin.sock");
    // Left by a process that is gone: nothing listens on it.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    let gateway = start_on(&socket).await.unwrap();
    assert_eq!(gateway.admin_address(), &ListenAddress::Unix(socket.clone()));
    let found = std::fs::symlink_metadata(&socket).unwrap();
    assert!(found.file_type().is_socket());
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|name| name.unwrap().path()).collect();
    assert_eq!(names, std::slice::from_ref(&socket), "nothing else is left");
    assert_eq!(ask_on(&socket, "localhost").await, 200);
    assert_eq!(ask_on(&socket, "evil.example").await, 421);

    let error = start_on(&socket).await.err().unwrap();
    assert!(error.contains("another process listens on it"), "{error}");
    assert_eq!(ask_on(&socket, "localhost").await, 200, "the first one still answers");
    assert!(within(gateway.shut_down()).await);
    assert!(!socket.exists(), "its file goes with it");

    std::fs::write(&socket, "not a socket").unwrap();
    let error = start_on(&socket).await.err().unwrap();
    assert!(error.contains("not a socket"), "{error}");
    assert_eq!(std::fs::read(&socket).unwrap(), b"not a socket");
}
