//! Signals between the nodes that share a store: hints, and no promise.
//!
//! A signal may be lost, doubled or late; whoever waits must be right by asking the store now and then. So a signal never
//! carries what became of a record, only that it is worth asking.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;

use oncegate_core::identity::RecordId;

use crate::Result;

/// What one node tells the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signal {
    /// An attempt was settled: whoever waits for its answer may ask.
    Settled(RecordId),
    /// An operator took an answer back: whoever keeps it lets go of it.
    Forgotten(RecordId),
}

/// A word: a mark, `s` for settled or `f` for forgotten, and the record's id.
impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settled(id) => write!(f, "s{id}"),
            Self::Forgotten(id) => write!(f, "f{id}"),
        }
    }
}

impl FromStr for Signal {
    type Err = NotASignal;

    fn from_str(word: &str) -> std::result::Result<Self, NotASignal> {
        let (mark, id) = word.split_at_checked(1).ok_or(NotASignal)?;
        let id = id.parse().map_err(|_| NotASignal)?;
        match mark {
            "s" => Ok(Self::Settled(id)),
            "f" => Ok(Self::Forgotten(id)),
            _ => Err(NotASignal),
        }
    }
}

/// Not a signal of this release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotASignal;

impl fmt::Display for NotASignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a signal is `s` or `f` followed by a record id")
    }
}

impl Error for NotASignal {}

/// One message about all of these, which should be some: a word each, with spaces between. A word takes 30 bytes.
#[must_use]
pub fn to_message(signals: &[Signal]) -> String {
    signals.iter().map(Signal::to_string).collect::<Vec<_>>().join(" ")
}

/// The signals of a message, word by word; a message without any has one that is not understood. What a channel makes of
/// such words, another release's or nobody's, is its own affair.
pub fn of_message(message: &str) -> impl Iterator<Item = std::result::Result<Signal, NotASignal>> {
    message.split(' ').map(str::parse)
}

/// What a node hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// These.
    Signals(Vec<Signal>),
    /// The connection was lost, and is there again: any signal may have been missed meanwhile.
    Gap,
}

/// A future behind a pointer, so that the channel can be held without knowing its store.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A channel to all nodes of a store, this one among them.
pub trait Signals: Send + Sync + 'static {
    /// Tells everybody, once, off the path of any write.
    fn tell<'a>(&'a self, signals: &'a [Signal]) -> Pending<'a, Result<()>>;

    /// Waits for the next that is told. Connects, and connects again, as need be; called by one task at a time.
    fn hear(&self) -> Pending<'_, Heard>;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn signal() -> impl Strategy<Value = Signal> {
        (any::<[u8; 16]>(), any::<bool>()).prop_map(|(bytes, is_settled)| {
            let id = RecordId::from_bytes(bytes);
            if is_settled { Signal::Settled(id) } else { Signal::Forgotten(id) }
        })
    }

    fn read(message: &str) -> std::result::Result<Vec<Signal>, NotASignal> {
        of_message(message).collect()
    }

    proptest! {
        #[test]
        fn what_was_told_is_what_is_heard(told in prop::collection::vec(signal(), 1..50)) {
            let message = to_message(&told);
            prop_assert_eq!(message.len() + 1, 31 * told.len());
            prop_assert_eq!(read(&message), Ok(told));
        }

        /// No two messages say the same, so whatever is read would be written just so; all else is refused.
        #[test]
        fn garbage_is_refused(message in prop_oneof![".*", "[sfx ]op_[0-7][0-9a-z]{25}( .{0,31})?"]) {
            if let Ok(signals) = read(&message) {
                prop_assert_eq!(to_message(&signals), message);
            }
        }

        #[test]
        fn a_message_that_was_cut_or_changed_says_nothing_else(
            told in prop::collection::vec(signal(), 1..4),
            place in any::<prop::sample::Index>(),
            letter in "[^0-9a-hjkmnp-tv-z]",
        ) {
            let message = to_message(&told);
            let place = place.index(message.len());
            let (before, after) = (&message[..place], &message[place + 1..]);
            let changed = format!("{before}{letter}{after}");
            prop_assert!(changed == message || read(&changed).is_err(), "{}", changed);
            let heard = read(before).unwrap_or_default();
            prop_assert_eq!(&heard[..], &told[..heard.len()]);
        }
    }

    #[test]
    fn words_that_are_no_signals() {
        let id = RecordId::from_bytes([7; 16]);
        for word in [
            "",
            "s",
            "sop_zzz",
            "\u{e9}",
            &id.to_string(),
            &format!("x{id}"),
            &format!("S{id}"),
            &format!("s{id}0"),
        ] {
            assert_eq!(word.parse::<Signal>(), Err(NotASignal), "{word}");
        }
    }
}
