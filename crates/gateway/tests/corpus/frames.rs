//! HTTP/2 frames of a case, and what the gateway answers to them.
//!
//! One or more frames per line, separated by ` ; `, each `KIND STREAM FLAGS PAYLOAD`. A line that
//! begins with `N *` is sent N times. A stream is a number, `+` (the next one) or `=` (the same).
//! A payload is `hex:…`, `text:…`, or the headers of a block as `name=value`. `raw hex:…` sends
//! bytes that are no frame, `pause` waits, `close` ends the client's side, and `no-preface` in the
//! first line leaves out the preface and the first SETTINGS.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::Notify;

use crate::answer;
use crate::case::Expect;
use crate::client::{self, Pace};
use crate::notation::{self, Step};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// No dynamic table, so that every status stands in its own answer.
const NO_TABLE: [u8; 6] = [0, 1, 0, 0, 0, 0];

const KINDS: [&str; 10] = [
    "DATA",
    "HEADERS",
    "PRIORITY",
    "RST_STREAM",
    "SETTINGS",
    "PUSH_PROMISE",
    "PING",
    "GOAWAY",
    "WINDOW_UPDATE",
    "CONTINUATION",
];
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;

const PATIENCE: Duration = Duration::from_secs(20);

/// What became of a stream.
#[derive(Debug, Default)]
struct Stream {
    status: Option<u16>,
    body: Vec<u8>,
    is_reset: bool,
    is_over: bool,
}

/// Sends the frames, and says what was wrong with the answers.
pub(crate) async fn run(to: SocketAddr, text: &str, id: &str, pace: Pace, expect: &Expect) -> Vec<String> {
    let steps = steps(text, id);
    let (read, write) = client::connect(to, None).await.into_split();
    let enough = Arc::new(Notify::new());
    let writing = async {
        let mut write = client::write_all(write, steps, pace).await;
        enough.notified().await;
        let _ = write.shutdown().await;
    };
    let running = async { tokio::join!(writing, read_all(read, expect, &enough)).1 };
    let Ok((streams, is_closed)) = tokio::time::timeout(PATIENCE, running).await else {
        return vec!["the gateway neither answered nor closed".to_owned()];
    };
    let mut wrong = Vec::new();
    for (number, expected) in (0..).zip(&expect.answers) {
        let id = 2 * number + 1;
        let outcome = outcome(streams.get(&id)).unwrap_or_else(|| "closed".to_owned());
        if !expected.contains(&outcome) {
            wrong.push(format!("stream {id}: {outcome}, not {expected:?}"));
        }
    }
    for (id, stream) in &streams {
        let status = stream.status.unwrap_or_default();
        // The h2 library refuses a head that is too large by itself, with the status alone.
        if status >= 400 && status != 431 && !answer::is_problem(&stream.body, status) {
            let body = String::from_utf8_lossy(&stream.body);
            wrong.push(format!("stream {id}: the refusal {status} has no problem document: {body:?}"));
        }
    }
    if expect.closed && !is_closed {
        wrong.push("the gateway did not close the connection".to_owned());
    }
    wrong
}

fn outcome(stream: Option<&Stream>) -> Option<String> {
    let stream = stream?;
    match stream.status {
        Some(status) if status < 400 || stream.is_over || stream.is_reset => Some(status.to_string()),
        Some(_) => None,
        None => stream.is_reset.then(|| "reset".to_owned()),
    }
}

/// Reads to the end. The client closes its side once the expected streams have come to theirs.
async fn read_all(read: OwnedReadHalf, expect: &Expect, enough: &Notify) -> (BTreeMap<u32, Stream>, bool) {
    let mut read = BufReader::new(read);
    let mut streams: BTreeMap<u32, Stream> = BTreeMap::new();
    let (mut is_closed, mut is_enough) = (false, false);
    while let Ok((kind, flags, id, payload)) = read_frame(&mut read).await {
        let stream = streams.entry(id).or_default();
        match kind {
            HEADERS => stream.status = stream.status.or(Some(status_of(&payload))),
            DATA => stream.body.extend(&payload),
            RST_STREAM => stream.is_reset = true,
            GOAWAY => is_closed = true,
            _ => {}
        }
        stream.is_over |= matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0;
        let expected = u32::try_from(expect.answers.len()).unwrap();
        let are_over = (0..expected).all(|number| outcome(streams.get(&(2 * number + 1))).is_some());
        // The client's part is over after the settings, at the earliest: then it is heard.
        if is_closed || (are_over && !expect.closed && kind != SETTINGS) || (expected == 0 && !expect.closed)
        {
            is_enough = true;
            enough.notify_one();
        }
    }
    enough.notify_one();
    (streams, is_closed || !is_enough)
}

async fn read_frame(read: &mut BufReader<OwnedReadHalf>) -> io::Result<(u8, u8, u32, Vec<u8>)> {
    let length = usize::from(read.read_u16().await?) << 8 | usize::from(read.read_u8().await?);
    let (kind, flags, id) = (read.read_u8().await?, read.read_u8().await?, read.read_u32().await?);
    let mut payload = vec![0; length];
    read.read_exact(&mut payload).await?;
    Ok((kind, flags, id, payload))
}

/// The status, which comes first in a block: by its number in HPACK's table, or with its digits.
fn status_of(block: &[u8]) -> u16 {
    // Behind the sizes of the table.
    let sizes = block.iter().take_while(|byte| *byte & 0xe0 == 0x20).count();
    let block = &block[sizes..];
    match block[0] {
        indexed @ 0x88..=0x8e => [200, 204, 206, 304, 400, 404, 500][usize::from(indexed - 0x88)],
        0x48 | 0x08 | 0x18 => {
            let text = &block[2..2 + usize::from(block[1] & 0x7f)];
            let digits = if block[1] & 0x80 == 0 { text.to_vec() } else { huffman_digits(text) };
            String::from_utf8(digits).unwrap().parse().unwrap()
        }
        other => panic!("no status: {other:#x}"),
    }
}

/// Digits in HPACK's Huffman code: 0 to 2 have five bits, 3 to 9 have six.
fn huffman_digits(bytes: &[u8]) -> Vec<u8> {
    let mut bits = bytes.iter().flat_map(|byte| (0..8).rev().map(move |at| u16::from(byte >> at & 1)));
    let mut digits = Vec::new();
    while digits.len() < 3 {
        let code = (0..5).fold(0, |code, _| code << 1 | bits.next().unwrap());
        let digit = if code < 3 { code } else { (code << 1 | bits.next().unwrap()) - 0x19 + 3 };
        digits.push(b'0' + u8::try_from(digit).unwrap());
    }
    digits
}

/// The steps of the notation.
fn steps(text: &str, id: &str) -> Vec<Step> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty()).peekable();
    let mut bytes = Vec::new();
    if lines.next_if_eq(&"no-preface").is_none() {
        bytes = [PREFACE, &frame(SETTINGS, 0, 0, &NO_TABLE)].concat();
    }
    let mut steps = Vec::new();
    let mut last = 0;
    for line in lines {
        let (times, frames) = match line.split_once(" * ") {
            Some((times, frames)) if times.parse::<usize>().is_ok() => (times.parse().unwrap(), frames),
            _ => (1, line),
        };
        match frames {
            "pause" => steps.extend([Step::Send(std::mem::take(&mut bytes)), Step::Pause]),
            "close" => steps.extend([Step::Send(std::mem::take(&mut bytes)), Step::Close]),
            _ => {
                for _ in 0..times {
                    frames.split(" ; ").for_each(|typed| bytes.extend(read_typed(typed, id, &mut last)));
                }
            }
        }
    }
    steps.push(Step::Send(bytes));
    steps
}

fn read_typed(typed: &str, id: &str, last: &mut u32) -> Vec<u8> {
    if let Some(raw) = typed.strip_prefix("raw hex:") {
        return from_hex(raw);
    }
    let mut words = typed.split(' ').filter(|word| !word.is_empty());
    let mut word = || words.next().unwrap_or_else(|| panic!("KIND STREAM FLAGS PAYLOAD: {typed:?}"));
    let kind = word();
    let kind = match KINDS.iter().position(|name| *name == kind) {
        Some(kind) => u8::try_from(kind).unwrap(),
        None => u8::from_str_radix(kind.trim_start_matches("0x"), 16).unwrap(),
    };
    *last = match word() {
        "+" if *last == 0 => 1,
        "+" => *last + 2,
        "=" => *last,
        number => number.parse().unwrap(),
    };
    let flags = word().split('|').map(flag).fold(0, |all, flag| all | flag);
    let mut payload = Vec::new();
    let expanded = words.flat_map(|word| match word {
        "<key>" => vec!["authorization=Bearer\\x20acme", "idempotency-key=<id>"],
        word => vec![word],
    });
    for word in expanded {
        match (word.strip_prefix("hex:"), word.strip_prefix("text:")) {
            (Some(hex), _) => payload.extend(from_hex(hex)),
            (_, Some(text)) => payload.extend(notation::bytes(text, id)),
            _ => payload.extend(field(word, id)),
        }
    }
    frame(kind, flags, *last, &payload)
}

fn flag(name: &str) -> u8 {
    match name {
        "-" => 0,
        "END_STREAM" | "ACK" => 1,
        "END_HEADERS" => 4,
        "PADDED" => 8,
        "PRIORITY" => 0x20,
        other => panic!("no flag {other:?}"),
    }
}

/// A header as a literal that is not indexed.
fn field(word: &str, id: &str) -> Vec<u8> {
    let (name, value) = word.split_once('=').unwrap_or_else(|| panic!("name=value: {word:?}"));
    let (name, value) = (notation::bytes(name, id), notation::bytes(value, id));
    [vec![0], length(name.len()), name, length(value.len()), value].concat()
}

/// An integer of HPACK behind a prefix of seven bits.
fn length(length: usize) -> Vec<u8> {
    let Some(mut rest) = length.checked_sub(127) else { return vec![u8::try_from(length).unwrap()] };
    let mut bytes = vec![127];
    while rest >= 128 {
        bytes.push(u8::try_from(rest % 128).unwrap() | 128);
        rest /= 128;
    }
    bytes.push(u8::try_from(rest).unwrap());
    bytes
}

fn from_hex(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

#[test]
fn frames_are_written() {
    let steps = steps("no-preface\n2 * DATA + END_STREAM text:a\\x20 ; RST_STREAM = - hex:00000008", "k");
    let one = |stream| {
        [&b"\0\0\x02\0\x01\0\0\0"[..], &[stream], b"a ", b"\0\0\x04\x03\0\0\0\0", &[stream], b"\0\0\0\x08"]
            .concat()
    };
    assert_eq!(steps, [Step::Send([one(1), one(3)].concat())]);
    assert_eq!(length(127 + 128 + 5), [127, 128 + 5, 1]);
}
