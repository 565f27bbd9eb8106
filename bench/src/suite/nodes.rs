//! One, two and four gateways on one PostgreSQL, as far as a machine tells on which all of them share the cores.

use super::Run;
use super::load::Kind;
use super::matrix::{BARE, contender, hold};
use super::results::Part;
use super::world::{Settings, Store};
use crate::Outcome;

const CONNECTIONS: usize = 256;

pub(crate) fn run(run: &mut Run) -> Outcome<Part> {
    let mut part = run.part("nodes");
    let bare = run.world.bare();
    let mut contenders = vec![contender(run, BARE, &bare, Kind::Fresh, CONNECTIONS, 0..1)];
    let mut fronts = Vec::new();
    for count in [1, 2, 4] {
        let settings = Settings { count, ..Settings::default() };
        let front = run.world.gateway(&format!("nodes-{count}"), Store::Postgres, settings)?;
        let name = if count == 1 { "1 gateway".to_owned() } else { format!("{count} gateways") };
        contenders.push(contender(run, &name, &front, Kind::Fresh, CONNECTIONS, 0..1));
        fronts.push(front);
    }
    hold(run, "gateways on one PostgreSQL", CONNECTIONS, &mut contenders, &mut part)?;
    Ok(part)
}
