//! Duplicates and misuse by tenant, with a bounded number of labels.
//!
//! The busiest tenants of the last minutes hold a place, and are counted under their own name; all others are `other`. A place is not kept
//! for ever: a tenant that has become quieter than a newcomer gives it up.
//!
//! **Invariant:** at most [`NAMES_MAX`] names were counted in the last [`NAME_IDLE`]. A name that
//! was not counted for so long is free
//! again, so that a flood of invented tenants takes the names for a while only. An exporter that
//! drops series which stood still for
//! [`SERIES_IDLE`], as the gateway's does, never shows more. The counter of a tenant without a
//! place stands still until then, and goes
//! on from there if it has a place again; a series that was dropped begins anew, which `rate`
//! takes for a restart.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use metrics::{Counter, counter};

use super::names;

/// So many tenants are counted under their own name at the same time.
const PLACES: usize = 32;
/// So many have a name at the same time: an exporter keeps their series for a while.
const NAMES_MAX: usize = 1_000;
/// A name that was not counted for so long is free again. Longer than [`SERIES_IDLE`], so that
/// its series is gone by then.
const NAME_IDLE: Duration = Duration::from_mins(30);
/// How long the series of a tenant may stand still before an exporter drops it.
pub(crate) const SERIES_IDLE: Duration = Duration::from_mins(20);
/// A counter that stood still for longer is asked for again: its series may have been dropped.
const COUNTER_IDLE: Duration = Duration::from_mins(5);
/// A tenant is busy once its requests of a window weigh this much.
const BUSY_FROM: u64 = 100;
/// A misuse weighs so much more than a duplicate: a few are worth a look.
const MISUSE_WEIGHT: u64 = 25;
/// What is older than two of these is forgotten.
const WINDOW: Duration = Duration::from_mins(5);
/// Tenants without a place that are watched at a time.
const WATCHED_MAX: usize = 256;

/// What repeats itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// The same request, or what is taken for it.
    Duplicate,
    /// Another request under the same key; a duplicate too.
    Misuse,
}

/// Counts by tenant.
#[derive(Default)]
pub(crate) struct Tenants(Mutex<Table>);

impl Tenants {
    /// A replay, a refusal or a misuse of this tenant.
    pub(crate) fn count(&self, tenant: &str, repeat: Repeat) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let place = table.place(tenant, repeat, now);
        let table = &mut *table;
        match place.and_then(|place| table.places.get_mut(place)) {
            Some(place) => place.count(repeat, now),
            None => table.others.get_or_insert_with(|| Place::new("other", now)).count(repeat, now),
        }
    }
}

#[derive(Default)]
struct Table {
    places: Vec<Place>,
    others: Option<Place>,
    /// A full table drops its lightest, whose weight the newcomer takes over (Space-Saving).
    watched: Vec<Watched>,
    /// Tenants that have given up their place, and when they were last counted by name.
    former: HashMap<Box<str>, Instant>,
    /// Before this no name of them is free.
    names_free_at: Option<Instant>,
    began: Option<Instant>,
}

struct Place {
    name: Box<str>,
    duplicates: Counter,
    misuse: Counter,
    counted_at: Instant,
    /// In this window, and in the one before.
    weight: u64,
    before: u64,
}

struct Watched {
    name: Box<str>,
    weight: u64,
    /// So much of it may have been others'.
    taken_over: u64,
}

impl Table {
    /// Where this request is counted; `None`: among the others.
    fn place(&mut self, tenant: &str, repeat: Repeat, now: Instant) -> Option<usize> {
        self.turn(now);
        let weight = match repeat {
            Repeat::Duplicate => 1,
            Repeat::Misuse => MISUSE_WEIGHT,
        };
        let place = if let Some(place) = self.places.iter().position(|place| *place.name == *tenant) {
            place
        } else {
            let seen = self.watch(tenant, weight);
            self.give(tenant, seen, now)?
        };
        self.places.get_mut(place)?.weight += weight;
        Some(place)
    }

    /// Begins a new window if this one is over.
    fn turn(&mut self, now: Instant) {
        let windows =
            now.saturating_duration_since(*self.began.get_or_insert(now)).as_secs() / WINDOW.as_secs();
        if windows == 0 {
            return;
        }
        self.began = Some(now);
        self.watched.clear();
        for place in &mut self.places {
            place.before = if windows == 1 { place.weight } else { 0 };
            place.weight = 0;
        }
    }

    /// How much this tenant's requests of this window weigh, at least.
    fn watch(&mut self, tenant: &str, weight: u64) -> u64 {
        let place = match self.watched.iter().position(|watched| *watched.name == *tenant) {
            Some(place) => place,
            None if self.watched.len() < WATCHED_MAX => {
                self.watched.push(Watched { name: tenant.into(), weight: 0, taken_over: 0 });
                self.watched.len() - 1
            }
            None => {
                let lightest = self.watched.iter().enumerate().min_by_key(|(_, watched)| watched.weight);
                let (place, taken_over) = lightest.map_or((0, 0), |(place, watched)| (place, watched.weight));
                self.watched[place] = Watched { name: tenant.into(), weight: taken_over, taken_over };
                place
            }
        };
        let watched = &mut self.watched[place];
        watched.weight += weight;
        watched.weight - watched.taken_over
    }

    /// A place for a busy tenant: a free one, or that of the quietest, if it is quieter.
    fn give(&mut self, tenant: &str, seen: u64, now: Instant) -> Option<usize> {
        if seen < BUSY_FROM || !self.has_name_for(tenant, now) {
            return None;
        }
        let place = if self.places.len() < PLACES {
            self.places.push(Place::new(tenant, now));
            self.places.len() - 1
        } else {
            let quietest =
                self.places.iter().enumerate().min_by_key(|(_, place)| place.weight + place.before);
            let (place, _) = quietest.filter(|(_, place)| place.weight + place.before < seen)?;
            let former = std::mem::replace(&mut self.places[place], Place::new(tenant, now));
            self.former.insert(former.name, former.counted_at);
            place
        };
        self.former.remove(tenant);
        self.watched.retain(|watched| *watched.name != *tenant);
        // As heavy as it was, or the next newcomer would take it for quiet.
        self.places.get_mut(place)?.weight = seen;
        Some(place)
    }

    /// Whether the tenant has a name, or one is free for it.
    fn has_name_for(&mut self, tenant: &str, now: Instant) -> bool {
        let is_full = |table: &Self| table.places.len() + table.former.len() >= NAMES_MAX;
        if !is_full(self) || self.former.contains_key(tenant) {
            return true;
        }
        if self.names_free_at.is_some_and(|at| now < at) {
            return false;
        }
        self.former.retain(|_, counted_at| now.saturating_duration_since(*counted_at) < NAME_IDLE);
        self.names_free_at = self.former.values().min().map(|oldest| *oldest + NAME_IDLE);
        !is_full(self)
    }
}

impl Place {
    fn new(name: &str, now: Instant) -> Self {
        let [duplicates, misuse] = counters(name);
        Self { name: name.into(), duplicates, misuse, counted_at: now, weight: 0, before: 0 }
    }

    fn count(&mut self, repeat: Repeat, now: Instant) {
        if now.saturating_duration_since(self.counted_at) >= COUNTER_IDLE {
            [self.duplicates, self.misuse] = counters(&self.name);
        }
        self.counted_at = now;
        self.duplicates.increment(1);
        self.misuse.increment(u64::from(repeat == Repeat::Misuse));
    }
}

fn counters(name: &str) -> [Counter; 2] {
    [names::DUPLICATES, names::MISUSE].map(|metric| counter!(metric, "scope" => name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many duplicates of each, taking turns.
    fn send(table: &mut Table, tenants: &[String], times: u64, now: Instant) {
        for _ in 0..times {
            for tenant in tenants {
                let _counted = table.place(tenant, Repeat::Duplicate, now);
            }
        }
    }

    fn some(name: &str, count: usize) -> Vec<String> {
        (0..count).map(|n| format!("{name}-{n}")).collect()
    }

    fn has_place(table: &Table, tenant: &str) -> bool {
        table.places.iter().any(|place| *place.name == *tenant)
    }

    #[test]
    fn only_busy_tenants_get_a_label_and_only_so_many() {
        let (mut table, now) = (Table::default(), Instant::now());
        send(&mut table, &some("quiet", 100_000), 1, now);
        assert!(table.places.is_empty(), "a crowd of strangers makes no label");
        send(&mut table, &some("busy", 2 * PLACES), 2 * BUSY_FROM, now);
        assert_eq!(table.places.len(), PLACES);
        assert!(table.watched.len() <= WATCHED_MAX);
    }

    /// Found by reading: the first 32 that were ever busy kept their labels, and a storm of the next one was `other`, which no alert
    /// looks at.
    #[test]
    fn the_storm_of_one_tenant_more_is_seen() {
        let (mut table, now) = (Table::default(), Instant::now());
        send(&mut table, &some("early", PLACES), 3 * BUSY_FROM, now);
        let storm = some("storm", 1);
        // Beside tenants that are as busy as before: once it is busier than the quietest of them.
        send(&mut table, &storm, 2 * BUSY_FROM, now);
        assert!(!has_place(&table, "storm-0"));
        send(&mut table, &storm, 2 * BUSY_FROM, now);
        assert!(has_place(&table, "storm-0"));
        // And after they were: at once.
        let later = now + 2 * WINDOW;
        send(&mut table, &some("next", PLACES), BUSY_FROM, later);
        assert!((0..PLACES).all(|n| has_place(&table, &format!("next-{n}"))));
        assert_eq!(table.places.len(), PLACES);
    }

    #[test]
    fn whoever_is_busy_keeps_its_label_through_the_windows() {
        let (mut table, mut now) = (Table::default(), Instant::now());
        for _ in 0..5 {
            send(&mut table, &some("steady", 1), 2 * BUSY_FROM, now);
            send(&mut table, &some("passing", 3 * PLACES), BUSY_FROM + 10, now);
            assert!(has_place(&table, "steady-0"));
            now += WINDOW;
        }
    }

    #[test]
    fn a_few_misuses_are_enough_for_a_label() {
        let (mut table, now) = (Table::default(), Instant::now());
        let mut counted = (0..4).map(|_| table.place("careless", Repeat::Misuse, now).is_some());
        assert!(counted.by_ref().take(3).all(|is_named| !is_named));
        assert_eq!(counted.next(), Some(true));
    }

    /// A flood of invented tenants took all names that there were, and from then on every tenant
    /// without one was `other` until the process ended: no alert on a tenant's duplicates fired.
    #[test]
    fn tenants_get_names_again_after_a_flood_of_invented_ones() {
        let (mut table, mut now) = (Table::default(), Instant::now());
        let names = |table: &Table| table.places.len() + table.former.len();
        for round in 0..2 * NAMES_MAX / PLACES {
            // Each is heavier than those before, so that it takes a place at once.
            let weight = BUSY_FROM + 2 * u64::try_from(round).unwrap();
            send(&mut table, &some(&format!("invented-{round}"), PLACES), weight, now);
            assert!(names(&table) <= NAMES_MAX, "{}", names(&table));
        }
        assert_eq!(names(&table), NAMES_MAX);
        let real = some("real", 1);
        send(&mut table, &real, 10 * BUSY_FROM, now);
        assert!(!has_place(&table, "real-0"), "all names are taken");
        // One that has a name gets its place back all the same.
        send(&mut table, &some("invented-0", 1), 10 * BUSY_FROM, now);
        assert!(has_place(&table, "invented-0-0"));
        now += Duration::from_mins(29);
        send(&mut table, &real, BUSY_FROM, now);
        assert!(!has_place(&table, "real-0"));
        now += Duration::from_mins(1);
        send(&mut table, &real, BUSY_FROM, now);
        assert!(has_place(&table, "real-0"), "the flood is over, and its names are free");
        assert!(names(&table) <= PLACES + 1, "{}", names(&table));
    }

    /// Under a flood that does not end, tenants that were busy before keep their names.
    #[test]
    fn a_busy_tenant_keeps_its_name_through_a_flood() {
        let (mut table, mut now) = (Table::default(), Instant::now());
        for round in 0..200 {
            send(&mut table, &some("real", 1), 2 * BUSY_FROM, now);
            assert!(has_place(&table, "real-0"), "{round}");
            send(&mut table, &some(&format!("invented-{round}"), PLACES), BUSY_FROM + 10, now);
            assert!(table.places.len() + table.former.len() <= NAMES_MAX);
            assert!(table.watched.len() <= WATCHED_MAX);
            now += Duration::from_mins(1);
        }
    }
}
