//! How long one waits at half of the rate that would saturate the gateway, beside a bare proxy at the same rate, and beside the store's commits.

use super::Run;
use super::commits::Commits;
use super::contest::{Contender, Work};
use super::load::{Kind, Pace, Until};
use super::matrix::{BARE, contender, hold};
use super::results::Part;
use super::world::{Settings, Store};
use crate::Outcome;
use crate::measure::Summary;

/// Enough that none is waited for at half of the saturating rate.
const CONNECTIONS: usize = 256;
/// Closed loops that say what saturates it.
const TURNS: usize = 3;

pub(crate) const STORES: [Store; 2] = [Store::Sqlite, Store::Postgres];

pub(crate) fn run(run: &mut Run) -> Outcome<Part> {
    let mut part = run.part("latency");
    for store in STORES {
        let word = store.name().to_lowercase();
        let gateway = run.world.gateway(&format!("latency-{word}"), store, Settings::default())?;
        let mut saturated = contender(run, "", &gateway, Kind::Fresh, CONNECTIONS, 0..1);
        let mut rates = Vec::new();
        for _ in 0..TURNS {
            rates.push(saturated.turn(&mut run.keys)?.per_s);
        }
        let rate = (Summary::of(&rates).median / 2.0).round();
        part.facts.insert(format!("half of the saturating rate, {}", store.name()), rate);
        let bare = run.world.bare();
        let mut contenders = Vec::new();
        for (name, front) in [(BARE.to_owned(), &bare), (gateway_on(store), &gateway)] {
            let mut contender = contender(run, &name, front, Kind::Fresh, CONNECTIONS, 0..1);
            if let Work::Load { load, .. } = &mut contender.work {
                load.pace = Pace::Rate(rate);
                let Until::Elapsed { warm, .. } = load.until else { continue };
                load.until = Until::Elapsed { warm, counted: 2 * run.turn() };
            }
            contenders.push(contender);
        }
        let (url, _) = run.world.empty(&format!("commits-{word}"), store)?;
        let commits = Work::Commits(Box::new(Commits::open(&url)?));
        contenders.push(Contender { name: commits_of(store), work: commits });
        hold(run, &table(store), CONNECTIONS, &mut contenders, &mut part)?;
    }
    Ok(part)
}

pub(crate) fn table(store: Store) -> String {
    format!("half of the saturating rate, {}", store.name())
}

pub(crate) fn gateway_on(store: Store) -> String {
    format!("gateway on {}", store.name())
}

pub(crate) fn commits_of(store: Store) -> String {
    format!("{}: commits of one row, one after the other", store.name())
}
