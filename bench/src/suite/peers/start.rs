//! Each peer as its documentation has it.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use oncegate_test_servers::Redis;

use super::install;
use crate::Outcome;
use crate::suite::meter::Watched;
use crate::suite::program::{Program, free_port};
use crate::suite::world::Front;

/// What they are given.
pub(super) struct Place {
    pub(super) directory: PathBuf,
    pub(super) redis: Redis,
    pub(super) durable_redis: Redis,
    pub(super) upstream: SocketAddr,
}

pub(super) struct Peer {
    pub(super) name: &'static str,
    pub(super) how: &'static str,
    pub(super) is_durable: bool,
    /// Where clients post to, if not to `/payments`.
    pub(super) path: Option<&'static str>,
    pub(super) start: fn(&Place) -> Outcome<Front>,
}

pub(super) const PEERS: [Peer; 7] = [
    Peer {
        name: "idempotent-proxy-server, Redis without persistence",
        how: "1.2.2, a proxy as the gateway is; `REQUEST_TIMEOUT` (which is also how long keys live) 10 minutes",
        is_durable: false,
        path: Some("/URL_PAYMENTS"),
        start: |place| proxy(place, &place.redis, "volatile"),
    },
    Peer {
        name: "idempotent-proxy-server, Redis with fsync",
        how: "the same on a Redis with `appendfsync always`",
        is_durable: true,
        path: Some("/URL_PAYMENTS"),
        start: |place| proxy(place, &place.durable_redis, "durable"),
    },
    Peer {
        name: "@node-idempotency/core",
        how: "in process, Node's own HTTP server, its Redis adapter, Redis without persistence",
        is_durable: false,
        path: None,
        start: |place| node(place, "node-idempotency"),
    },
    Peer {
        name: "express-idempotency",
        how: "in process, Express 5, its default adapter in memory",
        is_durable: false,
        path: None,
        start: |place| node(place, "express-idempotency"),
    },
    Peer {
        name: "idemkit[asgi]",
        how: "in process, uvicorn with one worker, Starlette, Redis without persistence",
        is_durable: false,
        path: None,
        start: |place| python(place, "idemkit"),
    },
    Peer {
        name: "asgi-idempotency-header",
        how: "in process, uvicorn with one worker, Starlette, Redis without persistence",
        is_durable: false,
        path: None,
        start: |place| python(place, "asgi-idempotency-header"),
    },
    Peer {
        name: "Restate",
        how: "restate-server on one node with its defaults, a handler by its SDK in Node, called by the ingress with a key",
        is_durable: true,
        path: Some("/payments/charge"),
        start: restate,
    },
];

fn proxy(place: &Place, redis: &Redis, name: &str) -> Outcome<Front> {
    let program = install::proxy(&place.directory)?;
    let folder = place.directory.join(format!("proxy-{name}"));
    fs::create_dir_all(&folder)?;
    let address = address()?;
    // It insists on a file of that name, and logs every request above `warn`.
    let settings = format!(
        "SERVER_ADDR={address}\nREDIS_URL=127.0.0.1:{}\nPOLL_INTERVAL=100\nREQUEST_TIMEOUT=600000\nLOG_LEVEL=warn\n\
         URL_PAYMENTS=http://{}/payments\n",
        redis.port(),
        place.upstream
    );
    fs::write(folder.join(".env"), settings)?;
    started(name, &folder, address, redis, Command::new(program).current_dir(&folder))
}

fn node(place: &Place, name: &str) -> Outcome<Front> {
    let folder = install::node(&place.directory)?;
    let address = address()?;
    let mut command = Command::new("node");
    command.arg(format!("{name}.cjs")).current_dir(&folder).env("NODE_ENV", "production");
    command.env("PORT", address.port().to_string()).env("REDIS_URL", place.redis.url());
    started(name, &folder, address, &place.redis, &mut command)
}

fn python(place: &Place, name: &str) -> Outcome<Front> {
    let folder = install::python(&place.directory)?;
    let address = address()?;
    let mut command = Command::new(folder.join("venv/bin/uvicorn"));
    command.args([
        "service:app",
        "--log-level",
        "warning",
        "--no-access-log",
        "--host",
        "127.0.0.1",
        "--port",
    ]);
    command.arg(address.port().to_string()).current_dir(&folder);
    command.env("PEER", name).env("REDIS_URL", place.redis.url());
    started(name, &folder, address, &place.redis, &mut command)
}

fn restate(place: &Place) -> Outcome<Front> {
    let folder = install::node(&place.directory)?;
    let data = folder.join("restate-data");
    let _old = fs::remove_dir_all(&data);
    let (ingress, admin, fabric, handler) = (address()?, address()?, address()?, address()?);
    let program = folder.join("node_modules/@restatedev/restate-server-linux-x64/bin/restate-server");
    let mut server = Command::new(program);
    server.args(["--no-logo", "--listen-mode", "tcp", "--base-dir"]).arg(&data);
    server.env("RESTATE_INGRESS__BIND_ADDRESS", ingress.to_string());
    server.env("RESTATE_ADMIN__BIND_ADDRESS", admin.to_string());
    server.env("RESTATE_BIND_ADDRESS", fabric.to_string()).env("RESTATE_LOG_FILTER", "warn");
    let mut server = Program::start("restate", &folder, server.current_dir(&folder))?;
    server.wait_until_listening(admin)?;
    let mut glue = Command::new("node");
    glue.arg("restate.cjs").current_dir(&folder).env("PORT", handler.port().to_string());
    let mut glue =
        Program::start("restate-handler", &folder, glue.env("RESTATE_ADMIN", format!("http://{admin}")))?;
    glue.wait_for(|said| said.contains("registered").then_some(()))?;
    server.wait_until_listening(ingress)?;
    let watched = [("front", &server), ("upstream", &glue)].map(|(name, program)| Watched {
        name,
        pids: vec![program.id()],
        has_children: true,
    });
    Ok(Front::of(vec![ingress], watched.into(), vec![server, glue]))
}

fn started(
    name: &str,
    folder: &Path,
    address: SocketAddr,
    redis: &Redis,
    command: &mut Command,
) -> Outcome<Front> {
    let mut program = Program::start(name, folder, command)?;
    program.wait_until_listening(address)?;
    let front = Watched { name: "front", pids: vec![program.id()], has_children: true };
    let store = Watched { name: "store", pids: vec![redis.id()], has_children: false };
    Ok(Front::of(vec![address], vec![front, store], vec![program]))
}

fn address() -> Outcome<SocketAddr> {
    Ok(SocketAddr::from(([127, 0, 0, 1], free_port()?)))
}
