//! The gateway beside a bare hyper reverse proxy: fresh keys, replays, and what no route protects, in one interleaved run.
//!
//! Load, proxy and upstream share the machine, each on threads of its own; the load speaks HTTP/1.1 over so many kept connections,
//! each waiting for its answer. An upstream's answer has 200 bytes. The bare proxy is hyper's server around hyper-util's pooled client:
//! what one would write without Oncegate.

pub(crate) mod bare;
pub(crate) mod load;
pub(crate) mod upstream;

use std::net::SocketAddr;

use oncegate_gateway::{Config, Gateway, Given};
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::cost::Turn;
use crate::engine::{Contender, print};
use crate::fill;
use crate::measure::interleave;
use crate::options::Options;
use load::{Kind, Load};

/// Kept connections.
const CONNECTIONS: [usize; 3] = [16, 64, 256];
/// The base of all ratios.
const BARE: &str = "bare hyper proxy";

/// Measures all of it.
pub(crate) fn run(options: &Options) -> Outcome {
    let file = options.dir.join("gateway.db");
    fill::remove(&file)?;
    let upstream = upstream::start()?;
    let behind = bare::start(upstream)?;
    let durable = serve(upstream, &format!("sqlite://{}", file.display()))?;
    let memory = serve(upstream, "memory:")?;
    for connections in CONNECTIONS {
        let requests = 2 * Options::requests_per_turn(connections);
        let load = |address: SocketAddr, kind: Kind| -> Box<dyn FnMut() -> Outcome<Turn>> {
            let load = Load { address, kind, connections, requests };
            Box::new(move || load.run())
        };
        let mut contenders: Vec<Contender> = vec![
            (BARE, load(behind, Kind::Fresh)),
            ("upstream alone", load(upstream, Kind::Fresh)),
            ("gateway, fresh, SQLite", load(durable.address, Kind::Fresh)),
            ("gateway, fresh, memory", load(memory.address, Kind::Fresh)),
            ("gateway, replay", load(durable.address, Kind::Replay)),
            ("gateway, unprotected", load(durable.address, Kind::Unprotected)),
        ];
        contenders.retain(|(name, _)| options.admits(name));
        let turns: Vec<Vec<Turn>> = interleave(options.rounds, &mut contenders, |(_, turn)| turn())?;
        let names: Vec<_> = contenders.iter().map(|(name, _)| *name).collect();
        println!(
            "\n| {connections} connections | requests/s | : {BARE} | CPU µs, load and upstream included | |"
        );
        println!("| --- | --- | --- | --- | --- |");
        print(&names, &turns, BARE);
    }
    durable.end();
    memory.end();
    fill::remove(&file)
}

/// A gateway on a runtime of its own.
pub(crate) struct Serving {
    runtime: Runtime,
    gateway: Gateway,
    pub(crate) address: SocketAddr,
}

pub(crate) fn serve(upstream: SocketAddr, store: &str) -> Outcome<Serving> {
    serve_with(upstream, store, "")
}

/// The same with more settings of `[listen]`, a line for each.
pub(crate) fn serve_with(upstream: SocketAddr, store: &str, listen: &str) -> Outcome<Serving> {
    let text = format!(
        "[upstream]\nurl = \"http://{upstream}\"\n[store]\nurl = \"{store}\"\n[listen]\naddress = \"127.0.0.1:0\"\n{listen}\n\
         [admin]\naddress = \"127.0.0.1:0\"\n[[route]]\nmatch = \"POST /unprotected\"\nprofile = \"off\"\n"
    );
    let config = Config::parse(None, &text, &Given::default())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let gateway = runtime.block_on(Gateway::start(config, None))?;
    let address = gateway.address();
    Ok(Serving { runtime, gateway, address })
}

impl Serving {
    pub(crate) fn end(self) {
        self.runtime.block_on(self.gateway.shut_down());
        self.runtime.shutdown_background();
    }
}
