//! The notation of bytes in the case files.
//!
//! Line breaks of the file mean nothing. `\r`, `\n`, `\t`, `\0`, `\\` and `\xHH` are escapes.
//! `<key>` is the lines of a caller's credentials and key, `<id>` the key's text alone,
//! `<N*TEXT>` repeats a text, `<pause>` waits for a moment, `<close>` ends the client's side.

use std::time::Duration;

/// One step of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Waits for a moment: the client's pace.
    Pause,
    /// Closes the client's side of the connection.
    Close,
}

/// How long `<pause>` is.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);

/// Reads a text in this notation; `id` is the key of this run.
pub(crate) fn steps(text: &str, id: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut bytes = Vec::new();
    let mut flush = |bytes: &mut Vec<u8>, step: Option<Step>| {
        if !bytes.is_empty() {
            steps.push(Step::Send(std::mem::take(bytes)));
        }
        steps.extend(step);
    };
    for line in text.lines() {
        assert!(!line.ends_with(' '), "write a space at the end of a line as \\x20: {line:?}");
        let mut rest = line;
        while let Some((before, after)) = rest.split_once('<') {
            let (macro_text, after) = after.split_once('>').expect("`<` begins a macro; write it as \\x3C");
            bytes.extend(unescape(before));
            match macro_text {
                "pause" => flush(&mut bytes, Some(Step::Pause)),
                "close" => flush(&mut bytes, Some(Step::Close)),
                macro_text => bytes.extend(expand(macro_text, id)),
            }
            rest = after;
        }
        bytes.extend(unescape(rest));
    }
    flush(&mut bytes, None);
    steps
}

/// The same of a text without pauses.
pub(crate) fn bytes(text: &str, id: &str) -> Vec<u8> {
    let sent = |step| match step {
        Step::Send(bytes) => bytes,
        step => panic!("{step:?} has no place here"),
    };
    steps(text, id).into_iter().flat_map(sent).collect()
}

fn expand(macro_text: &str, id: &str) -> Vec<u8> {
    match macro_text {
        "id" => id.into(),
        "key" => format!("authorization: Bearer acme\r\nidempotency-key: {id}\r\n").into_bytes(),
        other => match other.split_once('*') {
            Some((count, text)) if count.parse::<usize>().is_ok() => {
                unescape(text).repeat(count.parse().unwrap())
            }
            _ => panic!("no macro <{other}>"),
        },
    }
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte != b'\\' {
            bytes.push(*byte);
            continue;
        }
        let (escaped, after) = match after {
            [b'r', after @ ..] => (b'\r', after),
            [b'n', after @ ..] => (b'\n', after),
            [b't', after @ ..] => (b'\t', after),
            [b'0', after @ ..] => (0, after),
            [b'\\', after @ ..] => (b'\\', after),
            [b'x', high, low, after @ ..] => {
                (u8::from_str_radix(str::from_utf8(&[*high, *low]).unwrap(), 16).unwrap(), after)
            }
            _ => panic!("no such escape: {text:?}"),
        };
        bytes.push(escaped);
        rest = after;
    }
    bytes
}

#[test]
fn the_notation_is_read() {
    let text = "GET /\\x20\\\\\n<3*ab\\n><pause>\\r<close>";
    let expected =
        [Step::Send(b"GET / \\ab\nab\nab\n".to_vec()), Step::Pause, Step::Send(b"\r".to_vec()), Step::Close];
    assert_eq!(steps(text, "k"), expected);
    assert_eq!(bytes("<key>", "k"), b"authorization: Bearer acme\r\nidempotency-key: k\r\n");
}
