//! Writes a document, or a part of one, as canonical text.
//!
//! Iterative: how deep a stranger's document may be is a matter of memory, not of a thread's stack.

use std::fmt::Write;
use std::slice;

use super::document::{Document, Member, Node};

/// Writes a value, without space between its tokens. Members come sorted from the document.
pub(super) fn value(document: &Document<'_>, node: &Node<'_>, out: &mut String) {
    let mut open = Vec::new();
    begin(document, node, &mut open, out);
    while let Some(level) = open.last_mut() {
        match level {
            Level::Array(items) => {
                if let Some(item) = items.find(|item| item.is_present()) {
                    separate(out);
                    begin(document, item, &mut open, out);
                } else {
                    out.push(']');
                    open.pop();
                }
            }
            Level::Object(members) => {
                if let Some(member) = members.find(|member| member.value.is_present()) {
                    member_name(&member.name, out);
                    begin(document, &member.value, &mut open, out);
                } else {
                    out.push('}');
                    open.pop();
                }
            }
        }
    }
}

/// Writes the name of an object's next member, and what stands around it.
pub(super) fn member_name(name: &str, out: &mut String) {
    separate(out);
    string(name, out);
    out.push(':');
}

/// An array or object whose end is not yet written: what is left of it.
enum Level<'d, 'a> {
    Array(slice::Iter<'d, Node<'a>>),
    Object(slice::Iter<'d, Member<'a>>),
}

/// Writes a scalar, or opens an array or object.
fn begin<'d, 'a>(
    document: &'d Document<'a>,
    node: &Node<'a>,
    open: &mut Vec<Level<'d, 'a>>,
    out: &mut String,
) {
    match node {
        Node::Null => out.push_str("null"),
        Node::Boolean(true) => out.push_str("true"),
        Node::Boolean(false) => out.push_str("false"),
        Node::Number(canonical) => out.push_str(canonical),
        Node::String(text) => string(text, out),
        Node::Array(span) => {
            out.push('[');
            open.push(Level::Array(document.items(span).iter()));
        }
        Node::Object(span) => {
            out.push('{');
            open.push(Level::Object(document.members(span).iter()));
        }
        Node::Removed => {}
    }
}

/// Writes the comma before an item or member that is not the first. Only an array or object just opened ends in a
/// bracket that opens: a string ends in its quote.
fn separate(out: &mut String) {
    if !out.ends_with(['[', '{']) {
        out.push(',');
    }
}

/// Writes a string with the escapes of RFC 8785: as few as JSON allows, the short ones where there are short ones.
fn string(text: &str, out: &mut String) {
    out.push('"');
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|byte| byte < b' ' || byte == b'"' || byte == b'\\') {
        out.push_str(&rest[..at]);
        match rest.as_bytes()[at] {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\x08' => out.push_str("\\b"),
            b'\t' => out.push_str("\\t"),
            b'\n' => out.push_str("\\n"),
            b'\x0c' => out.push_str("\\f"),
            b'\r' => out.push_str("\\r"),
            // Writing to a string cannot fail.
            control => drop(write!(out, "\\u{control:04x}")),
        }
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
    out.push('"');
}
