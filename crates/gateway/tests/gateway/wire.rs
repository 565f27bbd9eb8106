//! HTTP/1.1 as it is on the wire, for the client and for the upstream: nothing is understood that is not written here.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};

/// Names and values, in order; names in lower case.
pub(crate) type Headers = Vec<(String, Vec<u8>)>;

/// The first line and the headers.
pub(crate) async fn read_head(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<(String, Headers)> {
    let first = String::from_utf8_lossy(&read_line(from).await?).into_owned();
    let mut headers = Vec::new();
    loop {
        let line = read_line(from).await?;
        if line.is_empty() {
            return Ok((first, headers));
        }
        let colon = line.iter().position(|byte| *byte == b':').expect("a header has a colon");
        let name = String::from_utf8_lossy(&line[..colon]).to_ascii_lowercase();
        headers.push((name, line[colon + 1..].trim_ascii().to_vec()));
    }
}

/// A body of a declared length, or in chunks; `None`: neither is said.
pub(crate) async fn read_body(
    from: &mut (impl AsyncBufRead + Unpin),
    headers: &Headers,
) -> io::Result<Option<Vec<u8>>> {
    let value = |name: &str| headers.iter().find(|(n, _)| n == name).map(|(_, value)| value);
    if value("transfer-encoding").is_some() {
        let mut body = Vec::new();
        while let Some(chunk) = read_chunk(from).await? {
            body.extend_from_slice(&chunk);
        }
        return Ok(Some(body));
    }
    let Some(length) = value("content-length") else { return Ok(None) };
    let mut body = vec![0; str::from_utf8(length).unwrap().parse().unwrap()];
    from.read_exact(&mut body).await?;
    Ok(Some(body))
}

/// One chunk; `None` after the last.
pub(crate) async fn read_chunk(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Vec<u8>>> {
    let size = String::from_utf8(read_line(from).await?).unwrap();
    let size = usize::from_str_radix(&size, 16).unwrap();
    let mut chunk = vec![0; size + 2];
    from.read_exact(&mut chunk).await?;
    chunk.truncate(size);
    Ok((size > 0).then_some(chunk))
}

/// A line without its end.
async fn read_line(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line).await?;
    match line.strip_suffix(b"\r\n") {
        Some(line) => Ok(line.to_vec()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A chunk, framed.
pub(crate) fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}
