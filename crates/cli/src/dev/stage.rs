//! The stage: three processes on free ports, files in a temporary folder, and clients.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use example_payments::post;
use hyper::Request;
use hyper::body::Bytes;
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

use super::Error;
use super::client::{PATIENCE, Pay, Seen, send};
use super::part::{Part, told};

pub(super) struct Stage {
    provider: Actor,
    api: Actor,
    gateway: Actor,
    /// What the provider signs its webhooks with.
    secret: String,
    clients: Runtime,
    /// Ends the show early, and leaves nothing behind.
    interrupted: JoinHandle<()>,
    // After those who write into it.
    folder: TempDir,
}

/// What a race came to.
pub(super) struct Race {
    pub(super) first: usize,
    pub(super) others: usize,
    pub(super) busy: usize,
    pub(super) replayed: usize,
}

const ANYWHERE: &str = "127.0.0.1:0";

impl Stage {
    pub(super) fn open() -> Result<Self, Error> {
        let clients = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let folder = tempfile::tempdir()?;
        let interrupted = {
            let (end, path) = (clients.block_on(async { told_to_end() })?, folder.path().to_owned());
            clients.spawn(async move {
                end.await;
                let _ = std::fs::remove_dir_all(path);
                // As a shell says it of one that SIGINT has ended.
                std::process::exit(130);
            })
        };
        let file = |name: &str| folder.path().join(name).display().to_string();
        let provider =
            Actor::start(Part::Provider, &[(told::LISTEN, ANYWHERE), (told::FILE, &file("provider.db"))])?;
        let behind = provider.address.to_string();
        let api = [(told::LISTEN, ANYWHERE), (told::FILE, &file("payments.db")), (told::BEHIND, &behind)];
        let api = Actor::start(Part::Api, &api)?;
        let behind = api.address.to_string();
        let secret = secret()?;
        let gateway = [
            (told::LISTEN, ANYWHERE),
            (told::FILE, &file("oncegate.db")),
            (told::BEHIND, &behind),
            ("ONCEGATE_DEV_ADMIN", ANYWHERE),
            (told::SECRET, &secret),
        ];
        let gateway = Actor::start(Part::Gateway, &gateway)?;
        // Now that it is known where the gateway is, the provider can tell it of its charges.
        let (listen, ledger) = (provider.address.to_string(), file("provider.db"));
        drop(provider);
        let webhook = format!("{}/.oncegate/webhooks/provider", gateway.address);
        let told = [
            (told::LISTEN, &*listen),
            (told::FILE, &ledger),
            (told::WEBHOOK, &webhook),
            (told::SECRET, &secret),
        ];
        let provider = Actor::start(Part::Provider, &told)?;
        Ok(Self { provider, api, gateway, secret, clients, interrupted, folder })
    }

    pub(super) fn gateway(&self) -> SocketAddr {
        self.gateway.address
    }

    pub(super) fn provider(&self) -> SocketAddr {
        self.provider.address
    }

    pub(super) fn admin(&self) -> SocketAddr {
        self.gateway.admin.unwrap_or(self.gateway.address)
    }

    /// SIGINT or SIGTERM; from now on they no longer end the process by themselves.
    pub(super) fn told_to_end(&self) -> Result<impl Future<Output = ()> + use<>, Error> {
        let end = self.clients.block_on(async { told_to_end() })?;
        self.interrupted.abort();
        Ok(end)
    }

    pub(super) fn wait_for(&self, end: impl Future<Output = ()>) {
        self.clients.block_on(end);
    }

    pub(super) fn kill_api(&mut self) {
        self.api.kill();
    }

    /// On the same port and file as before.
    pub(super) fn start_api(&mut self) -> Result<(), Error> {
        let (listen, behind) = (self.api.address.to_string(), self.provider.address.to_string());
        let file = self.folder.path().join("payments.db").display().to_string();
        let told = [(told::LISTEN, &*listen), (told::FILE, &file), (told::BEHIND, &behind)];
        self.api = Actor::start(Part::Api, &told)?;
        Ok(())
    }

    /// On the same ports and file as before.
    pub(super) fn start_gateway(&mut self) -> Result<(), Error> {
        let (listen, admin) = (self.gateway.address.to_string(), self.admin().to_string());
        let behind = self.api.address.to_string();
        let file = self.folder.path().join("oncegate.db").display().to_string();
        let told = [
            (told::LISTEN, &*listen),
            (told::FILE, &file),
            (told::BEHIND, &behind),
            ("ONCEGATE_DEV_ADMIN", &admin),
            (told::SECRET, &self.secret),
        ];
        self.gateway = Actor::start(Part::Gateway, &told)?;
        Ok(())
    }

    /// One request; what the client saw.
    pub(super) fn pay(&self, pay: Pay<'_>) -> Result<Seen, Error> {
        let request = pay.request()?;
        Ok(self.clients.block_on(send(self.gateway(), request))?)
    }

    /// So many clients at once, each on a connection of its own.
    pub(super) fn race(&self, pay: Pay<'_>, clients: usize) -> Result<Race, Error> {
        let mut racing = Vec::with_capacity(clients);
        for _ in 0..clients {
            racing.push(self.clients.spawn(send(self.gateway(), pay.request()?)));
        }
        let mut race = Race { first: 0, others: 0, busy: 0, replayed: 0 };
        for client in racing {
            let seen = self.clients.block_on(client)??;
            match seen.seen.as_str() {
                "201 succeeded" => race.first += 1,
                "201 succeeded, replayed" => race.replayed += 1,
                "409 in_progress" => race.busy += 1,
                other => return Err(format!("a racing client saw {other}").into()),
            }
        }
        race.others = race.busy + race.replayed;
        Ok(race)
    }

    /// A client that hangs up while its payment runs.
    pub(super) fn hang_up(&self, pay: Pay<'_>) -> Result<(), Error> {
        let client = self.clients.spawn(send(self.gateway(), pay.request()?));
        self.until_state(pay.key, "in_progress")?;
        client.abort();
        let _ = self.clients.block_on(client);
        Ok(())
    }

    /// A client whose answer never comes: the gateway is killed while its payment runs. Says what it saw.
    pub(super) fn kill_gateway_during(&mut self, pay: Pay<'_>) -> Result<String, Error> {
        let charges = self.charges()?;
        let client = self.clients.spawn(send(self.gateway(), pay.request()?));
        until("the provider charges", || Ok(self.charges()? > charges))?;
        self.gateway.kill();
        Ok(match self.clients.block_on(client)? {
            Ok(seen) => seen.seen,
            Err(_) => "no answer".to_owned(),
        })
    }

    /// Retries until nothing is in progress any more: settled, or lapsed with a holder that is gone.
    pub(super) fn until_settled(&self, pay: Pay<'_>) -> Result<Seen, Error> {
        let mut last = None;
        until("the payment is settled", || {
            let seen = self.pay(pay)?;
            let is_settled = seen.seen != "409 in_progress";
            last = Some(seen);
            Ok(is_settled)
        })?;
        last.ok_or_else(|| "no answer".into())
    }

    /// Retries until the outcome is known.
    pub(super) fn until_known(&self, pay: Pay<'_>) -> Result<Seen, Error> {
        let mut last = None;
        until("the outcome is known", || {
            let seen = self.pay(pay)?;
            let is_known = !matches!(seen.seen.as_str(), "409 in_progress" | "409 outcome_unknown");
            last = Some(seen);
            Ok(is_known)
        })?;
        last.ok_or_else(|| "no answer".into())
    }

    /// Who found out what became of a key's attempt, as the record's story has it.
    pub(super) fn found_out_by(&self, key: &str) -> Result<String, Error> {
        let found = self.get(self.admin(), &format!("/api/v1/records?key={key}"))?;
        let id = found["records"][0]["id"].as_str().ok_or("there is no such record")?.to_owned();
        let told = self.get(self.admin(), &format!("/api/v1/records/{id}/story"))?;
        let story = told["story"].as_array().ok_or("the record has no story")?;
        let proof = story.iter().find(|entry| entry["act"] == "happened");
        Ok(proof.and_then(|entry| entry["source"].as_str()).unwrap_or("nobody").to_owned())
    }

    fn until_state(&self, key: &str, state: &str) -> Result<(), Error> {
        until(&format!("{key} is {state}"), || Ok(self.state(key)? == state))
    }

    /// The state of a key's record, as operators see it.
    pub(super) fn state(&self, key: &str) -> Result<String, Error> {
        let found = self.get(self.admin(), &format!("/api/v1/records?key={key}"))?;
        Ok(found["records"][0]["state"].as_str().unwrap_or("absent").to_owned())
    }

    /// How many charges the provider counts.
    pub(super) fn charges(&self) -> Result<u64, Error> {
        let ledger = self.get(self.provider(), "/ledger")?;
        ledger["charges"].as_u64().ok_or_else(|| format!("the provider's ledger says {ledger}").into())
    }

    /// How many references it charged twice.
    pub(super) fn charged_twice(&self) -> Result<usize, Error> {
        let ledger = self.get(self.provider(), "/ledger")?;
        Ok(ledger["charged_twice"].as_array().map_or(usize::MAX, Vec::len))
    }

    /// How many outcomes nobody knows.
    pub(super) fn unknown(&self) -> Result<usize, Error> {
        let found = self.get(self.admin(), "/api/v1/records?state=unknown")?;
        Ok(found["records"].as_array().map_or(usize::MAX, Vec::len))
    }

    fn get(&self, from: SocketAddr, path: &str) -> Result<Value, Error> {
        let request = Request::get(path).header("host", "localhost").body(Bytes::new())?;
        let reply = self.clients.block_on(post::send(&from.to_string(), request, PATIENCE))?;
        Ok(reply.json())
    }
}

/// Heard from when this is called, not from when it is awaited.
fn told_to_end() -> std::io::Result<impl Future<Output = ()> + use<>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// A secret that only this show has.
fn secret() -> Result<String, Error> {
    let mut bits = [0; 24];
    getrandom::fill(&mut bits).map_err(|error| error.to_string())?;
    Ok(format!("whsec_{}", STANDARD.encode(bits)))
}

/// Asks again and again: these processes are not ours to be told by.
fn until(what: &str, mut is_so: impl FnMut() -> Result<bool, Error>) -> Result<(), Error> {
    let started = std::time::Instant::now();
    while !is_so()? {
        if started.elapsed() > PATIENCE {
            return Err(format!("it never came to be that {what}").into());
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// A process of the show; it ends with this.
struct Actor {
    child: Child,
    address: SocketAddr,
    admin: Option<SocketAddr>,
}

impl Actor {
    fn start(part: Part, told: &[(&str, &str)]) -> Result<Self, Error> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("dev")
            .env(told::PART, part.name())
            .envs(told.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().ok_or("no output")?;
        let mut line = String::new();
        // The line comes when it listens; no line, it has ended and said why.
        BufReader::new(stdout).read_line(&mut line)?;
        let mut addresses = line.split_whitespace().map(str::parse);
        let Some(Ok(address)) = addresses.next() else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("the {} did not start", part.name()).into());
        };
        Ok(Self { child, address, admin: addresses.next().and_then(Result::ok) })
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.kill();
    }
}
