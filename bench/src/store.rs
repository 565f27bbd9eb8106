//! The real stores beside the bare loop over the same rows, and beside the plain layout.
//!
//! What the store adds to the bare loop is what its users pay for: whole records instead of the columns that changed, and
//! outcomes. The records are made before the clock starts and freed when it stands, as the engine does it elsewhere.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::decide::{Admission, Arrival, Event, Misuse, Next, decide};
use oncegate_core::fingerprint::Fingerprint;
use oncegate_core::identity::Token;
use oncegate_core::key::Key;
use oncegate_core::policy::Profile;
use oncegate_core::record::{Holder, Record};
use oncegate_core::response::{Answer, Response};
use oncegate_core::scope::{Address, Operation, Scope};
use oncegate_core::time::{Now, Timestamp};
use oncegate_store::memory::MemoryStore;
use oncegate_store::{Store, Write};
use oncegate_store_sql::SqliteStore;
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::checkpoint::{self, Checkpointed};
use crate::cost::{Meter, Turn, column};
use crate::fill;
use crate::layouts::{self, Layout};
use crate::measure::{Summary, interleave};
use crate::options::Options;
use crate::rows::Row;
use crate::traffic::{self, Load, Subject};

const FILES: [&str; 3] = ["sqlite", "bare", "plain"];
const BARE: &str = "bare loop";
const PLAIN: &str = "plain primary key";

/// Measures every contender at every batch size; each file stays open and grows, as in a long-running process.
pub(crate) fn run(options: &Options) -> Outcome {
    let file = |name: &str| options.dir.join(format!("store-{name}.db"));
    for name in FILES {
        fill::remove(&file(name))?;
    }
    let bare = |layout: Layout, name| Checkpointed::open(&file(name), layout, checkpoint::CHOSEN);
    let mut contenders: Vec<(&str, Box<dyn Subject>)> = vec![
        ("SQLite store", Box::new(Driven::new(SqliteStore::open(file("sqlite"))?)?)),
        (BARE, Box::new(bare(layouts::CHOSEN, "bare")?)),
        (PLAIN, Box::new(bare(layouts::P, "plain")?)),
    ];
    contenders.retain(|(name, _)| options.admits(name));
    let mut maker = fill::fresh_rows();
    for &batch in &options.batches {
        // Anew each time: it never forgets, and a heap of a million records would slow down everybody.
        contenders.push(("memory store", Box::new(Driven::new(MemoryStore::new())?)));
        let load = Load { batch, requests: 2 * Options::requests_per_turn(batch) };
        let turns = interleave(options.rounds, &mut contenders, |(_, subject)| {
            Meter::around(|| traffic::run(subject.as_mut(), &mut maker, load))
        })?;
        print_table(batch, &contenders.iter().map(|(name, _)| *name).collect::<Vec<_>>(), &turns);
        contenders.pop();
    }
    drop(contenders);
    for name in FILES {
        fill::remove(&file(name))?;
    }
    Ok(())
}

fn print_table(batch: usize, names: &[&str], turns: &[Vec<Turn>]) {
    let speed = |turns: &Vec<Turn>| column(turns, |turn| turn.requests_per_s);
    let speeds: Vec<_> = turns.iter().map(speed).collect();
    println!("\n| batch {batch} | requests/s | : bare loop | : plain | CPU µs | KiB written |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for ((name, turns), speed) in names.iter().zip(turns).zip(&speeds) {
        let to = |base: &str| {
            let base = names.iter().position(|name| *name == base);
            base.map_or_else(String::new, |base| Summary::of_ratio(speed, &speeds[base]).to_string())
        };
        let (to_bare, to_plain) = (to(BARE), to(PLAIN));
        let cpu = Summary::of(&column(turns, |turn| turn.cpu_us));
        let written = Summary::of(&column(turns, |turn| turn.written_kib));
        let per_s = Summary::of(speed).median;
        println!("| {name} | {per_s:.0} | {to_bare} | {to_plain} | {cpu} | {written} |");
    }
}

/// A store driven by the same traffic as the bare loops.
pub(crate) struct Driven<S> {
    store: S,
    runtime: Runtime,
    /// The next batch, made and freed while the clock stands.
    ready: Vec<Write>,
}

impl<S: Store> Driven<S> {
    pub(crate) fn new(store: S) -> Outcome<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        Ok(Self { store, runtime, ready: Vec::new() })
    }

    fn apply(&self) -> Outcome {
        check(self.runtime.block_on(self.store.apply(&self.ready))?)
    }
}

pub(crate) fn check(outcomes: Vec<oncegate_store::Outcome>) -> Outcome {
    let is_applied = |outcome| outcome == oncegate_store::Outcome::Applied;
    if outcomes.into_iter().all(is_applied) { Ok(()) } else { Err("a write was refused".into()) }
}

impl<S: Store> Subject for Driven<S> {
    fn ready_to_reserve(&mut self, rows: &[Row]) -> Outcome {
        self.ready.clear();
        for row in rows {
            self.ready.push(Write::insert(Arc::new(reserved(row)?)));
        }
        Ok(())
    }

    fn ready_to_settle(&mut self, rows: &[Row]) -> Outcome {
        self.ready.clear();
        for row in rows {
            let before = reserved(row)?;
            self.ready.push(Write::swap(before.version, Arc::new(settled(&before, row)?)));
        }
        Ok(())
    }

    fn reserve(&mut self, _: &mut [Row]) -> Outcome {
        self.apply()
    }

    fn settle(&mut self, _: &[Row]) -> Outcome {
        self.apply()
    }
}

/// The row as its reserve leaves it.
pub(crate) fn reserved(row: &Row) -> Outcome<Record> {
    let policy = Profile::Ietf.policy();
    let arrival = Arrival {
        address: Address { scope: Scope::tenant(&row.scope)?, key: Key::from_text(&row.key)? },
        operation: Operation::new("POST /payments")?,
        fingerprint: Fingerprint::from_parts(1, row.fingerprint),
        former_fingerprint: None,
        token: Token::from_bytes(row.token),
        terms: policy.terms(),
        execution: policy.execution,
        lease: policy.lease,
        attempt_deadline: policy.attempt_deadline,
        misuse: Misuse::Refuse,
        request: None,
        sent_at: None,
        admission: Admission::Open,
    };
    let now = Now::exact(Timestamp::from_micros(row.created_at));
    put(decide(None, &Event::Arrive(arrival), now).next)
}

/// The same with its answer: a 200-byte body and about 100 bytes of headers.
pub(crate) fn settled(before: &Record, row: &Row) -> Outcome<Record> {
    let (body, header) = row.answer.split_at(200);
    let headers = vec![("content-type".to_owned(), header[..60].to_vec())];
    let answer = Answer::Kept(Response { status: 201, headers, body: body.to_vec() });
    let holder = Holder { life: before.life, token: before.life, fence: before.fence };
    let now = Now::exact(before.created_at.plus(Duration::from_millis(5)));
    let complete = Event::Complete { holder, answer: Arc::new(answer), reference: None };
    put(decide(Some(before), &complete, now).next)
}

fn put(next: Next) -> Outcome<Record> {
    match next {
        Next::Put(record) => Ok(Arc::unwrap_or_clone(record)),
        other => Err(format!("expected a row, got {other:?}").into()),
    }
}
