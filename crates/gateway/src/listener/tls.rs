//! TLS towards clients and operators.
//!
//! **Invariant:** a certificate that cannot be used never replaces one that can. Open connections
//! keep the certificate that they began with.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;
use x509_cert::der::Decode as _;

use crate::config::{ConfigError, TlsFiles};

/// The listeners that may have a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Public,
    Admin,
}

impl Side {
    /// In metrics and logs.
    const fn name(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Admin => "admin",
        }
    }

    /// In the configuration.
    const fn section(self) -> &'static str {
        match self {
            Self::Public => "listen",
            Self::Admin => "admin",
        }
    }
}

/// A listener's certificate, which can be replaced while connections are open.
pub(crate) struct ServerTls {
    side: Side,
    current: Arc<CurrentCertificate>,
    acceptor: TlsAcceptor,
}

/// What new connections are shown.
struct CurrentCertificate(RwLock<Arc<CertifiedKey>>);

impl ServerTls {
    /// Reads a certificate chain and its key.
    pub(crate) fn load(side: Side, files: &TlsFiles) -> Result<Self, ConfigError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let (key, expires) = read(side, files, &provider)?;
        let current = Arc::new(CurrentCertificate(RwLock::new(Arc::new(key))));
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map(|config| config.with_no_client_auth().with_cert_resolver(Arc::clone(&current) as Arc<_>));
        let mut config = config.map_err(|error| ConfigError::of(side.section(), error.to_string()))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        tell(side, expires, "loaded the TLS certificate");
        if has_expired(expires) {
            tracing::error!(listener = side.name(), "the TLS certificate has expired: clients refuse it");
        }
        Ok(Self { side, current, acceptor: TlsAcceptor::from(Arc::new(config)) })
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.clone()
    }

    /// Reads the files again. If they cannot be used, the certificate stays, and the log says why.
    pub(crate) fn reload(&self, files: &TlsFiles) {
        match self.try_reload(files) {
            Ok(expires) => tell(self.side, expires, "reloaded the TLS certificate"),
            Err(error) => tracing::error!(
                listener = self.side.name(),
                "the TLS certificate was not reloaded, and the old one stays in use: {error}"
            ),
        }
    }

    fn try_reload(&self, files: &TlsFiles) -> Result<Duration, ConfigError> {
        let provider = rustls::crypto::ring::default_provider();
        let (key, expires) = read(self.side, files, &provider)?;
        if has_expired(expires) {
            let words = format!("{}: expired on {}", files.certificate.display(), date(expires));
            return Err(ConfigError::of(self.side.section(), words));
        }
        *self.current.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(key);
        Ok(expires)
    }
}

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl fmt::Debug for CurrentCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CurrentCertificate")
    }
}

/// The chain with its key, and when its first certificate expires, since 1970.
fn read(
    side: Side,
    files: &TlsFiles,
    provider: &CryptoProvider,
) -> Result<(CertifiedKey, Duration), ConfigError> {
    let wrong = |path: &Path, message: String| {
        ConfigError::of(side.section(), format!("{}: {message}", path.display()))
    };
    let TlsFiles { certificate, key } = files;
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| wrong(certificate, error.to_string()))?;
    let Some(first) = chain.first() else {
        return Err(wrong(certificate, "holds no certificate; expected PEM".to_owned()));
    };
    let parsed = x509_cert::Certificate::from_der(first);
    let parsed = parsed.map_err(|error| wrong(certificate, format!("is not a certificate: {error}")))?;
    let expires = parsed.tbs_certificate.validity.not_after.to_unix_duration();
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, error.to_string()))?;
    let certified = CertifiedKey::from_der(chain, secret, provider);
    Ok((certified.map_err(|error| wrong(certificate, error.to_string()))?, expires))
}

fn tell(side: Side, expires: Duration, event: &str) {
    tracing::info!(listener = side.name(), expires = date(expires), "{event}");
    metrics::gauge!("oncegate.tls.certificate.expires.seconds", "listener" => side.name())
        .set(expires.as_secs_f64());
}

fn has_expired(expires: Duration) -> bool {
    SystemTime::now().duration_since(UNIX_EPOCH).is_ok_and(|now| now >= expires)
}

fn date(since_1970: Duration) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since_1970).to_string()
}
