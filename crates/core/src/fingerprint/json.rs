//! Canonical JSON: RFC 8785, but for numbers that a double cannot hold.
//!
//! **Invariant:** two documents have one canonical text exactly if they say the same: the same names, strings,
//! literals, and numbers of the same decimal value.
//!
//! RFC 8785 rounds each number to a double first, so 9007199254740993 and 9007199254740992 would be one amount. Here
//! a number keeps its digits ([`number`]). On documents whose numbers a double holds, the text is that of RFC 8785.
//!
//! Why not a crate: `docs/decisions/0002-canonical-json.md`.

mod document;
mod number;
mod parse;
mod write;

use super::{Fields, FingerprintError, Pointer};
use document::Document;

/// The canonical text of a whole body.
pub(super) fn canonical(body: &[u8]) -> Result<Vec<u8>, FingerprintError> {
    let document = parse::parse(body)?;
    let mut out = String::with_capacity(body.len());
    write::value(&document, &document.root, &mut out);
    Ok(out.into_bytes())
}

/// The canonical text of the parts of a body that count.
pub(super) fn fields(body: &[u8], fields: &Fields) -> Result<Vec<u8>, FingerprintError> {
    let document = parse::parse(body)?;
    Ok(match fields {
        Fields::Include(pointers) => including(&document, pointers),
        Fields::Exclude(pointers) => excluding(document, pointers),
    })
}

/// One object with a member for each part that is there, named by its pointer. Not the document with holes: there an
/// array's second item could pass for its first.
fn including(document: &Document<'_>, pointers: &[Pointer]) -> Vec<u8> {
    // The order in which the policy names the parts says nothing.
    let mut names: Vec<&Pointer> = pointers.iter().collect();
    names.sort_unstable_by(|a, b| document::utf16_order(a.as_str(), b.as_str()));
    names.dedup();
    let mut out = String::from("{");
    for pointer in names {
        if let Some(part) = document.part(pointer) {
            write::member_name(pointer.as_str(), &mut out);
            write::value(document, part, &mut out);
        }
    }
    out.push('}');
    out.into_bytes()
}

/// The document without the parts that do not count.
fn excluding(mut document: Document<'_>, pointers: &[Pointer]) -> Vec<u8> {
    for pointer in pointers {
        document.remove(pointer);
    }
    let mut out = String::new();
    write::value(&document, &document.root, &mut out);
    out.into_bytes()
}
