//! HTTP/1.1 and HTTP/2, in and out, with TLS and without, in all combinations: one meaning.

use bytes::Bytes;
use http::{Request, Version};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::client::{Call, send_raw, within};
use crate::gateway::{start, state};
use crate::http2::{self, Both};
use crate::reply::Reply;
use crate::tls::Certificates;

/// A client of either version, over what is given.
enum Client {
    One(hyper::client::conn::http1::SendRequest<Full<Bytes>>),
    Two(http2::Client),
}

impl Client {
    async fn connect(
        certificates: &Certificates,
        to: std::net::SocketAddr,
        version: u8,
        is_tls: bool,
    ) -> Self {
        let protocol = if version == 2 { "h2" } else { "http/1.1" };
        match (version, is_tls) {
            (2, false) => Self::Two(http2::connect(to).await),
            (2, true) => Self::Two(http2::over(certificates.connect(to, protocol).await).await),
            (_, false) => Self::one(TcpStream::connect(to).await.unwrap()).await,
            (_, true) => Self::one(certificates.connect(to, protocol).await).await,
        }
    }

    async fn one<T>(stream: T) -> Self
    where
        T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        let shaking = hyper::client::conn::http1::handshake(TokioIo::new(stream));
        let (client, connection) = within(shaking).await.unwrap();
        tokio::spawn(connection);
        Self::One(client)
    }

    async fn pay(&mut self, key: &str) -> Reply {
        let request = Request::post(match self {
            Self::One(_) => "/payments?a=b",
            Self::Two(_) => "http://api.test/payments?a=b",
        });
        let request = request.header("authorization", "Bearer acme").header("idempotency-key", key);
        let request = match self {
            Self::One(_) => request.header("host", "api.test"),
            Self::Two(_) => request,
        };
        let request = request.header("content-type", "application/json");
        let request = request.body(Full::from("{\"amount\":100}")).unwrap();
        match self {
            Self::One(client) => http2::reply(within(client.send_request(request)).await.unwrap()).await,
            Self::Two(client) => http2::reply(within(client.send_request(request)).await.unwrap()).await,
        }
    }
}

/// In by version and TLS, out by version and TLS, with the upstream's or the client's host.
async fn through(inn: (u8, bool), out: (u8, bool), host: &str) {
    let certificates = Certificates::new();
    let acceptor = out.1.then(|| certificates.acceptor(&["h2", "http/1.1"]));
    let upstream = Both::start(acceptor).await;
    let mut toml = format!("[upstream]\nhost = {host:?}\nhttp = \"{}\"\n", out.0);
    if out.1 {
        toml.push_str(&certificates.trust());
    }
    if inn.1 {
        toml.push_str(&certificates.listen());
    }
    let scheme = if out.1 { "https" } else { "http" };
    let behind = format!("{scheme}://localhost:{}/v1", upstream.addr.port());
    let gateway = Box::new(Box::pin(start(&behind, &toml)).await);
    let mut client = Client::connect(&certificates, gateway.address(), inn.0, inn.1).await;

    let case = format!("in {inn:?}, out {out:?}, host {host}");
    let first = client.pay("one").await;
    first.expect_first(200, "run 1");
    let again = client.pay("one").await;
    again.expect_replay(200, "run 1");
    assert_eq!(first.in_common(), again.in_common(), "{case}");
    client.pay("two").await.expect_first(200, "run 2");
    assert_eq!(upstream.runs(), 2, "{case}");

    let (head, body) = upstream.last();
    assert_eq!(body, "{\"amount\":100}", "{case}");
    assert_eq!(head.version, if out.0 == 2 { Version::HTTP_2 } else { Version::HTTP_11 }, "{case}");
    assert_eq!(head.uri.path_and_query().unwrap().as_str(), "/v1/payments?a=b", "{case}");
    let own = format!("localhost:{}", upstream.addr.port());
    let expected = if host == "client" { "api.test" } else { own.as_str() };
    let named = head.headers.get("host").map(|host| host.to_str().unwrap());
    match out.0 {
        // The host is in one place.
        2 => {
            assert_eq!(head.uri.authority().map(http::uri::Authority::as_str), Some(expected), "{case}");
            assert_eq!((head.uri.scheme_str(), named), (Some(scheme), None), "{case}");
        }
        _ => assert_eq!((head.uri.authority(), named), (None, Some(expected)), "{case}"),
    }
    assert_eq!(head.headers["via"], if inn.0 == 2 { "2 oncegate" } else { "1.1 oncegate" }, "{case}");
    assert_eq!(head.headers["x-forwarded-proto"], if inn.1 { "https" } else { "http" }, "{case}");
    assert_eq!(head.headers["idempotency-key"], "two", "{case}");
    let via = if out.0 == 2 { "2 oncegate" } else { "1.1 oncegate" };
    assert_eq!(first.header("via"), Some(via), "{case}");
}

#[tokio::test]
async fn without_tls() {
    for inn in [1, 2] {
        for out in [1, 2] {
            through((inn, false), (out, false), "upstream").await;
            through((inn, false), (out, false), "client").await;
        }
    }
}

#[tokio::test]
async fn with_tls() {
    for inn in [1, 2] {
        for out in [1, 2] {
            through((inn, true), (out, true), "upstream").await;
            through((inn, true), (out, true), "client").await;
        }
    }
}

#[tokio::test]
async fn tls_on_one_side() {
    through((1, true), (1, false), "upstream").await;
    through((2, false), (2, true), "upstream").await;
}

/// `http = "auto"`: what the handshake negotiates.
#[tokio::test]
async fn the_version_that_an_upstream_offers() {
    for (offers, expected) in [
        (&["h2", "http/1.1"][..], Version::HTTP_2),
        (&["http/1.1"], Version::HTTP_11),
        (&[], Version::HTTP_11),
    ] {
        let certificates = Certificates::new();
        let upstream = Both::start(Some(certificates.acceptor(offers))).await;
        let url = format!("https://localhost:{}", upstream.addr.port());
        let gateway = start(&url, &format!("[upstream]\n{}", certificates.trust())).await;
        for (run, key) in ["one", "two", "three"].into_iter().enumerate() {
            let reply = Call::pay(key).send(gateway.address()).await;
            reply.expect_first(200, &format!("run {}", run + 1));
            assert_eq!(upstream.last().0.version, expected, "{offers:?}");
        }
    }
}

/// A certificate that nobody vouches for, and one for somebody else.
#[tokio::test]
async fn an_upstream_that_is_not_trusted() {
    let (theirs, ours) = (Certificates::new(), Certificates::new());
    let upstream = Both::start(Some(theirs.acceptor(&["h2"]))).await;
    let port = upstream.addr.port();
    for (url, trusted) in
        [(format!("https://localhost:{port}"), &ours), (format!("https://127.0.0.2:{port}"), &theirs)]
    {
        let gateway = start(&url, &format!("[upstream]\n{}", trusted.trust())).await;
        let reply = Call::pay("one").send(gateway.address()).await;
        reply.expect_problem(502, "upstream_unreachable");
        assert_eq!(state(&gateway, "one").await.as_deref(), Some("failed_retryable"));
    }
    assert_eq!(upstream.runs(), 0);
}

/// What is removed from the head of an untrusted client came back in trailers, which HTTP/2
/// carries to the upstream.
#[tokio::test]
async fn trailers_of_a_request_do_not_reach_the_upstream() {
    let upstream = Both::start(None).await;
    let toml = "[upstream]\nhttp = \"2\"\n[scope]\nfrom = \"header\"\nheader = \"x-tenant\"\n\
                trusted_peers = [\"127.0.0.9/32\"]\n";
    let gateway = start(&format!("http://{}", upstream.addr), toml).await;
    let head = "PUT /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntrailer: x-tenant\r\n\r\n";
    let body = "2\r\n{}\r\n0\r\nx-tenant: victim\r\nidempotency-attempt: 9\r\n\r\n";
    send_raw(gateway.address(), format!("{head}{body}")).await.expect_first(200, "run 1");

    let stream = TcpStream::connect(gateway.address()).await.unwrap();
    let (client, connection) = within(h2::client::handshake(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut client = within(client.ready()).await.unwrap();
    let request = Request::put("http://a/x").body(()).unwrap();
    let (response, mut body) = client.send_request(request, false).unwrap();
    body.send_data(Bytes::from("{}"), false).unwrap();
    let trailers = [("x-tenant", "victim"), ("idempotency-key", "one")];
    let trailers = trailers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
    body.send_trailers(trailers.into_iter().collect()).unwrap();
    assert_eq!(within(response).await.unwrap().status(), 200);

    let seen = upstream.seen();
    assert_eq!(seen.len(), 2);
    for (head, body) in seen {
        assert_eq!((head.version, body), (Version::HTTP_2, Bytes::from("{}")));
        assert_eq!(head.headers.get("x-tenant"), None);
        assert_eq!(head.extensions.get::<http::HeaderMap>(), None);
    }
}
