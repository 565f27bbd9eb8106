//! What a client reads.

use std::fmt;

use serde_json::Value;

/// A reply, as it was on the wire.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// In order; names in lower case, as the gateway writes them.
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    /// The only value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let values = self.values(name);
        assert!(values.len() < 2, "{name} is repeated: {self:?}");
        values.first().map(|value| str::from_utf8(value).unwrap())
    }

    /// All values of a header, in order.
    pub(crate) fn values(&self, name: &str) -> Vec<&[u8]> {
        self.headers.iter().filter(|(n, _)| n == name).map(|(_, value)| &**value).collect()
    }

    /// What a replay must have in common with the first answer: all but the moment, and the mark of a replay.
    pub(crate) fn in_common(&self) -> Self {
        let mut reply = self.clone();
        reply.headers.retain(|(name, _)| name != "date" && !name.ends_with("-replayed"));
        reply.headers.sort();
        reply
    }

    pub(crate) fn is_replay(&self) -> bool {
        ["idempotency-replayed", "idempotent-replayed"].iter().any(|name| self.header(name) == Some("true"))
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn text(&self) -> &str {
        str::from_utf8(&self.body).unwrap()
    }

    /// Checks that this is a whole problem document with this code, and gives it.
    #[track_caller]
    pub(crate) fn expect_problem(&self, status: u16, code: &str) -> Value {
        let found = self.header("content-type");
        assert_eq!((self.status, found), (status, Some("application/problem+json")), "{self:?}");
        let document = self.json();
        assert_eq!(document["code"], code, "{document}");
        assert_eq!(document["type"], format!("https://oncegate.dev/problems/{code}"));
        assert_eq!(document["status"], status);
        assert!(document["title"].is_string() && document["detail"].is_string(), "{document}");
        let retry_after_s = self.header("retry-after").map(|seconds| seconds.parse::<u64>().unwrap());
        assert_eq!(document.get("retry_after_s").and_then(Value::as_u64), retry_after_s);
        assert!(!self.is_replay(), "a refusal is no replay: {self:?}");
        document
    }

    /// The same of a problem that one may have to come back for: it names the operation and says where to look.
    #[track_caller]
    pub(crate) fn expect_problem_of_operation(&self, status: u16, code: &str) -> Value {
        let document = self.expect_problem(status, code);
        let id = document["operation"].as_str().unwrap_or_else(|| panic!("no operation: {document}"));
        assert!(id.starts_with("op_"), "{document}");
        assert_eq!(document["instance"], format!("/.oncegate/operations/{id}"));
        document
    }

    #[track_caller]
    pub(crate) fn expect_retry_after(&self, seconds: Option<u64>) {
        let found = self.header("retry-after").map(|value| value.parse().unwrap());
        assert_eq!(found, seconds, "{self:?}");
    }

    /// Checks that this is an answer of the upstream's, with this body.
    #[track_caller]
    pub(crate) fn expect_first(&self, status: u16, body: &str) {
        assert_eq!((self.status, str::from_utf8(&self.body)), (status, Ok(body)), "{self:?}");
        assert!(!self.is_replay(), "not a replay: {self:?}");
    }

    /// Checks that this is a replay of an answer with this body.
    #[track_caller]
    pub(crate) fn expect_replay(&self, status: u16, body: &str) {
        assert_eq!((self.status, str::from_utf8(&self.body)), (status, Ok(body)), "{self:?}");
        assert!(self.is_replay(), "a replay: {self:?}");
    }
}

impl fmt::Debug for Reply {
    /// As much as a person wants to see.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.status)?;
        for (name, value) in &self.headers {
            writeln!(f, "{name}: {}", String::from_utf8_lossy(value))?;
        }
        let start = &self.body[..self.body.len().min(500)];
        write!(f, "{} bytes: {}", self.body.len(), String::from_utf8_lossy(start))
    }
}
