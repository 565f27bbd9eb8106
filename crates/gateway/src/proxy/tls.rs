//! TLS towards the upstream, and towards servers that are asked or told something.

use std::io;
use std::sync::{Arc, LazyLock};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::{ConfigError, Http, Trust, Upstream};

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
        let roots = roots(&upstream.trust)?;
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

/// The authorities of this machine, loaded when the first connection needs them.
static SYSTEM: LazyLock<RootCertStore> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
});

fn roots(trust: &Trust) -> Result<RootCertStore, ConfigError> {
    let mut roots = if trust.has_system { SYSTEM.clone() } else { RootCertStore::empty() };
    // They were checked when the configuration was read.
    let files = trust.files.iter().flat_map(|file| file.certificates.iter().cloned());
    roots.add_parsable_certificates(files);
    if roots.is_empty() {
        let words = "this system trusts no certificates at all; name a file of those to trust with `tls_ca`";
        return Err(ConfigError::of("upstream", words));
    }
    Ok(roots)
}
