//! Length-prefixed frames: how compound values become bytes that no two different values share.
//!
//! Used for what is hashed (ids, fingerprints) and for what is kept as one column (answers, evidence, stored requests).
//! Hand-written on purpose: these bytes outlive every release, so their layout is stated here and owned here, not by
//! a serialiser's version. Integers are little-endian; a text or byte string is its length as `u32`, then its bytes.

/// Appends values to a frame.
#[derive(Default)]
pub struct Encoder(Vec<u8>);

impl Encoder {
    /// An empty frame.
    #[must_use]
    pub fn new() -> Self {
        Self(Vec::new())
    }

    /// An empty frame with room for `bytes`.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    /// Two bytes.
    pub fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Eight bytes.
    pub fn i64(&mut self, value: i64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// A byte string. One longer than `u32` can say is far past every limit on bodies; its length is written
    /// saturated, so that decoding refuses the frame instead of misreading it.
    pub fn bytes(&mut self, value: &[u8]) {
        self.u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
        self.0.extend_from_slice(value);
    }

    /// A text.
    pub fn text(&mut self, value: &str) {
        self.bytes(value.as_bytes());
    }

    /// An optional byte string: absent and empty differ.
    pub fn optional(&mut self, value: Option<&[u8]>) {
        match value {
            None => self.u8(0),
            Some(bytes) => {
                self.u8(1);
                self.bytes(bytes);
            }
        }
    }

    /// Names and values, in order.
    pub fn headers(&mut self, headers: &[(String, Vec<u8>)]) {
        self.u32(u32::try_from(headers.len()).unwrap_or(u32::MAX));
        for (name, value) in headers {
            self.text(name);
            self.bytes(value);
        }
    }

    /// The finished frame.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// The frame is not what an [`Encoder`] wrote: cut short, too long, or of a schema this release does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// What was being read.
    pub what: &'static str,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "stored bytes are not a valid {}", self.what)
    }
}

impl std::error::Error for Malformed {}

/// Takes values off a frame.
pub struct Decoder<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Decoder<'a> {
    /// Reads `frame`, which should hold a `what`.
    #[must_use]
    pub const fn new(frame: &'a [u8], what: &'static str) -> Self {
        Self { rest: frame, what }
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take::<1>()?[0])
    }

    /// Two bytes.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.take()?))
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    /// Eight bytes.
    pub fn i64(&mut self) -> Result<i64, Malformed> {
        Ok(i64::from_le_bytes(self.take()?))
    }

    /// A byte string.
    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.u32()?).map_err(|_| self.malformed())?;
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(self.malformed())?;
        self.rest = rest;
        Ok(taken)
    }

    /// A text.
    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        let bytes = self.bytes()?;
        std::str::from_utf8(bytes).map_err(|_| self.malformed())
    }

    /// An optional byte string.
    pub fn optional(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        match self.u8()? {
            0 => Ok(None),
            1 => self.bytes().map(Some),
            _ => Err(self.malformed()),
        }
    }

    /// Names and values, in order.
    pub fn headers(&mut self) -> Result<Vec<(String, Vec<u8>)>, Malformed> {
        let count = usize::try_from(self.u32()?).map_err(|_| self.malformed())?;
        // Each header takes at least eight bytes, so a forged count cannot make us reserve memory.
        let mut headers = Vec::with_capacity(count.min(self.rest.len() / 8));
        for _ in 0..count {
            headers.push((self.text()?.to_owned(), self.bytes()?.to_vec()));
        }
        Ok(headers)
    }

    /// Nothing may be left.
    pub fn finish(self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.malformed()) }
    }

    /// The error of this frame.
    #[must_use]
    pub const fn malformed(&self) -> Malformed {
        Malformed { what: self.what }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(self.malformed())?;
        self.rest = rest;
        Ok(*taken)
    }
}
