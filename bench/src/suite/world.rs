//! What a run starts: an upstream, a bare proxy, servers of stores, and gateways and layers on them, each a process of its own.

use std::cell::OnceCell;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use oncegate_test_servers::Redis;

use super::cluster::Cluster;
use super::meter::Watched;
use super::program::Program;
use crate::{Outcome, fill};

/// Where records are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Memory,
    Sqlite,
    Postgres,
    Redis,
}

impl Store {
    pub(crate) const ALL: [Self; 4] = [Self::Memory, Self::Sqlite, Self::Postgres, Self::Redis];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "SQLite",
            Self::Postgres => "PostgreSQL",
            Self::Redis => "Redis",
        }
    }
}

/// Something that takes requests.
pub(crate) struct Front {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) watched: Vec<Watched>,
    processes: Vec<Program>,
}

impl Front {
    pub(crate) fn first_id(&self) -> Option<u32> {
        self.processes.first().map(Program::id)
    }

    /// Ends it as an operator would: what it holds is written down.
    pub(crate) fn end(&mut self) {
        for process in &mut self.processes {
            process.end_by(rustix::process::Signal::TERM);
        }
    }

    /// One that was started elsewhere.
    pub(crate) fn of(addresses: Vec<SocketAddr>, watched: Vec<Watched>, processes: Vec<Program>) -> Self {
        Self { addresses, watched, processes }
    }
}

/// How a gateway differs from the default.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) cache_bytes: u64,
    /// How many of them share the store.
    pub(crate) count: usize,
}

/// What the gateway's own default is.
pub(crate) const CACHE_BYTES: u64 = 64 << 20;

impl Default for Settings {
    fn default() -> Self {
        Self { cache_bytes: CACHE_BYTES, count: 1 }
    }
}

pub(crate) struct World {
    directory: PathBuf,
    upstream: (Program, SocketAddr),
    bare: (Program, SocketAddr),
    postgres: OnceCell<Cluster>,
    redis: OnceCell<Redis>,
}

impl World {
    pub(crate) fn start(directory: &std::path::Path) -> Outcome<Self> {
        let directory = directory.join("run");
        let _old = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory)?;
        // PostgreSQL runs as another user, who has to get there.
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755))?;
        let upstream = Program::role("upstream", &directory, &["upstream"])?;
        let bare = Program::role("bare", &directory, &["bare", &upstream.1.to_string()])?;
        Ok(Self { directory, upstream, bare, postgres: OnceCell::new(), redis: OnceCell::new() })
    }

    pub(crate) fn upstream(&self) -> SocketAddr {
        self.upstream.1
    }

    /// A place for files of this run.
    pub(crate) fn directory(&self) -> &std::path::Path {
        &self.directory
    }

    /// The API without anything in front.
    pub(crate) fn direct(&self) -> Front {
        Front::of(vec![self.upstream.1], vec![self.charged_upstream()], Vec::new())
    }

    /// The floor: everything is a ratio to it.
    pub(crate) fn bare(&self) -> Front {
        let watched = vec![charged("front", &self.bare.0), self.charged_upstream()];
        Front::of(vec![self.bare.1], watched, Vec::new())
    }

    /// `oncegate serve` on an empty store of its own.
    pub(crate) fn gateway(&self, name: &str, store: Store, settings: Settings) -> Outcome<Front> {
        let (url, mut watched) = self.empty(name, store)?;
        let mut front = self.gateway_on(name, &url, settings)?;
        front.watched.append(&mut watched);
        Ok(front)
    }

    /// The same on a store that is there.
    pub(crate) fn gateway_on(&self, name: &str, url: &str, settings: Settings) -> Outcome<Front> {
        let mut processes = Vec::new();
        let mut addresses = Vec::new();
        for number in 1..=settings.count {
            let config = self.directory.join(format!("{name}-{number}.toml"));
            let text = format!(
                "[upstream]\nurl = \"http://{}\"\n[store]\nurl = \"{url}\"\ncache_bytes = {}\n\
                 [listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n",
                self.upstream.1, settings.cache_bytes
            );
            fs::write(&config, text)?;
            let program = std::env::current_exe()?.with_file_name("oncegate");
            let mut command = Command::new(program);
            command.arg("serve").arg("--config").arg(config);
            let mut process = Program::start(&format!("{name}-{number}"), &self.directory, &mut command)?;
            addresses.push(process.wait_for(listening)?);
            processes.push(process);
        }
        let front =
            Watched { name: "front", pids: processes.iter().map(Program::id).collect(), has_children: false };
        Ok(Front::of(addresses, vec![front, self.charged_upstream()], processes))
    }

    /// The layer inside the API's own process.
    pub(crate) fn layer(&self, name: &str, store: Store) -> Outcome<Front> {
        let (url, mut watched) = self.empty(name, store)?;
        let (process, address) = Program::role(name, &self.directory, &["layer", &url])?;
        watched.insert(0, charged("front", &process));
        Ok(Front::of(vec![address], watched, vec![process]))
    }

    /// The URL of a store without any record, and the processes that it costs beside its user's.
    pub(crate) fn empty(&self, name: &str, store: Store) -> Outcome<(String, Vec<Watched>)> {
        match store {
            Store::Memory => Ok(("memory:".to_owned(), Vec::new())),
            Store::Sqlite => {
                let file = self.directory.join(format!("{name}.db"));
                fill::remove(&file)?;
                Ok((format!("sqlite://{}", file.display()), Vec::new()))
            }
            Store::Postgres => {
                let server = self.postgres()?;
                Ok((server.url(&name.replace('-', "_")), vec![server.watched()]))
            }
            Store::Redis => {
                let server = self
                    .redis
                    .get_or_init(|| Redis::start(&["--appendonly", "yes", "--appendfsync", "always"]));
                let watched = Watched { name: "store", pids: vec![server.id()], has_children: false };
                Ok((format!("{}?prefix={name}", server.url()), vec![watched]))
            }
        }
    }

    pub(crate) fn postgres(&self) -> Outcome<&Cluster> {
        if let Some(server) = self.postgres.get() {
            return Ok(server);
        }
        let server = Cluster::start(&self.directory.join("postgres"))?;
        Ok(self.postgres.get_or_init(|| server))
    }

    pub(crate) fn charged_upstream(&self) -> Watched {
        charged("upstream", &self.upstream.0)
    }
}

fn charged(name: &'static str, process: &Program) -> Watched {
    Watched { name, pids: vec![process.id()], has_children: false }
}

/// The address in "oncegate listens on http://…".
fn listening(said: &str) -> Option<SocketAddr> {
    let line = said.lines().find_map(|line| line.split_once("oncegate listens on http://"))?.1;
    line.split_whitespace().next()?.parse().ok()
}
