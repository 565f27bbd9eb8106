//! Others who promise something of the kind, beside durable Oncegate, in the same interleaved run.
//!
//! They are installed by name from their registries, into `--dir`; what is ours is only the glue in `bench/peers`. One that cannot be installed or
//! does not work here is remarked, and the run goes on.

mod install;
mod start;

use oncegate_test_servers::Redis;

use super::Run;
use super::contest::{Contender, Work};
use super::load::Kind;
use super::matrix::{BARE, contender, hold};
use super::results::Part;
use super::world::{Front, Settings, Store};
use crate::Outcome;
use crate::measure::Summary;
use start::{PEERS, Peer, Place};

const CONNECTIONS: usize = 64;
/// Replayed over and over.
const KEYS: u64 = 1_000;

/// One that works.
struct Ready {
    name: String,
    front: Front,
    path: Option<&'static str>,
    settled: std::ops::Range<u64>,
}

pub(crate) fn run(run: &mut Run) -> Outcome<Part> {
    let mut part = run.part("peers");
    let place = Place {
        directory: run.options.dir.join("peers"),
        redis: Redis::start(&["--save", "", "--appendonly", "no"]),
        durable_redis: Redis::start(&["--appendonly", "yes", "--appendfsync", "always"]),
        upstream: run.world.upstream(),
    };
    std::fs::create_dir_all(&place.directory)?;
    let mut ready = ours(run, &mut part)?;
    for peer in PEERS {
        eprintln!("  {}", peer.name);
        match prepare(run, &place, &peer) {
            Ok(works) => {
                if peer.is_durable {
                    part.facts.insert(format!("durable: {}", peer.name), 1.0);
                }
                let durable = if peer.is_durable { "durable" } else { "not durable" };
                part.remarks.push(format!("**{}**: {}; {durable}.", peer.name, peer.how));
                ready.push(works);
            }
            Err(error) => {
                let first = error.to_string().lines().next().unwrap_or_default().to_owned();
                eprintln!("  {} was left out: {error}", peer.name);
                part.remarks.push(format!("**{}** was left out: {first}", peer.name));
            }
        }
    }
    let bare = run.world.bare();
    for (table, kind) in [("fresh keys", Kind::Fresh), ("replays", Kind::Replay)] {
        let mut contenders = vec![contender(run, BARE, &bare, Kind::Fresh, CONNECTIONS, 0..1)];
        for Ready { name, front, path, settled } in &ready {
            let asked = contender(run, name, front, kind, CONNECTIONS, settled.clone());
            contenders.push(with_path(asked, *path));
        }
        hold(run, table, CONNECTIONS, &mut contenders, &mut part)?;
        remark_failures(&mut part, table);
    }
    Ok(part)
}

fn remark_failures(part: &mut Part, table: &str) {
    for row in part.rows.clone().iter().filter(|row| row.table == table) {
        let failed = Summary::of(&row.series(|round| round.failed)).median;
        if failed > 0.0 {
            part.remarks.push(format!(
                "**{}**, {table}: {:.1} % of its answers were failures.",
                row.name,
                100.0 * failed
            ));
        }
    }
}

fn ours(run: &mut Run, part: &mut Part) -> Outcome<Vec<Ready>> {
    let mut ready = Vec::new();
    for store in [Store::Sqlite, Store::Postgres] {
        let name = format!("gateway on {}", store.name());
        let front = run.world.gateway(
            &format!("peers-{}", store.name().to_lowercase()),
            store,
            Settings::default(),
        )?;
        let settled = run.settle(&front, KEYS)?;
        part.remarks.push(format!("**{name}**: `oncegate serve` with its defaults; durable."));
        ready.push(Ready { name, front, path: None, settled });
    }
    Ok(ready)
}

/// Installs it if it is not there, starts it, and asks it.
fn prepare(run: &mut Run, place: &Place, peer: &Peer) -> Outcome<Ready> {
    let front = (peer.start)(place)?;
    let asked = contender(run, peer.name, &front, Kind::Fresh, CONNECTIONS, 0..1);
    let Work::Load { mut load, .. } = with_path(asked, peer.path).work else {
        return Err("not a load".into());
    };
    load.until = super::load::Until::Sent(KEYS);
    let first = run.keys.take(0).start;
    let sample = load.run(&mut run.keys, &mut || Ok(()))?;
    if sample.requests < KEYS / 2 {
        return Err(format!("{} of {KEYS} answers were failures", sample.failures).into());
    }
    Ok(Ready { name: peer.name.to_owned(), front, path: peer.path, settled: first..first + KEYS })
}

fn with_path(mut contender: Contender, path: Option<&'static str>) -> Contender {
    if let Work::Load { load, .. } = &mut contender.work {
        load.path = path;
        load.is_ours = false;
    }
    contender
}
