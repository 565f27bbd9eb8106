//! A record that was begun in phases arrives at an atomic handler: the route was moved.
//!
//! **Invariant:** the handler does not run. It would do again what the finished phases have done.

use oncegate_store::jobs::Enqueue;

use crate::arrive::{Arrived, Asked, Look, Unavailable};
use crate::engine::Engine;
use crate::route::Route;
use crate::settle::{Settled, Settlement};

impl<S: Enqueue> Engine<S> {
    /// Parks the record under a lease of its own. The arrival's transaction must have ended.
    pub(super) async fn park_phased(
        &self,
        route: &Route,
        mut asked: Asked,
    ) -> Result<Arrived<S>, Unavailable> {
        let held = match self.look(route, &mut asked, Look::Again).await? {
            Arrived::Execute(held) => held,
            told => return Ok(told),
        };
        let changed = || Settlement::released("changed", "the record changed while it was looked at");
        let settlement = held.parked_without_phases().unwrap_or_else(changed);
        let settled = held.settle_within(settlement, self.0.options.store_timeout).await;
        let row = match settled.map_err(|_| Unavailable::store("it did not answer in time"))? {
            Settled::Done(row) => Some(row),
            Settled::Fenced(row) => row,
        };
        Ok(self.told_behind(route, &asked.event, Look::Again, row.as_ref(), asked.id))
    }
}
