//! A gateway's admin listener as a command asks it: in clear text, by TLS, or over a Unix socket.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use example_payments::post::{self, NoReply, Reply};
use hyper::Request;
use hyper::body::Bytes;
use hyper::http::request;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::source::{Trouble, sentence, variable};

/// Where a gateway's admin listener is if no address is given.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:9090";

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// Asks one admin listener.
pub(crate) struct AdminClient {
    endpoint: Endpoint,
    token: Option<String>,
}

enum Endpoint {
    /// Host and port.
    Http(String),
    Https {
        /// Host and port.
        address: String,
        name: ServerName<'static>,
        tls: TlsConnector,
    },
    Unix(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(address) => write!(f, "http://{address}"),
            Self::Https { address, .. } => write!(f, "https://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl AdminClient {
    /// `url` is `http://HOST:PORT`, `https://HOST` or `unix:PATH`; `ca` is a PEM file of certificates
    /// that are trusted besides the system's.
    pub(crate) fn new(url: &str, ca: Option<&Path>) -> Result<Self, Trouble> {
        let endpoint = match (url.strip_prefix("unix:"), url.strip_prefix("https://")) {
            (Some(path), _) if !path.is_empty() => Endpoint::Unix(path.into()),
            (Some(_), _) => return Err(not_a_listener(url)),
            (None, Some(rest)) => {
                let (host, port) = host_and_port(url, rest, Some(443))?;
                let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
                let name = name.map_err(|_| not_a_listener(url))?;
                Endpoint::Https { address: format!("{host}:{port}"), name, tls: connector(ca)? }
            }
            (None, None) => {
                let (host, port) = host_and_port(url, url.strip_prefix("http://").unwrap_or(url), None)?;
                Endpoint::Http(format!("{host}:{port}"))
            }
        };
        if let (Some(ca), false) = (ca, matches!(endpoint, Endpoint::Https { .. })) {
            let words = format!("--ca {} has an effect only with --admin https://HOST", ca.display());
            return Err(Trouble::Wrong(words));
        }
        Ok(Self { endpoint, token: variable("ONCEGATE_ADMIN_TOKEN") })
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value, Trouble> {
        self.ask(Request::get(path), Bytes::new()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value, Trouble> {
        let request = Request::post(path).header("content-type", "application/json");
        self.ask(request, body.to_string().into()).await
    }

    async fn ask(&self, mut request: request::Builder, body: Bytes) -> Result<Value, Trouble> {
        let host = match &self.endpoint {
            Endpoint::Http(address) | Endpoint::Https { address, .. } => address.as_str(),
            Endpoint::Unix(_) => "localhost",
        };
        request = request.header("host", host).header("content-length", body.len());
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let changes = !body.is_empty();
        let request = request.body(body).map_err(|error| Trouble::Wrong(error.to_string()))?;
        let sent = tokio::time::timeout(PATIENCE, self.send(request)).await;
        let reply = match sent.unwrap_or(Err(SendError::NoReply(NoReply::TimedOut))) {
            Ok(reply) => reply,
            Err(SendError::Tls(error)) => {
                return Err(Trouble::Failed(format!(
                    "no TLS connection to {}: {error}; if its certificate is from a private authority, pass that certificate with --ca FILE",
                    self.endpoint
                )));
            }
            Err(SendError::NoReply(why)) => return Err(self.no_reply(why, changes)),
        };
        let body = reply.json();
        let words = sentence(body["detail"].as_str().unwrap_or("no reason given"));
        match reply.status.as_u16() {
            200 => Ok(body),
            400 => Err(Trouble::Wrong(words)),
            401 if self.token.is_some() => {
                Err(Trouble::Failed("the gateway rejected the token in ONCEGATE_ADMIN_TOKEN".to_owned()))
            }
            401 => {
                Err(Trouble::Failed("the gateway wants its admin token: set ONCEGATE_ADMIN_TOKEN".to_owned()))
            }
            404 if body["title"] == "No such record" => Err(Trouble::NotFound(words)),
            409 if body["type"] == "about:blank" => Err(Trouble::Refused(words)),
            // The admin listener's own problems have no page.
            status if body["type"] == "about:blank" => {
                Err(Trouble::Failed(format!("the gateway answered {status}: {words}")))
            }
            status => Err(Trouble::Failed(format!(
                "{} answered {status}, which is not an answer of an admin listener; is this the address for clients?",
                self.endpoint
            ))),
        }
    }

    /// Sends it on a connection of its own.
    async fn send(&self, request: Request<Bytes>) -> Result<Reply, SendError> {
        let not_sent = |_| SendError::NoReply(NoReply::NotSent);
        let reply = match &self.endpoint {
            Endpoint::Http(address) => {
                post::exchange(TcpStream::connect(address).await.map_err(not_sent)?, request).await
            }
            Endpoint::Https { address, name, tls } => {
                let stream = TcpStream::connect(address).await.map_err(not_sent)?;
                let stream = tls.connect(name.clone(), stream).await;
                post::exchange(stream.map_err(|error| SendError::Tls(error.to_string()))?, request).await
            }
            Endpoint::Unix(path) => {
                post::exchange(UnixStream::connect(path).await.map_err(not_sent)?, request).await
            }
        };
        reply.map_err(SendError::NoReply)
    }

    fn no_reply(&self, why: NoReply, changes: bool) -> Trouble {
        let endpoint = &self.endpoint;
        if changes && why != NoReply::NotSent {
            return Trouble::Failed(format!(
                "the gateway at {endpoint} {why}, and may have done it: look at the record's story before you do it again. Doing it \
                 again with the same --version is safe, and is refused if it was done"
            ));
        }
        Trouble::Failed(format!(
            "the gateway at {endpoint} {why}; is it running? Name another with --admin, or a store with --store"
        ))
    }
}

enum SendError {
    /// The handshake failed; nothing was sent.
    Tls(String),
    NoReply(NoReply),
}

fn not_a_listener(url: &str) -> Trouble {
    Trouble::Wrong(format!(
        "{url:?} is not an admin listener; expected the like of {DEFAULT_URL}, https://HOST or unix:PATH"
    ))
}

/// Of `HOST:PORT`, with or without a slash at its end.
fn host_and_port<'a>(url: &str, rest: &'a str, default_port: Option<u16>) -> Result<(&'a str, u16), Trouble> {
    let address = rest.trim_end_matches('/');
    if address.contains('@') {
        // Not shown: what stands before it may be a password.
        let words = format!(
            "an admin listener's URL has no user; expected the like of {DEFAULT_URL}, and the token in ONCEGATE_ADMIN_TOKEN"
        );
        return Err(Trouble::Wrong(words));
    }
    if address.is_empty() || address.contains(['/', '?', '#']) {
        return Err(not_a_listener(url));
    }
    let has_port = address.rfind(':').is_some_and(|colon| !address[colon..].contains(']'));
    let (host, port) = match address.rsplit_once(':').filter(|_| has_port) {
        Some((host, port)) => (host, port.parse().ok()),
        None => (address, default_port),
    };
    match port {
        Some(port) if !host.is_empty() => Ok((host, port)),
        _ => Err(not_a_listener(url)),
    }
}

/// Trusts the system's certificates, and those of a file.
fn connector(ca: Option<&Path>) -> Result<TlsConnector, Trouble> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca {
        let wrong = |words: String| Trouble::Wrong(format!("--ca {}: {words}", path.display()));
        let before = roots.len();
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))? {
            let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
            roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
        }
        if roots.len() == before {
            return Err(wrong("holds no certificate; expected PEM".to_owned()));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| Trouble::Failed(format!("TLS cannot be used: {error}")))?;
    Ok(TlsConnector::from(Arc::new(config.with_root_certificates(roots).with_no_client_auth())))
}
