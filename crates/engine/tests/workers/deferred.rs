//! Accepted requests: run once each, in turns, by however many nodes; taken back only while they wait; waited for by whoever asks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate_core::audit::Act;
use oncegate_core::classify::CALLER_REFUSED;
use oncegate_core::decide::Arrival;
use oncegate_core::identity::RecordId;
use oncegate_core::key::Key;
use oncegate_core::policy::{AfterDoubt, Credentials};
use oncegate_core::record::{Execution, Reason, Record, State, StateKind, StoredRequest};
use oncegate_core::scope::Address;
use oncegate_engine::{
    Arrived, Cancelled, Engine, Finisher, Finishing, Held, Left, NoProbe, Options, Probe, Route, Runs,
    Settlement, Unavailable, Worker, WorkerOptions,
};
use oncegate_store::faulty::Fault;
use oncegate_test_servers::until;
use tokio::sync::{Semaphore, watch};

use crate::by_default::Log;
use crate::crew::{acts, named, node, nodes};
use crate::world::{HOUR, Shaky, complete, doubt, granted, release, route, row, shaky, soon, start, state};

fn deferred() -> Route {
    route(|policy| {
        policy.execution = Execution::Deferred;
        policy.retention = HOUR;
    })
}

fn accepted_by(route: &Route, tenant: &str, key: &str) -> Arrival {
    let request = StoredRequest {
        method: "POST".into(),
        target: "/payments".into(),
        headers: vec![],
        body: key.as_bytes().to_vec(),
        credentials: Some(Credentials::Kept),
    };
    let address = Address { scope: route.scope(tenant).unwrap(), key: Key::from_text(key).unwrap() };
    Arrival { address, request: Some(request), ..crate::world::request(route, key) }
}

async fn accept(engine: &Engine<Shaky>, route: &Route, tenant: &str, key: &str) -> RecordId {
    let arrived = engine.arrive(route, accepted_by(route, tenant, key)).await.unwrap();
    let Arrived::Accepted { id, is_new, state } = arrived else { panic!("{arrived:?}") };
    assert_eq!((is_new, state), (true, StateKind::Pending));
    id
}

/// Runs what it is given: says so, waits at a gate, and ends as it is told.
struct Runner {
    route: Route,
    ends: Mutex<Vec<Settlement>>,
    begun: watch::Sender<Vec<String>>,
    gate: Semaphore,
}

impl Runner {
    fn new(route: &Route) -> Arc<Self> {
        let (begun, gate) = (watch::Sender::default(), Semaphore::new(0));
        Arc::new(Self { route: route.clone(), ends: Mutex::default(), begun, gate })
    }

    /// The next one ends so, and not with an answer.
    fn next_ends(&self, settlement: Settlement) {
        self.ends.lock().unwrap().push(settlement);
    }

    fn let_go(&self, count: usize) {
        self.gate.add_permits(count);
    }

    fn begun(&self) -> Vec<String> {
        self.begun.borrow().clone()
    }

    async fn until_begun(&self, count: usize) {
        soon(async {
            let _ = self.begun.subscribe().wait_for(|begun| begun.len() >= count).await;
        })
        .await;
    }
}

impl Finisher<Shaky> for Runner {
    fn runs(&self) -> Runs {
        Runs { operations: vec![self.route.operation().clone()].into(), resumes: false }
    }

    fn route(&self, _: &Record) -> Option<Route> {
        Some(self.route.clone())
    }

    fn finish(&self, mut held: Box<Held<Shaky>>, left: Left) -> Finishing<'_> {
        Box::pin(async move {
            held.begin().unwrap();
            let tenant = left.record.address.scope.tenant_str();
            let name = format!("{tenant} {}", String::from_utf8_lossy(&left.request.body));
            self.begun.send_modify(|begun| begun.push(name));
            self.gate.acquire().await.unwrap().forget();
            let end = self.ends.lock().unwrap().pop();
            drop(held.settle(end.unwrap_or_else(|| complete("done"))).await);
        })
    }
}

/// The same, of a service whose handler cannot run some: what no handler of that form has begun.
struct Picky(Arc<Runner>);

impl Finisher<Shaky> for Picky {
    fn runs(&self) -> Runs {
        Finisher::<Shaky>::runs(&*self.0)
    }

    fn route(&self, record: &Record) -> Option<Route> {
        let is_ours = !record.address.key.as_str().starts_with("strange");
        is_ours.then(|| self.0.route.clone())
    }

    fn finish(&self, held: Box<Held<Shaky>>, left: Left) -> Finishing<'_> {
        self.0.finish(held, left)
    }
}

fn options(at_once: usize) -> WorkerOptions {
    WorkerOptions { completions_at_once: at_once, ..WorkerOptions::default() }
}

async fn pass(engine: &Engine<Shaky>, runner: &Arc<Runner>, at_once: usize) -> usize {
    let finisher: Arc<dyn Finisher<Shaky>> = Arc::clone(runner) as _;
    engine.complete(&options(at_once), &finisher).await.unwrap().changed
}

#[tokio::test]
async fn what_is_accepted_is_run_once_by_whichever_node_comes_first() {
    let (a, b, _, _) = nodes().await;
    let route = deferred();
    let runner = Runner::new(&route);
    let mut ids = Vec::new();
    for n in 0..20 {
        ids.push(accept(&a, &route, "acme", &format!("k{n:02}")).await);
    }
    runner.let_go(20);
    let (first, second) = tokio::join!(pass(&a, &runner, 20), pass(&b, &runner, 20));
    assert_eq!(first + second, 20, "{first} and {second}");
    assert!(a.drain(HOUR).await && b.drain(HOUR).await);
    assert_eq!(runner.begun().len(), 20);
    for id in ids {
        let row = row(&a, id).await;
        assert_eq!((row.state.kind(), row.attempts), (StateKind::Completed, 1));
        assert_eq!(row.request, None, "what was stored is gone");
    }
}

#[tokio::test]
async fn no_more_is_begun_than_there_is_room_for_and_a_free_place_is_filled_at_once() {
    let (engine, _, _) = node().await;
    let route = deferred();
    let runner = Runner::new(&route);
    for n in 0..6 {
        accept(&engine, &route, "acme", &format!("k{n}")).await;
    }
    // It would look again after an hour; a place that becomes free does not wait for that.
    let options = WorkerOptions { complete_every: HOUR, ..options(2) };
    let finisher: Arc<dyn Finisher<Shaky>> = Arc::clone(&runner) as _;
    let mut completer = engine.start_completer(&options, finisher);
    runner.until_begun(2).await;
    for begun in 3..=6 {
        assert!(runner.begun().len() < begun, "only {} places", 2);
        runner.let_go(1);
        runner.until_begun(begun).await;
    }
    runner.let_go(2);
    // And so does what is accepted while there is nothing to do: five passes began something, and the sixth found nothing.
    soon(completer.until_passes(Worker::Completer, 6)).await;
    accept(&engine, &route, "acme", "later").await;
    runner.until_begun(7).await;
    runner.let_go(1);
    let expected: Vec<_> = (0..6).map(|n| format!("acme k{n}")).chain(["acme later".to_owned()]).collect();
    assert_eq!(runner.begun(), expected, "oldest first");
}

#[tokio::test]
async fn a_busy_tenant_does_not_starve_the_others() {
    let (engine, _, hand) = node().await;
    let route = deferred();
    let runner = Runner::new(&route);
    for n in 0..200 {
        accept(&engine, &route, "busy", &format!("{n:03}")).await;
        hand.turn(Duration::from_millis(1));
    }
    for n in 0..5 {
        accept(&engine, &route, "quiet", &n.to_string()).await;
        hand.turn(Duration::from_millis(1));
    }
    runner.let_go(10);
    for _ in 0..5 {
        assert_eq!(pass(&engine, &runner, 2).await, 2);
        assert!(engine.drain(HOUR).await);
    }
    let mut of_each: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in runner.begun() {
        let (tenant, key) = name.split_once(' ').unwrap();
        of_each.entry(tenant.to_owned()).or_default().push(key.to_owned());
    }
    assert_eq!(of_each["quiet"], ["0", "1", "2", "3", "4"]);
    assert_eq!(of_each["busy"], ["000", "001", "002", "003", "004"], "each line oldest first");
}

/// One place, and one who has much and comes first: its turn is over when it has had one.
#[tokio::test]
async fn a_turn_goes_on_where_the_last_one_ended() {
    let (engine, _, _) = node().await;
    let route = deferred();
    let runner = Runner::new(&route);
    for n in 0..5 {
        accept(&engine, &route, "busy", &n.to_string()).await;
    }
    for tenant in ["later", "quiet"] {
        accept(&engine, &route, tenant, "0").await;
    }
    let finisher: Arc<dyn Finisher<Shaky>> = Arc::clone(&runner) as _;
    let _completer = engine.start_completer(&options(1), finisher);
    runner.let_go(7);
    runner.until_begun(7).await;
    let first: BTreeSet<_> = runner.begun()[..3].iter().cloned().collect();
    assert_eq!(first, ["busy 0", "later 0", "quiet 0"].map(str::to_owned).into());
}

/// A deploy after which a service cannot run some of what waits: more than it would run at once stood first in their line, were given to it in
/// each pass, and nothing behind them was begun until they were given up.
#[tokio::test]
async fn what_cannot_be_run_here_lets_others_of_its_line_pass() {
    let (engine, _, hand) = node().await;
    let route = deferred();
    let runner = Runner::new(&route);
    let mut strange = Vec::new();
    for n in 0..7 {
        strange.push(accept(&engine, &route, "acme", &format!("strange-{n}")).await);
    }
    let own = accept(&engine, &route, "acme", "own").await;
    runner.let_go(9);
    let picky: Arc<dyn Finisher<Shaky>> = Arc::new(Picky(Arc::clone(&runner)));
    let completer = engine.start_completer(&options(2), picky);
    runner.until_begun(1).await;
    soon(completer.stop()).await;
    assert!(engine.drain(HOUR).await);
    assert_eq!(
        (runner.begun(), state(&engine, own).await),
        (vec!["acme own".to_owned()], StateKind::Completed)
    );
    // They wait on, were never begun, and are due again soon for whoever can run them.
    for id in &strange {
        let row = row(&engine, *id).await;
        let State::Pending { run_after } = row.state else { panic!("{row:?}") };
        let pause = run_after.since(engine.now().at);
        assert!((Duration::ZERO..=Duration::from_secs(1)).contains(&pause), "{pause:?}");
        assert_eq!((row.attempts, row.expires_at), (0, Some(row.created_at.plus(HOUR))));
    }
    hand.turn(Duration::from_secs(1));
    assert_eq!(pass(&engine, &runner, 7).await, 7, "another service runs them");
    assert!(engine.drain(HOUR).await);
}

/// The longer it has waited the longer it steps aside, and it is given up in its time.
#[tokio::test]
async fn what_steps_aside_does_so_for_half_as_long_as_it_has_waited() {
    let (engine, _, hand) = node().await;
    let route = deferred();
    let id = accept(&engine, &route, "acme", "strange").await;
    let picky: Arc<dyn Finisher<Shaky>> = Arc::new(Picky(Runner::new(&route)));
    let mut pauses = Vec::new();
    for waited_s in [0, 10, 90, 1_900] {
        hand.turn(Duration::from_secs(waited_s));
        assert_eq!(engine.complete(&options(1), &picky).await.unwrap().changed, 0);
        let State::Pending { run_after } = row(&engine, id).await.state else { panic!("it waits") };
        pauses.push(run_after.since(engine.now().at).as_secs());
    }
    assert_eq!(pauses, [1, 5, 50, 300]);
    hand.turn(HOUR);
    assert_eq!(crate::crew::pass(&engine, Worker::Reaper).await.changed, 1);
    let State::Completed(answer) = row(&engine, id).await.state else { panic!("over") };
    assert_eq!(answer.status(), 408);
}

/// A completer alone never finds what a process that died has left in the middle of a run.
#[tokio::test]
async fn all_workers_run_what_waits_and_find_what_was_left() {
    let (engine, _, hand) = node().await;
    let route = deferred();
    let runner = Runner::new(&route);
    let left = accept(&engine, &route, "acme", "left").await;
    assert_eq!(pass(&engine, &runner, 1).await, 1);
    runner.until_begun(1).await;
    hand.turn(HOUR / 2);
    let probe: Arc<dyn Probe> = Arc::new(NoProbe);
    let finisher: Arc<dyn Finisher<Shaky>> = Arc::clone(&runner) as _;
    let every = WorkerOptions { sweep_every: Duration::from_millis(1), ..options(2) };
    let _workers = engine.start_all_workers(&every, &probe, finisher);
    until("it is found", async || state(&engine, left).await == StateKind::Unknown).await;
    accept(&engine, &route, "acme", "waits").await;
    runner.until_begun(2).await;
    runner.let_go(2);
    assert!(engine.drain(HOUR).await);
}

#[tokio::test]
async fn what_is_released_waits_longer_each_time_and_is_given_up_at_its_end() {
    let (engine, _, hand) = node().await;
    let route = deferred();
    let runner = Runner::new(&route);
    let id = accept(&engine, &route, "acme", "k").await;
    let mut pauses = Vec::new();
    for attempt in 1..=5 {
        runner.next_ends(release());
        runner.let_go(1);
        assert_eq!(pass(&engine, &runner, 1).await, 1, "attempt {attempt}");
        assert!(engine.drain(HOUR).await);
        let State::Pending { run_after } = row(&engine, id).await.state else { panic!("queued again") };
        let pause = run_after.since(engine.now().at);
        assert_eq!(pass(&engine, &runner, 1).await, 0, "not before its time");
        hand.turn(pause);
        pauses.push(pause);
    }
    for (n, pause) in (0..).zip(&pauses) {
        let whole = Duration::from_secs(1 << n);
        assert!((whole / 2..=whole).contains(pause), "{pauses:?}");
    }
    hand.turn(HOUR);
    assert_eq!(pass(&engine, &runner, 1).await, 0);
    let row = row(&engine, id).await;
    let State::Completed(answer) = &row.state else { panic!("{row:?}") };
    assert_eq!((answer.status(), row.attempts), (408, 5));
}

/// A client was told 503, "nothing was executed", while its request had landed and waited to be run; it made a new key, and paid twice. Whatever
/// became of the write, it is told that it may be executed; and with the same key it is executed once.
#[tokio::test]
async fn what_may_have_been_accepted_is_never_said_to_be_nothing() {
    let faults = [
        (vec![Fault::AcknowledgementLost], Duration::ZERO, StateKind::Pending),
        (vec![Fault::ConnectionLost], Duration::ZERO, StateKind::FailedRetryable),
        (vec![Fault::LandsLate], Duration::ZERO, StateKind::FailedRetryable),
        // The second try says that it wrote nothing. It does not say so of the first.
        (vec![Fault::AcknowledgementLost, Fault::BeforeWrite], HOUR, StateKind::Pending),
    ];
    for (faults, doubt_patience, left) in faults {
        let store = shaky();
        let engine = start(store.clone(), Options { doubt_patience, ..named("a") }).await;
        let route = deferred();
        let runner = Runner::new(&route);
        for fault in &faults {
            store.queue(*fault);
        }
        let refused = soon(engine.arrive(&route, accepted_by(&route, "acme", "k"))).await.unwrap_err();
        assert!(matches!(refused, Unavailable::PerhapsAccepted { .. }), "{faults:?}: {refused:?}");
        assert!(refused.to_string().contains("may be executed"), "{refused}");
        soon(engine.quiet()).await;
        store.land().await.unwrap();
        let id = crate::world::id(&route, "k");
        assert_eq!(state(&engine, id).await, left, "{faults:?}");
        let again = engine.arrive(&route, accepted_by(&route, "acme", "k")).await.unwrap();
        assert!(matches!(again, Arrived::Accepted { .. }), "{faults:?}: {again:?}");
        runner.let_go(2);
        assert_eq!(pass(&engine, &runner, 2).await, 1, "{faults:?}");
        assert!(engine.drain(HOUR).await);
        assert_eq!(runner.begun(), ["acme k"], "{faults:?}");
    }
}

/// The first look has accepted it, and waits for a verdict. What the store fails to say after that does not take it back.
#[tokio::test]
async fn what_was_accepted_before_it_waited_is_never_said_to_be_nothing() {
    let store = shaky();
    let engine = start(store.clone(), Options { wait_poll: Duration::from_millis(1), ..named("a") }).await;
    let route = route(|policy| {
        policy.execution = Execution::Deferred;
        policy.after_doubt = AfterDoubt::WaitThenReject;
        policy.wait_limit = HOUR;
    });
    let inline = Arrival { execution: Execution::Inline, ..accepted_by(&route, "acme", "k") };
    let held = granted(engine.arrive(&route, inline).await.unwrap());
    drop(held.settle(doubt()).await);
    // It is shown the row, and makes it deferred; then it looks again.
    for fault in [Fault::None, Fault::None, Fault::BeforeWrite] {
        store.queue(fault);
    }
    let refused = soon(engine.arrive_or_wait(&route, accepted_by(&route, "acme", "k"))).await.unwrap_err();
    assert!(matches!(refused, Unavailable::PerhapsAccepted { .. }), "{refused:?}");
    let row = row(&engine, crate::world::id(&route, "k")).await;
    assert_eq!((row.state.kind(), row.execution), (StateKind::Unknown, Execution::Deferred));
}

/// Nothing of it can be there: that is said, and a client may rely on it.
#[tokio::test]
async fn what_was_surely_not_accepted_is_said_to_be_nothing() {
    let (engine, store, _) = node().await;
    let route = deferred();
    store.queue(Fault::BeforeWrite);
    let refused = soon(engine.arrive(&route, accepted_by(&route, "acme", "k"))).await.unwrap_err();
    assert!(matches!(refused, Unavailable::Store { .. }), "{refused:?}");
    soon(engine.quiet()).await;
    assert!(engine.read(crate::world::id(&route, "k")).await.unwrap().is_none());
}

/// A completer that is stopped in the middle of a claim: the claim lands all the same, and nobody would run it. It is taken back, or a
/// lease that nobody holds would lapse into a doubt.
#[tokio::test]
async fn a_claim_that_is_given_up_in_the_middle_leaves_no_lease() {
    let (engine, store, _) = node().await;
    let route = deferred();
    let runner = Runner::new(&route);
    let id = accept(&engine, &route, "acme", "k").await;
    store.queue(Fault::Delayed);
    let finisher: Arc<dyn Finisher<Shaky>> = Arc::clone(&runner) as _;
    let completer = engine.start_completer(&options(1), finisher);
    soon(store.until_delayed(1)).await;
    soon(completer.stop()).await;
    store.let_go();
    soon(engine.quiet()).await;
    assert_eq!(state(&engine, id).await, StateKind::Pending);
    runner.let_go(1);
    assert_eq!(pass(&engine, &runner, 1).await, 1, "another runs it");
    assert!(engine.drain(HOUR).await);
    assert_eq!(runner.begun().len(), 1);
}

/// Attack 30. Another worker changes the row before the take is written: the take is refused, and written again over the newer row. That write is in
/// doubt, and lands late. Its clean-up named the version that the worker first saw, so it raised nothing: the late take landed, under a
/// token that nothing runs under, and the record was stuck until its lease lapsed and an operator looked.
#[tokio::test]
async fn attack_30_a_take_in_doubt_is_cleaned_up_over_the_version_that_it_wrote_over() {
    let (a, b, store, hand) = nodes().await;
    let route = deferred();
    let runner = Runner::new(&route);
    let id = accept(&a, &route, "acme", "strange").await;
    store.queue(Fault::Delayed);
    let finisher: Arc<dyn Finisher<Shaky>> = Arc::clone(&runner) as _;
    let taking = tokio::spawn({
        let a = a.clone();
        async move { a.complete(&options(1), &finisher).await }
    });
    soon(store.until_delayed(1)).await;
    // The other worker cannot run it, and puts it behind for a second.
    let picky: Arc<dyn Finisher<Shaky>> = Arc::new(Picky(Runner::new(&route)));
    assert_eq!(b.complete(&options(1), &picky).await.unwrap().changed, 0);
    hand.turn(Duration::from_secs(2));
    store.queue(Fault::LandsLate);
    store.let_go();
    soon(taking).await.unwrap().unwrap_err();
    soon(a.quiet()).await;
    assert!(store.land().await.unwrap(), "the take comes to the store late");
    assert_eq!(state(&a, id).await, StateKind::Pending, "and finds another version");
    runner.let_go(1);
    assert_eq!(pass(&a, &runner, 1).await, 1, "the next pass runs it");
    assert!(a.drain(HOUR).await);
    assert_eq!((state(&a, id).await, runner.begun().len()), (StateKind::Completed, 1));
}

#[tokio::test]
async fn only_what_waits_is_cancelled_and_a_claim_that_comes_first_wins() {
    let (engine, _, hand) = node().await;
    let route = deferred();
    let runner = Runner::new(&route);
    let id = accept(&engine, &route, "acme", "k").await;
    for _ in 0..2 {
        assert_eq!(engine.cancel(id, "owner").await.unwrap(), Cancelled::Done);
    }
    let State::Completed(answer) = row(&engine, id).await.state else { panic!("over") };
    assert_eq!(answer.status(), 410);
    assert_eq!(acts(&engine, id).await, [Act::Cancelled], "told once");
    assert_eq!(pass(&engine, &runner, 1).await, 0, "nothing runs it");
    // Begun.
    let id = accept(&engine, &route, "acme", "begun").await;
    assert_eq!(pass(&engine, &runner, 1).await, 1);
    let refused = |cancelled| matches!(cancelled, Cancelled::TooLate(_));
    assert!(refused(engine.cancel(id, "owner").await.unwrap()));
    // Over.
    runner.let_go(1);
    assert!(engine.drain(HOUR).await);
    assert!(refused(engine.cancel(id, "owner").await.unwrap()));
    assert_eq!(engine.cancel(RecordId::from_bytes([9; 16]), "owner").await.unwrap(), Cancelled::Absent);
    // Waiting once more, and it surely did nothing: that can be cancelled.
    let id = accept(&engine, &route, "acme", "released").await;
    runner.next_ends(release());
    runner.let_go(1);
    assert_eq!(pass(&engine, &runner, 1).await, 1);
    assert!(engine.drain(HOUR).await);
    assert_eq!(engine.cancel(id, "owner").await.unwrap(), Cancelled::Done);
    hand.turn(HOUR);
}

/// Queued again after a lapsed lease: it may have acted, and an answer that says it did not would be a lie.
#[tokio::test]
async fn what_may_have_acted_is_not_cancelled() {
    let (engine, _, hand) = node().await;
    let route = route(|policy| {
        policy.execution = Execution::Deferred;
        policy.crash = oncegate_core::record::CrashPolicy::Restart;
    });
    let runner = Runner::new(&route);
    let id = accept(&engine, &route, "acme", "k").await;
    assert_eq!(pass(&engine, &runner, 1).await, 1);
    hand.turn(HOUR);
    assert_eq!(crate::crew::pass(&engine, Worker::Sweeper).await.changed, 1);
    assert_eq!(state(&engine, id).await, StateKind::Pending);
    assert!(matches!(engine.cancel(id, "owner").await.unwrap(), Cancelled::TooLate(_)));
    assert_eq!(state(&engine, id).await, StateKind::Pending);
}

/// A hundred claims and cancellations at once: each record is run or cancelled, never both, never neither.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelling_and_claiming_at_once_is_one_or_the_other() {
    let (a, b, _, _) = nodes().await;
    let route = deferred();
    let runner = Runner::new(&route);
    let mut ids = Vec::new();
    for n in 0..100 {
        ids.push(accept(&a, &route, "acme", &format!("k{n:02}")).await);
    }
    runner.let_go(100);
    let cancelling = ids.iter().rev().map(|id| b.cancel(*id, "owner"));
    let (_, cancelled) = tokio::join!(pass(&a, &runner, 100), futures_util::future::join_all(cancelling));
    assert!(a.drain(HOUR).await);
    let cancelled = cancelled.into_iter().filter(|one| *one.as_ref().unwrap() == Cancelled::Done).count();
    assert_eq!(runner.begun().len() + cancelled, 100);
    let mut statuses = BTreeMap::new();
    for id in ids {
        let State::Completed(answer) = row(&a, id).await.state else { panic!("over") };
        *statuses.entry(answer.status()).or_insert(0) += 1;
    }
    assert_eq!(statuses.get(&410).copied().unwrap_or(0), cancelled);
}

#[tokio::test]
async fn whoever_waits_is_woken_by_the_end() {
    // Nothing but the end wakes it within the hour.
    let options = Options { wait_poll: HOUR, ..named("a") };
    let engine = start(shaky(), options).await;
    let route = deferred();
    let runner = Runner::new(&route);
    let id = accept(&engine, &route, "acme", "k").await;
    let waiting = tokio::spawn({
        let engine = engine.clone();
        async move { engine.until_over(id, HOUR).await }
    });
    assert_eq!(pass(&engine, &runner, 1).await, 1);
    runner.until_begun(1).await;
    assert!(!waiting.is_finished());
    runner.let_go(1);
    let row = soon(waiting).await.unwrap().unwrap();
    assert_eq!(row.state.kind(), StateKind::Completed);
    // Its time is over: as it was last seen.
    let id = accept(&engine, &route, "acme", "k2").await;
    let seen = soon(engine.until_over(id, Duration::ZERO)).await.unwrap();
    assert_eq!(seen.state.kind(), StateKind::Pending);
}

/// The upstream refuses the credentials of the caller, and will do so every time.
#[tokio::test]
async fn attack_33_work_whose_caller_is_refused_twice_is_parked_and_logged() {
    let log = Log::default();
    let _here = tracing::subscriber::set_default(log.clone());
    let (engine, _, hand) = node().await;
    let route = deferred();
    let runner = Runner::new(&route);
    let id = accept(&engine, &route, "acme", "one").await;
    for attempt in 1..=3 {
        let reason = Reason::new(CALLER_REFUSED, "403 refused before acting");
        runner.next_ends(Settlement::Release { reason, backoff: Duration::ZERO });
        runner.let_go(1);
        assert_eq!(pass(&engine, &runner, 1).await, usize::from(attempt < 3));
        assert!(engine.drain(HOUR).await);
        hand.turn(Duration::from_mins(10));
    }
    let row = row(&engine, id).await;
    assert!(matches!(&row.state, State::Unknown(doubt) if doubt.parked), "{row:?}");
    assert_eq!((row.attempts, runner.begun().len()), (2, 2));
    assert_eq!(log.with("deferred request parked; it waits for an operator"), 1);
}

/// An earlier release stored the request without its caller's credentials.
#[tokio::test]
async fn attack_33_work_without_its_caller_is_parked_and_logged() {
    let log = Log::default();
    let _here = tracing::subscriber::set_default(log.clone());
    let (engine, _, _) = node().await;
    let route = deferred();
    let dropping = self::route(|policy| {
        policy.execution = Execution::Deferred;
        policy.retention = HOUR;
        policy.credentials = Credentials::Dropped;
    });
    let stored = |key: &str| {
        let arrival = accepted_by(&route, "acme", key);
        let request = arrival.request.map(|request| StoredRequest { credentials: None, ..request });
        Arrival { request, ..arrival }
    };
    let arrived = engine.arrive(&route, stored("one")).await.unwrap();
    let Arrived::Accepted { id, .. } = arrived else { panic!("{arrived:?}") };
    let runner = Runner::new(&route);
    runner.let_go(2);
    assert_eq!(pass(&engine, &runner, 1).await, 0);
    let row = row(&engine, id).await;
    assert!(matches!(&row.state, State::Unknown(doubt) if doubt.parked), "{row:?}");
    assert_eq!((row.attempts, row.last_error.unwrap().code()), (0, "no_credentials"));
    assert_eq!(log.with("deferred request parked; it waits for an operator"), 1);
    assert_eq!(acts(&engine, id).await, [Act::Doubted]);
    // A service whose handler needs no caller runs it.
    let arrived = engine.arrive(&route, stored("two")).await.unwrap();
    let Arrived::Accepted { id, .. } = arrived else { panic!("{arrived:?}") };
    let trusting = Runner::new(&dropping);
    trusting.let_go(1);
    assert_eq!(pass(&engine, &trusting, 1).await, 1);
    assert!(engine.drain(HOUR).await);
    assert_eq!(state(&engine, id).await, StateKind::Completed);
    assert_eq!(runner.begun(), Vec::<String>::new());
}
