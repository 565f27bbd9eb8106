//! TLS to the server, by libpq's words.

use std::path::Path;
use std::sync::Arc;

use oncegate_store::Result;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::settings::misconfigured;

/// How the connection is protected.
#[derive(Clone)]
pub(super) struct Tls {
    mode: SslMode,
    is_verified: bool,
    connector: Option<MakeRustlsConnect>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tls({:?})", self.mode)
    }
}

impl Tls {
    /// `sslmode` and `sslrootcert` of the URL. As with libpq, `prefer` (the default) and `require` encrypt without asking whom
    /// they talk to, unless a root certificate is given; `verify-full` asks.
    pub(super) fn new(mode: Option<&str>, root: Option<&str>) -> Result<Self> {
        let (mode, is_verified) = match mode.unwrap_or("prefer") {
            "disable" => return Ok(Self { mode: SslMode::Disable, is_verified: false, connector: None }),
            "prefer" => (SslMode::Prefer, false),
            "require" => (SslMode::Require, root.is_some()),
            "verify-full" => (SslMode::Require, true),
            other => {
                return Err(misconfigured(format!(
                    "sslmode={other:?}: use disable, prefer, require or verify-full"
                )));
            }
        };
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| misconfigured(error.to_string()))?;
        let config = if is_verified {
            builder.with_root_certificates(roots(root.unwrap_or("system"))?).with_no_client_auth()
        } else {
            let anybody = Arc::new(Anybody(provider));
            builder.dangerous().with_custom_certificate_verifier(anybody).with_no_client_auth()
        };
        Ok(Self { mode, is_verified, connector: Some(MakeRustlsConnect::new(config)) })
    }

    pub(super) const fn mode(&self) -> SslMode {
        self.mode
    }

    /// Whether the server must prove who it is.
    pub(super) const fn is_verified(&self) -> bool {
        self.is_verified
    }

    pub(super) const fn connector(&self) -> Option<&MakeRustlsConnect> {
        self.connector.as_ref()
    }
}

fn roots(root: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    if root == "system" {
        for certificate in rustls_native_certs::load_native_certs().certs {
            // One odd certificate among many is no reason to trust none of them.
            let _ = roots.add(certificate);
        }
    } else {
        let unreadable =
            |error: &dyn std::fmt::Display| misconfigured(format!("sslrootcert {root}: {error}"));
        let file = CertificateDer::pem_file_iter(Path::new(root)).map_err(|error| unreadable(&error))?;
        for certificate in file {
            let certificate = certificate.map_err(|error| unreadable(&error))?;
            roots.add(certificate).map_err(|error| unreadable(&error))?;
        }
    }
    if roots.is_empty() {
        return Err(misconfigured(format!("sslrootcert {root}: no certificate found")));
    }
    Ok(roots)
}

/// Encrypts, and believes whoever answers: what libpq does under `prefer` and `require`.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
