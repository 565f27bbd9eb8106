//! The frame: what SHA-256 is computed over.

use sha2::{Digest, Sha256};

use super::{Canonical, Content, FORM_VERSION};

/// Digests a request.
///
/// Injective: the number of fields is fixed, each stands behind its length, and an absent query is marked apart from
/// an empty one. So a frame can be read back in one way only, and no byte can move from one field to its neighbour.
pub(super) fn digest(content: &Content<'_>, canonical: &Canonical<'_>) -> [u8; 32] {
    let (tag, essence) = canonical.family.tags();
    let mut frame = Sha256::new();
    field(&mut frame, &[FORM_VERSION]);
    field(&mut frame, content.method.as_bytes());
    field(&mut frame, content.path.as_bytes());
    field(&mut frame, &[u8::from(content.query.is_some())]);
    field(&mut frame, content.query.unwrap_or_default().as_bytes());
    field(&mut frame, tag.as_bytes());
    field(&mut frame, essence);
    field(&mut frame, &canonical.bytes);
    frame.finalize().into()
}

/// Digests what an unchecked request is known by: method and path.
pub(super) fn of_operation(content: &Content<'_>) -> [u8; 32] {
    let mut frame = Sha256::new();
    field(&mut frame, content.method.as_bytes());
    field(&mut frame, content.path.as_bytes());
    frame.finalize().into()
}

/// Digests a request's digest together with headers. Injective: every count and every text
/// stands behind its length.
pub(super) fn with_headers(digest: [u8; 32], headers: &[(&str, Vec<&[u8]>)]) -> [u8; 32] {
    let mut frame = Sha256::new();
    field(&mut frame, b"oncegate fingerprint headers");
    field(&mut frame, &digest);
    for (name, values) in headers {
        field(&mut frame, name.as_bytes());
        field(&mut frame, &(values.len() as u64).to_be_bytes());
        for value in values {
            field(&mut frame, value);
        }
    }
    frame.finalize().into()
}

fn field(frame: &mut Sha256, bytes: &[u8]) {
    frame.update((bytes.len() as u64).to_be_bytes());
    frame.update(bytes);
}
