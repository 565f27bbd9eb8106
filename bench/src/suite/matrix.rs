//! The matrix: who stands in front, on which store, asked for what, by how many connections.

use std::ops::Range;

use super::Run;
use super::contest::{Contender, Contest, Work};
use super::load::{Kind, Load, Pace, Until};
use super::meter::Watched;
use super::results::Part;
use super::world::{Front, Settings, Store};
use crate::Outcome;

/// Kept connections.
const CONNECTIONS: [usize; 2] = [64, 256];
/// Replayed over and over from the cache.
const WARM_KEYS: u64 = 1_000;
/// More than a cache of [`COLD_CACHE_BYTES`] can hold by far, so that each is read from the store.
pub(crate) const COLD_KEYS: u64 = 20_000;
/// The same for a rehearsal.
const FEW_COLD_KEYS: u64 = 4_000;
pub(crate) const COLD_CACHE_BYTES: u64 = 64 << 10;

pub(crate) const BARE: &str = "bare proxy";
pub(crate) const DIRECT: &str = "upstream alone";

/// Keys that nobody has seen.
pub(crate) fn fresh(run: &mut Run) -> Outcome<Part> {
    let gateways = fronts(Store::ALL, |store| {
        run.world.gateway(&format!("fresh-{}", store.name().to_lowercase()), store, Settings::default())
    })?;
    let mut part = run.part("fresh");
    let (bare, direct) = (run.world.bare(), run.world.direct());
    for connections in CONNECTIONS {
        let mut contenders = vec![contender(run, BARE, &bare, Kind::Fresh, connections, 0..1)];
        contenders.push(contender(run, DIRECT, &direct, Kind::Fresh, connections, 0..1));
        for (store, front) in &gateways {
            let name = format!("gateway on {}", store.name());
            contenders.push(contender(run, &name, front, Kind::Fresh, connections, 0..1));
        }
        hold(run, "fresh keys", connections, &mut contenders, &mut part)?;
    }
    Ok(part)
}

/// Keys that are settled: from the process's cache, and past it.
pub(crate) fn replays(run: &mut Run) -> Outcome<Part> {
    let mut part = run.part("replays");
    let mut replayed = Vec::new();
    let cold_keys = if run.options.quick { FEW_COLD_KEYS } else { COLD_KEYS };
    for store in [Store::Sqlite, Store::Postgres, Store::Redis] {
        for (word, keys, cache_bytes) in
            [("warm", WARM_KEYS, Settings::default().cache_bytes), ("cold", cold_keys, COLD_CACHE_BYTES)]
        {
            let name = format!("{word}-{}", store.name().to_lowercase());
            let settings = Settings { cache_bytes, ..Settings::default() };
            let front = run.world.gateway(&name, store, settings)?;
            let settled = run.settle(&front, keys)?;
            replayed.push((format!("gateway on {}, {word}", store.name()), front, settled));
        }
    }
    let bare = run.world.bare();
    for connections in CONNECTIONS {
        let mut contenders = vec![contender(run, BARE, &bare, Kind::Fresh, connections, 0..1)];
        for (name, front, settled) in &replayed {
            contenders.push(contender(run, name, front, Kind::Replay, connections, settled.clone()));
        }
        hold(run, "replays", connections, &mut contenders, &mut part)?;
    }
    Ok(part)
}

/// What no route protects.
pub(crate) fn reads(run: &mut Run) -> Outcome<Part> {
    let gateway = run.world.gateway("reads", Store::Sqlite, Settings::default())?;
    let mut part = run.part("reads");
    let (bare, direct) = (run.world.bare(), run.world.direct());
    for connections in CONNECTIONS {
        let mut contenders: Vec<_> = [(BARE, &bare), (DIRECT, &direct), ("gateway", &gateway)]
            .map(|(name, front)| contender(run, name, front, Kind::Get, connections, 0..1))
            .into();
        hold(run, "unprotected GET", connections, &mut contenders, &mut part)?;
    }
    Ok(part)
}

/// As clients are: most keys are fresh, some come again, a few at the same moment.
pub(crate) fn mixed(run: &mut Run) -> Outcome<Part> {
    let mut part = run.part("mixed");
    let mut gateways = Vec::new();
    for store in [Store::Sqlite, Store::Postgres] {
        let name = format!("mixed-{}", store.name().to_lowercase());
        let front = run.world.gateway(&name, store, Settings::default())?;
        let settled = run.settle(&front, WARM_KEYS)?;
        gateways.push((format!("gateway on {}", store.name()), front, settled));
    }
    let bare = run.world.bare();
    for connections in CONNECTIONS {
        let mut contenders = vec![contender(run, BARE, &bare, Kind::Fresh, connections, 0..1)];
        for (name, front, settled) in &gateways {
            contenders.push(contender(run, name, front, Kind::Mixed, connections, settled.clone()));
        }
        hold(run, "90 % fresh, 10 % replays, 1 % races", connections, &mut contenders, &mut part)?;
    }
    Ok(part)
}

/// The layer in the API's own process: there is no proxy, and yet the ratio is to the bare one.
pub(crate) fn layer(run: &mut Run) -> Outcome<Part> {
    let mut part = run.part("layer");
    let mut layers = Vec::new();
    for store in Store::ALL {
        let front = run.world.layer(&format!("layer-{}", store.name().to_lowercase()), store)?;
        let settled = run.settle(&front, WARM_KEYS)?;
        layers.push((store, front, settled));
    }
    let (bare, direct) = (run.world.bare(), run.world.direct());
    for connections in CONNECTIONS {
        let mut contenders = vec![contender(run, BARE, &bare, Kind::Fresh, connections, 0..1)];
        contenders.push(contender(run, DIRECT, &direct, Kind::Fresh, connections, 0..1));
        for (store, front, settled) in &layers {
            let name = format!("layer on {}, fresh", store.name());
            contenders.push(contender(run, &name, front, Kind::Fresh, connections, 0..1));
            if matches!(store, Store::Sqlite | Store::Postgres) {
                let name = format!("layer on {}, replay", store.name());
                contenders.push(contender(run, &name, front, Kind::Replay, connections, settled.clone()));
            }
        }
        hold(run, "layer in process", connections, &mut contenders, &mut part)?;
    }
    Ok(part)
}

/// One that is asked by closed loops, with 200 bytes both ways.
pub(crate) fn contender(
    run: &Run,
    name: &str,
    front: &Front,
    kind: Kind,
    connections: usize,
    settled: Range<u64>,
) -> Contender {
    let load = Load {
        addresses: front.addresses.clone(),
        connections,
        kind,
        pace: Pace::Closed,
        until: Until::Elapsed { warm: run.warming(), counted: run.turn() },
        request_bytes: 200,
        answer_bytes: 200,
        settled,
        is_ours: true,
        path: None,
    };
    let work = Work::Load { load, watched: with_load(&front.watched) };
    Contender { name: name.to_owned(), work }
}

/// The load itself is this process.
pub(crate) fn with_load(watched: &[Watched]) -> Vec<Watched> {
    let load = Watched { name: "load", pids: vec![std::process::id()], has_children: false };
    watched.iter().cloned().chain([load]).collect()
}

pub(crate) fn hold(
    run: &mut Run,
    table: &str,
    connections: usize,
    contenders: &mut [Contender],
    part: &mut Part,
) -> Outcome {
    Contest { table, connections, rounds: run.options.rounds }.hold(contenders, &mut run.keys, part)
}

fn fronts(
    stores: impl IntoIterator<Item = Store>,
    start: impl Fn(Store) -> Outcome<Front>,
) -> Outcome<Vec<(Store, Front)>> {
    stores.into_iter().map(|store| Ok((store, start(store)?))).collect()
}
