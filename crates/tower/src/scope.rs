//! Step 3: whose key is it? From authentication, never from the body.

use std::borrow::Cow;

use http::HeaderName;
use http::request::Parts;
use oncegate_core::problem::{Code, Problem};
use oncegate_core::scope::Scope;
use oncegate_engine::Route;
use sha2::{Digest, Sha256};

/// Says whose request it is. A function of the request's head is one.
///
/// Two retries of one operation must get the same answer. A verified claim (a subject, an account) is better than a
/// credential that rotates between retries.
pub trait Tenant: Send + Sync + 'static {
    /// Who; `None`: nobody that we know, and the request is refused with 401.
    fn of<'r>(&self, request: &'r Parts) -> Option<Cow<'r, str>>;

    /// The headers that it reads besides `Authorization` and `Cookie`, which are always stored with
    /// a deferred request: these are stored, too, so that it runs as its caller.
    ///
    /// A tenant that reads a header which it does not name here has its deferred requests refused,
    /// unless the route names the header in
    /// [`request_headers`](oncegate_core::policy::Policy::request_headers).
    fn headers(&self) -> Vec<HeaderName> {
        Vec::new()
    }

    /// What whoever was refused may do about it, in a sentence.
    fn advice(&self, _refused: &Parts) -> Cow<'static, str> {
        "Authenticate and try again".into()
    }

    /// Whether the tenant of this request stands for callers who need not know each other. They
    /// are told nothing of each other's requests.
    fn is_shared(&self, _request: &Parts) -> bool {
        false
    }
}

impl<F> Tenant for F
where
    F: Fn(&Parts) -> Option<String> + Send + Sync + 'static,
{
    fn of<'r>(&self, request: &'r Parts) -> Option<Cow<'r, str>> {
        self(request).map(Cow::Owned)
    }
}

/// Everybody is the same tenant: for services with one caller.
#[derive(Clone, Debug)]
pub struct One(Cow<'static, str>);

/// Everybody is the same tenant: for services with one caller.
pub fn one(tenant: impl Into<Cow<'static, str>>) -> One {
    One(tenant.into())
}

impl Tenant for One {
    fn of<'r>(&self, _: &'r Parts) -> Option<Cow<'r, str>> {
        Some(Cow::Owned(self.0.clone().into_owned()))
    }
}

/// The value of a header that something in front of the service has set and verified, such as `x-tenant`.
#[derive(Clone, Debug)]
pub struct Header(Cow<'static, str>);

/// The value of a header that something in front of the service has set and verified, such as `x-tenant`. A client that can set it
/// itself can read other tenants' answers.
pub fn header(name: impl Into<Cow<'static, str>>) -> Header {
    Header(name.into())
}

impl Tenant for Header {
    fn of<'r>(&self, request: &'r Parts) -> Option<Cow<'r, str>> {
        let mut values = request.headers.get_all(&*self.0).iter();
        match (values.next(), values.next()) {
            (Some(value), None) => value.to_str().ok().map(Cow::Borrowed),
            // None, or several: whose is it?
            _ => None,
        }
    }

    fn headers(&self) -> Vec<HeaderName> {
        self.0.parse().into_iter().collect()
    }
}

const PREFIX: &str = "authorization:";
const HEX: &[u8; 16] = b"0123456789abcdef";

/// A digest of the `Authorization` header.
#[derive(Clone, Copy, Debug)]
pub struct Authorization;

/// A digest of the `Authorization` header: nothing to set up, and nobody sees another's answers. But a token that is renewed
/// between two retries makes the second a new request: use a verified claim if yours do.
#[must_use]
pub const fn authorization() -> Authorization {
    Authorization
}

impl Tenant for Authorization {
    fn of<'r>(&self, request: &'r Parts) -> Option<Cow<'r, str>> {
        let mut values = request.headers.get_all(http::header::AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return None };
        // Two who show nothing are not the same.
        if value.as_bytes().trim_ascii().is_empty() {
            return None;
        }
        let digest = Sha256::digest(value.as_bytes());
        let mut tenant = String::with_capacity(PREFIX.len() + 2 * digest.len());
        tenant.push_str(PREFIX);
        // Digit by digit: a formatter costs more than the digest.
        let digits = digest.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        tenant.extend(digits.map(|digit| char::from(HEX[usize::from(digit)])));
        Some(Cow::Owned(tenant))
    }
}

/// What an earlier layer has put into the request's extensions: a verified user, an account.
pub fn extension<T, F>(name: F) -> impl Tenant
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> String + Send + Sync + 'static,
{
    move |request: &Parts| request.extensions.get::<T>().map(&name)
}

/// The scope of this request's key.
pub(crate) fn of(tenant: &dyn Tenant, route: &Route, request: &Parts) -> Result<Scope, Problem> {
    let words =
        "An idempotency key belongs to somebody, and this request does not say to whom, or not acceptably";
    let problem = |why: &str| {
        let advice = tenant.advice(request);
        Problem::new(Code::ScopeMissing, format!("{words} ({why}). {advice}. Nothing was executed."))
    };
    let name = tenant.of(request).ok_or_else(|| problem("no identity"))?;
    let path = crate::route::address(&request.uri, &request.extensions).path();
    route.scope_of_request(&name, request.method.as_str(), path).map_err(|error| problem(&error.to_string()))
}
