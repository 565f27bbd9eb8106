//! A server that does what a script says, request by request, and writes down what it was sent. Over TCP, by hand: it has to break off,
//! reset and never answer, which no HTTP library does.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate_client::Limits;
use serde_json::{Map, Value, json};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The contract's cases and limits.
pub(crate) fn contract() -> Value {
    serde_json::from_str(include_str!("../../../../clients/contract.json")).unwrap()
}

/// The limits of a case.
pub(crate) fn limits(contract: &Value, more: &Value) -> Limits {
    let of = |name: &str| more.get(name).unwrap_or(&contract["limits"][name]).as_u64().unwrap();
    let ms = |name: &str| Duration::from_millis(of(name));
    Limits {
        deadline: ms("deadline_ms"),
        attempts_max: of("attempts_max").try_into().unwrap(),
        try_timeout: ms("try_timeout_ms"),
        answer_bytes_max: of("answer_bytes_max").try_into().unwrap(),
        backoff: ms("backoff_ms"),
        backoff_max: ms("backoff_max_ms"),
        retry_after_max: ms("retry_after_max_ms"),
    }
}

/// What was sent.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) line: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Asked {
    pub(crate) fn key(&self) -> Option<&str> {
        self.headers.get("idempotency-key").map(String::as_str)
    }
}

/// The server. Dropped, it ends.
pub(crate) struct Scripted {
    pub(crate) url: String,
    asked: watch::Receiver<Vec<Asked>>,
    _tasks: JoinSet<()>,
}

impl Scripted {
    pub(crate) async fn start(steps: &Value) -> Self {
        Self::serve(steps, "http", |stream| async move { Ok(stream) }).await
    }

    /// With a handshake before each request.
    pub(crate) async fn serve<S, F>(
        steps: &Value,
        scheme: &str,
        greet: impl Fn(TcpStream) -> F + Clone + Send + 'static,
    ) -> Self
    where
        S: AsyncRead + AsyncWrite + Reset + Unpin + Send,
        F: Future<Output = io::Result<S>> + Send,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("{scheme}://127.0.0.1:{}/payments", listener.local_addr().unwrap().port());
        let steps: Arc<Vec<Value>> = Arc::new(steps.as_array().unwrap().clone());
        let (tell, asked) = watch::channel(Vec::new());
        let tell = Arc::new(Mutex::new(tell));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (steps, tell, greet) = (Arc::clone(&steps), Arc::clone(&tell), greet.clone());
                connections.spawn(async move {
                    // A client that is not greeted, or hangs up, has its reasons.
                    if let Ok(stream) = greet(stream).await {
                        let _gone = connection(stream, &steps, &tell).await;
                    }
                });
            }
        });
        Self { url, asked, _tasks: tasks }
    }

    pub(crate) fn requests(&self) -> Vec<Asked> {
        self.asked.borrow().clone()
    }

    /// Until so many requests have come.
    pub(crate) async fn has_been_asked(&mut self, times: usize) {
        let come = self.asked.wait_for(|asked| asked.len() >= times);
        tokio::time::timeout(Duration::from_mins(1), come).await.expect("asked in time").unwrap();
    }
}

/// A connection that can end with a reset.
pub(crate) trait Reset {
    fn reset(&self);
}

impl Reset for TcpStream {
    fn reset(&self) {
        self.set_zero_linger().unwrap();
    }
}

/// One request, and its step.
async fn connection<S: AsyncRead + AsyncWrite + Reset + Unpin>(
    stream: S,
    steps: &[Value],
    tell: &Mutex<watch::Sender<Vec<Asked>>>,
) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let asked = request(&mut stream).await?;
    let number = {
        let tell = tell.lock().unwrap();
        tell.send_modify(|all| all.push(asked));
        tell.borrow().len()
    };
    let last = steps.last().filter(|last| last["forever"] == true);
    let unforeseen = json!({ "status": 599 });
    let step = steps.get(number - 1).or(last).unwrap_or(&unforeseen);
    match step["do"].as_str() {
        Some("hang") => std::future::pending().await,
        Some("reset") => stream.get_ref().reset(),
        Some("cut") => {
            stream
                .write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 100\r\nidempotency-expires: x\r\n\r\n{")
                .await?;
        }
        Some("cut_head") => {
            stream.write_all(b"HTTP/1.1 403 Forbidden\r\nidempotency-expires: x\r\nconte").await?;
        }
        Some(what @ ("drip" | "trickle")) => {
            let length = if what == "drip" { "content-length: 100000" } else { "idempotency-expires: x" };
            let head = format!("HTTP/1.1 201 Created\r\nconnection: close\r\n{length}\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            // Byte by byte, until the client has gone: nothing more comes from it before that.
            loop {
                stream.write_all(b".").await?;
                stream.flush().await?;
                let gone = tokio::time::timeout(Duration::from_millis(20), stream.read_u8()).await;
                if let Ok(gone) = gone {
                    gone?;
                }
            }
        }
        _ => stream.write_all(answer(step).as_bytes()).await?,
    }
    stream.flush().await?;
    if step["do"] != "reset" {
        stream.shutdown().await?;
    }
    Ok(())
}

async fn request<S: AsyncRead + Unpin>(stream: &mut BufReader<S>) -> io::Result<Asked> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let headers: BTreeMap<_, _> = lines[1..]
        .iter()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut body = vec![0; headers.get("content-length").map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await?;
    let line = lines[0].trim_end_matches(" HTTP/1.1").to_owned();
    Ok(Asked { line, headers, body: String::from_utf8(body).unwrap() })
}

fn answer(step: &Value) -> String {
    let contract = contract();
    let mut headers = Map::new();
    for mark in ["kept", "replayed"] {
        if step[mark] == true {
            headers.extend(contract[mark].as_object().unwrap().clone());
        }
    }
    headers.extend(step["headers"].as_object().cloned().unwrap_or_default());
    let mut body = step.get("json").cloned();
    if let Some(problem) = step["problem"].as_str() {
        headers.insert("content-type".to_owned(), "application/problem+json".into());
        let kind = format!("https://oncegate.dev/problems/{problem}");
        let mut document = json!({ "type": kind, "status": step["status"], "code": problem });
        let more = step["more"].as_object().cloned().unwrap_or_default();
        document.as_object_mut().unwrap().extend(more);
        body = Some(document);
    }
    let body = body.map_or_else(String::new, |body| body.to_string());
    let mut head = format!("HTTP/1.1 {} Scripted\r\nconnection: close\r\n", step["status"]);
    for (name, value) in headers {
        write!(head, "{name}: {}\r\n", value.as_str().unwrap()).unwrap();
    }
    format!("{head}content-length: {}\r\n\r\n{body}", body.len())
}
