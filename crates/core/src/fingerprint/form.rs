//! The canonical form of `application/x-www-form-urlencoded`: its pairs, decoded, in order, and encoded in one way.
//!
//! **Invariant:** only `&` and `=` that separate stand unescaped, so the text can be read back into the same pairs in
//! one way only. Length prefixes would do the same, but nobody could read them in a terminal.
//! Not here: `form_urlencoded::parse`, because it replaces bytes that are no UTF-8: `%FE` and `%FF`, two contents,
//! would become one.

use std::borrow::Cow;

/// Writes the pairs of a form in one way. Order stays, because repeated names are a list.
pub(super) fn canonical(body: &[u8]) -> Vec<u8> {
    let mut out = String::with_capacity(body.len());
    // As in the URL standard, nothing stands between two `&`.
    for pair in body.split(|&byte| byte == b'&').filter(|pair| !pair.is_empty()) {
        if !out.is_empty() {
            out.push('&');
        }
        // `a` and `a=` stay two contents: the URL standard reads both as empty, but some servers (Rack) do not.
        let mut halves = pair.splitn(2, |&byte| byte == b'=');
        encode(halves.next().unwrap_or_default(), &mut out);
        if let Some(value) = halves.next() {
            out.push('=');
            encode(value, &mut out);
        }
    }
    out.into_bytes()
}

/// Decodes a name or a value, and encodes it again in the one way of the URL standard.
fn encode(escaped: &[u8], out: &mut String) {
    out.extend(form_urlencoded::byte_serialize(&decode(escaped)));
}

/// Undoes `+` and `%XX`. A `%` without two digits stands for itself, as in the URL standard.
fn decode(escaped: &[u8]) -> Cow<'_, [u8]> {
    if !escaped.iter().any(|byte| matches!(byte, b'+' | b'%')) {
        return Cow::Borrowed(escaped);
    }
    let mut plain = Vec::with_capacity(escaped.len());
    let mut rest = escaped;
    while let [first, after @ ..] = rest {
        let (byte, length) = match (first, after) {
            (b'+', _) => (b' ', 1),
            (b'%', [high, low, ..]) => hex(*high, *low).map_or((b'%', 1), |byte| (byte, 3)),
            _ => (*first, 1),
        };
        plain.push(byte);
        rest = &rest[length..];
    }
    Cow::Owned(plain)
}

fn hex(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}
