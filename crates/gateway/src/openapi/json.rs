//! JSON that stays as it was written: members in their order, numbers digit for digit.
//!
//! `serde_json`'s own map sorts, and the feature by which it would not changes every crate of a build.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// A number, a boolean or null, as it is written.
    Bare(Box<str>),
    Text(String),
    List(Vec<Node>),
    Object(Object),
}

/// Members in their order; each name once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Object(Vec<(String, Node)>);

/// Deeper than any document for people.
const DEPTH_MAX: usize = 200;

pub(super) fn parse(text: &str) -> Result<Node, serde_json::Error> {
    // All of it at first, for places that are those of the document.
    serde_json::from_str::<IgnoredAny>(text)?;
    node(text, 0)
}

fn node(text: &str, depth: usize) -> Result<Node, serde_json::Error> {
    if depth > DEPTH_MAX {
        return Err(serde_json::Error::custom(format!("it is nested deeper than {DEPTH_MAX} levels")));
    }
    Ok(match text.trim_start().as_bytes().first() {
        Some(b'{') => {
            let Members(members) = serde_json::from_str(text)?;
            let nodes = members.into_iter().map(|(name, raw)| Ok((name, node(raw.get(), depth + 1)?)));
            Node::Object(Object(nodes.collect::<Result<_, serde_json::Error>>()?))
        }
        Some(b'[') => {
            let items: Vec<Box<RawValue>> = serde_json::from_str(text)?;
            let nodes = items.iter().map(|raw| node(raw.get(), depth + 1));
            Node::List(nodes.collect::<Result<_, _>>()?)
        }
        Some(b'"') => Node::Text(serde_json::from_str(text)?),
        _ => Node::Bare(text.trim().into()),
    })
}

struct Members(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members: Vec<(String, Box<RawValue>)> = Vec::new();
                let mut names = std::collections::HashSet::new();
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format!("an object has two members named {name:?}")));
                    }
                    members.push((name, value));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

impl Object {
    pub(super) fn of<const N: usize>(members: [(&str, Node); N]) -> Self {
        Self(members.into_iter().map(|(name, node)| (name.to_owned(), node)).collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<&Node> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, node)| node)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Node> {
        self.0.iter_mut().find(|(known, _)| known == name).map(|(_, node)| node)
    }

    /// In its old place, if it had one.
    pub(super) fn insert(&mut self, name: &str, node: impl Into<Node>) {
        *self.place(name) = node.into();
    }

    /// What is there, or null, put there.
    fn place(&mut self, name: &str) -> &mut Node {
        let place = self.0.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
            self.0.push((name.to_owned(), Node::null()));
            self.0.len() - 1
        });
        &mut self.0[place].1
    }

    /// Changes the object by this name; where there is something else, it is replaced.
    pub(super) fn edit<R>(&mut self, name: &str, change: impl FnOnce(&mut Self) -> R) -> R {
        let place = self.place(name);
        let mut object = match std::mem::replace(place, Node::null()) {
            Node::Object(object) => object,
            _ => Self::default(),
        };
        let result = change(&mut object);
        *place = Node::Object(object);
        result
    }

    /// The same for a list.
    pub(super) fn edit_list(&mut self, name: &str, change: impl FnOnce(&mut Vec<Node>)) {
        let place = self.place(name);
        let mut list = match std::mem::replace(place, Node::null()) {
            Node::List(list) => list,
            _ => Vec::new(),
        };
        change(&mut list);
        *place = Node::List(list);
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.0.retain(|(known, _)| known != name);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(String, Node)> {
        self.0.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut Node)> {
        self.0.iter_mut().map(|(name, node)| (name.as_str(), node))
    }

    /// What a `$ref` of this document leads to; nothing, if it leads out of it, nowhere, or round in a circle.
    pub(super) fn resolve(&self, reference: &Node) -> Option<&Node> {
        const HOPS_MAX: usize = 16;
        let mut reference = reference;
        for _ in 0..HOPS_MAX {
            let Node::Text(text) = reference else { return None };
            let found = self.at(text.strip_prefix("#/")?)?;
            match found {
                Node::Object(object) if object.get("$ref").is_some() => reference = object.get("$ref")?,
                _ => return Some(found),
            }
        }
        None
    }

    /// By a JSON Pointer in a URI's fragment, without its first slash.
    fn at(&self, pointer: &str) -> Option<&Node> {
        let mut names =
            pointer.split('/').map(|name| percent_decoded(name).replace("~1", "/").replace("~0", "~"));
        let mut found = self.get(&names.next()?)?;
        for name in names {
            found = match found {
                Node::Object(object) => object.get(&name)?,
                Node::List(list) => list.get(name.parse::<usize>().ok()?)?,
                _ => return None,
            };
        }
        Some(found)
    }

    /// This, or what it refers to and over it what stands beside the reference; `None`: it leads out of the document.
    pub(super) fn whole(&self, document: &Self) -> Option<Self> {
        let Some(reference) = self.get("$ref") else { return Some(self.clone()) };
        let Node::Object(found) = document.resolve(reference)? else { return None };
        let mut whole = found.clone();
        for (name, node) in self.iter().filter(|(name, _)| name != "$ref") {
            whole.insert(name, node.clone());
        }
        Some(whole)
    }
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let decoded = match (first, after.first_chunk::<2>()) {
            (b'%', Some(digits)) => {
                str::from_utf8(digits).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok())
            }
            _ => None,
        };
        bytes.push(decoded.unwrap_or(*first));
        rest = if decoded.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Node {
    fn null() -> Self {
        Self::Bare("null".into())
    }

    /// For people.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            other => other.to_string().trim_end().to_owned(),
        }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result {
        let dent = |f: &mut fmt::Formatter<'_>, depth: usize| write!(f, "\n{:width$}", "", width = depth * 2);
        let text = |f: &mut fmt::Formatter<'_>, text: &str| {
            f.write_str(&serde_json::to_string(text).map_err(|_| fmt::Error)?)
        };
        match self {
            Self::Bare(bare) => f.write_str(bare),
            Self::Text(all) => text(f, all),
            Self::List(list) if list.is_empty() => f.write_str("[]"),
            Self::List(list) => {
                for (number, item) in list.iter().enumerate() {
                    f.write_str(if number == 0 { "[" } else { "," })?;
                    dent(f, depth + 1)?;
                    item.write(f, depth + 1)?;
                }
                dent(f, depth)?;
                f.write_str("]")
            }
            Self::Object(Object(members)) if members.is_empty() => f.write_str("{}"),
            Self::Object(Object(members)) => {
                for (number, (name, value)) in members.iter().enumerate() {
                    f.write_str(if number == 0 { "{" } else { "," })?;
                    dent(f, depth + 1)?;
                    text(f, name)?;
                    f.write_str(": ")?;
                    value.write(f, depth + 1)?;
                }
                dent(f, depth)?;
                f.write_str("}")
            }
        }
    }
}

/// Pretty, and a line of text: with a newline at its end.
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, 0)?;
        f.write_str("\n")
    }
}

impl From<&str> for Node {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Node {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<bool> for Node {
    fn from(truth: bool) -> Self {
        Self::Bare(if truth { "true" } else { "false" }.into())
    }
}

impl From<u64> for Node {
    fn from(number: u64) -> Self {
        Self::Bare(number.to_string().into())
    }
}

impl From<Object> for Node {
    fn from(object: Object) -> Self {
        Self::Object(object)
    }
}

impl From<Vec<Self>> for Node {
    fn from(list: Vec<Self>) -> Self {
        Self::List(list)
    }
}

/// Of values that are small and have no order of their own.
impl From<&serde_json::Value> for Node {
    fn from(value: &serde_json::Value) -> Self {
        match value {
            serde_json::Value::String(text) => Self::Text(text.clone()),
            serde_json::Value::Array(list) => Self::List(list.iter().map(Self::from).collect()),
            serde_json::Value::Object(map) => Self::Object(Object(
                map.iter().map(|(name, value)| (name.clone(), Self::from(value))).collect(),
            )),
            other => Self::Bare(other.to_string().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_written_as_it_was() {
        let text = "{\n  \"z\": 1.10,\n  \"a\": [\n    18446744073709551617,\n    -0.0,\n    null\n  ],\n  \"m\": {},\n  \"e\": [],\n  \"t\": \"\\\"é\\n\"\n}\n";
        assert_eq!(parse(text).unwrap().to_string(), text);
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let error = |text: &str| parse(text).unwrap_err().to_string();
        assert!(error("{\"a\": 1,\n \"b\": }").contains("line 2 column 7"));
        assert!(error("{\"a\": 1, \"a\": 2}").contains("two members named \"a\""));
        assert!(error(&"[".repeat(100_000)).contains("EOF"));
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        assert!(error(&deep).contains("deeper than 200"));
    }

    #[test]
    fn references() {
        let Node::Object(object) = parse(
            r##"{"a": {"b/c": {"{d}": 1}}, "loop": {"$ref": "#/loop"}, "hop": {"$ref": "#/a/b~1c"}, "l": [7]}"##,
        )
        .unwrap() else {
            panic!("an object")
        };
        let found = |reference: &str| object.resolve(&reference.into()).map(Node::shown);
        assert_eq!(found("#/a/b~1c/%7Bd%7D"), Some("1".to_owned()));
        assert_eq!(found("#/l/0"), Some("7".to_owned()));
        assert!(found("#/hop").is_some());
        for nowhere in ["#/loop", "#/x", "other.json#/a", "#", "", "#/l/1", "#/a/b~1c/{d}/x"] {
            assert_eq!(found(nowhere), None, "{nowhere}");
        }
    }
}
