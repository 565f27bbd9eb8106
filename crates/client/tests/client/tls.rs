//! The same by TLS.

use std::io;
use std::sync::Arc;

use oncegate_client::Outcome;
use oncegate_test_servers::Certificate;
use serde_json::json;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, crypto::ring};
use tokio_rustls::server::TlsStream;

use crate::scripted::{Reset, Scripted};
use crate::{answer, attempts, hurried, replay};

impl Reset for TlsStream<TcpStream> {
    fn reset(&self) {
        self.get_ref().0.reset();
    }
}

/// A server with a certificate that only `trusting` trusts.
struct Tls {
    acceptor: TlsAcceptor,
    trusting: ClientConfig,
}

impl Tls {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let files = Certificate::new(folder.path());
        let provider = Arc::new(ring::default_provider());
        let chain = vec![CertificateDer::from_pem_file(&files.certificate).unwrap()];
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, PrivateKeyDer::from_pem_file(&files.key).unwrap())
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&files.authority).unwrap()).unwrap();
        let trusting = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self { acceptor: TlsAcceptor::from(Arc::new(server)), trusting }
    }

    async fn start(&self, steps: serde_json::Value) -> Scripted {
        let acceptor = self.acceptor.clone();
        let greet = move |stream| {
            let acceptor = acceptor.clone();
            async move { acceptor.accept(stream).await as io::Result<_> }
        };
        Scripted::serve(&steps, "https", greet).await
    }
}

#[tokio::test]
async fn by_tls_a_server_that_is_not_trusted_was_sent_nothing() {
    let server = Tls::new().start(json!([answer()])).await;
    let client = hurried().limits(attempts(2)).build().unwrap();
    let outcome = client.post(&server.url).run().await.unwrap();
    let Outcome::DidNotHappen(no) = outcome else { panic!("{outcome:?}") };
    assert_eq!((no.why.as_str(), no.asked.attempts), ("attempts", 2));
    assert!(server.requests().is_empty());
    assert!(format!("{:?}", no.last).contains("UnknownIssuer"), "{:?}", no.last);
}

#[tokio::test]
async fn by_tls_it_is_the_same() {
    let tls = Tls::new();
    let server = tls.start(json!([{ "do": "cut" }, { "do": "reset" }, replay()])).await;
    let client = hurried().tls(tls.trusting.clone()).build().unwrap();
    let outcome = client.post(&server.url).body("x").run().await.unwrap();
    assert_eq!((outcome.as_str(), outcome.asked().attempts), ("happened", 3), "{outcome:?}");
}
