//! HTTP/1.1 for a server that accepts no second reading. Independent of hyper and of the gateway.

/// A request that has one reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn line(&self) -> String {
        format!("{} {}", self.method, self.target)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| &**value)
    }
}

/// Headers that may stand once.
const SINGLE: [&str; 9] = [
    "authorization",
    "content-length",
    "content-type",
    "cookie",
    "host",
    "idempotency-attempt",
    "idempotency-key",
    "transfer-encoding",
    "x-tenant",
];

/// Headers of one connection, which no proxy forwards.
const OF_ONE_CONNECTION: [&str; 7] =
    ["connection", "keep-alive", "proxy-connection", "te", "trailer", "upgrade", "http2-settings"];

/// Reads one request from the front, and says how many bytes it takes. `None`: there is more to
/// come. An error says what has a second reading.
pub(crate) fn request(bytes: &[u8]) -> Result<Option<(Request, usize)>, String> {
    let mut at = 0;
    let Some(line) = line(bytes, &mut at)? else { return Ok(None) };
    let (method, target) = request_line(line)?;
    let mut headers = Vec::new();
    loop {
        match self::line(bytes, &mut at)? {
            None => return Ok(None),
            Some(b"") => break,
            Some(line) => headers.push(header(line)?),
        }
    }
    let framing = framing(&headers)?;
    let body = match framing {
        Framing::Length(length) => match bytes.get(at..at + length) {
            None => return Ok(None),
            Some(body) => {
                at += length;
                body.to_vec()
            }
        },
        Framing::Chunks => match chunks(bytes, &mut at)? {
            None => return Ok(None),
            Some(body) => body,
        },
    };
    Ok(Some((Request { method, target, headers, body }, at)))
}

/// A line that ends in CR LF, without its end. A CR or LF by itself has two readings.
fn line<'b>(bytes: &'b [u8], at: &mut usize) -> Result<Option<&'b [u8]>, String> {
    let rest = &bytes[*at..];
    let Some(end) = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else { return Ok(None) };
    match &rest[end..] {
        [b'\r'] => Ok(None),
        [b'\r', b'\n', ..] => {
            *at += end + 2;
            Ok(Some(&rest[..end]))
        }
        _ => Err(format!("a bare CR or LF behind {:?}", String::from_utf8_lossy(&rest[..end]))),
    }
}

fn request_line(line: &[u8]) -> Result<(String, String), String> {
    let text = str::from_utf8(line).map_err(|_| format!("a request line beyond ASCII: {line:?}"))?;
    let wrong = |what: &str| Err(format!("{what}: {text:?}"));
    let [method, target, "HTTP/1.1"] = text.split(' ').collect::<Vec<_>>()[..] else {
        return wrong("not a method, a target and HTTP/1.1");
    };
    if method.is_empty() || !method.bytes().all(|byte| is_token(byte) && !byte.is_ascii_lowercase()) {
        return wrong("a strange method");
    }
    if !(target.starts_with('/') || (target == "*" && method == "OPTIONS")) {
        return wrong("a target that is no path");
    }
    if !target.bytes().all(|byte| matches!(byte, 0x21..=0x7e) && byte != b'#') {
        return wrong("a target with strange bytes");
    }
    let path = target.split('?').next().unwrap_or_default();
    if path.split('/').any(|segment| matches!(segment, "." | "..")) || path.contains("//") {
        return wrong("a path that is not normal");
    }
    Ok((method.to_owned(), target.to_owned()))
}

fn header(line: &[u8]) -> Result<(String, Vec<u8>), String> {
    let wrong = |what: &str| Err(format!("{what}: {:?}", String::from_utf8_lossy(line)));
    let Some(colon) = line.iter().position(|byte| *byte == b':') else {
        return wrong("a header without a colon");
    };
    let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
    if name.is_empty() || !name.iter().copied().all(is_token) {
        return wrong("a strange header name");
    }
    if value.iter().any(|byte| (*byte < 0x20 && *byte != b'\t') || *byte == 0x7f) {
        return wrong("a control character in a header");
    }
    Ok((String::from_utf8_lossy(name).to_ascii_lowercase(), value.to_vec()))
}

fn all<'h>(headers: &'h [(String, Vec<u8>)], name: &'h str) -> impl Iterator<Item = &'h [u8]> {
    headers.iter().filter(move |(n, _)| n == name).map(|(_, value)| &**value)
}

enum Framing {
    Length(usize),
    Chunks,
}

fn framing(headers: &[(String, Vec<u8>)]) -> Result<Framing, String> {
    for name in SINGLE {
        if all(headers, name).count() > 1 {
            return Err(format!("two headers {name}"));
        }
    }
    if let Some((name, _)) = headers.iter().find(|(name, _)| OF_ONE_CONNECTION.contains(&&**name)) {
        return Err(format!("the header {name} is of one connection"));
    }
    let dashed = |name: &str| name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
    for (name, _) in headers {
        if headers.iter().any(|(other, _)| other != name && dashed(other) == dashed(name)) {
            return Err(format!("{name} is also another header, to servers that read `_` or `.` as `-`"));
        }
    }
    let host = all(headers, "host").next().ok_or("no Host")?;
    if host.is_empty() || !host.iter().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]%".contains(byte)) {
        return Err(format!("a strange Host: {:?}", String::from_utf8_lossy(host)));
    }
    match (all(headers, "transfer-encoding").next(), all(headers, "content-length").next()) {
        (Some(_), Some(_)) => Err("both Transfer-Encoding and Content-Length".to_owned()),
        (Some(b"chunked"), None) => Ok(Framing::Chunks),
        (Some(coding), None) => Err(format!("Transfer-Encoding: {:?}", String::from_utf8_lossy(coding))),
        (None, Some(length)) => {
            let has_zeros = length.len() > 1 && length.starts_with(b"0");
            let is_plain = !length.is_empty() && !has_zeros && length.iter().all(u8::is_ascii_digit);
            let length = is_plain.then(|| str::from_utf8(length).ok()?.parse().ok()).flatten();
            length.map(Framing::Length).ok_or_else(|| "a strange Content-Length".to_owned())
        }
        (None, None) => Ok(Framing::Length(0)),
    }
}

/// Chunks without extensions and trailers.
fn chunks(bytes: &[u8], at: &mut usize) -> Result<Option<Vec<u8>>, String> {
    let mut body = Vec::new();
    loop {
        let Some(size) = line(bytes, at)? else { return Ok(None) };
        let is_plain = !size.is_empty() && size.len() < 9 && size.iter().all(u8::is_ascii_hexdigit);
        let size = is_plain.then(|| usize::from_str_radix(str::from_utf8(size).ok()?, 16).ok()).flatten();
        let size = size.ok_or("a strange chunk size")?;
        let Some(chunk) = bytes.get(*at..*at + size) else { return Ok(None) };
        body.extend_from_slice(chunk);
        *at += size;
        match line(bytes, at)? {
            None => return Ok(None),
            Some(b"") if size == 0 => return Ok(Some(body)),
            Some(b"") => {}
            Some(_) if size == 0 => return Err("a trailer".to_owned()),
            Some(_) => return Err("a chunk that is longer than it says".to_owned()),
        }
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[test]
fn second_readings_are_errors() {
    let good = "POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}";
    let (parsed, taken) = request(good.as_bytes()).unwrap().unwrap();
    assert_eq!((parsed.line().as_str(), taken, &*parsed.body), ("POST /a", good.len(), &b"{}"[..]));
    for cut in 0..good.len() {
        assert_eq!(request(&good.as_bytes()[..cut]), Ok(None), "{cut}");
    }
    for bad in [
        "post / HTTP/1.1\r\nhost: a\r\n\r\n",
        "POST x HTTP/1.1\r\nhost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nhost : a\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\n x: y\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: +2\r\n\r\n{}",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2;a\r\n{}\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: y\r\n\r\n",
        "POST /a/../b HTTP/1.1\r\nhost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\nx_tenant: a\r\nx-tenant: b\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\nx.tenant: a\r\nx-tenant: b\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 02\r\n\r\n{}",
    ] {
        assert!(request(bad.as_bytes()).is_err(), "{bad:?}");
    }
}
