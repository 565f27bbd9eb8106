//! The client: what its operations share.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use reqwest::redirect::Policy;

use crate::backoff::Limits;
use crate::keep::{Keep, Nowhere};
use crate::key::Key;
use crate::operation::Operation;
use crate::outcome::Outcome;
use crate::pace::{Pace, Real};

/// Sends operations. It keeps nothing between them but connections, so that one client may run many at once; a clone is the same client.
#[derive(Debug)]
pub struct Client<K = Nowhere> {
    pub(crate) inner: Arc<Inner<K>>,
}

pub(crate) struct Inner<K> {
    pub(crate) http: reqwest::Client,
    pub(crate) tls: Tls,
    pub(crate) keep: K,
    pub(crate) key_form: KeyForm,
    pub(crate) pace: Box<dyn Pace>,
    limits: Limits,
}

/// Whether https can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tls {
    Missing,
    There,
}

impl Client {
    /// A client without a place to keep keys.
    pub fn new() -> Result<Self, BuildError> {
        Self::builder().build()
    }

    /// Puts a client together.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl<K> Client<K> {
    /// A POST to this URL.
    pub fn post(&self, url: &str) -> Operation<'_, K> {
        self.request(Method::POST, url)
    }

    /// Any other request that has an effect.
    pub fn request(&self, method: Method, url: &str) -> Operation<'_, K> {
        Operation::new(self, method, url, self.inner.limits)
    }
}

impl<K: Keep> Client<K> {
    /// To be called when the caller has taken note of an outcome, durably: then its key is forgotten, if the outcome is certain. Says
    /// whether.
    ///
    /// An operation does not do it by itself: a caller that dies between the outcome and its own note of it would come back with a new key,
    /// and do it twice. Whoever never calls this is safe, and keeps a small file. Another key that this name has by now is another
    /// operation's, and stays.
    pub async fn done(&self, outcome: &Outcome) -> Result<bool, K::Error> {
        match &outcome.asked().name {
            Some(name) if outcome.is_certain() => {
                self.inner.keep.forget(name, &outcome.asked().key).await.map(|()| true)
            }
            _ => Ok(false),
        }
    }
}

impl<K> Clone for Client<K> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<K: fmt::Debug> fmt::Debug for Inner<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("keep", &self.keep)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// How a key is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyForm {
    /// `Idempotency-Key: "…"`, as the standard says.
    #[default]
    Quoted,
    /// Without quotation marks, for servers that take the value literally.
    Bare,
}

impl KeyForm {
    /// The header's value.
    pub(crate) fn line(self, key: &Key) -> String {
        match self {
            Self::Quoted => format!("\"{key}\""),
            Self::Bare => key.to_string(),
        }
    }
}

/// Puts a [`Client`] together.
#[must_use]
pub struct Builder<K = Nowhere> {
    keep: K,
    limits: Limits,
    key_form: KeyForm,
    pace: Box<dyn Pace>,
    http: Option<reqwest::ClientBuilder>,
    #[cfg(feature = "rustls")]
    tls: Option<rustls::ClientConfig>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            keep: Nowhere,
            limits: Limits::default(),
            key_form: KeyForm::default(),
            pace: Box::new(Real),
            http: None,
            #[cfg(feature = "rustls")]
            tls: None,
        }
    }
}

impl<K> Builder<K> {
    /// Where keys survive a restart; operations may have names then.
    pub fn keep<L: Keep>(self, keep: L) -> Builder<L> {
        Builder {
            keep,
            limits: self.limits,
            key_form: self.key_form,
            pace: self.pace,
            http: self.http,
            #[cfg(feature = "rustls")]
            tls: self.tls,
        }
    }

    /// How long and how often to ask, where an operation does not say otherwise.
    pub const fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How a key is written.
    pub const fn key_form(mut self, form: KeyForm) -> Self {
        self.key_form = form;
        self
    }

    /// Other time and chance: for tests that do not wait.
    pub fn pace(mut self, pace: impl Pace) -> Self {
        self.pace = Box::new(pace);
        self
    }

    /// What sends: proxies, pools, time-outs of connections. It will follow no redirects and repeat nothing by itself, whatever it is set
    /// to: what a request stands for is decided here.
    pub fn http(mut self, http: reqwest::ClientBuilder) -> Self {
        self.http = Some(http);
        self
    }

    /// Whom to trust, and as whom to come; the certificates of the system unless told otherwise. What [`http`](Self::http) says about TLS
    /// does not count.
    #[cfg(feature = "rustls")]
    pub fn tls(mut self, tls: rustls::ClientConfig) -> Self {
        self.tls = Some(tls);
        self
    }

    /// The client.
    pub fn build(self) -> Result<Client<K>, BuildError> {
        // A caller's own may bring TLS of its own.
        let tls = if cfg!(feature = "rustls") || self.http.is_some() { Tls::There } else { Tls::Missing };
        let http = self.http.unwrap_or_else(|| reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT));
        let http = http.redirect(Policy::none()).referer(false).retry(reqwest::retry::never());
        #[cfg(feature = "rustls")]
        let http = http.tls_backend_preconfigured(self.tls.map_or_else(tls::of_system, Ok)?);
        let http = http.build().map_err(BuildError::Http)?;
        let Self { keep, limits, key_form, pace, .. } = self;
        Ok(Client { inner: Arc::new(Inner { http, tls, keep, key_form, pace, limits }) })
    }
}

/// Shorter than a try: of a connection that was not made in time it is known that nothing was sent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(feature = "rustls")]
mod tls {
    //! Trust in whom the system trusts, by the one crypto library of the workspace.

    use std::sync::Arc;

    use rustls::{ClientConfig, RootCertStore};

    use super::BuildError;

    pub(super) fn of_system() -> Result<ClientConfig, BuildError> {
        let mut roots = RootCertStore::empty();
        // A system that trusts nobody may still ask its own machines, without TLS.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        Ok(config.map_err(BuildError::Tls)?.with_root_certificates(roots).with_no_client_auth())
    }
}

/// Why there is no client.
#[derive(Debug)]
pub enum BuildError {
    /// What sends could not be set up.
    Http(reqwest::Error),
    /// TLS could not be set up.
    #[cfg(feature = "rustls")]
    Tls(rustls::Error),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(error) => write!(f, "the HTTP client could not be set up: {error}"),
            #[cfg(feature = "rustls")]
            Self::Tls(error) => write!(f, "TLS could not be set up: {error}"),
        }
    }
}

impl Error for BuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Http(error) => Some(error),
            #[cfg(feature = "rustls")]
            Self::Tls(error) => Some(error),
        }
    }
}
