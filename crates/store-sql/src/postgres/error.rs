//! PostgreSQL's errors, as a store says them.

use std::error::Error;
use std::fmt;

use oncegate_core::codec::Malformed;
use oncegate_store::{Effect, Kind, StoreError};
use tokio_postgres::error::{Severity, SqlState};

use super::settings::chain;

/// What a conversation with the server can end in.
#[derive(Debug)]
pub(super) enum Failure {
    /// No server let us in; nothing was said to it.
    Connect(Box<dyn Error + Send + Sync>),
    /// A server is there, and takes no writes: a replica.
    ReadOnly,
    /// The driver's own: the server's answer, or a broken connection.
    Postgres(tokio_postgres::Error),
    /// A stored row is not what it should be.
    Malformed(Malformed),
    /// It took too long.
    TimedOut,
    /// It does not hold together.
    Words(String),
    /// The server has lost what this process wrote to it.
    Restored,
}

impl Failure {
    /// The server said no in so many words, to a statement before the commit: what it was asked is rolled back.
    ///
    /// Not so if the connection ends with it. A pooler speaks up in place of the server then, and cannot know how far the
    /// server has come: the commit is on its way already.
    pub(super) fn is_refusal(&self) -> bool {
        let Self::Postgres(error) = self else { return false };
        error.as_db_error().is_some_and(|error| {
            error.parsed_severity() == Some(Severity::Error) && is_of_the_statement(error.code().code())
        })
    }

    /// The server rejected what a write holds. Also the commit says so, of a deferred constraint: the
    /// transaction is rolled back then, because such checks come before anything is committed.
    pub(super) fn is_rejection(&self) -> bool {
        self.is_refusal() && self.kind() == Kind::Rejected
    }

    /// Others were in the way, and the server undid it: the same again may well work.
    pub(super) fn is_worth_another_try(&self) -> bool {
        matches!(self.code(), Some(&SqlState::T_R_DEADLOCK_DETECTED | &SqlState::T_R_SERIALIZATION_FAILURE))
    }

    pub(super) fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Postgres(error) => error.code(),
            _ => None,
        }
    }

    fn kind(&self) -> Kind {
        let Some(code) = self.code() else {
            return match self {
                Self::Connect(error) if is_shut_out(&**error) => Kind::Misconfigured,
                Self::Malformed(_) => Kind::Unreadable,
                Self::Words(_) => Kind::Other,
                Self::Restored => Kind::Restored,
                Self::Connect(_) | Self::ReadOnly | Self::Postgres(_) | Self::TimedOut => Kind::Unavailable,
            };
        };
        let text = code.code();
        match (&text[..text.len().min(2)], text) {
            (_, "40001" | "40P01" | "55P03" | "57014") => Kind::Contended,
            (_, "53100") => Kind::Full,
            // A failover may have left us with a replica; a new connection finds the primary.
            ("08" | "53" | "57", _) | (_, "25006" | "25P03") => Kind::Unavailable,
            ("28" | "3D" | "3F" | "42", _) => Kind::Misconfigured,
            // Values, constraints, a view's check option, limits on sizes, and exceptions of a user's trigger.
            ("22" | "23" | "27" | "44" | "54" | "P0", _) => Kind::Rejected,
            ("XX", _) => Kind::Unreadable,
            _ => Kind::Other,
        }
    }

    /// Says what it means for `operation`.
    pub(super) fn during(self, operation: &'static str, effect: Effect) -> StoreError {
        StoreError::new(self.kind(), effect, operation).because(self.to_string())
    }
}

/// Whether an error of severity `ERROR` with this code is the server's word about a statement (or a commit), which is undone then. The
/// others may be a pooler's, or come with a shutdown, or say that nobody knows (40003): they tell nothing about a commit that was
/// under way.
#[must_use]
pub fn is_of_the_statement(code: &str) -> bool {
    !code.starts_with("08") && !code.starts_with("57P") && code != "40003"
}

/// A server is there and knows us, or the database, not: waiting will not help.
fn is_shut_out(error: &(dyn Error + 'static)) -> bool {
    let error = error.downcast_ref::<tokio_postgres::Error>();
    let code = error.and_then(tokio_postgres::Error::code).map(SqlState::code);
    code.is_some_and(|code| ["28", "3D", "42"].iter().any(|class| code.starts_with(class)))
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "PostgreSQL cannot be reached: {}", chain(&**error)),
            Self::ReadOnly => f.write_str(
                "PostgreSQL takes no writes: it is a replica, or read-only. Nothing is ever decided from a replica: name \
                 the primary, or all servers, in the URL",
            ),
            Self::Postgres(error) => f.write_str(&chain(error)),
            Self::Malformed(malformed) => malformed.fmt(f),
            Self::TimedOut => f.write_str("PostgreSQL did not answer in time"),
            Self::Words(words) => f.write_str(words),
            Self::Restored => f.write_str(oncegate_store::history::RESTORED),
        }
    }
}

impl Error for Failure {}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(error)
    }
}

impl From<Malformed> for Failure {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::is_of_the_statement;

    #[test]
    fn only_what_the_server_says_of_a_statement_is_a_refusal() {
        for refusal in ["23505", "40001", "40P01", "55P03", "22P02", "57014", "53100"] {
            assert!(is_of_the_statement(refusal), "{refusal}");
        }
        // A connection that broke, a server that ends, and in so many words: nobody knows whether it was completed.
        for doubt in ["08006", "08007", "57P01", "57P02", "40003"] {
            assert!(!is_of_the_statement(doubt), "{doubt}");
        }
    }
}
