//! The process that is counted.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use allocation_counter::{AllocationInfo, measure};
use oncegate_gateway::{Config, Gateway, Given};
use tokio::runtime::Runtime;

pub(crate) const ASKED: &str = "ONCEGATE_BUDGET_ASKED";
pub(crate) const STORE: &str = "ONCEGATE_BUDGET_STORE";
pub(crate) const REQUESTS: &str = "ONCEGATE_BUDGET_REQUESTS";

/// The first ones make connections, meters and buffers.
const WARM_UP: u32 = 50;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A key that was never seen.
    Fresh,
    /// One key, again and again.
    Replay,
    /// What no route protects.
    Unprotected,
}

impl Asked {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Replay => "replay",
            Self::Unprotected => "unprotected",
        }
    }

    pub(crate) fn of_environment() -> Option<Self> {
        let name = std::env::var(ASKED).ok()?;
        [Self::Fresh, Self::Replay, Self::Unprotected].into_iter().find(|asked| asked.name() == name)
    }

    fn request(self, number: u32) -> String {
        let body =
            r#"{"amount": 100, "currency": "EUR", "to": "Ada Lovelace", "reference": "invoice 2026-0042"}"#;
        let number = if self == Self::Fresh { number } else { 0 };
        match self {
            Self::Unprotected => "GET /payments HTTP/1.1\r\nHost: budget\r\n\r\n".to_owned(),
            Self::Fresh | Self::Replay => format!(
                "POST /payments HTTP/1.1\r\nHost: budget\r\nAuthorization: Bearer budget\r\nIdempotency-Key: \"key-{number:08}\"\r\n\
                 Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ),
        }
    }
}

/// What one request cost on the gateway's thread, and who counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) process: u64,
    pub(crate) allocations: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) commits: u64,
}

impl Counted {
    pub(crate) fn line(self) -> String {
        format!("counted {} {} {} {}", self.process, self.allocations, self.allocated_bytes, self.commits)
    }

    pub(crate) fn read(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("counted "))?;
        let mut numbers = line.split(' ').filter_map(|number| number.parse().ok());
        let mut next = || numbers.next();
        Some(Self { process: next()?, allocations: next()?, allocated_bytes: next()?, commits: next()? })
    }
}

/// Runs the gateway on this thread, and so many requests through it.
pub(crate) fn counting(asked: Asked, store: &str) -> Counted {
    let requests: u32 = std::env::var(REQUESTS).unwrap().parse().unwrap();
    let upstream = upstream();
    let text = format!(
        "[upstream]\nurl = \"http://{upstream}\"\n[store]\nurl = \"{store}\"\n[listen]\naddress = \"127.0.0.1:0\"\n\
         [admin]\naddress = \"127.0.0.1:0\"\n"
    );
    let config = Config::parse(None, &text, &Given::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let gateway = runtime.block_on(Gateway::start(config, None)).unwrap();
    let client = Client::to(gateway.address());
    let client = driven(&runtime, client, asked, 0..WARM_UP);
    let before = gateway.stats().commits;
    let mut client = Some(client);
    let info = measure(|| {
        client = client.take().map(|client| measured_part(&runtime, client, asked, requests));
    });
    let AllocationInfo { count_total, bytes_total, .. } = info;
    let each = u64::from(requests);
    Counted {
        process: u64::from(std::process::id()),
        allocations: count_total / each,
        allocated_bytes: bytes_total / each,
        commits: (gateway.stats().commits - before).div_ceil(each),
    }
}

/// By this name callgrind knows what to count.
#[inline(never)]
fn measured_part(runtime: &Runtime, client: Client, asked: Asked, requests: u32) -> Client {
    driven(runtime, client, asked, WARM_UP..WARM_UP + requests)
}

/// The gateway runs on this thread while the client asks on another.
fn driven(runtime: &Runtime, mut client: Client, asked: Asked, numbers: std::ops::Range<u32>) -> Client {
    let (done, ended) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        for number in numbers {
            client.ask(&asked.request(number));
        }
        drop(done.send(client));
    });
    runtime.block_on(ended).expect("every answer came")
}

/// One connection, one request at a time.
struct Client(TcpStream);

impl Client {
    fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    fn ask(&mut self, request: &str) {
        self.0.write_all(request.as_bytes()).unwrap();
        let head = read_message(&mut self.0).expect("an answer");
        assert!(head.starts_with("HTTP/1.1 201"), "{head}");
    }
}

/// Answers 201 with 200 bytes, on threads of its own, in one write.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.set_nodelay(true);
            std::thread::spawn(move || {
                let answer =
                    format!("HTTP/1.1 201 Created\r\nContent-Length: 200\r\n\r\n{}", "x".repeat(200));
                while read_message(&mut stream).is_some() {
                    if stream.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// Reads a head and a body of the length that it names; gives the head.
fn read_message(stream: &mut TcpStream) -> Option<String> {
    let mut read = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let got = stream.read(&mut piece).ok()?;
        read.extend_from_slice(&piece[..got]);
        let text = String::from_utf8_lossy(&read);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let mut lines = head.lines().filter_map(|line| line.split_once(':'));
            let length = lines.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
            let length = length.map_or(0, |(_, value)| value.trim().parse().unwrap());
            if body.len() >= length {
                return Some(head.to_owned());
            }
        }
        if got == 0 {
            return None;
        }
    }
}
