//! How a body is read, by its declared media type.

use std::fmt;

use super::Fields;

/// How a body was read. It enters the frame, so that one byte string read in two ways is two contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Family {
    /// Not at all: the policy is `none`.
    Unchecked,
    /// There is no body; its media type says nothing.
    Empty,
    /// As JSON.
    Json,
    /// As JSON, of which only the named parts count.
    JsonIncluded,
    /// As JSON, of which all but the named parts count.
    JsonExcluded,
    /// As form pairs.
    Form,
    /// As bytes.
    Raw {
        /// The media type without parameters, in lower case; empty where none was declared.
        essence: Vec<u8>,
    },
}

impl Family {
    /// The family that a `Content-Type` declares. Parameters do not count: `charset=utf-8` comes and goes with the
    /// client's library.
    pub(super) fn declared(content_type: Option<&[u8]>) -> Self {
        let essence = essence(content_type);
        if essence.eq_ignore_ascii_case(b"application/json") || ends_with_json_suffix(essence) {
            Self::Json
        } else if essence.eq_ignore_ascii_case(b"application/x-www-form-urlencoded") {
            Self::Form
        } else {
            Self::raw(content_type)
        }
    }

    /// The family of a body that is taken byte for byte.
    pub(super) fn raw(content_type: Option<&[u8]>) -> Self {
        Self::Raw { essence: essence(content_type).to_ascii_lowercase() }
    }

    /// The family of a JSON body of which a part counts.
    pub(super) fn of_fields(fields: &Fields) -> Self {
        match fields {
            Fields::Include(_) => Self::JsonIncluded,
            Fields::Exclude(_) => Self::JsonExcluded,
        }
    }

    /// The two fields of the frame that tell one family from every other. Part of the form: these never change.
    pub(super) fn tags(&self) -> (&'static str, &[u8]) {
        match self {
            Self::Unchecked => ("none", &[]),
            Self::Empty => ("empty", &[]),
            Self::Json => ("json", &[]),
            Self::JsonIncluded => ("json-include", &[]),
            Self::JsonExcluded => ("json-exclude", &[]),
            Self::Form => ("form", &[]),
            Self::Raw { essence } => ("raw", essence),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tags() {
            (tag, []) => f.write_str(tag),
            (tag, essence) => write!(f, "{tag} {}", essence.escape_ascii()),
        }
    }
}

/// The media type before its parameters.
fn essence(content_type: Option<&[u8]>) -> &[u8] {
    let declared = content_type.unwrap_or_default();
    let end = declared.iter().position(|&byte| byte == b';').unwrap_or(declared.len());
    declared[..end].trim_ascii()
}

/// Whether the subtype has the structured suffix of RFC 6839: `application/vnd.example+json`.
fn ends_with_json_suffix(essence: &[u8]) -> bool {
    let suffix = b"+json";
    essence.len() > suffix.len() && essence[essence.len() - suffix.len()..].eq_ignore_ascii_case(suffix)
}
