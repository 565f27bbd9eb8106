//! Decides when two requests are the same request.
//!
//! A fingerprint is SHA-256 over a frame of method, path, query and *canonical* content: what the body says, not how
//! it is spelled. Two spellings of one content share a fingerprint, so that a retry is recognised; two contents never
//! do, so that a reused key is caught.
//!
//! Pure: no clock, no I/O, no randomness. It reads hostile bytes, so nothing here recurses and nothing is worse than
//! O(n log n).
//!
//! A request whose content is not checked has a fingerprint too, of version 0, over its method
//! and path: an unchecked request is the same as another only if both are the same operation.
//!
//! **Invariant:** the form of version 1 never changes. Records keep its digests for as long as they live: a change is
//! a new [`FORM_VERSION`]. `tests/fingerprint/golden.rs` pins it.
//! Not here: what a mismatch means (`decide`), how large a body may be (the boundary), which status an error becomes
//! (`problem`).

mod difference;
mod error;
mod family;
mod fields;
mod form;
mod frame;
mod json;
mod members;

use std::borrow::Cow;
use std::fmt;

pub use difference::{Difference, RecordedOperation};
pub use error::{FingerprintError, Position};
pub use family::Family;
pub use fields::{Fields, Pointer, PointerError};
pub use members::{MEMBERS_MAX, Members};

use crate::codec::Malformed;

/// The version of the form that [`of`] computes: of the frame, and of each canonical form inside it.
pub const FORM_VERSION: u8 = 1;
/// The version of the fingerprints of requests whose content is not checked ([`Mode::None`]).
const UNCHECKED_VERSION: u8 = 0;

/// Computes the fingerprint of a request under a route's policy.
///
/// ```
/// use oncegate_core::fingerprint::{self, Content, Mode};
///
/// let request = |body| Content {
///     method: "POST",
///     path: "/payments",
///     query: None,
///     content_type: Some(b"application/json"),
///     body,
/// };
/// let first = fingerprint::of(&Mode::Json, &request(br#"{"amount": 100, "to": "Ada"}"#))?;
/// let retry = fingerprint::of(&Mode::Json, &request(br#"{"to":"Ada","amount":1e2}"#))?;
/// let other = fingerprint::of(&Mode::Json, &request(br#"{"to":"Ada","amount":101}"#))?;
/// assert_eq!(first, retry);
/// assert_ne!(first, other);
/// # Ok::<(), fingerprint::FingerprintError>(())
/// ```
pub fn of(mode: &Mode, content: &Content<'_>) -> Result<Fingerprint, FingerprintError> {
    Ok(of_canonical(mode, content, &canonical(mode, content)?))
}

fn of_canonical(mode: &Mode, content: &Content<'_>, canonical: &Canonical<'_>) -> Fingerprint {
    match mode {
        Mode::None => Fingerprint::from_parts(UNCHECKED_VERSION, frame::of_operation(content)),
        _ => Fingerprint::from_parts(FORM_VERSION, frame::digest(content, canonical)),
    }
}

/// The same, with the headers that count on the route (see [`Fingerprint::with_headers`]), the host
/// where it counts, and short digests of the members of a JSON object.
pub fn of_request(
    mode: &Mode,
    content: &Content<'_>,
    headers: &[(&str, Vec<&[u8]>)],
    host: Option<&str>,
) -> Result<Fingerprints, FingerprintError> {
    let canonical = canonical(mode, content)?;
    let hostless = of_canonical(mode, content, &canonical).with_headers(headers);
    let fingerprint = match host {
        Some(host) => hostless.with_headers(&[("host", vec![host.as_bytes()])]),
        None => hostless,
    };
    let members = match canonical.family {
        Family::Json | Family::JsonIncluded | Family::JsonExcluded => {
            Members::of(&canonical.bytes, &fingerprint.digest)
        }
        _ => Members::NONE,
    };
    Ok(Fingerprints { current: fingerprint.with_members(members), former: host.map(|_| hostless) })
}

/// The fingerprint of a request, and the one that an earlier release computed for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprints {
    /// What a new record gets.
    pub current: Fingerprint,
    /// What a record of an earlier release may have: the same without the host.
    pub former: Option<Fingerprint>,
}

/// Computes what of the body enters the fingerprint, in its canonical form.
pub fn canonical<'a>(mode: &Mode, content: &Content<'a>) -> Result<Canonical<'a>, FingerprintError> {
    let body = content.body;
    let (family, bytes) = match mode {
        Mode::None => (Family::Unchecked, Cow::default()),
        // Before the media type: a bodiless POST with a habitual `Content-Type: application/json` is no bad JSON.
        _ if body.is_empty() => (Family::Empty, Cow::default()),
        Mode::Raw => (Family::raw(content.content_type), Cow::Borrowed(body)),
        Mode::Json | Mode::Fields(_) => match (Family::declared(content.content_type), mode) {
            (Family::Json, Mode::Fields(fields)) => {
                (Family::of_fields(fields), json::fields(body, fields)?.into())
            }
            (Family::Json, _) => (Family::Json, json::canonical(body)?.into()),
            (Family::Form, _) => (Family::Form, form::canonical(body).into()),
            (other, _) => (other, Cow::Borrowed(body)),
        },
    };
    Ok(Canonical { family, bytes })
}

/// What of a request decides whether it is the same: the policy `fingerprint` of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// What the body says: canonical JSON, decoded form pairs, the bytes of anything else.
    Json,
    /// The bytes of the body, whatever they are.
    Raw,
    /// Of a JSON body, only a part. Other bodies as under [`Mode::Json`].
    Fields(Fields),
    /// Only method and path: any body and any query count as the same.
    None,
}

/// What a fingerprint is computed from. Borrowed from the request.
#[derive(Clone, Copy, Debug)]
pub struct Content<'a> {
    /// The method, as sent.
    pub method: &'a str,
    /// The path, as sent: percent-escapes are not touched, for servers disagree on what they mean.
    pub path: &'a str,
    /// The query, as sent, without its `?`. Absent and empty are two things.
    pub query: Option<&'a str>,
    /// The value of `Content-Type`.
    pub content_type: Option<&'a [u8]>,
    /// The whole body.
    pub body: &'a [u8],
}

/// What of a body enters the fingerprint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canonical<'a> {
    /// How the body was read.
    pub family: Family,
    /// Its canonical bytes: the same for every spelling of one content.
    pub bytes: Cow<'a, [u8]>,
}

/// The identity of a request's content: the version of the form, and a digest.
///
/// The digests of members beside it are no part of that identity: [`Fingerprint::compare`] does not
/// look at them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    version: u8,
    digest: [u8; 32],
    members: Members,
}

/// What comparing two fingerprints says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The same request.
    Same,
    /// Another request under the same key.
    Other,
    /// The fingerprints cannot tell, because only one of the requests was checked, or because the
    /// record is of an earlier release. It is the same request only if the operation is the same.
    Unchecked,
}

impl Fingerprint {
    /// What earlier releases stored for a request that is not checked ([`Mode::None`]). It names
    /// no operation.
    pub const NONE: Self = Self::from_parts(UNCHECKED_VERSION, [0; 32]);

    /// Rebuilds a fingerprint from a stored row.
    #[must_use]
    pub const fn from_parts(version: u8, digest: [u8; 32]) -> Self {
        Self { version, digest, members: Members::NONE }
    }

    /// The version of the form; 0 where the content was not checked.
    #[must_use]
    pub const fn version(self) -> u8 {
        self.version
    }

    /// The digest.
    #[must_use]
    pub const fn digest(self) -> [u8; 32] {
        self.digest
    }

    /// Short digests of the content's members.
    #[must_use]
    pub const fn members(&self) -> &Members {
        &self.members
    }

    /// The same with these digests of members.
    #[must_use]
    pub const fn with_members(self, members: Members) -> Self {
        Self { members, ..self }
    }

    /// Whether version and digest are the same.
    fn is_same(self, other: Self) -> bool {
        (self.version, self.digest) == (other.version, other.digest)
    }

    /// Compares the fingerprint of a record with that of a request.
    #[must_use]
    pub fn compare(self, other: Self) -> Comparison {
        if self.is_same(Self::NONE) || other.is_same(Self::NONE) {
            Comparison::Unchecked
        } else if self.is_same(other) {
            Comparison::Same
        } else if self.is_unchecked() != other.is_unchecked() {
            // The route's policy was changed from or to `none` while the record lived.
            Comparison::Unchecked
        } else {
            // Two versions digest two forms: their digests cannot say that the content is the
            // same. Not knowing is a mismatch, because a false one costs the client an error, and
            // a false match costs it another's answer.
            Comparison::Other
        }
    }

    /// The fingerprint of the same request on a route where these headers count too: each with
    /// its name and the values of its lines, in order. A header without lines counts as absent.
    #[must_use]
    pub fn with_headers(self, headers: &[(&str, Vec<&[u8]>)]) -> Self {
        if headers.is_empty() {
            return self;
        }
        Self { digest: frame::with_headers(self.digest, headers), ..self }
    }

    const fn is_unchecked(self) -> bool {
        self.version == UNCHECKED_VERSION
    }
}

/// `v1:` and 64 lower-case hexadecimal digits.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}:", self.version)?;
        self.digest.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
