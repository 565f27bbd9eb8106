//! The admin listener: where it is, how it is encrypted, and what operators must show.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use toml::Spanned;

use super::Given;
use super::check::{Source, address, positive, tls_files};
use super::error::ConfigError;
use super::file::{self, File};
use super::secret_file;
use super::word::Secret;

/// The command line's and the environment's name of the address.
const ADMIN: &str = "--admin (ONCEGATE_ADMIN)";

/// The admin listener. Its limits of size and time are those of the public listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Where.
    pub address: ListenAddress,
    /// Its certificate.
    pub tls: Option<TlsFiles>,
    /// Other machines reach it without TLS, and the file says that this is meant.
    pub is_plaintext: bool,
    /// What operators must show; without one the address is this machine's own.
    pub token: Option<Secret>,
    /// The most connections at once; more wait to be accepted.
    pub connections_max: usize,
}

/// Where a listener accepts connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// An address and a port.
    Tcp(SocketAddr),
    /// The file of a Unix socket.
    Unix(PathBuf),
}

impl ListenAddress {
    /// The address and port, if it has one.
    #[must_use]
    pub const fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }

    /// Whether only this machine reaches it.
    const fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A certificate chain and its key, as PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The chain, the listener's own certificate first.
    pub certificate: PathBuf,
    /// The key of the first certificate.
    pub key: PathBuf,
}

pub(super) fn admin(file: &File, given: &Given, source: &Source<'_>) -> Result<Admin, ConfigError> {
    let typed = &file.admin;
    let address = listen_address(typed, given, source)?;
    let at_address = |message: String| match (&given.admin, &typed.address) {
        (None, Some(typed)) => source.error(&typed.span(), message),
        _ => ConfigError::of(ADMIN, message),
    };
    let tls = tls_files(typed.tls_certificate.as_ref(), typed.tls_key.as_ref(), source)?;
    if let (ListenAddress::Unix(_), Some(certificate)) = (&address, &typed.tls_certificate) {
        return Err(source.error(&certificate.span(), "a Unix socket is not encrypted; drop the certificate"));
    }
    let token = token(typed, given, source)?;
    if token.is_none() && !address.is_local() {
        return Err(at_address(format!(
            "the admin listener would show every record to every client that reaches {address}; set `admin.token_file`, \
             or bind it to 127.0.0.1 or unix:PATH"
        )));
    }
    let is_exposed = tls.is_none() && !address.is_local();
    let allows_plaintext = typed.plaintext.as_ref().is_some_and(|plaintext| *plaintext.get_ref());
    if is_exposed && !allows_plaintext {
        return Err(at_address(format!(
            "the admin token and all records would cross the network to {address} in clear text; set \
             `admin.tls_certificate` and `admin.tls_key`, bind it to 127.0.0.1 or unix:PATH, or say \
             `plaintext = true` under [admin] if the network is trusted"
        )));
    }
    let connections_max = positive(typed.connections_max.as_ref(), 256, source)?;
    Ok(Admin { address, tls, is_plaintext: is_exposed, token, connections_max })
}

/// What `check` says about the admin listener.
pub(super) fn warning(admin: &Admin, typed: &file::Admin, source: &Source<'_>) -> Option<String> {
    let line = source.line(typed.plaintext.as_ref().map(Spanned::span));
    admin.is_plaintext.then(|| {
        format!(
            "{line}admin.plaintext = true: the admin token and all records cross the network to {} in clear text; set \
             admin.tls_certificate and admin.tls_key, and drop the setting",
            admin.address
        )
    })
}

fn listen_address(
    typed: &file::Admin,
    given: &Given,
    source: &Source<'_>,
) -> Result<ListenAddress, ConfigError> {
    let unix = |text: &str| text.strip_prefix("unix:").map(PathBuf::from);
    if let Some(path) = given.admin.as_deref().and_then(unix) {
        if path.as_os_str().is_empty() {
            return Err(ConfigError::of(ADMIN, NO_PATH));
        }
        return Ok(ListenAddress::Unix(path));
    }
    if given.admin.is_none()
        && let Some(typed) = &typed.address
        && let Some(path) = unix(typed.get_ref())
    {
        if path.as_os_str().is_empty() {
            return Err(source.error(&typed.span(), NO_PATH));
        }
        return Ok(ListenAddress::Unix(source.file(&path)));
    }
    let given = (ADMIN, given.admin.as_deref());
    address(given, typed.address.as_ref(), "127.0.0.1:9090", source).map(ListenAddress::Tcp)
}

const NO_PATH: &str = "expected the path of a Unix socket, such as unix:/run/oncegate/admin.sock";

fn token(typed: &file::Admin, given: &Given, source: &Source<'_>) -> Result<Option<Secret>, ConfigError> {
    let (token, span) = match (&given.admin_token, &typed.token, &typed.token_file) {
        (Some(token), ..) => (token.clone(), None),
        (None, Some(_), Some(file)) => {
            return Err(source
                .error(&file.span(), "`token` and `token_file` are two answers to one question; keep one"));
        }
        (None, Some(token), None) => (token.get_ref().clone(), Some(token.span())),
        (None, None, Some(path)) => {
            let token = secret_file::read(&source.file(path.get_ref()));
            (token.map_err(|words| source.error(&path.span(), words))?, Some(path.span()))
        }
        (None, None, None) => return Ok(None),
    };
    if token.expose().len() < 16 {
        let message = "the admin token has fewer than 16 characters, which can be guessed; `openssl rand -hex 32` makes a good one";
        return Err(match span {
            None => ConfigError::of("ONCEGATE_ADMIN_TOKEN", message),
            Some(span) => source.error(&span, message),
        });
    }
    Ok(Some(token))
}
