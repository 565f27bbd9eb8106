//! The parts of a record that a store keeps as one column each, with their bytes.

use std::fmt;
use std::sync::Arc;

use crate::codec::{Decoder, Encoder, Malformed};
use crate::response::Answer;
use crate::time::Timestamp;

/// A *happened* that came while the attempt was still running: applied on entering `unknown`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// When it came.
    pub at: Timestamp,
    /// Who said so: a probe, a webhook's name, a late holder, an operator.
    pub source: Box<str>,
    /// The answer that it carried.
    pub answer: Arc<Answer>,
}

const EVIDENCE_SCHEMA: u8 = 1;

impl Evidence {
    /// The bytes that a store keeps.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        out.u8(EVIDENCE_SCHEMA);
        out.i64(self.at.as_micros());
        out.text(&self.source);
        out.bytes(&self.answer.encode());
        out.finish()
    }

    /// Reads back what [`Evidence::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = Decoder::new(bytes, "evidence");
        if input.u8()? != EVIDENCE_SCHEMA {
            return Err(input.malformed());
        }
        let at = Timestamp::from_micros(input.i64()?);
        let source = input.text()?.into();
        let answer = Arc::new(Answer::decode(input.bytes()?)?);
        input.finish()?;
        Ok(Self { at, source, answer })
    }
}

/// How far a phased operation has come.
#[derive(Clone, PartialEq, Eq)]
pub struct RecoveryPoint {
    /// The phase that is finished.
    pub name: Box<str>,
    /// What it gave, handed back instead of running it again.
    pub output: Vec<u8>,
}

const RECOVERY_SCHEMA: u8 = 1;

impl RecoveryPoint {
    /// The bytes that a store keeps.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        out.u8(RECOVERY_SCHEMA);
        out.text(&self.name);
        out.bytes(&self.output);
        out.finish()
    }

    /// Reads back what [`RecoveryPoint::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = Decoder::new(bytes, "recovery point");
        if input.u8()? != RECOVERY_SCHEMA {
            return Err(input.malformed());
        }
        let point = Self { name: input.text()?.into(), output: input.bytes()?.to_vec() };
        input.finish()?;
        Ok(point)
    }
}

impl fmt::Debug for RecoveryPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {} bytes", self.name, self.output.len())
    }
}

/// A request kept so that it can be run without its client. Credentials are left out before it gets here.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredRequest {
    /// The method.
    pub method: Box<str>,
    /// Path and query.
    pub target: Box<str>,
    /// The headers that the route keeps.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body.
    pub body: Vec<u8>,
}

const REQUEST_SCHEMA: u8 = 1;

impl StoredRequest {
    /// The bytes that a store keeps.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        out.u8(REQUEST_SCHEMA);
        out.text(&self.method);
        out.text(&self.target);
        out.headers(&self.headers);
        out.bytes(&self.body);
        out.finish()
    }

    /// Reads back what [`StoredRequest::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = Decoder::new(bytes, "stored request");
        if input.u8()? != REQUEST_SCHEMA {
            return Err(input.malformed());
        }
        let request = Self {
            method: input.text()?.into(),
            target: input.text()?.into(),
            headers: input.headers()?,
            body: input.bytes()?.to_vec(),
        };
        input.finish()?;
        Ok(request)
    }
}

impl fmt::Debug for StoredRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} with {} bytes", self.method, self.target, self.body.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::response::Response;

    #[test]
    fn parts_survive_the_store_and_refuse_other_bytes() {
        let answer = Answer::Kept(Response { status: 200, headers: vec![], body: b"x".to_vec() });
        let evidence =
            Evidence { at: Timestamp::from_micros(-5), source: "webhook".into(), answer: Arc::new(answer) };
        let point = RecoveryPoint { name: "charged".into(), output: vec![0, 255] };
        let request = StoredRequest {
            method: "POST".into(),
            target: "/p?q".into(),
            headers: vec![("a".to_owned(), vec![200])],
            body: vec![1, 2],
        };
        assert_eq!(Evidence::decode(&evidence.encode()), Ok(evidence.clone()));
        assert_eq!(RecoveryPoint::decode(&point.encode()), Ok(point.clone()));
        assert_eq!(StoredRequest::decode(&request.encode()), Ok(request.clone()));
        for whole in [evidence.encode(), point.encode(), request.encode()] {
            let cut = &whole[..whole.len() - 1];
            assert!(Evidence::decode(cut).is_err());
            assert!(RecoveryPoint::decode(cut).is_err());
            assert!(StoredRequest::decode(cut).is_err());
            let mut next_schema = whole.clone();
            next_schema[0] = 9;
            assert!(Evidence::decode(&next_schema).is_err());
            assert!(RecoveryPoint::decode(&next_schema).is_err());
            assert!(StoredRequest::decode(&next_schema).is_err());
        }
    }
}
