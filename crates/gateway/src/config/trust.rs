//! Whose certificates are believed, when the gateway connects to a server over TLS.

use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use toml::Spanned;

use super::check::Source;
use super::error::ConfigError;

/// The certificate authorities that may vouch for a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    /// Those of this machine.
    pub has_system: bool,
    /// Those of these files.
    pub files: Vec<Authorities>,
}

/// The certificates of a PEM file, read once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorities {
    /// The file.
    pub path: PathBuf,
    /// What it contains.
    pub certificates: Vec<CertificateDer<'static>>,
}

impl Trust {
    /// The authorities of this machine, and further ones.
    #[must_use]
    pub fn system_and(more: Option<&Authorities>) -> Self {
        Self { has_system: true, files: more.cloned().into_iter().collect() }
    }

    /// Nothing but this file, if there is one; otherwise the authorities of this machine.
    pub(super) fn only(file: Option<Authorities>) -> Self {
        Self { has_system: file.is_none(), files: file.into_iter().collect() }
    }

    /// These authorities, and further ones.
    #[must_use]
    pub fn and(&self, more: Option<&Authorities>) -> Self {
        let files = self.files.iter().chain(more).cloned().collect();
        Self { has_system: self.has_system, files }
    }
}

/// Reads the file of a `tls_ca` setting.
pub(super) fn authorities(
    path: Option<&Spanned<PathBuf>>,
    source: &Source<'_>,
) -> Result<Option<Authorities>, ConfigError> {
    let Some(typed) = path else { return Ok(None) };
    let path = source.file(typed.get_ref());
    match read(&path) {
        Ok(certificates) => Ok(Some(Authorities { path, certificates })),
        Err(words) => Err(source.error(&typed.span(), format!("{}: {words}", path.display()))),
    }
}

fn read(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = certificates.map_err(|error| error.to_string())?;
    if certificates.is_empty() {
        return Err("contains no certificate; expected PEM".to_owned());
    }
    let mut roots = RootCertStore::empty();
    for certificate in &certificates {
        roots.add(certificate.clone()).map_err(|error| error.to_string())?;
    }
    Ok(certificates)
}
