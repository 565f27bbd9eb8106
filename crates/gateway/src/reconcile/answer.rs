//! The answer that is stored for what happened, made of what was found.
//!
//! It is not the original answer, whose bytes nobody has: it is what clients are told from now on.

use http::{HeaderName, HeaderValue, header};
use oncegate_core::fingerprint::Pointer;
use oncegate_core::response::{Answer, Response};

use super::condition::{Condition, Found};
use super::template::Inserted;
use super::why::Why;

/// How an answer is made: the first case that fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    /// In order.
    pub cases: Vec<Case>,
}

/// One kind of answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Of what; `None`: of everything.
    pub when: Option<Condition>,
    /// Its status.
    pub status: u16,
    /// Its headers, beside the content type that its body has by itself.
    pub headers: Vec<(HeaderName, Inserted)>,
    /// Its body.
    pub body: Body,
}

/// What an answer's body is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// What was found, as it is.
    Found,
    /// A part of it, as it is.
    Part(Pointer),
    /// A text with insertions; JSON, unless a header says otherwise.
    Text(Inserted),
}

const JSON: &[u8] = b"application/json";

impl Build {
    pub(super) fn answer(&self, found: &Found<'_>) -> Result<Answer, Why> {
        for case in &self.cases {
            let fits = match &case.when {
                Some(condition) => condition.holds(found)?,
                None => true,
            };
            if fits {
                return case.answer(found);
            }
        }
        Err(Why::NoCase)
    }
}

impl Case {
    fn answer(&self, found: &Found<'_>) -> Result<Answer, Why> {
        let (body, content_type) = match &self.body {
            Body::Found => (found.body.to_vec(), found.content_type),
            Body::Part(pointer) => {
                let part = found.document?.part(pointer)?.ok_or_else(|| Why::NotThere(pointer.clone()))?;
                (part.raw().as_bytes().to_vec(), Some(JSON))
            }
            Body::Text(text) => (text.json(found)?.into_bytes(), Some(JSON)),
        };
        let mut headers = Vec::with_capacity(self.headers.len() + 1);
        let says_type = self.headers.iter().any(|(name, _)| *name == header::CONTENT_TYPE);
        if let Some(content_type) = content_type.filter(|_| !body.is_empty() && !says_type) {
            headers.push((header::CONTENT_TYPE.as_str().to_owned(), content_type.to_vec()));
        }
        for (name, value) in &self.headers {
            let value = value.plain(found)?;
            let value = HeaderValue::from_str(&value).map_err(|_| Why::NotAHeader(name.clone()))?;
            headers.push((name.as_str().to_owned(), value.as_bytes().to_vec()));
        }
        Ok(Answer::Kept(Response { status: self.status, headers, body }))
    }
}
