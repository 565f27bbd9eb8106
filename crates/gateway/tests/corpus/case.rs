//! The cases and the setups, as their files say them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// One hostile request, or a few on one connection.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) file: PathBuf,
    pub(crate) gateway: String,
    pub(crate) name: String,
    pub(crate) script: Script,
    pub(crate) expect: Expect,
    pub(crate) typed: Typed,
}

/// What the client sends.
#[derive(Debug)]
pub(crate) enum Script {
    /// Bytes, in the notation of `notation.rs`.
    Bytes(String),
    /// HTTP/2 frames, in the notation of `frames.rs`.
    Frames(String),
}

/// What the client must see: answers in order, each with alternatives, and whether the gateway
/// closes the connection by itself.
#[derive(Debug)]
pub(crate) struct Expect {
    pub(crate) answers: Vec<Vec<String>>,
    pub(crate) closed: bool,
}

/// A case, as typed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Typed {
    name: String,
    gateway: Option<String>,
    send: Option<String>,
    frames: Option<String>,
    expect: String,
    /// The request lines that reach the upstream.
    #[serde(default)]
    pub(crate) forwarded: Forwarded,
    /// The body of the last one of them.
    pub(crate) body: Option<String>,
    /// Header lines that the last one of them has.
    #[serde(default)]
    pub(crate) present: Vec<String>,
    /// Header lines that the last one of them does not have.
    #[serde(default)]
    pub(crate) never: Vec<String>,
    /// Names of headers that none of them has.
    #[serde(default)]
    pub(crate) absent: Vec<String>,
    /// The client's address.
    pub(crate) peer: Option<std::net::IpAddr>,
    /// Whether it runs only as it is written: its pace is the point.
    #[serde(default)]
    pub(crate) once: bool,
    /// Whether it is followed by a flood if it is refused. Not for CONNECT: hyper gives that
    /// connection away.
    #[serde(default = "yes")]
    pub(crate) flood: bool,
}

const fn yes() -> bool {
    true
}

/// What reaches the upstream.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Forwarded {
    /// These requests.
    Lines(Vec<String>),
    /// `"any"`: it is not known how many, so that only the invariants count.
    Any(Any),
}

#[derive(Debug, Deserialize)]
pub(crate) enum Any {
    #[serde(rename = "any")]
    Any,
}

impl Default for Forwarded {
    fn default() -> Self {
        Self::Lines(Vec::new())
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    gateway: String,
    case: Vec<Typed>,
}

/// How a gateway is set up.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Setup {
    /// Its configuration file.
    pub(crate) config: String,
    /// The path of the upstream's URL.
    #[serde(default)]
    pub(crate) base_path: String,
    /// Patterns that are protected: a method, and a path whose `{}` is any segment, or `*`.
    pub(crate) protects: Vec<String>,
    /// How the upstream might read a path, beside as it stands.
    pub(crate) readings: Vec<Reading>,
}

/// What a lenient server does to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reading {
    Decoded,
    Folded,
    Stripped,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    let text = std::fs::read_to_string(path).unwrap();
    toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

impl Setup {
    pub(crate) fn all() -> BTreeMap<String, Self> {
        read(&folder().join("setups.toml"))
    }
}

impl Case {
    /// The cases of every file in `cases`, in the order of the files.
    pub(crate) fn all() -> Vec<Self> {
        let files = std::fs::read_dir(folder().join("cases")).unwrap();
        let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        let cases = files.into_iter().flat_map(|path| {
            let file: File = read(&path);
            let of_file = file.gateway;
            file.case.into_iter().map(move |typed| Self::of(typed, &of_file, path.clone()))
        });
        cases.collect()
    }

    fn of(mut typed: Typed, gateway: &str, file: PathBuf) -> Self {
        let script = match (typed.send.take(), typed.frames.take()) {
            (Some(bytes), None) => Script::Bytes(bytes),
            (None, Some(frames)) => Script::Frames(frames),
            _ => panic!("{}: a case has either `send` or `frames`", typed.name),
        };
        Self {
            gateway: typed.gateway.take().unwrap_or_else(|| gateway.to_owned()),
            name: std::mem::take(&mut typed.name),
            expect: Expect::of(&typed.expect),
            file,
            script,
            typed,
        }
    }
}

impl Expect {
    fn of(text: &str) -> Self {
        let mut answers: Vec<Vec<String>> =
            text.split_whitespace().map(|answer| answer.split('|').map(str::to_owned).collect()).collect();
        let closed = answers.last().is_some_and(|last| *last == ["closed"]);
        if closed {
            answers.pop();
        }
        Self { answers, closed }
    }

    /// Whether the first answer can only be a refusal with a status.
    pub(crate) fn is_refusal(&self) -> bool {
        self.answers.first().is_some_and(|first| first.iter().all(|status| status.starts_with('4')))
    }
}
