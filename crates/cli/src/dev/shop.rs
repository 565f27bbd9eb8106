//! The stage: clients over TCP, a service with the layer on an embedded store, and the provider behind it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use oncegate_core::decide::{Decision, Event, Finding, Verdict};
use oncegate_core::identity::RecordId;
use oncegate_core::key::Key;
use oncegate_core::response::{Answer, Response};
use oncegate_core::scope::{Address, Scope};
use oncegate_core::time::micros;
use oncegate_engine::JobError;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use super::Error;
use super::node::{HANGS, Node, WAITS};
use super::provider::Provider;

/// No step takes longer than this.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Shop {
    file: PathBuf,
    node: Node,
    provider: Arc<Provider>,
    turned_by: Arc<AtomicI64>,
    /// Where the clients run.
    clients: Runtime,
}

/// One request of a client.
#[derive(Clone, Copy)]
pub(super) struct Post<'a> {
    pub(super) tenant: &'a str,
    pub(super) key: &'a str,
    pub(super) body: &'a str,
    /// What the provider will do.
    pub(super) provider: &'a str,
}

impl Shop {
    pub(super) fn open(file: &Path) -> Result<Self, Error> {
        let (provider, turned_by) = (Arc::new(Provider::new()), Arc::new(AtomicI64::new(0)));
        let clients = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let node = Node::start(file, &provider, &turned_by)?;
        Ok(Self { file: file.to_path_buf(), node, provider, turned_by, clients })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.node.address
    }

    /// The node dies, and another one takes over the file.
    pub(super) fn kill_and_restart(&mut self) -> Result<(), Error> {
        let next = Node::start(&self.file, &self.provider, &self.turned_by)?;
        std::mem::replace(&mut self.node, next).kill();
        Ok(())
    }

    pub(super) fn pass(&self, span: Duration) {
        self.turned_by.fetch_add(micros(span), Ordering::Relaxed);
    }

    pub(super) fn charges(&self) -> usize {
        self.provider.charges()
    }

    /// One request; says what the client saw.
    pub(super) fn post(&self, post: Post<'_>) -> Result<String, Error> {
        let request = request(post)?;
        self.clients.block_on(async { tokio::time::timeout(PATIENCE, send(self.address(), request)).await? })
    }

    /// `clients` requests at once, each on a connection of its own. The charge is let go when all others were answered.
    pub(super) fn race(&self, post: Post<'_>, clients: usize) -> Result<String, Error> {
        let post = Post { provider: WAITS, ..post };
        let (answers, mut answered) = mpsc::channel(clients);
        for _ in 0..clients {
            let (request, address, answers) = (request(post)?, self.address(), answers.clone());
            self.clients.spawn(async move { drop(answers.send(send(address, request).await).await) });
        }
        let mut seen = BTreeMap::<String, usize>::new();
        for n in 1..=clients {
            let next =
                self.clients.block_on(async { tokio::time::timeout(PATIENCE, answered.recv()).await })?;
            *seen.entry(next.ok_or("a client went away")??).or_default() += 1;
            if n == clients - 1 {
                self.provider.gate.add_permits(1);
            }
        }
        self.wait_for_arrival()?;
        let seen: Vec<_> = seen.into_iter().map(|(what, count)| format!("{count} × {what}")).collect();
        Ok(seen.join(", "))
    }

    /// A client that hangs up once the provider has been asked, and before it has answered.
    pub(super) fn hang_up(&self, post: Post<'_>) -> Result<String, Error> {
        let request = request(Post { provider: WAITS, ..post })?;
        let client = self.clients.spawn(send(self.address(), request));
        self.wait_for_arrival()?;
        client.abort();
        let _ = self.clients.block_on(client);
        self.provider.gate.add_permits(1);
        Ok("hangs up".to_owned())
    }

    /// A request whose answer never comes: the provider hangs after charging, and the node is killed.
    pub(super) fn post_and_kill(&mut self, post: Post<'_>) -> Result<String, Error> {
        let request = request(Post { provider: HANGS, ..post })?;
        let client = self.clients.spawn(send(self.address(), request));
        self.wait_for_arrival()?;
        self.kill_and_restart()?;
        let seen = self.clients.block_on(async { tokio::time::timeout(PATIENCE, client).await })??;
        Ok(seen.unwrap_or_else(|_| "no answer".to_owned()))
    }

    /// Until a charge is where it waits, or hangs.
    fn wait_for_arrival(&self) -> Result<(), Error> {
        let arrived = self.provider.arrived.acquire();
        self.clients.block_on(async { tokio::time::timeout(PATIENCE, arrived).await })??.forget();
        Ok(())
    }

    /// Asks the provider about the key's present life, and settles the record by what it says.
    pub(super) fn probe(&self, tenant: &str, key: &str) -> Result<String, Error> {
        let address = Address { scope: Scope::tenant(tenant)?, key: Key::from_text(key)? };
        let (id, engine) = (RecordId::of(&address), &self.node.engine);
        self.clients.block_on(async {
            let row = engine.read(id).await?.ok_or("there is no such record")?;
            let Some(number) = self.provider.find(row.life) else { return Ok("not found".to_owned()) };
            let headers = vec![("content-type".to_owned(), b"text/plain; charset=utf-8".to_vec())];
            let body = format!("charge {number}").into_bytes();
            let answer = Answer::Kept(Response { status: 201, headers, body });
            let finding = Finding::Happened(Arc::new(answer));
            let verdict = Verdict { life: row.life, source: "probe".into(), reference: None, finding };
            let step = engine.drive(id, &Event::Verdict(verdict)).await?;
            match step.decision {
                Decision::Done => Ok(format!("it happened: charge {number}")),
                other => Ok(format!("it happened, and was not recorded: {other:?}")),
            }
        })
    }

    /// A message that its queue delivers again and again; says what each delivery came to.
    pub(super) fn deliver(&self, message: &str, times: usize) -> Result<String, Error> {
        let mut seen = Vec::new();
        for _ in 0..times {
            let provider = Arc::clone(&self.provider);
            let life = oncegate_core::identity::Token::from_bytes([0; 16]);
            let job = move || async move { Ok::<_, JobError>(provider.charge(life)) };
            let once = self.node.engine.once("queue", message, &message, job);
            let once = self.clients.block_on(async { tokio::time::timeout(PATIENCE, once).await })??;
            let replayed = if once.replayed { ", replayed" } else { "" };
            seen.push(format!("charge {}{replayed}", once.value));
        }
        Ok(seen.join("; "))
    }
}

fn request(post: Post<'_>) -> Result<Request<Full<Bytes>>, Error> {
    Ok(Request::post("/payments")
        .header("host", "localhost")
        .header("content-type", "application/json")
        .header("idempotency-key", post.key)
        .header("x-tenant", post.tenant)
        .header("x-provider", post.provider)
        .body(Full::new(Bytes::from(post.body.to_owned())))?)
}

/// Sends it on a connection of its own, and says what came back.
async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> Result<String, Error> {
    let stream = tokio::net::TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    // Dropped with this future: a client that gives up closes its connection.
    let _hang_up = HangUp(connection.abort_handle());
    let response = sender.send_request(request).await?;
    let (status, replayed) =
        (response.status().as_u16(), response.headers().contains_key("idempotency-replayed"));
    let is_problem =
        response.headers().get("content-type").is_some_and(|kind| kind == "application/problem+json");
    let body = response.into_body().collect().await?.to_bytes();
    let words = if is_problem {
        let problem: serde_json::Value = serde_json::from_slice(&body)?;
        problem["code"].as_str().unwrap_or("a problem without a code").to_owned()
    } else {
        String::from_utf8_lossy(&body).into_owned()
    };
    Ok(format!("{status} {words}{}", if replayed { ", replayed" } else { "" }))
}

struct HangUp(tokio::task::AbortHandle);

impl Drop for HangUp {
    fn drop(&mut self) {
        self.0.abort();
    }
}
