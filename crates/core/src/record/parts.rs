//! The parts of a record that a store keeps as one column each, with their bytes.

use std::fmt;
use std::sync::Arc;

use crate::codec::{Decoder, Encoder, Malformed};
use crate::policy::Credentials;
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

/// A request that is stored so that a worker can run it.
///
/// Its headers may hold the caller's credentials: no output shows them, `Debug` included.
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
    /// Whether the caller's credentials are among the headers. `None`: an earlier release stored
    /// the request, without any.
    pub credentials: Option<Credentials>,
}

const REQUEST_SCHEMA: u8 = 1;
/// The stored header that says whether credentials are kept. It is a header, and no field of its
/// own, so that nodes of an earlier release can read the row while a new one is rolled out.
const CREDENTIALS: &str = "oncegate-credentials";

impl StoredRequest {
    /// Headers of a stored request whose names begin so are the layer's own, never a client's.
    pub const RESERVED_PREFIX: &str = "oncegate-";

    /// The bytes that a store keeps.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        out.u8(REQUEST_SCHEMA);
        out.text(&self.method);
        out.text(&self.target);
        let value = self.credentials.map(|credentials| match credentials {
            Credentials::Kept => "kept",
            Credentials::Dropped => "dropped",
        });
        let mut headers = self.headers.clone();
        headers.extend(value.map(|value| (CREDENTIALS.to_owned(), value.into())));
        out.headers(&headers);
        out.bytes(&self.body);
        out.finish()
    }

    /// Reads back what [`StoredRequest::encode`] wrote. A request of an earlier release has its
    /// caller's credentials if its route named `authorization`. A cookie alone does not say so:
    /// the caller may have been known by what was not stored.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = Decoder::new(bytes, "stored request");
        if input.u8()? != REQUEST_SCHEMA {
            return Err(input.malformed());
        }
        let (method, target) = (input.text()?.into(), input.text()?.into());
        let mut headers = input.headers()?;
        let body = input.bytes()?.to_vec();
        let malformed = input.malformed();
        input.finish()?;
        let stated = headers.iter().position(|(name, _)| name == CREDENTIALS);
        let credentials = match stated.map(|place| headers.remove(place).1) {
            Some(value) if value == b"kept" => Some(Credentials::Kept),
            Some(value) if value == b"dropped" => Some(Credentials::Dropped),
            Some(_) => return Err(malformed),
            None => headers.iter().any(|(name, _)| name == "authorization").then_some(Credentials::Kept),
        };
        Ok(Self { method, target, headers, body, credentials })
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
            credentials: Some(Credentials::Kept),
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

    /// Rows of an earlier release stay readable, and so do today's rows for that release: it sees
    /// one header more.
    #[test]
    fn stored_requests_say_whether_they_have_the_callers_credentials() {
        let stored = |credentials, names: &[&str]| StoredRequest {
            method: "POST".into(),
            target: "/p".into(),
            headers: names.iter().map(|name| ((*name).to_owned(), b"secret".to_vec())).collect(),
            body: Vec::new(),
            credentials,
        };
        for credentials in [Some(Credentials::Kept), Some(Credentials::Dropped)] {
            let request = stored(credentials, &["authorization"]);
            assert_eq!(StoredRequest::decode(&request.encode()), Ok(request));
        }
        let before = |names: &[&str]| {
            let bytes = stored(None, names).encode();
            StoredRequest::decode(&bytes).unwrap().credentials
        };
        assert_eq!(before(&["content-type", "x-tenant"]), None);
        assert_eq!(before(&["content-type", "authorization"]), Some(Credentials::Kept));
        // The caller may have shown an `Authorization` beside it, which was not stored.
        assert_eq!(before(&["content-type", "cookie"]), None);
        assert_eq!(before(&["authorization", "cookie"]), Some(Credentials::Kept));
        let stated = stored(None, &["oncegate-credentials"]);
        assert!(StoredRequest::decode(&stated.encode()).is_err(), "of a later release");
        assert_eq!(format!("{:?}", stored(None, &["cookie"])), "POST /p with 0 bytes");
    }
}
