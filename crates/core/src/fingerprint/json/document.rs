//! A parsed body: two flat lists of nodes, each array and object a span of one of them.
//!
//! Flat, because a type that holds itself is dropped, walked and copied level by level: sixty thousand `[` would
//! overflow the stack.
//!
//! **Invariant:** the members of an object are sorted by name ([`utf16_order`]), and no two have one name.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;

use crate::fingerprint::Pointer;

/// A JSON document.
pub(super) struct Document<'a> {
    pub(super) root: Node<'a>,
    pub(super) items: Vec<Node<'a>>,
    pub(super) members: Vec<Member<'a>>,
}

/// A value. Arrays and objects name their contents by place, so no node holds another.
pub(super) enum Node<'a> {
    Null,
    Boolean(bool),
    /// Already canonical.
    Number(Cow<'a, str>),
    /// Unescaped.
    String(Cow<'a, str>),
    Array(Span),
    Object(Span),
    /// Left out by the policy: as if it were not there.
    Removed,
}

/// A run of items or of members.
pub(super) type Span = Range<usize>;

/// A member of an object.
pub(super) struct Member<'a> {
    /// Unescaped.
    pub(super) name: Cow<'a, str>,
    pub(super) value: Node<'a>,
    /// Where in the body the token before the name ends.
    pub(super) after: usize,
}

impl<'a> Document<'a> {
    /// The contents of an array.
    pub(super) fn items(&self, span: &Span) -> &[Node<'a>] {
        &self.items[span.clone()]
    }

    /// The contents of an object.
    pub(super) fn members(&self, span: &Span) -> &[Member<'a>] {
        &self.members[span.clone()]
    }

    /// The part that a pointer names, if it is there.
    pub(super) fn part(&self, pointer: &Pointer) -> Option<&Node<'a>> {
        self.place(pointer).map(|place| self.at(place))
    }

    /// Leaves out the part that a pointer names. Its neighbours keep their indices.
    pub(super) fn remove(&mut self, pointer: &Pointer) {
        match self.place(pointer) {
            Some(Place::Root) => self.root = Node::Removed,
            Some(Place::Item(index)) => self.items[index] = Node::Removed,
            Some(Place::Member(index)) => self.members[index].value = Node::Removed,
            None => {}
        }
    }

    fn place(&self, pointer: &Pointer) -> Option<Place> {
        pointer.tokens().try_fold(Place::Root, |place, token| match self.at(place) {
            Node::Array(span) => {
                let index = span.start.checked_add(array_index(token)?)?;
                (index < span.end).then_some(Place::Item(index))
            }
            Node::Object(span) => {
                let found = self.members(span).binary_search_by(|member| utf16_order(&member.name, token));
                found.ok().map(|index| Place::Member(span.start + index))
            }
            Node::Null | Node::Boolean(_) | Node::Number(_) | Node::String(_) | Node::Removed => None,
        })
    }

    fn at(&self, place: Place) -> &Node<'a> {
        match place {
            Place::Root => &self.root,
            Place::Item(index) => &self.items[index],
            Place::Member(index) => &self.members[index].value,
        }
    }
}

impl Node<'_> {
    /// Whether the policy lets it count.
    pub(super) fn is_present(&self) -> bool {
        !matches!(self, Node::Removed)
    }
}

/// Where a node is kept.
#[derive(Clone, Copy)]
enum Place {
    Root,
    Item(usize),
    Member(usize),
}

/// The order of RFC 8785: by UTF-16 code units.
///
/// The order of the UTF-8 bytes is the same, except that characters beyond U+FFFF (first byte F0 or above) are
/// surrogates in UTF-16, and those come before U+E000 to U+FFFF (first byte EE or EF). Bytes that follow a first byte
/// are all below C0, so where two names part at such bytes, both are first bytes.
pub(super) fn utf16_order(a: &str, b: &str) -> Ordering {
    let parting = a.bytes().zip(b.bytes()).find(|(a, b)| a != b);
    match parting {
        Some((a @ 0xF0.., b @ (0xEE | 0xEF)) | (a @ (0xEE | 0xEF), b @ 0xF0..)) => b.cmp(&a),
        Some((a, b)) => a.cmp(&b),
        None => a.len().cmp(&b.len()),
    }
}

/// Reads a token as an array index: digits, and no zero before others, so that each item has one name.
fn array_index(token: &str) -> Option<usize> {
    let digits = token.bytes().all(|byte| byte.is_ascii_digit());
    let padded = token.len() > 1 && token.starts_with('0');
    if digits && !padded { token.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::utf16_order;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_order_is_that_of_utf16(
            common in "[a\u{7ff}\u{ffff}\u{10000}]{0,3}",
            a in "[a-c\u{d7ff}\u{e000}\u{ff61}\u{ffff}\u{10000}\u{1f600}\u{10ffff}]{0,3}",
            b in "[a-c\u{d7ff}\u{e000}\u{ff61}\u{ffff}\u{10000}\u{1f600}\u{10ffff}]{0,3}",
        ) {
            let (a, b) = (common.clone() + &a, common + &b);
            prop_assert_eq!(utf16_order(&a, &b), a.encode_utf16().cmp(b.encode_utf16()));
        }
    }
}
