//! HTTP/2 as it is on the wire, for what a well-behaved peer would never send: streams that end without an end, settings that change,
//! connections that fall silent.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::client::within;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const GOAWAY: u8 = 7;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// The setting that says how many streams there may be at once.
const MAX_CONCURRENT_STREAMS: u16 = 3;

/// One side of a connection.
#[derive(Debug)]
pub(crate) struct Frames(BufReader<TcpStream>);

#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

impl Frames {
    /// The server's side of the next connection, before it has said a word.
    pub(crate) async fn accept(listener: &TcpListener) -> Self {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }

    /// Reads the client's first words, and says how many streams it may have; `None`: nothing about it.
    pub(crate) async fn begin(&mut self, streams: Option<u32>) -> io::Result<()> {
        let mut preface = [0; PREFACE.len()];
        self.0.read_exact(&mut preface).await?;
        assert_eq!(preface, PREFACE);
        match streams {
            Some(streams) => self.announce(streams).await,
            None => self.write(SETTINGS, 0, 0, b"").await,
        }
    }

    /// Says how many streams there may be from now on.
    pub(crate) async fn announce(&mut self, streams: u32) -> io::Result<()> {
        let setting = [&MAX_CONCURRENT_STREAMS.to_be_bytes()[..], &streams.to_be_bytes()].concat();
        self.write(SETTINGS, 0, 0, &setting).await
    }

    pub(crate) async fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
        self.write_raw(&frame(kind, flags, stream, payload)).await
    }

    pub(crate) async fn write_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes).await
    }

    pub(crate) async fn read(&mut self) -> io::Result<Frame> {
        Ok(self.read_whole().await?.0)
    }

    /// A frame and its payload.
    async fn read_whole(&mut self) -> io::Result<(Frame, Vec<u8>)> {
        // Three bytes of length, kind, flags, four bytes of stream.
        let length = self.0.read_u16().await?;
        let length = usize::from(length) << 8 | usize::from(self.0.read_u8().await?);
        let (kind, flags) = (self.0.read_u8().await?, self.0.read_u8().await?);
        let stream = self.0.read_u32().await?;
        let mut payload = vec![0; length];
        self.0.read_exact(&mut payload).await?;
        Ok((Frame { kind, flags, stream }, payload))
    }

    /// Reads until a request has come whole, and says by which stream.
    pub(crate) async fn request(&mut self) -> io::Result<u32> {
        loop {
            let frame = self.read().await?;
            if matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0 {
                return Ok(frame.stream);
            }
        }
    }

    /// The head of an answer: 200, and a length if one is given.
    pub(crate) async fn head(&mut self, stream: u32, length: Option<&str>) -> io::Result<()> {
        // `:status: 200` by its number; a literal value for `content-length`, also by its number.
        let mut block = vec![0x88];
        if let Some(length) = length {
            block.extend_from_slice(&[0x0f, 0x0d, u8::try_from(length.len()).unwrap()]);
            block.extend_from_slice(length.as_bytes());
        }
        self.write(HEADERS, END_HEADERS, stream, &block).await
    }

    /// An answer, whole.
    pub(crate) async fn answer(&mut self, stream: u32, body: &str) -> io::Result<()> {
        self.head(stream, None).await?;
        self.write(DATA, END_STREAM, stream, body.as_bytes()).await
    }

    /// The next request of a connection that must be there.
    pub(crate) async fn expect_request(&mut self) -> u32 {
        within(self.request()).await.unwrap()
    }
}

/// A frame, as bytes.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// What a server did with the frames of a client: the status of stream 1, how the stream was
/// reset, and whether the connection ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FrameReply {
    pub(crate) status: Option<u16>,
    pub(crate) is_reset: bool,
    pub(crate) is_closed: bool,
}

impl FrameReply {
    /// Refused with this status, or by a reset or a close, as HTTP/2 does with malformed frames.
    pub(crate) fn is_refused(&self, status: u16) -> bool {
        self.status.map_or(self.is_reset || self.is_closed, |found| found == status)
    }
}

/// Sends the preface, empty settings and these frames, and reads until stream 1 has ended.
pub(crate) async fn send(to: std::net::SocketAddr, sent: &[Vec<u8>]) -> FrameReply {
    let stream = within(TcpStream::connect(to)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut frames = Frames(BufReader::new(stream));
    let bytes = [PREFACE, &frame(SETTINGS, 0, 0, b""), &sent.concat()].concat();
    let mut reply = FrameReply::default();
    if within(frames.write_raw(&bytes)).await.is_err() {
        reply.is_closed = true;
        return reply;
    }
    loop {
        let Ok((frame, payload)) = within(frames.read_whole()).await else {
            reply.is_closed = true;
            return reply;
        };
        match frame.kind {
            HEADERS if frame.stream == 1 && reply.status.is_none() => {
                reply.status = Some(status_of(&payload));
            }
            RST_STREAM if frame.stream == 1 => reply.is_reset = true,
            GOAWAY => reply.is_closed = true,
            _ => {}
        }
        let is_over = frame.stream == 1 && (frame.kind == RST_STREAM || frame.flags & END_STREAM != 0);
        if reply.is_closed || (is_over && matches!(frame.kind, DATA | HEADERS | RST_STREAM)) {
            return reply;
        }
    }
}

/// The status, which comes first: by its number in HPACK's table, or with its digits.
fn status_of(block: &[u8]) -> u16 {
    match block.first() {
        Some(0x88) => 200,
        Some(0x89) => 204,
        Some(0x8c) => 400,
        Some(0x8d) => 404,
        Some(0x8e) => 500,
        // A literal value beside the name `:status`, plain or in Huffman's code for digits.
        Some(0x48 | 0x08 | 0x18) => {
            let length = usize::from(block[1] & 0x7f);
            let text = &block[2..2 + length];
            let digits = if block[1] & 0x80 == 0 { text.to_vec() } else { huffman_digits(text) };
            String::from_utf8(digits).unwrap().parse().unwrap()
        }
        first => panic!("no status: {first:?}"),
    }
}

/// Digits in HPACK's Huffman code: 0 to 2 have five bits, 3 to 9 have six.
fn huffman_digits(bytes: &[u8]) -> Vec<u8> {
    let mut bits = bytes.iter().flat_map(|byte| (0..8).rev().map(move |at| u16::from(byte >> at & 1)));
    let mut digits = Vec::new();
    while digits.len() < 3 {
        let mut code = 0;
        for _ in 0..5 {
            code = code << 1 | bits.next().unwrap();
        }
        if code < 3 {
            digits.push(b'0' + u8::try_from(code).unwrap());
        } else {
            code = code << 1 | bits.next().unwrap();
            digits.push(b'3' + u8::try_from(code - 0x19).unwrap());
        }
    }
    digits
}
