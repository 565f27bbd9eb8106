//! TLS towards the upstream.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::{ConfigError, Http, Upstream};

/// Shakes hands with one host.
pub(super) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Tls {
    pub(super) fn new(host: &str, upstream: &Upstream) -> Result<Self, ConfigError> {
        let wrong = |message: String| ConfigError::of("upstream", message);
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| wrong(format!("{host:?} cannot be the name on a certificate")))?;
        let roots = match &upstream.tls_ca {
            Some(path) => of_file(path)?,
            None => of_system()?,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(format!("TLS cannot be used: {error}")))?;
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = match upstream.http {
            Http::Auto => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            Http::One => vec![b"http/1.1".to_vec()],
            Http::Two => vec![b"h2".to_vec()],
        };
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), name })
    }

    pub(super) async fn connect(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.connector.connect(self.name.clone(), stream).await
    }
}

fn of_file(path: &Path) -> Result<RootCertStore, ConfigError> {
    let wrong =
        |message: String| ConfigError::of("upstream.tls_ca", format!("{}: {message}", path.display()));
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(wrong("holds no certificate; expected PEM".to_owned()));
    }
    Ok(roots)
}

fn of_system() -> Result<RootCertStore, ConfigError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        let words = "this system trusts no certificates at all; say which to trust with upstream.tls_ca";
        return Err(ConfigError::of("upstream", words));
    }
    Ok(roots)
}
