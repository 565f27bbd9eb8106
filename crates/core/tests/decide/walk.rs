//! Random walks: whatever comes in whatever order, the promises hold.
//!
//! The walk keeps its own account of what truly happened — which attempts sent, which had an effect, which writes are in
//! doubt — and feeds `decide` only true accounts, some early, some late, some twice. After every step it looks for a second
//! effect, for an answer that changed, for a life that gave way to a new one with an effect nobody recorded, and for accepted work that nobody would
//! run.
//!
//! Under `reconcile` the upstream dedupes nothing. Under `resume` and `restart` it dedupes by life, as the operator declares.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::decide::{
    Arrival, Ask, Decision, Event, Grounds, Lease, Next, QUARANTINED, Reserve, decide,
};
use oncegate_core::identity::{Token, Version};
use oncegate_core::record::{AfterRetention, CrashPolicy, Execution, GoneStatus, Record, State, Terms};
use oncegate_core::time::{Now, Timestamp};
use proptest::prelude::*;

use super::samples::*;
use super::table::is_coherent;

/// One attempt as the world sees it.
#[derive(Clone, Debug)]
struct Attempt {
    lease: Lease,
    /// It has sent, or never will.
    is_spent: bool,
    /// Its effect, if it has one, happens at this second.
    effect_at: Option<u64>,
    /// Its node is gone: it settles nothing any more.
    is_dead: bool,
}

/// A write whose acknowledgement is lost; nothing will run under its token.
#[derive(Clone, Debug)]
struct Doubted {
    reserve: Reserve,
    over: Option<Version>,
    row: Record,
    has_landed: bool,
    is_cleaned: bool,
    lands_until: u64,
}

#[derive(Clone, Copy, Debug)]
enum Move {
    /// A client arrives, at a route that runs at once or later.
    Arrive {
        deferred: bool,
    },
    /// A worker takes.
    Take,
    /// A worker that cannot run it lets others pass.
    Postpone,
    Pass(u16),
    /// An attempt sends, if its lease still stands; its effect follows after a delay, or never.
    Send {
        attempt: u8,
        delay: Option<u8>,
    },
    /// An attempt settles truthfully, or doubts.
    Settle {
        attempt: u8,
        knows: bool,
    },
    /// An attempt's node dies.
    Die(u8),
    Renew(u8),
    Sweep,
    /// A probe reads the row and asks; its answer comes with the next `Deliver`.
    Ask,
    Deliver,
    /// One of two reconcilers finds the row due.
    Find(Reconciler),
    /// It claims what it found; if it may, it asks, and its answer comes with its next `Tell`, or never if it dies.
    Claim(Reconciler),
    Tell(Reconciler),
    /// A negative message that proves nothing wakes the probe.
    Wake,
    /// An operator who has just looked has it asked again.
    AskAgain,
    /// A webhook about an attempt that had its effect.
    Webhook(u8),
    /// A reserve's acknowledgement is lost; it landed, or may land within a minute.
    Lose {
        by_worker: bool,
        landed: bool,
    },
    Land(u8),
    CleanUp(u8),
    Reap,
    Forget,
    /// An operator declares a loss, although there was none: what may run is put before them.
    HoldBack,
    /// They have looked: what is held back did not happen. Only said where it is true and can no
    /// longer change.
    LetGo,
}

/// Which of the two.
type Reconciler = usize;
const RECONCILERS: usize = 2;

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        4 => any::<bool>().prop_map(|deferred| Move::Arrive { deferred }),
        3 => Just(Move::Take),
        1 => Just(Move::Postpone),
        4 => (1..80_u16).prop_map(Move::Pass),
        1 => (200..900_u16).prop_map(Move::Pass),
        5 => (0..6_u8, proptest::option::weighted(0.7, 0..100_u8))
            .prop_map(|(attempt, delay)| Move::Send { attempt, delay }),
        3 => (0..6_u8, any::<bool>()).prop_map(|(attempt, knows)| Move::Settle { attempt, knows }),
        1 => (0..6_u8).prop_map(Move::Die),
        1 => (0..6_u8).prop_map(Move::Renew),
        2 => Just(Move::Sweep),
        3 => Just(Move::Ask),
        3 => Just(Move::Deliver),
        3 => (0..RECONCILERS).prop_map(Move::Find),
        3 => (0..RECONCILERS).prop_map(Move::Claim),
        3 => (0..RECONCILERS).prop_map(Move::Tell),
        1 => Just(Move::Wake),
        1 => Just(Move::AskAgain),
        2 => (0..6_u8).prop_map(Move::Webhook),
        2 => (any::<bool>(), any::<bool>()).prop_map(|(by_worker, landed)| Move::Lose { by_worker, landed }),
        2 => (0..3_u8).prop_map(Move::Land),
        2 => (0..3_u8).prop_map(Move::CleanUp),
        2 => Just(Move::Reap),
        1 => Just(Move::Forget),
        1 => Just(Move::HoldBack),
        1 => Just(Move::LetGo),
    ]
}

/// What a walk is about.
#[derive(Clone, Copy, Debug)]
struct Setting {
    crash: CrashPolicy,
    gone: bool,
    /// The clocks' stated error; each step's clock is off by up to it.
    error_s: u64,
}

struct World {
    setting: Setting,
    row: Option<Record>,
    second: u64,
    skew_s: i64,
    tokens: u8,
    attempts: Vec<Attempt>,
    doubted: Vec<Doubted>,
    asked: Option<Event>,
    /// The version that each reconciler found due.
    found: [Option<Version>; RECONCILERS],
    /// The answer that each has for what it claimed.
    told: [Option<Event>; RECONCILERS],
    /// The row of the last claim, and its end.
    claimed: Option<(Version, Timestamp)>,
    /// Lives that somebody was promised: answered 202, or told that it would be found out.
    promised: BTreeSet<Token>,
    /// Lives whose end was recorded.
    recorded: BTreeSet<Token>,
    /// The first answer that was shown to anybody.
    shown: Option<(Token, u16)>,
}

impl World {
    fn new(setting: Setting) -> Self {
        Self {
            setting,
            row: None,
            second: 10_000,
            skew_s: 0,
            tokens: 0,
            attempts: Vec::new(),
            doubted: Vec::new(),
            asked: None,
            found: [None; RECONCILERS],
            told: [const { None }; RECONCILERS],
            claimed: None,
            promised: BTreeSet::new(),
            recorded: BTreeSet::new(),
            shown: None,
        }
    }

    fn now(&self) -> Now {
        let error = Duration::from_secs(self.setting.error_s);
        Now { error, ..at(self.second.saturating_add_signed(self.skew_s)) }
    }

    fn fresh(&mut self) -> u8 {
        self.tokens += 1;
        self.tokens
    }

    fn arrival(&mut self, is_deferred: bool) -> Arrival {
        let n = self.fresh();
        let tombstone = 900 * S;
        let after_retention = if self.setting.gone {
            AfterRetention::Gone { status: GoneStatus::Gone, tombstone }
        } else {
            AfterRetention::Fresh
        };
        let terms = Terms { retention: 600 * S, after_retention, ..terms(self.setting.crash) };
        Arrival { terms, ..if is_deferred { deferred(n) } else { arrival(n) } }
    }

    fn apply(&mut self, event: &Event) -> Decision {
        let step = decide(self.row.as_ref(), event, self.now());
        match step.next {
            Next::Keep => {}
            Next::Put(next) => self.put(Arc::unwrap_or_clone(next)),
            Next::Remove { .. } => {
                self.give_way();
                // Its promise was kept; a late clean-up may write a row with the same token again.
                if let Some(row) = self.row.take() {
                    self.promised.remove(&row.life);
                }
            }
        }
        if let Decision::Replay(answer) = &step.decision {
            let life = self.row.as_ref().unwrap().life;
            if let Some((shown_life, status)) = self.shown {
                assert!(shown_life != life || status == answer.status(), "the answer changed");
            }
            self.shown = Some((life, answer.status()));
            assert!(
                answer.status() != 408 || !self.has_acted(life),
                "a 408 says that nothing was executed, and it was"
            );
        }
        step.decision
    }

    fn put(&mut self, next: Record) {
        if let Some(before) = &self.row {
            assert!(next.version > before.version && next.fence >= before.fence);
            if next.life != before.life {
                self.give_way();
            } else if matches!(before.state, State::Completed(_)) {
                assert!(
                    matches!(next.state, State::Completed(_) | State::Expired),
                    "an answer was taken back"
                );
            }
        }
        assert!(is_coherent(&next), "{next:?}");
        if matches!(next.state, State::Completed(_)) {
            self.recorded.insert(next.life);
        }
        self.row = Some(next);
    }

    /// The present life ends: whatever it did must be on record.
    fn give_way(&self) {
        let Some(row) = &self.row else { return };
        assert!(
            !self.has_acted(row.life) || self.recorded.contains(&row.life),
            "an effect was never recorded"
        );
    }

    /// Also if the effect is still on its way.
    fn has_acted(&self, life: Token) -> bool {
        self.attempts.iter().any(|attempt| attempt.lease.holder.life == life && attempt.effect_at.is_some())
    }

    /// Visible by now.
    fn is_visible(&self, life: Token) -> bool {
        let of_life = |attempt: &&Attempt| attempt.lease.holder.life == life;
        self.attempts
            .iter()
            .filter(of_life)
            .any(|attempt| attempt.effect_at.is_some_and(|at| at <= self.second))
    }

    /// The n-th youngest.
    fn index(&self, n: u8) -> Option<usize> {
        let count = self.attempts.len();
        (count > 0).then(|| count - 1 - usize::from(n) % count.min(6))
    }

    fn execute(&mut self, decision: Decision) {
        if let Decision::Execute(lease) = decision {
            self.attempts.push(Attempt { lease, is_spent: false, effect_at: None, is_dead: false });
        }
    }

    fn make(&mut self, step: Move) {
        match step {
            Move::Arrive { deferred } => {
                let arrival = self.arrival(deferred);
                let decision = self.apply(&Event::Arrive(arrival));
                if deferred && matches!(decision, Decision::Accepted | Decision::Unsettled { .. }) {
                    self.promised.extend(self.row.as_ref().map(|row| row.life));
                }
                self.execute(decision);
            }
            Move::Take => {
                let take = take(self.fresh());
                let decision = self.apply(&take);
                self.execute(decision);
            }
            Move::Postpone => {
                if let Some(version) = self.row.as_ref().map(|row| row.version) {
                    let until = self.now().at.plus(30 * S);
                    let _ = self.apply(&Event::Postpone { version, until });
                }
            }
            Move::Pass(seconds) => self.second += u64::from(seconds),
            Move::Send { attempt, delay } => self.send(attempt, delay),
            Move::Settle { attempt, knows } => self.settle(attempt, knows),
            Move::Die(attempt) => {
                if let Some(index) = self.index(attempt) {
                    self.attempts[index].is_dead = true;
                }
            }
            Move::Renew(attempt) => {
                let Some(index) = self.index(attempt) else { return };
                let decision = self.apply(&renew(self.attempts[index].lease.holder));
                if let Decision::Renewed { until } = decision {
                    self.attempts[index].lease.until = until;
                }
            }
            Move::Ask => self.asked = self.row.as_ref().map(|row| self.ask_about(row)),
            Move::Find(n) => {
                let due = self.row.as_ref().filter(|row| is_due(row, self.now()));
                self.found[n] = due.map(|row| row.version);
            }
            Move::Claim(n) => self.claim(n),
            Move::Tell(n) => {
                if let Some(event) = self.told[n].take() {
                    let _ = self.apply(&event);
                }
            }
            Move::Wake => drop(self.apply(&Event::Ask(Ask::Soon))),
            Move::AskAgain => {
                if let Some(version) = self.row.as_ref().map(|row| row.version) {
                    let _ = self.apply(&Event::Ask(Ask::Again { version }));
                }
            }
            Move::Deliver => {
                if let Some(event) = self.asked.take() {
                    let _ = self.apply(&event);
                }
            }
            Move::Webhook(attempt) => {
                let Some(index) = self.index(attempt) else { return };
                let life = self.attempts[index].lease.holder.life;
                if self.attempts[index].effect_at.is_some_and(|at| at <= self.second) {
                    let _ = self.apply(&happened(life, 201));
                }
            }
            Move::Lose { by_worker, landed } => self.lose(by_worker, landed),
            Move::Land(n) => self.land(n),
            Move::CleanUp(n) => self.clean_up(n),
            Move::Sweep => drop(self.apply(&Event::Sweep)),
            Move::Reap => drop(self.apply(&reap())),
            Move::HoldBack => drop(self.apply(&Event::HoldBack { windows: "q1".into() })),
            Move::LetGo => self.let_go(),
            Move::Forget => {
                if let Some(row) = &self.row {
                    let forget = forget(row.version);
                    let _ = self.apply(&forget);
                }
            }
        }
    }

    fn let_go(&mut self) {
        let Some(row) = &self.row else { return };
        let now = self.now();
        let is_held_back = row.last_error.as_ref().is_some_and(|reason| reason.code() == QUARANTINED);
        let may_send = |attempt: &Attempt| !attempt.is_spent && !now.is_surely_past(attempt.lease.until);
        let is_open = self.attempts.iter().any(may_send) || self.has_acted(row.life);
        if is_held_back && !is_open {
            let says = did_not_happen(row.life, Grounds::Operator { version: row.version }, now);
            let _ = self.apply(&says);
        }
    }

    /// What is found when it is asked about now.
    fn ask_about(&self, row: &Record) -> Event {
        if self.is_visible(row.life) { found(row, 201) } else { not_found(row, self.now()) }
    }

    fn claim(&mut self, n: Reconciler) {
        let Some(version) = self.found[n].take() else { return };
        let before = self.row.as_ref().map(|row| row.version);
        let until = self.now().at.plus(20 * S);
        if self.apply(&Event::Ask(Ask::Claim { version, until })) != Decision::Done {
            return;
        }
        assert_eq!(before, Some(version), "claimed what it has not seen");
        if let Some((claimed, end)) = self.claimed {
            assert!(claimed != version || self.now().at >= end, "claimed twice at the same time");
        }
        let row = self.row.clone().unwrap();
        self.claimed = Some((row.version, until));
        self.told[n] = Some(self.ask_about(&row));
    }

    fn send(&mut self, attempt: u8, delay: Option<u8>) {
        let Some(index) = self.index(attempt) else { return };
        let now = self.now();
        let sending = &self.attempts[index];
        if sending.is_dead || sending.is_spent || now.may_be_past(sending.lease.until) {
            return;
        }
        let is_deduped =
            self.setting.crash != CrashPolicy::Reconcile && self.has_acted(sending.lease.holder.life);
        let sending = &mut self.attempts[index];
        sending.is_spent = true;
        // An effect comes within the horizon, or not at all.
        sending.effect_at = delay.filter(|_| !is_deduped).map(|delay| self.second + u64::from(delay));
    }

    fn settle(&mut self, attempt: u8, knows: bool) {
        let Some(index) = self.index(attempt) else { return };
        let Attempt { lease, is_spent, effect_at, is_dead } = self.attempts[index].clone();
        if is_dead {
            return;
        }
        let holder = lease.holder;
        let is_deduped = self.setting.crash != CrashPolicy::Reconcile && self.is_visible(holder.life);
        let has_answer = effect_at.is_some_and(|at| at <= self.second) || is_deduped;
        let event = if !is_spent {
            // It has not sent, and now never will.
            self.attempts[index].is_spent = true;
            release(holder)
        } else if has_answer && knows {
            complete(holder, 201)
        } else {
            doubt(holder)
        };
        let _ = self.apply(&event);
    }

    fn lose(&mut self, by_worker: bool, landed: bool) {
        let (reserve, event) = if by_worker {
            let n = self.fresh();
            (Reserve::Take(token(n)), take(n))
        } else {
            let arrival = self.arrival(false);
            (Reserve::Arrival(Box::new(arrival.clone())), Event::Arrive(arrival))
        };
        let over = self.row.as_ref().map(|row| row.version);
        if let Next::Put(row) = decide(self.row.as_ref(), &event, self.now()).next {
            if landed {
                self.put((*row).clone());
            }
            let lands_until = self.second + 60;
            self.doubted.push(Doubted {
                reserve,
                over,
                row: Arc::unwrap_or_clone(row),
                has_landed: landed,
                is_cleaned: false,
                lands_until,
            });
        }
    }

    fn land(&mut self, n: u8) {
        let Some(index) = self.doubted.len().checked_sub(1 + usize::from(n)) else { return };
        let doubted = self.doubted[index].clone();
        let fits = self.row.as_ref().map(|row| row.version) == doubted.over;
        if fits && !doubted.has_landed && self.second < doubted.lands_until {
            assert!(!doubted.is_cleaned, "a doubted write landed after its clean-up");
            self.doubted[index].has_landed = true;
            self.put(doubted.row);
        }
    }

    fn clean_up(&mut self, n: u8) {
        let Some(index) = self.doubted.len().checked_sub(1 + usize::from(n)) else { return };
        let Doubted { reserve, over, is_cleaned, .. } = self.doubted[index].clone();
        if !is_cleaned {
            let _ = self.apply(&Event::CleanUp { reserve, over });
            self.doubted[index].is_cleaned = true;
        }
    }

    /// At most one effect a life, ever: also those still on their way.
    fn check(&self) {
        let lives: Vec<_> =
            self.attempts.iter().filter(|a| a.effect_at.is_some()).map(|a| a.lease.holder.life).collect();
        assert_eq!(
            lives.iter().collect::<BTreeSet<_>>().len(),
            lives.len(),
            "a second effect: {:?}",
            self.attempts
        );
        self.check_promise();
    }
}

impl World {
    /// What was accepted is over, or a worker can run it as soon as it may be run.
    fn check_promise(&self) {
        let Some(row) = self.row.as_ref().filter(|row| self.promised.contains(&row.life)) else { return };
        let is_over = matches!(row.state, State::Completed(_) | State::Expired);
        let is_kept = row.execution == Execution::Deferred && row.request.is_some();
        assert!(is_over || is_kept && row.state != State::FailedRetryable, "nobody would run it: {row:?}");
    }
}

/// As a store's scan for doubts says.
fn is_due(row: &Record, now: Now) -> bool {
    matches!(row.state, State::Unknown(_)) && row.due_at().is_some_and(|moment| moment <= now.at)
}

fn walk(setting: Setting, steps: &[(Move, i8)]) {
    let mut world = World::new(setting);
    for (step, skew) in steps {
        let error_s = i64::try_from(setting.error_s).unwrap();
        world.skew_s = i64::from(*skew) % (error_s + 1);
        world.make(*step);
        world.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_walk_breaks_a_promise_under_reconcile(gone in any::<bool>(), steps in proptest::collection::vec((moves(), any::<i8>()), 1..80)) {
        walk(Setting { crash: CrashPolicy::Reconcile, gone, error_s: 0 }, &steps);
    }

    #[test]
    fn no_walk_breaks_a_promise_with_clocks_apart(gone in any::<bool>(), steps in proptest::collection::vec((moves(), any::<i8>()), 1..80)) {
        walk(Setting { crash: CrashPolicy::Reconcile, gone, error_s: 5 }, &steps);
    }

    #[test]
    fn no_walk_breaks_a_promise_under_resume(gone in any::<bool>(), steps in proptest::collection::vec((moves(), any::<i8>()), 1..80)) {
        walk(Setting { crash: CrashPolicy::Resume, gone, error_s: 0 }, &steps);
    }

    #[test]
    fn no_walk_breaks_a_promise_under_restart(gone in any::<bool>(), steps in proptest::collection::vec((moves(), any::<i8>()), 1..80)) {
        walk(Setting { crash: CrashPolicy::Restart, gone, error_s: 0 }, &steps);
    }
}

/// The moves of the reconcilers reach what they are there for: both find the row due, one claims it and settles it.
#[test]
fn of_two_reconcilers_in_a_walk_one_asks_and_settles() {
    let mut world = World::new(Setting { crash: CrashPolicy::Reconcile, gone: false, error_s: 0 });
    for step in [
        Move::Arrive { deferred: false },
        Move::Send { attempt: 0, delay: Some(50) },
        Move::Settle { attempt: 0, knows: true },
        Move::Find(0),
        Move::Find(1),
        Move::Claim(0),
        Move::Claim(1),
    ] {
        world.make(step);
    }
    assert!(world.told[0].is_some() && world.told[1].is_none(), "{:?}", world.told);
    for step in [Move::Pass(51), Move::Tell(0), Move::Find(1), Move::Claim(1), Move::Tell(1)] {
        world.make(step);
    }
    assert!(matches!(&world.row.as_ref().unwrap().state, State::Completed(_)), "{:?}", world.row);
}

/// The walk can fail: of a provider that is later than its declared horizon it finds the second effect of attack 1, which is
/// a limit that remains.
#[test]
#[should_panic(expected = "a second effect")]
fn the_walk_finds_attack_1_when_the_horizon_lies() {
    let mut world = World::new(Setting { crash: CrashPolicy::Reconcile, gone: false, error_s: 0 });
    let trace = [
        Move::Arrive { deferred: false },
        Move::Send { attempt: 0, delay: Some(50) },
        Move::Settle { attempt: 0, knows: true },
        Move::Pass(1),
        Move::Ask,
        Move::Deliver,
        Move::Arrive { deferred: false },
        Move::Send { attempt: 0, delay: Some(0) },
    ];
    for step in trace {
        world.make(step);
        if let Some(row) = &mut world.row {
            row.terms.horizon = Some(Duration::ZERO);
        }
        world.check();
    }
}
