//! Cost against the size of bodies: of the answer alone, which is what is kept, and of both.

use super::Run;
use super::contest::{Contender, Work};
use super::load::Kind;
use super::matrix::{BARE, contender, hold};
use super::results::Part;
use super::world::{Settings, Store};
use crate::Outcome;

const CONNECTIONS: usize = 64;
/// Replayed from the cache: few enough that the largest answers fit into it.
const KEYS: u64 = 200;

pub(crate) fn run(run: &mut Run) -> Outcome<Part> {
    let mut part = run.part("sizes");
    let bare = run.world.bare();
    let sqlite = run.world.gateway("sizes-sqlite", Store::Sqlite, Settings::default())?;
    let postgres = run.world.gateway("sizes-postgres", Store::Postgres, Settings::default())?;
    let all = [(200, 200), (200, 4096), (200, 65_536), (4096, 4096), (65_536, 65_536)];
    let all = if run.options.quick { &all[2..4] } else { &all[..] };
    for &(request_bytes, answer_bytes) in all {
        let settled = run.settle_of(&sqlite, KEYS, request_bytes, answer_bytes)?;
        let mut contenders = [
            contender(run, BARE, &bare, Kind::Fresh, CONNECTIONS, 0..1),
            contender(run, "gateway on SQLite", &sqlite, Kind::Fresh, CONNECTIONS, 0..1),
            contender(run, "gateway on PostgreSQL", &postgres, Kind::Fresh, CONNECTIONS, 0..1),
            contender(run, "gateway on SQLite, replay", &sqlite, Kind::Replay, CONNECTIONS, settled),
        ];
        for Contender { work, .. } in &mut contenders {
            if let Work::Load { load, .. } = work {
                (load.request_bytes, load.answer_bytes) = (request_bytes, answer_bytes);
            }
        }
        hold(run, &table(request_bytes, answer_bytes), CONNECTIONS, &mut contenders, &mut part)?;
    }
    Ok(part)
}

pub(crate) fn table(request_bytes: usize, answer_bytes: usize) -> String {
    format!("request of {request_bytes} bytes, answer of {answer_bytes}")
}
