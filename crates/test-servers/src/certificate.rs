//! A certificate authority for one test, and a server's certificate that it vouches for.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

use crate::place::Owner;

/// The files, all PEM.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The authority's certificate: what a client trusts.
    pub authority: PathBuf,
    /// The server's.
    pub certificate: PathBuf,
    /// The server's key.
    pub key: PathBuf,
}

impl Certificate {
    /// A new authority in a directory, and a certificate for `localhost` and `127.0.0.1`.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        write(directory, None)
    }
}

/// Writes a new authority, and a certificate for `localhost` and `127.0.0.1`, into a directory.
pub(crate) fn write(directory: &Path, owner: Option<Owner>) -> Certificate {
    let authority_key = KeyPair::generate().expect("a key can be made");
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(DnType::CommonName, "Oncegate test authority");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let signed = authority.self_signed(&authority_key).expect("an authority signs itself");
    let issuer = Issuer::new(authority, authority_key);

    let key = KeyPair::generate().expect("a key can be made");
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let server = CertificateParams::new(names).expect("these are names");
    let server = server.signed_by(&key, &issuer).expect("the authority signs");

    Certificate {
        authority: file(directory, "authority.crt", &signed.pem(), None),
        certificate: file(directory, "server.crt", &server.pem(), owner),
        key: file(directory, "server.key", &key.serialize_pem(), owner),
    }
}

fn file(directory: &Path, name: &str, text: &str, owner: Option<Owner>) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, text).expect("a certificate can be written");
    // PostgreSQL refuses a key that others may read.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its permissions can be set");
    if let Some(owner) = owner {
        owner.give(&path);
    }
    path
}
