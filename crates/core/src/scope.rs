//! Whose key it is.
//!
//! **Invariant:** two callers share a record only if their scopes are equal, and the text of a scope is injective: no
//! tenant can spell another tenant's scope. Not here: where the tenant comes from (authentication, in `tower`).

use std::fmt::{self, Write as _};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::key::Key;

/// Tenant and, where the policy says so, operation.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope(Arc<str>);

/// Stands between tenant and operation; neither may contain it.
const SEPARATOR: char = '\u{1f}';
/// The longest tenant, in bytes. Longer identities are hashed before they get here.
pub const TENANT_BYTES_MAX: usize = 255;
/// The longest path that a scope shows, in bytes. Of a longer one it shows a digest.
const PATH_BYTES_MAX: usize = 255;

impl Scope {
    /// All of one tenant's keys live together.
    pub fn tenant(tenant: &str) -> Result<Self, ScopeError> {
        check(tenant)?;
        Ok(Self(tenant.into()))
    }

    /// A tenant's keys are told apart by operation.
    pub fn tenant_and_operation(tenant: &str, operation: &Operation) -> Result<Self, ScopeError> {
        check(tenant)?;
        Ok(Self(format!("{tenant}{SEPARATOR}{}", operation.as_str()).into()))
    }

    /// A tenant's keys are told apart by request: by its method and its path, as the client sent
    /// them.
    ///
    /// A path that is long, or that could be read as a route's pattern, is shown as its digest.
    /// So no request can spell the scope that an earlier release made of a pattern.
    pub fn tenant_and_request(tenant: &str, method: &str, path: &str) -> Result<Self, ScopeError> {
        check(tenant)?;
        let is_plain = path.starts_with('/')
            && path.len() <= PATH_BYTES_MAX
            && !path.contains(|char: char| matches!(char, '{' | '}') || char.is_control());
        if is_plain {
            return Ok(Self(format!("{tenant}{SEPARATOR}{method} {path}").into()));
        }
        let mut text = format!("{tenant}{SEPARATOR}{method} sha256:");
        for byte in Sha256::digest(path) {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        Ok(Self(text.into()))
    }

    /// Reads back what [`Scope::as_str`] gave to a store.
    pub fn from_stored(text: &str) -> Result<Self, ScopeError> {
        match text.split_once(SEPARATOR) {
            None => Self::tenant(text),
            Some((tenant, operation)) => {
                let operation = Operation::new(operation).map_err(|_| ScopeError::ControlCharacter)?;
                Self::tenant_and_operation(tenant, &operation)
            }
        }
    }

    /// The text that stores keep and compare.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Eight hexadecimal digits of the scope's SHA-256: tells scopes apart in a log and names none.
    #[must_use]
    pub fn short_digest(&self) -> String {
        let [first, second, third, fourth, ..]: [u8; 32] = Sha256::digest(self.as_str()).into();
        format!("{first:02x}{second:02x}{third:02x}{fourth:02x}")
    }

    /// The operation, where keys are told apart by it.
    #[must_use]
    pub fn operation_str(&self) -> Option<&str> {
        self.0.split_once(SEPARATOR).map(|(_, operation)| operation)
    }

    /// The tenant alone.
    #[must_use]
    pub fn tenant_str(&self) -> &str {
        self.0.split_once(SEPARATOR).map_or(&self.0, |(tenant, _)| tenant)
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.split_once(SEPARATOR) {
            None => f.write_str(&self.0),
            Some((tenant, operation)) => write!(f, "{tenant} ({operation})"),
        }
    }
}

fn check(tenant: &str) -> Result<(), ScopeError> {
    if tenant.is_empty() {
        Err(ScopeError::Empty)
    } else if tenant.len() > TENANT_BYTES_MAX {
        Err(ScopeError::TooLong { bytes: tenant.len() })
    } else if tenant.chars().any(char::is_control) {
        Err(ScopeError::ControlCharacter)
    } else {
        Ok(())
    }
}

/// Why a tenant cannot be a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopeError {
    /// Nobody is nobody's scope.
    Empty,
    /// Over [`TENANT_BYTES_MAX`].
    TooLong {
        /// How long it was.
        bytes: usize,
    },
    /// Control characters could spell another scope's text.
    ControlCharacter,
}

impl fmt::Display for ScopeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the tenant is empty"),
            Self::TooLong { bytes } => {
                write!(f, "the tenant has {bytes} bytes, and {TENANT_BYTES_MAX} are allowed: hash it first")
            }
            Self::ControlCharacter => f.write_str("the tenant or operation contains a control character"),
        }
    }
}

impl std::error::Error for ScopeError {}

/// What is being done, as the route's pattern (`POST /payments/{id}/refunds`): bounded in number, unlike paths.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Operation(Arc<str>);

impl Operation {
    /// A route pattern without control characters.
    pub fn new(pattern: &str) -> Result<Self, ScopeError> {
        if pattern.chars().any(char::is_control) {
            return Err(ScopeError::ControlCharacter);
        }
        Ok(Self(pattern.into()))
    }

    /// The pattern.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it may stand for several paths: it has a parameter, or is that of all other routes.
    #[must_use]
    pub fn is_pattern(&self) -> bool {
        self.0.contains(['{', '*'])
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a record lives: one scope, one key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Whose key it is.
    pub scope: Scope,
    /// The client's value.
    pub key: Key,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_tenant_can_spell_another_scope() {
        let operation = Operation::new("POST /a").unwrap();
        let narrow = Scope::tenant_and_operation("t", &operation).unwrap();
        assert_eq!(Scope::tenant(narrow.as_str()), Err(ScopeError::ControlCharacter));
        assert_eq!(Scope::tenant(""), Err(ScopeError::Empty));
        assert_eq!(Scope::tenant(&"x".repeat(256)), Err(ScopeError::TooLong { bytes: 256 }));
        assert_eq!(narrow.tenant_str(), "t");
    }

    #[test]
    fn no_request_can_spell_a_pattern_and_long_paths_are_digests() {
        let of = |path: &str| Scope::tenant_and_request("t", "POST", path).unwrap();
        let pattern = |text: &str| Scope::tenant_and_operation("t", &Operation::new(text).unwrap()).unwrap();
        assert_eq!(of("/orders/17"), pattern("POST /orders/17"));
        for path in ["/orders/{id}", "/*}", "*"] {
            assert_ne!(of(path), pattern(&format!("POST {path}")));
        }
        let (one, other) = (of(&format!("/{}a", "x".repeat(9_000))), of(&format!("/{}b", "x".repeat(9_000))));
        assert!(one != other && one.as_str().len() < 100, "{one}");
        assert_eq!(Scope::from_stored(one.as_str()), Ok(one));
        assert_ne!(of("/a"), Scope::tenant_and_request("t", "PUT", "/a").unwrap());
    }

    #[test]
    fn scopes_survive_the_store() {
        let operation = Operation::new("POST /a").unwrap();
        for scope in [Scope::tenant("t").unwrap(), Scope::tenant_and_operation("t", &operation).unwrap()] {
            assert_eq!(Scope::from_stored(scope.as_str()), Ok(scope));
        }
    }
}
