//! What is kept of an answer, and its bytes in a store.
//!
//! **Invariant:** decoding gives back exactly what was encoded: status, headers in order (repeated ones stay repeated,
//! values need not be UTF-8), and the body's bytes. The first byte is the schema version; a version that this release
//! does not know is refused, not guessed. Not here: which headers are kept (the boundary filters before it settles).

use std::fmt;

use crate::codec::{Decoder, Encoder, Malformed};

/// The stored end of an operation.
#[derive(Clone, PartialEq, Eq)]
pub enum Answer {
    /// Kept whole: replayed byte for byte.
    Kept(Response),
    /// Over the storage limit: the operation is over, its bytes are gone.
    NotKept {
        /// The status that was sent.
        status: u16,
        /// Where the result can be found, if the answer said so.
        location: Option<Vec<u8>>,
    },
}

/// A whole answer.
#[derive(Clone, PartialEq, Eq)]
pub struct Response {
    /// The HTTP status, or the like of it for jobs.
    pub status: u16,
    /// End-to-end headers, in order; names in lower case.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body.
    pub body: Vec<u8>,
}

/// The newest form of a stored answer.
pub const ANSWER_SCHEMA: u8 = 1;
const KEPT: u8 = 0;
const NOT_KEPT: u8 = 1;
const WHAT: &str = "stored answer";

impl Answer {
    /// The status, kept in either case.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self {
            Self::Kept(response) => response.status,
            Self::NotKept { status, .. } => *status,
        }
    }

    /// Whether the operation did what was asked. Two accounts of one attempt contradict each other where this differs;
    /// a rebuilt answer never has the original's bytes.
    #[must_use]
    pub const fn is_success(&self) -> bool {
        self.status() < 400
    }

    /// The same, without its bytes if its body is over the limit.
    #[must_use]
    pub fn bounded(self, bytes_max: u64) -> Self {
        match self {
            Self::Kept(response)
                if u64::try_from(response.body.len()).is_ok_and(|bytes| bytes > bytes_max) =>
            {
                let location = response.headers.into_iter().find(|(name, _)| name == "location");
                Self::NotKept { status: response.status, location: location.map(|(_, value)| value) }
            }
            answer => answer,
        }
    }

    /// The bytes that a store keeps.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::with_capacity(self.size_hint());
        out.u8(ANSWER_SCHEMA);
        match self {
            Self::Kept(response) => {
                out.u8(KEPT);
                out.u16(response.status);
                out.headers(&response.headers);
                out.bytes(&response.body);
            }
            Self::NotKept { status, location } => {
                out.u8(NOT_KEPT);
                out.u16(*status);
                out.optional(location.as_deref());
            }
        }
        out.finish()
    }

    /// Reads back what [`Answer::encode`] wrote, in this or an earlier release.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = Decoder::new(bytes, WHAT);
        if input.u8()? != ANSWER_SCHEMA {
            return Err(input.malformed());
        }
        let answer = match input.u8()? {
            KEPT => {
                let status = input.u16()?;
                Self::Kept(Response { status, headers: input.headers()?, body: input.bytes()?.to_vec() })
            }
            NOT_KEPT => {
                Self::NotKept { status: input.u16()?, location: input.optional()?.map(<[u8]>::to_vec) }
            }
            _ => return Err(input.malformed()),
        };
        input.finish()?;
        Ok(answer)
    }

    /// Roughly how many bytes it takes.
    #[must_use]
    pub fn size_hint(&self) -> usize {
        match self {
            Self::Kept(response) => {
                let headers: usize = response.headers.iter().map(|(n, v)| n.len() + v.len() + 8).sum();
                12 + headers + response.body.len()
            }
            Self::NotKept { location, .. } => 12 + location.as_ref().map_or(0, Vec::len),
        }
    }
}

impl fmt::Debug for Answer {
    /// Status and size; bodies carry customers' data and do not belong in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept(response) => write!(f, "Kept({response:?})"),
            Self::NotKept { status, .. } => write!(f, "NotKept({status})"),
        }
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {} headers and {} bytes", self.status, self.headers.len(), self.body.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn answers() -> impl Strategy<Value = Answer> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..40);
        let headers = proptest::collection::vec(("[a-z-]{1,12}", bytes()), 0..6);
        prop_oneof![
            (any::<u16>(), headers, bytes()).prop_map(|(status, headers, body)| Answer::Kept(Response {
                status,
                headers,
                body
            })),
            (any::<u16>(), proptest::option::of(bytes()))
                .prop_map(|(status, location)| Answer::NotKept { status, location }),
        ]
    }

    proptest! {
        #[test]
        fn answers_survive_the_store_byte_for_byte(answer in answers()) {
            prop_assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
        }

        #[test]
        fn cut_or_lengthened_bytes_are_refused(answer in answers(), extra in any::<u8>(), cut in any::<prop::sample::Index>()) {
            let whole = answer.encode();
            prop_assert!(Answer::decode(&whole[..cut.index(whole.len())]).is_err());
            let mut longer = whole;
            longer.push(extra);
            prop_assert!(Answer::decode(&longer).is_err());
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Answer::decode(&bytes);
        }
    }

    /// These bytes are in users' databases: the form may gain versions, but this one stays readable for ever.
    #[test]
    fn schema_1_is_pinned() {
        let answer = Answer::Kept(Response {
            status: 201,
            headers: vec![("a".to_owned(), b"\xff".to_vec()), ("a".to_owned(), b"".to_vec())],
            body: b"hi".to_vec(),
        });
        let bytes = b"\x01\x00\xc9\x00\x02\0\0\0\x01\0\0\0a\x01\0\0\0\xff\x01\0\0\0a\0\0\0\0\x02\0\0\0hi";
        assert_eq!(answer.encode(), bytes);
        assert_eq!(Answer::decode(bytes), Ok(answer));
        let not_kept = Answer::NotKept { status: 200, location: Some(b"/x".to_vec()) };
        let bytes = b"\x01\x01\xc8\x00\x01\x02\0\0\0/x";
        assert_eq!(not_kept.encode(), bytes);
        assert_eq!(Answer::decode(bytes), Ok(not_kept));
        assert!(Answer::decode(b"\x02\x01\xc8\x00\x00").is_err(), "an unknown schema is refused");
    }
}
