//! Atomic phases over PostgreSQL: a COMMIT that is cut on the wire, and a lease that another has taken meanwhile. A phase's row is there
//! once, whichever way its COMMIT went; rows and journal agree at every moment, and everybody is told the same.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::routing::post;
use oncegate_core::policy::{Policy, Profile};
use oncegate_core::record::{Journal, Record, StateKind};
use oncegate_core::time::Now;
use oncegate_engine::{BackgroundWorkers, Engine, NodeClock, Options};
use oncegate_store::drive::read_one;
use oncegate_store_sql::PostgresStore;
use oncegate_store_sql::sqlx::PgTransactions;
use oncegate_test_servers::Cut;
use oncegate_tower::phased::{Phased, Stopped};
use oncegate_tower::{Idempotency, Routes, scope};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use crate::base::{Base as _, OnPostgres};
use crate::client::{Call, within};
use crate::cut::proxied;
use crate::stage::{Gate, id_of};

const FIRST: &str = "created";
const SECOND: &str = "receipt written";
/// Under `resume` keys are no shorter.
const KEY: &str = "ride-to-the-station";

fn call(key: &str) -> Call {
    Call::post("/rides").key(key)
}

/// What the handler of a node has.
#[derive(Clone)]
struct Town {
    base: OnPostgres,
    runs: Arc<AtomicUsize>,
    /// In the middle of the first phase, its row written and not committed.
    gate: Option<Gate>,
}

impl Town {
    async fn insert(&self, on: &mut sqlx::PgConnection, key: &str, phase: &str) -> sqlx::Result<()> {
        self.base.charge(on, &format!("{key}: {phase}")).await
    }
}

/// Two phases, each a row; the answer says which run made the first.
async fn ride(
    State(town): State<Town>,
    Phased(mut run): Phased<PgTransactions>,
    request: Request,
) -> Result<String, Stopped> {
    let number = town.runs.fetch_add(1, Ordering::SeqCst) + 1;
    let key = request.headers()["idempotency-key"].to_str().unwrap().to_owned();
    let made_by = run
        .atomic(FIRST, async |tx| {
            town.insert(tx, &key, FIRST).await?;
            if let Some(gate) = &town.gate {
                gate.pass().await;
            }
            Ok(number)
        })
        .await?;
    run.atomic(SECOND, async |tx| Ok(town.insert(tx, &key, SECOND).await?)).await?;
    Ok(run.finish(format!("made by run {made_by}"))?)
}

/// A service with that handler.
struct Node {
    addr: SocketAddr,
    base: OnPostgres,
    runs: Arc<AtomicUsize>,
    engine: Engine<PostgresStore>,
    server: JoinHandle<()>,
}

impl Node {
    async fn start(base: &OnPostgres, policy: Policy, options: Options, gate: Option<Gate>) -> Self {
        let options = Options { workers: BackgroundWorkers::None, ..options };
        let engine = Engine::start(base.store().await, options).await.unwrap();
        let routes = Routes::none().phased("POST /rides", policy).unwrap();
        let idempotency = Idempotency::new(engine.clone(), scope::header("x-tenant"), routes);
        let town = Town { base: base.clone(), runs: Arc::default(), gate };
        let runs = Arc::clone(&town.runs);
        let app = Router::new().route("/rides", post(ride)).with_state(town);
        let app = app.layer(idempotency.phases(base.pool()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { addr, base: base.clone(), runs, engine, server }
    }

    async fn simple(base: &OnPostgres, policy: Policy) -> Self {
        Self::start(base, policy, Options::default(), None).await
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    async fn record(&self, key: &str) -> Record {
        read_one(self.engine.store(), id_of(key)).await.unwrap().unwrap()
    }

    /// The phases that have a row are those that the journal tells of, each once; a completed record has had them all.
    async fn agrees(&self, key: &str, phases: &[&str]) {
        let expected: Vec<_> = phases.iter().map(|phase| format!("{key}: {phase}")).collect();
        let prefix = format!("{key}: ");
        let mut rows = self.base.charges().await;
        rows.retain(|row| row.starts_with(&prefix));
        assert_eq!(rows, expected);
        let record = self.record(key).await;
        if record.state.kind() == StateKind::Completed {
            assert_eq!(phases, [FIRST, SECOND]);
            return;
        }
        let journal = Journal::of(record.recovery.as_ref()).unwrap();
        assert!(journal.leave(phases.len()).is_ok(), "more in the journal than in the table: {journal:?}");
        let kept = phases.len().checked_sub(1).is_none_or(|fewer| journal.leave(fewer).is_err());
        assert!(kept, "less in the journal than in the table: {journal:?}");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn resume() -> Policy {
    Profile::Resume.policy()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phase_whose_commit_was_not_acknowledged_is_found_and_the_attempt_goes_on() {
    for nth in [1, 2] {
        let (base, proxy) = proxied::<OnPostgres>().await;
        let node = Node::simple(&base, resume()).await;
        proxy.cut_at(b"COMMIT", nth, Cut::AfterSending);
        call(KEY).send(node.addr).await.expect_first(200, "made by run 1");
        proxy.fired();
        node.agrees(KEY, &[FIRST, SECOND]).await;
        call(KEY).send(node.addr).await.expect_replay(200, "made by run 1");
        assert_eq!(node.runs(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phase_whose_commit_never_arrived_is_run_by_the_next_attempt_and_no_other_is() {
    for (nth, before, answer) in [(1, &[][..], "made by run 2"), (2, &[FIRST][..], "made by run 1")] {
        let (base, proxy) = proxied::<OnPostgres>().await;
        let node = Node::simple(&base, resume()).await;
        proxy.cut_at(b"COMMIT", nth, Cut::BeforeSending);
        let told = call(KEY).send(node.addr).await;
        proxy.fired();
        // Nothing at all was done, or some of it was.
        match before {
            [] => drop(told.expect_problem(503, "store_unavailable")),
            _ => drop(told.expect_problem(409, "in_progress")),
        }
        node.agrees(KEY, before).await;
        call(KEY).send_until_settled(node.addr).await.expect_first(200, answer);
        node.agrees(KEY, &[FIRST, SECOND]).await;
        call(KEY).send(node.addr).await.expect_replay(200, answer);
        assert_eq!(node.runs(), 2);
    }
}

/// Nobody can be asked for a while. The attempt holds its lease, and finds out when somebody can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_nobody_can_be_asked_about_is_settled_once_somebody_can() {
    for (cut, before) in [(Cut::AfterSending, &[FIRST, SECOND][..]), (Cut::BeforeSending, &[FIRST][..])] {
        let (base, proxy) = proxied::<OnPostgres>().await;
        let node = Node::simple(&base, resume()).await;
        proxy.cut_off_at(b"COMMIT", 2, cut);
        let mut first = call(KEY).open(node.addr).await;
        // It has asked, in vain; meanwhile nobody else may go on.
        let refused = proxy.refused();
        let asked = tokio::task::spawn_blocking(move || {
            proxy.fired();
            proxy.wait_until_refused(refused + 1);
            proxy
        });
        let proxy = within(asked).await.unwrap();
        call(KEY).send(node.addr).await.expect_problem(409, "in_progress");
        proxy.mend();
        let told = first.reply().await.unwrap();
        match cut {
            Cut::AfterSending => told.expect_first(200, "made by run 1"),
            Cut::BeforeSending => drop(told.expect_problem(409, "in_progress")),
        }
        node.agrees(KEY, before).await;
        let again = call(KEY).send_until_settled(node.addr).await;
        assert_eq!((again.status, str::from_utf8(&again.body)), (200, Ok("made by run 1")), "{again:?}");
        node.agrees(KEY, &[FIRST, SECOND]).await;
    }
}

/// Load, and one COMMIT after the other cut in either way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_of_phases_cut_under_load_leave_each_phase_once() {
    const ROUNDS: u32 = 12;
    let (base, proxy) = proxied::<OnPostgres>().await;
    let node = Node::simple(&base, resume()).await;
    for round in 0..ROUNDS {
        let cut = if round % 2 == 0 { Cut::BeforeSending } else { Cut::AfterSending };
        proxy.cut_at(b"COMMIT", 1 + round % 7, cut);
        let mut clients = JoinSet::new();
        for client in 0..4 {
            let (key, addr) = (format!("ride-number-{round:02}-{client}"), node.addr);
            clients.spawn(async move {
                let first = call(&key).send(addr).await;
                let again = call(&key).send_until_settled(addr).await;
                assert_eq!(again.status, 200, "{again:?}");
                if first.status == 200 {
                    assert_eq!(again.in_common(), first.in_common());
                }
                key
            });
        }
        while let Some(key) = within(clients.join_next()).await {
            node.agrees(&key.unwrap(), &[FIRST, SECOND]).await;
        }
        proxy.fired();
    }
    assert!(node.runs() > 4 * ROUNDS as usize, "some had to run again");
}

/// A node whose clock is so far ahead that every lease has lapsed.
fn ahead(engine: &Engine<PostgresStore>) -> Options {
    let engine = engine.clone();
    let clock = NodeClock::from_fn(move || {
        let now = engine.now();
        Now { at: now.at.plus(Duration::from_hours(1)), ..now }
    });
    Options { clock: Some(clock), ..Options::default() }
}

/// The lease is another's while a phase's transaction is open, its row written: the statement that would keep its recovery point refuses
/// it, and the row goes with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phase_in_the_middle_of_which_the_lease_was_lost_does_not_commit() {
    let base = OnPostgres::start().await;
    let (old_gate, new_gate) = (Gate::new(), Gate::new());
    let old = Node::start(&base, resume(), Options::default(), Some(old_gate.clone())).await;
    let new = Node::start(&base, resume(), ahead(&old.engine), Some(new_gate.clone())).await;
    let mut late = call(KEY).open(old.addr).await;
    old_gate.entered().await;
    let mut newer = call(KEY).open(new.addr).await;
    new_gate.entered().await;
    let granted = old.record(KEY).await;
    assert_eq!(granted.attempts, 2, "a later grant exists");
    // The older one goes on first: nothing of it stays, and its client is told what the row says.
    old_gate.open();
    late.reply().await.unwrap().expect_problem(409, "in_progress");
    old.agrees(KEY, &[]).await;
    assert_eq!(old.record(KEY).await, granted, "nor has it changed the row");
    new_gate.open();
    newer.reply().await.unwrap().expect_first(200, "made by run 1");
    new.agrees(KEY, &[FIRST, SECOND]).await;
    assert_eq!((old.runs(), new.runs()), (1, 1));
}

/// The other is done by then: whoever was late is told its answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phase_that_was_overtaken_by_a_whole_attempt_is_rolled_back_and_answered_from_the_row() {
    let base = OnPostgres::start().await;
    let gate = Gate::new();
    let old = Node::start(&base, resume(), Options::default(), Some(gate.clone())).await;
    let new = Node::start(&base, resume(), ahead(&old.engine), None).await;
    let mut late = call(KEY).open(old.addr).await;
    gate.entered().await;
    call(KEY).send(new.addr).await.expect_first(200, "made by run 1");
    let completed = new.record(KEY).await;
    gate.open();
    late.reply().await.unwrap().expect_replay(200, "made by run 1");
    new.agrees(KEY, &[FIRST, SECOND]).await;
    assert_eq!(new.record(KEY).await, completed);
}
