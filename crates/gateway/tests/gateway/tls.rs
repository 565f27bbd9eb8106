//! An authority for one test, and a certificate that it vouches for.

use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::client::within;

/// The files, all PEM; for `localhost`, `127.0.0.1`, and nobody else.
pub(crate) struct Certificates {
    folder: TempDir,
    issuer: Box<Issuer<'static, KeyPair>>,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let authority_key = KeyPair::generate().unwrap();
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let signed = authority.self_signed(&authority_key).unwrap();
        let issuer = Box::new(Issuer::new(authority, authority_key));
        let certificates = Self { folder: tempfile::tempdir().unwrap(), issuer };
        certificates.write("authority.pem", &signed.pem());
        certificates.renew(2030);
        certificates
    }

    /// A new certificate and key in place of the old, until the first day of this year.
    pub(crate) fn renew(&self, expires: i32) {
        let key = KeyPair::generate().unwrap();
        let mut server = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        server.not_before = rcgen::date_time_ymd(2020, 1, 1);
        server.not_after = rcgen::date_time_ymd(expires, 1, 1);
        let server = server.signed_by(&key, &self.issuer).unwrap();
        self.write("server.pem", &server.pem());
        self.write("key.pem", &key.serialize_pem());
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// What the certificate file holds now.
    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.path("server.pem")).unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `[listen]` with TLS.
    pub(crate) fn listen(&self) -> String {
        format!("[listen]\n{}", self.files())
    }

    /// What a listener's section has to say to use them.
    pub(crate) fn files(&self) -> String {
        let (certificate, key) = (self.path("server.pem"), self.path("key.pem"));
        let (certificate, key) = (certificate.display(), key.display());
        format!("tls_certificate = \"{certificate}\"\ntls_key = \"{key}\"\n")
    }

    /// What `[upstream]` has to say to trust it.
    pub(crate) fn trust(&self) -> String {
        format!("tls_ca = \"{}\"\n", self.path("authority.pem").display())
    }

    /// A server that offers these protocols.
    pub(crate) fn acceptor(&self, protocols: &[&str]) -> TlsAcceptor {
        let chain = vec![CertificateDer::from_pem_file(self.path("server.pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_file(self.path("key.pem")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = config.unwrap().with_no_client_auth().with_single_cert(chain, key).unwrap();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }

    /// A client that offers this protocol.
    pub(crate) async fn connect(&self, to: std::net::SocketAddr, protocol: &str) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("authority.pem")).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = config.unwrap().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let stream = within(TcpStream::connect(to)).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = within(TlsConnector::from(Arc::new(config)).connect(name, stream)).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol.as_bytes()), "what was negotiated");
        stream
    }
}
