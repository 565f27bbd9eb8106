//! Reads a body into a [`Document`].
//!
//! The parser gives one event after another. What stands inside an array or object waits on a stack until that ends;
//! then it moves to the document, once, and an object's members are sorted. So the work is O(n log n) at any depth.
//! Duplicate names are found as neighbours after sorting: no hash table that a stranger could flood.

use std::borrow::Cow;

use json_event_parser::{JsonEvent, JsonSyntaxError, LowLevelJsonParser};

use super::document::{Document, Member, Node, Span, utf16_order};
use super::number::{self, ExponentTooLarge};
use crate::fingerprint::{FingerprintError, Position};

/// The deepest nesting that is read: the parser's own limit, told in our words.
const LEVELS_MAX: usize = 65_536;

/// Reads a body.
///
/// A byte order mark before the text is skipped, as RFC 8259 permits: it says nothing about the content.
pub(super) fn parse(body: &[u8]) -> Result<Document<'_>, FingerprintError> {
    let mut parser = LowLevelJsonParser::new();
    let mut builder = Builder::new(body);
    let mut end = 0;
    loop {
        let start = end;
        let step = parser.parse_next(&body[start..], true);
        end += step.consumed_bytes;
        match step.event {
            // The first error ends it: after some errors the parser goes on with a guess at what was meant.
            Some(Err(error)) => return Err(not_json(body, &error)),
            Some(Ok(JsonEvent::Eof)) | None => return builder.finish(),
            Some(Ok(event)) => builder.add(event, start..end)?,
        }
    }
}

/// A document in the making.
struct Builder<'a> {
    body: &'a [u8],
    root: Option<Node<'a>>,
    items: Vec<Node<'a>>,
    members: Vec<Member<'a>>,
    /// The arrays and objects that have begun and not ended.
    open: Vec<Open>,
    /// The contents of the open arrays, outermost first.
    waiting_items: Vec<Node<'a>>,
    /// The contents of the open objects, outermost first.
    waiting_members: Vec<Member<'a>>,
}

/// An array or object that has begun, and where its contents begin among those that wait.
#[derive(Clone, Copy)]
enum Open {
    Array(usize),
    Object(usize),
}

impl<'a> Builder<'a> {
    fn new(body: &'a [u8]) -> Self {
        Self {
            body,
            root: None,
            items: Vec::new(),
            members: Vec::new(),
            open: Vec::new(),
            waiting_items: Vec::new(),
            waiting_members: Vec::new(),
        }
    }

    /// Takes the next event, which the parser read from these bytes.
    fn add(&mut self, event: JsonEvent<'a>, bytes: Span) -> Result<(), FingerprintError> {
        match event {
            JsonEvent::StartArray => self.begin(Open::Array(self.waiting_items.len()), &bytes)?,
            JsonEvent::StartObject => self.begin(Open::Object(self.waiting_members.len()), &bytes)?,
            JsonEvent::EndArray | JsonEvent::EndObject => {
                let node = match self.open.pop() {
                    Some(Open::Array(first)) => self.end_array(first),
                    Some(Open::Object(first)) => self.end_object(first)?,
                    None => return Ok(()),
                };
                self.place(node);
            }
            JsonEvent::ObjectKey(name) => {
                self.waiting_members.push(Member { name, value: Node::Null, after: bytes.start });
            }
            JsonEvent::String(text) => self.place(Node::String(text)),
            JsonEvent::Number(literal) => {
                let at = bytes.end - literal.len();
                let number = canonical_number(literal).map_err(|ExponentTooLarge| {
                    FingerprintError::ExponentTooLarge { at: self.position(at) }
                })?;
                self.place(Node::Number(number));
            }
            JsonEvent::Boolean(value) => self.place(Node::Boolean(value)),
            JsonEvent::Null => self.place(Node::Null),
            JsonEvent::Eof => {}
        }
        Ok(())
    }

    fn begin(&mut self, open: Open, bytes: &Span) -> Result<(), FingerprintError> {
        if self.open.len() == LEVELS_MAX {
            let at = self.position(bytes.end - 1);
            return Err(FingerprintError::TooDeep { at, levels_max: LEVELS_MAX });
        }
        self.open.push(open);
        Ok(())
    }

    fn end_array(&mut self, first: usize) -> Node<'a> {
        let start = self.items.len();
        self.items.extend(self.waiting_items.drain(first..));
        Node::Array(start..self.items.len())
    }

    fn end_object(&mut self, first: usize) -> Result<Node<'a>, FingerprintError> {
        self.waiting_members[first..].sort_unstable_by(|a, b| utf16_order(&a.name, &b.name));
        let mut neighbours = self.waiting_members[first..].array_windows();
        if let Some([a, b]) = neighbours.find(|[a, b]| a.name == b.name) {
            let name = a.name.clone().into_owned();
            let at = self.position(self.name_start(a.after.max(b.after)));
            return Err(FingerprintError::DuplicateName { name, at });
        }
        let start = self.members.len();
        self.members.extend(self.waiting_members.drain(first..));
        Ok(Node::Object(start..self.members.len()))
    }

    /// Puts a finished value where it belongs.
    fn place(&mut self, node: Node<'a>) {
        match self.open.last() {
            Some(Open::Array(_)) => self.waiting_items.push(node),
            Some(Open::Object(_)) => {
                if let Some(member) = self.waiting_members.last_mut() {
                    member.value = node;
                }
            }
            None => self.root = Some(node),
        }
    }

    fn finish(self) -> Result<Document<'a>, FingerprintError> {
        match self.root {
            Some(root) => Ok(Document { root, items: self.items, members: self.members }),
            // The parser reports this itself; should it ever not, nothing is still no JSON.
            None => Err(FingerprintError::NotJson {
                at: self.position(self.body.len()),
                problem: "there is no value".to_owned(),
            }),
        }
    }

    /// Where the name begins: between it and the token before there are only commas and space.
    fn name_start(&self, after: usize) -> usize {
        let quote = self.body[after..].iter().position(|&byte| byte == b'"');
        after + quote.unwrap_or_default()
    }

    fn position(&self, offset: usize) -> Position {
        Position::of(self.body, offset)
    }
}

/// The parser borrows every literal; an owned one is no less a number.
fn canonical_number(literal: Cow<'_, str>) -> Result<Cow<'_, str>, ExponentTooLarge> {
    match literal {
        Cow::Borrowed(literal) => number::canonical(literal),
        Cow::Owned(literal) => Ok(Cow::Owned(number::canonical(&literal)?.into_owned())),
    }
}

/// Tells the parser's error, in other words where its own mislead.
fn not_json(body: &[u8], error: &JsonSyntaxError) -> FingerprintError {
    let offset = usize::try_from(error.location().start.offset).unwrap_or(body.len());
    let problem = match error.message() {
        // It looks for the end of a token, or for the second half of a surrogate pair, and finds the end of the body.
        "Unexpected end of file" if offset < body.len() => {
            "this string or number does not end, or holds half of a surrogate pair".to_owned()
        }
        // Also said where the colon is missing.
        "Object keys must be strings" => "a member is a name in quotes, a colon and a value".to_owned(),
        message => in_one_line(message),
    };
    FingerprintError::NotJson { at: Position::of(body, offset), problem }
}

/// Escapes the control characters that a message quotes from the body.
fn in_one_line(message: &str) -> String {
    let mut line = String::with_capacity(message.len());
    for char in message.chars() {
        if char.is_control() {
            line.extend(char.escape_unicode());
        } else {
            line.push(char);
        }
    }
    line
}
