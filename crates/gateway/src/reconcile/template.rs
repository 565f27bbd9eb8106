//! Texts with holes: what is asked, and what is answered.
//!
//! **Invariant:** a value fills its hole and nothing else. In a URL it is percent-encoded as one component, and cannot climb out of its
//! path; in a header it is refused if it is not legal there; in a body it is escaped as JSON.

use std::fmt;

use http::{HeaderName, HeaderValue, Uri};
use oncegate_core::fingerprint::Pointer;

use super::about::About;
use super::condition::Found;
use super::probe::Unaskable;
use super::why::Why;
use crate::config::Secret;

/// What a question may be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variable {
    /// The client's key.
    Key,
    /// The key that the upstream was sent.
    ForwardedKey,
    /// The record's id, `op_…`.
    Id,
    /// The scope's whole text.
    Scope,
    /// The tenant alone.
    Tenant,
    /// The route's pattern.
    Operation,
    /// The life's name.
    Life,
    /// The last attempt's fence.
    Fence,
    /// The provider's reference, if it was learnt.
    Reference,
}

impl Variable {
    /// All of them, by name.
    pub const TABLE: [(&'static str, Self); 9] = [
        ("key", Self::Key),
        ("forwarded_key", Self::ForwardedKey),
        ("id", Self::Id),
        ("scope", Self::Scope),
        ("tenant", Self::Tenant),
        ("operation", Self::Operation),
        ("life", Self::Life),
        ("fence", Self::Fence),
        ("reference", Self::Reference),
    ];

    /// As it is written between braces.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::TABLE.iter().find(|(_, variable)| *variable == self).map_or("?", |(name, _)| name)
    }

    fn read(name: &str) -> Result<Self, TemplateError> {
        let found = Self::TABLE.iter().find(|(known, _)| *known == name);
        found.map(|(_, variable)| *variable).ok_or_else(|| TemplateError::Unknown(name.to_owned()))
    }
}

/// Why a text is no template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateError {
    /// A brace without its other half.
    Brace,
    /// No such variable.
    Unknown(String),
    /// Not a JSON Pointer.
    Pointer(String),
    /// Not a URL to ask.
    Url(&'static str),
    /// Not legal in a header.
    Header,
    /// A secret that the environment does not have.
    Environment(String),
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Brace => f.write_str("a brace stands alone; a variable is written like {key}"),
            Self::Unknown(name) => {
                let names: Vec<_> = Variable::TABLE.iter().map(|(name, _)| format!("{{{name}}}")).collect();
                write!(f, "there is no variable {{{name}}}; there are {}", names.join(", "))
            }
            Self::Pointer(why) => write!(f, "{why}; an insertion is written like {{pointer:/data/0/id}}"),
            Self::Url(why) => f.write_str(why),
            Self::Header => f.write_str("has a character that no header may hold"),
            Self::Environment(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for TemplateError {}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Value(Variable),
    Secret { name: String, value: Secret },
}

/// Cuts a text at its braces; the second of a pair is whether it stood between some.
fn cut(text: &str) -> Result<Vec<(&str, bool)>, TemplateError> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(open) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(open);
        let inside = from.strip_prefix('{').ok_or(TemplateError::Brace)?;
        let close = inside.find(['{', '}']).ok_or(TemplateError::Brace)?;
        let (name, after) = inside.split_at(close);
        rest = after.strip_prefix('}').ok_or(TemplateError::Brace)?;
        pieces.extend([(before, false), (name, true)]);
    }
    pieces.push((rest, false));
    pieces.retain(|(text, is_hole)| *is_hole || !text.is_empty());
    Ok(pieces)
}

/// Where to ask: a path on the upstream, or a whole URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlTemplate {
    written: String,
    pieces: Vec<Piece>,
}

impl UrlTemplate {
    /// Reads one.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        const EXPECTED: &str = "expected a path on the upstream, such as \"/payments?idempotency_key={key}\", or a URL, such as \"https://api.example.com/v1/charges/{reference}\"";
        let cut = cut(text)?;
        let mut pieces = Vec::with_capacity(cut.len());
        for (text, is_hole) in &cut {
            pieces.push(if *is_hole {
                Piece::Value(Variable::read(text)?)
            } else {
                Piece::Text((*text).to_owned())
            });
        }
        let Some((first, false)) = cut.first() else { return Err(TemplateError::Url(EXPECTED)) };
        if let Some(rest) = first.strip_prefix("https://").or_else(|| first.strip_prefix("http://")) {
            let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
            if host.len() == rest.len() && cut.len() > 1 {
                return Err(TemplateError::Url(
                    "a variable may not stand in the host; only in the path and the query",
                ));
            }
            if host.contains('@') {
                return Err(TemplateError::Url(
                    "a user in the URL is not sent anywhere; put credentials into `headers`",
                ));
            }
        } else if !first.starts_with('/') || first.starts_with("//") {
            return Err(TemplateError::Url(EXPECTED));
        }
        let example: String = cut.iter().map(|(text, is_hole)| if *is_hole { "x" } else { text }).collect();
        if example.contains('#') || example.parse::<Uri>().is_err() {
            return Err(TemplateError::Url(EXPECTED));
        }
        Ok(Self { written: text.to_owned(), pieces })
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.written
    }

    /// Whether a variable stands in it.
    #[must_use]
    pub fn names(&self, variable: Variable) -> bool {
        self.pieces.contains(&Piece::Value(variable))
    }

    /// The URL, or the path with its query.
    pub(super) fn fill(&self, about: &About) -> Result<String, Unaskable> {
        let mut url = String::with_capacity(self.written.len() + 64);
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => url.push_str(text),
                Piece::Secret { .. } => {}
                Piece::Value(variable) => {
                    let value = about.value(*variable).ok_or(Unaskable::Missing(*variable))?;
                    // Servers that decode before they route would climb.
                    let climbs = || value.split(['/', '\\']).any(|segment| matches!(segment, "." | ".."));
                    if !url.contains('?') && climbs() {
                        return Err(Unaskable::Climbs(*variable));
                    }
                    encode(&value, &mut url);
                }
            }
        }
        let path = url.split('?').next().unwrap_or_default();
        if path.split('/').any(|segment| matches!(segment, "." | "..")) {
            return Err(Unaskable::NotAUrl);
        }
        Ok(url)
    }
}

/// Everything but RFC 3986's unreserved characters.
fn encode(value: &str, url: &mut String) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            url.push(char::from(byte));
        } else {
            url.push('%');
            url.push(char::from(HEX[usize::from(byte >> 4)]));
            url.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
}

/// What a question's header says. Variables, and secrets as `env:NAME` or `{env:NAME}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderTemplate {
    pieces: Vec<Piece>,
}

impl HeaderTemplate {
    /// Reads one; `environment` knows the secrets, and says in words why it does not.
    pub fn parse(
        text: &str,
        environment: impl Fn(&str) -> Result<Secret, String>,
    ) -> Result<Self, TemplateError> {
        let secret = |name: &str| {
            let value = environment(name).map_err(TemplateError::Environment)?;
            Ok(Piece::Secret { name: name.to_owned(), value })
        };
        if let Some(name) = text.strip_prefix("env:") {
            return Self { pieces: vec![secret(name)?] }.checked();
        }
        let mut pieces = Vec::new();
        for (text, is_hole) in cut(text)? {
            pieces.push(match text.strip_prefix("env:") {
                Some(name) if is_hole => secret(name)?,
                _ if is_hole => Piece::Value(Variable::read(text)?),
                _ => Piece::Text(text.to_owned()),
            });
        }
        Self { pieces }.checked()
    }

    fn checked(self) -> Result<Self, TemplateError> {
        for piece in &self.pieces {
            let text = match piece {
                Piece::Text(text) => text.as_str(),
                Piece::Secret { value, .. } => value.expose(),
                Piece::Value(_) => continue,
            };
            HeaderValue::from_str(text).map_err(|_| TemplateError::Header)?;
        }
        Ok(self)
    }

    /// Whether a variable stands in it.
    #[must_use]
    pub fn names(&self, variable: Variable) -> bool {
        self.pieces.contains(&Piece::Value(variable))
    }

    /// As it may be seen: no secret, and nothing that may be one.
    #[must_use]
    pub fn shown(&self) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Text(_) => "…".to_owned(),
            Piece::Value(variable) => format!("{{{}}}", variable.name()),
            Piece::Secret { name, .. } => format!("{{env:{name}}}"),
        };
        self.pieces.iter().map(piece).collect()
    }

    /// What it says of itself; `None`: a variable stands in it.
    pub(super) fn fixed(&self) -> Option<HeaderValue> {
        let mut is_secret = false;
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => Some(text.clone()),
            Piece::Secret { value, .. } => {
                is_secret = true;
                Some(value.expose().to_owned())
            }
            Piece::Value(_) => None,
        };
        let text: String = self.pieces.iter().map(piece).collect::<Option<_>>()?;
        let mut value = HeaderValue::from_str(&text).ok()?;
        value.set_sensitive(is_secret);
        Some(value)
    }

    pub(super) fn fill(&self, name: &HeaderName, about: &About) -> Result<HeaderValue, Unaskable> {
        let mut text = String::new();
        let mut is_secret = false;
        for piece in &self.pieces {
            match piece {
                Piece::Text(piece) => text.push_str(piece),
                Piece::Value(variable) => {
                    text.push_str(&about.value(*variable).ok_or(Unaskable::Missing(*variable))?);
                }
                Piece::Secret { value, .. } => {
                    is_secret = true;
                    text.push_str(value.expose());
                }
            }
        }
        let mut value = HeaderValue::from_str(&text).map_err(|_| Unaskable::NotAHeader(name.clone()))?;
        value.set_sensitive(is_secret);
        Ok(value)
    }
}

/// A text with insertions of what was found: `{pointer:/data/0/id}`. Other braces are only braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inserted {
    written: String,
    pieces: Vec<Result<String, Pointer>>,
}

impl Inserted {
    /// Reads one.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        const OPEN: &str = "{pointer:";
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find(OPEN) {
            let (before, from) = rest.split_at(open);
            let (pointer, after) = from[OPEN.len()..].split_once('}').ok_or(TemplateError::Brace)?;
            let pointer = pointer.parse().map_err(|error| TemplateError::Pointer(format!("{error}")))?;
            if !before.is_empty() {
                pieces.push(Ok(before.to_owned()));
            }
            pieces.push(Err(pointer));
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(Ok(rest.to_owned()));
        }
        Ok(Self { written: text.to_owned(), pieces })
    }

    /// Only what is there.
    #[must_use]
    pub fn of_pointer(pointer: Pointer) -> Self {
        Self { written: pointer.to_string(), pieces: vec![Err(pointer)] }
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.written
    }

    /// With texts and whole numbers as they are.
    pub(super) fn plain(&self, found: &Found<'_>) -> Result<String, Why> {
        self.fill(found, |part| Ok(part.name()?.map(std::borrow::Cow::into_owned)))
    }

    /// With texts escaped as JSON, without their quotes, and everything else as it is written.
    pub(super) fn json(&self, found: &Found<'_>) -> Result<String, Why> {
        self.fill(found, |part| {
            let inside = part.raw().strip_prefix('"').and_then(|text| text.strip_suffix('"'));
            Ok(Some(inside.unwrap_or(part.raw()).to_owned()))
        })
    }

    fn fill(
        &self,
        found: &Found<'_>,
        value: impl Fn(super::document::Part<'_>) -> Result<Option<String>, Why>,
    ) -> Result<String, Why> {
        let mut filled = String::with_capacity(self.written.len());
        for piece in &self.pieces {
            match piece {
                Ok(text) => filled.push_str(text),
                Err(pointer) => {
                    let value = found.document?.part(pointer)?.map(&value).transpose()?.flatten();
                    filled.push_str(&value.ok_or_else(|| Why::NotThere(pointer.clone()))?);
                }
            }
        }
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use oncegate_core::identity::{Fence, RecordId, Token};
    use oncegate_core::key::Key;
    use oncegate_core::policy::ForwardKey;
    use oncegate_core::scope::{Address, Operation, Scope};
    use oncegate_core::time::Timestamp;
    use proptest::prelude::*;

    use super::*;

    fn about(key: &str) -> About {
        let scope = Scope::tenant("acme").unwrap();
        let address = Address { scope, key: Key::from_text(key).unwrap() };
        About {
            id: RecordId::of(&address),
            address,
            life: Token::from_bytes([1; 16]),
            operation: Operation::new("POST /payments").unwrap(),
            fence: Fence::from_raw(7),
            reference: None,
            created_at: Timestamp::from_micros(0),
            forward_key: ForwardKey::AsIs,
            answer_bytes_max: 1 << 20,
        }
    }

    fn url(template: &str, key: &str) -> Result<String, Unaskable> {
        UrlTemplate::parse(template).unwrap().fill(&about(key))
    }

    #[test]
    fn a_value_is_one_component_of_a_url() {
        let filled = |template, key| url(template, key).unwrap();
        assert_eq!(
            filled("/payments?key={key}&limit=1", "a&status=x#y"),
            "/payments?key=a%26status%3Dx%23y&limit=1"
        );
        assert_eq!(filled("/payments/{key}/x", "a/b?c%2e d"), "/payments/a%2Fb%3Fc%252e%20d/x");
        assert_eq!(
            filled("https://api.example.com/v1?k={key}", "../.."),
            "https://api.example.com/v1?k=..%2F.."
        );
        assert_eq!(filled("/p/{operation}/{fence}/{tenant}", "k"), "/p/POST%20%2Fpayments/7/acme");
        for climbing in ["..", ".", "../admin", "a/../../admin", "..\\admin"] {
            let expected = Err(Unaskable::Climbs(Variable::Key));
            assert_eq!(url("/payments/{key}", climbing), expected, "{climbing}");
        }
        // Of two harmless halves.
        assert_eq!(url("/payments/.{key}/x", "..").unwrap_err(), Unaskable::Climbs(Variable::Key));
        assert_eq!(url("/payments/{reference}", "k").unwrap_err(), Unaskable::Missing(Variable::Reference));
    }

    #[test]
    fn what_is_no_url_to_ask_is_refused() {
        for wrong in [
            "",
            "payments",
            "{key}",
            "//host/x",
            "ftp://host/x",
            "https://{key}/x",
            "https://host{key}/x",
            "https://user@host/x",
            "/a b",
            "/x#{key}",
            "/{key",
            "/key}",
            "/{}",
            "/{kee}",
            "/{{key}}",
            "https://",
        ] {
            assert!(UrlTemplate::parse(wrong).is_err(), "{wrong}");
        }
        let words = UrlTemplate::parse("/{kee}").unwrap_err().to_string();
        assert!(
            words.starts_with("there is no variable {kee}; there are {key}, {forwarded_key}, {id}"),
            "{words}"
        );
    }

    #[test]
    fn secrets_come_from_the_environment_and_are_not_shown() {
        let environment = |name: &str| match name {
            "TOKEN" => Ok(Secret::new("hunter2")),
            _ => Err(format!("{name} is not set")),
        };
        let parse = |text: &str| HeaderTemplate::parse(text, environment);
        let name = HeaderName::from_static("authorization");
        for (text, shown, sent) in [
            ("env:TOKEN", "{env:TOKEN}", "hunter2"),
            ("Bearer {env:TOKEN}", "…{env:TOKEN}", "Bearer hunter2"),
            ("k {key}", "…{key}", "k order 1"),
        ] {
            let template = parse(text).unwrap();
            assert_eq!(template.shown(), shown);
            assert!(!format!("{template:?}").contains("hunter2"));
            let value = template.fill(&name, &about("order 1")).unwrap();
            assert_eq!(value, sent);
            assert_eq!(value.is_sensitive(), text.contains("TOKEN"));
        }
        assert_eq!(parse("env:OTHER").unwrap_err().to_string(), "OTHER is not set");
        assert_eq!(parse("a\nb"), Err(TemplateError::Header));
        // Between tenant and operation stands what no header may hold.
        let mut wide = about("k");
        wide.address.scope = Scope::tenant_and_operation("acme", &wide.operation).unwrap();
        let refused = parse("{scope}").unwrap().fill(&name, &wide);
        assert_eq!(refused, Err(Unaskable::NotAHeader(name)));
    }

    proptest! {
        #[test]
        fn no_key_changes_a_question(key in "[ -~]{1,40}") {
            if let Ok(filled) = url("/a/{key}/b?c={key}&d=e", &key) {
                let uri: Uri = filled.parse().unwrap();
                prop_assert_eq!(uri.path().split('/').count(), 4);
                prop_assert!(uri.path().ends_with("/b"));
                let query = uri.query().unwrap();
                prop_assert_eq!(query.split(['&', '=']).count(), 4);
                prop_assert!(query.ends_with("&d=e"));
            }
        }

        #[test]
        fn no_template_panics(text in ".{0,60}", braces in "[{}a-z:/?@#.]{0,40}") {
            for text in [&text, &braces] {
                let _ = UrlTemplate::parse(text).map(|template| template.fill(&about("k")));
                let _ = Inserted::parse(text);
                let _ = HeaderTemplate::parse(text, |_| Ok(Secret::new("s")));
            }
        }
    }
}
