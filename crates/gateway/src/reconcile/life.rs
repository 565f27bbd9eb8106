//! Which life of a key an effect is of: an effect of an earlier life must not settle a later one.

use std::time::Duration;

use oncegate_core::fingerprint::Pointer;

use super::about::About;
use super::condition::Found;
use super::moment::Moment;
use super::why::Why;

/// How it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// By what was asked, or by how the record was found: nothing else can be meant.
    Name,
    /// What was found names it here.
    Life(Pointer),
    /// What was found says here when it was made.
    Created {
        /// Where.
        pointer: Pointer,
        /// How far the provider's clock may be behind the store's.
        clock_error: Duration,
    },
    /// The operator declares that no key is ever used for a second request.
    NeverReused,
}

/// What is said of an effect's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It can be of no other.
    Certain,
    /// It is of the life of this name.
    Named(String),
    /// It was made then.
    Created {
        /// When.
        at: Moment,
        /// How far that clock may be behind.
        clock_error: Duration,
    },
}

impl Proof {
    pub(super) fn claim(&self, found: &Found<'_>) -> Result<Claim, Why> {
        match self {
            Self::Name | Self::NeverReused => Ok(Claim::Certain),
            Self::Life(pointer) => {
                let name =
                    found.document?.part(pointer)?.and_then(|part| part.text().transpose()).transpose()?;
                name.map(|name| Claim::Named(name.into_owned())).ok_or_else(|| Why::NoLife(pointer.clone()))
            }
            Self::Created { pointer, clock_error } => {
                let at = found.document?.part(pointer)?.map(Moment::of).transpose()?.flatten();
                let at = at.ok_or_else(|| Why::NoMoment(pointer.clone()))?;
                Ok(Claim::Created { at, clock_error: *clock_error })
            }
        }
    }
}

impl Claim {
    /// Whether it is of this life.
    #[must_use]
    pub fn is_of(&self, about: &About) -> bool {
        match self {
            Self::Certain => true,
            Self::Named(name) => about.life.is_called(name),
            Self::Created { at, clock_error } => !at.is_before(about.created_at.minus(*clock_error)),
        }
    }
}
