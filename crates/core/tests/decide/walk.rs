//! Random walks: whatever comes in whatever order, the promises hold.
//!
//! The walk keeps its own account of what truly happened — which attempts sent, which had an effect — and feeds `decide`
//! only true accounts, some early, some late, some twice. At the end of every step it looks for a second effect.

use std::time::Duration;

use oncegate_core::decide::{Decision, Event, Lease, Next, decide};
use oncegate_core::identity::Token;
use oncegate_core::record::{Record, State};
use oncegate_core::time::Now;
use proptest::prelude::*;

use super::samples::*;
use super::table::is_coherent;

/// One attempt as the world sees it.
#[derive(Clone, Debug)]
struct Attempt {
    lease: Lease,
    /// The request left at this second, if it did.
    sent: Option<u64>,
    /// Its effect, if it has one, happens at this second.
    effect: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
enum Move {
    /// A client arrives.
    Arrive,
    /// Time passes.
    Pass(u8),
    /// The n-th attempt sends, if its lease still stands; its effect follows after a delay, or never.
    Send {
        attempt: u8,
        delay: Option<u8>,
    },
    /// The n-th attempt settles truthfully, or doubts.
    Settle {
        attempt: u8,
        knows: bool,
    },
    Renew(u8),
    Sweep,
    /// A probe reads the row and asks; its answer is delivered with the next `Deliver`.
    Ask,
    Deliver,
    /// A webhook about the n-th attempt, if it had its effect.
    Webhook(u8),
    /// A clean-up for an arrival that got 503.
    CleanUp,
    Reap,
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        4 => Just(Move::Arrive),
        4 => (1..80_u8).prop_map(Move::Pass),
        4 => (0..4_u8, proptest::option::weighted(0.7, 0..100_u8))
            .prop_map(|(attempt, delay)| Move::Send { attempt, delay }),
        3 => (0..4_u8, any::<bool>()).prop_map(|(attempt, knows)| Move::Settle { attempt, knows }),
        1 => (0..4_u8).prop_map(Move::Renew),
        2 => Just(Move::Sweep),
        2 => Just(Move::Ask),
        2 => Just(Move::Deliver),
        2 => (0..4_u8).prop_map(Move::Webhook),
        1 => Just(Move::CleanUp),
        1 => Just(Move::Reap),
    ]
}

struct World {
    row: Option<Record>,
    second: u64,
    tokens: u8,
    attempts: Vec<Attempt>,
    asked: Option<Event>,
    /// The first answer that was shown to anybody in this life.
    shown: Option<(Token, u16)>,
}

impl World {
    fn new() -> Self {
        Self { row: None, second: 0, tokens: 0, attempts: Vec::new(), asked: None, shown: None }
    }

    fn now(&self) -> Now {
        at(self.second)
    }

    fn fresh(&mut self) -> u8 {
        self.tokens += 1;
        self.tokens
    }

    fn apply(&mut self, event: &Event) -> Decision {
        let step = decide(self.row.as_ref(), event, self.now());
        match step.next {
            Next::Keep => {}
            Next::Put(next) => {
                if let Some(before) = &self.row {
                    assert!(next.version > before.version, "{event:?}");
                    assert!(next.fence >= before.fence, "{event:?}");
                    let absorbed = matches!(before.state, State::Completed(_)) && next.life == before.life;
                    assert!(
                        !absorbed || matches!(next.state, State::Completed(_)),
                        "{event:?} took an answer back"
                    );
                }
                assert!(is_coherent(&next), "{event:?} wrote {next:?}");
                self.row = Some(*next);
            }
            Next::Remove { .. } => self.row = None,
        }
        if let Decision::Replay(answer) = &step.decision {
            let life = self.row.as_ref().map(|row| row.life).unwrap();
            if let Some((shown_life, status)) = self.shown {
                assert!(shown_life != life || status == answer.status(), "the answer changed");
            }
            self.shown = Some((life, answer.status()));
        }
        step.decision
    }

    fn attempt(&mut self, n: u8) -> Option<&mut Attempt> {
        let count = self.attempts.len();
        if count == 0 { None } else { self.attempts.get_mut(usize::from(n) % count) }
    }

    fn has_effect(attempt: &Attempt, second: u64) -> bool {
        attempt.effect.is_some_and(|at| at <= second)
    }

    fn make(&mut self, step: Move) {
        let now = self.now();
        let second = self.second;
        match step {
            Move::Arrive => {
                let n = self.fresh();
                if let Decision::Execute(lease) = self.apply(&Event::Arrive(arrival(n))) {
                    self.attempts.push(Attempt { lease, sent: None, effect: None });
                }
            }
            Move::Pass(seconds) => self.second += u64::from(seconds),
            Move::Send { attempt, delay } => {
                if let Some(attempt) = self.attempt(attempt)
                    && attempt.sent.is_none()
                    && now.at < attempt.lease.until
                {
                    attempt.sent = Some(second);
                    // An effect comes within the horizon, or not at all.
                    attempt.effect = delay.map(|delay| second + u64::from(delay));
                }
            }
            Move::Settle { attempt, knows } => {
                let Some(attempt) = self.attempt(attempt).cloned() else {
                    return;
                };
                let holder = attempt.lease.holder;
                let event = match (attempt.sent, Self::has_effect(&attempt, second)) {
                    // It never sent, and now never will: it is out of the lease's reach once released.
                    (None, _) => {
                        if let Some(own) = self.attempts.iter_mut().find(|a| a.lease.holder == holder) {
                            own.sent = Some(second);
                        }
                        release(holder)
                    }
                    (Some(_), true) if knows => complete(holder, 201),
                    (Some(_), _) => doubt(holder),
                };
                let _ = self.apply(&event);
            }
            Move::Renew(attempt) => {
                let Some(attempt) = self.attempt(attempt).cloned() else {
                    return;
                };
                let decision = self.apply(&renew(attempt.lease.holder));
                if let Decision::Renewed { until } = decision {
                    let holder = attempt.lease.holder;
                    self.attempts
                        .iter_mut()
                        .filter(|a| a.lease.holder == holder)
                        .for_each(|a| a.lease.until = until);
                }
            }
            Move::Sweep => {
                let _ = self.apply(&Event::Sweep);
            }
            Move::Ask => {
                let Some(row) = self.row.clone() else { return };
                let found = self
                    .attempts
                    .iter()
                    .any(|a| a.lease.holder.life == row.life && Self::has_effect(a, second));
                self.asked = Some(if found { happened(row.life, 201) } else { not_found(&row, now) });
            }
            Move::Deliver => {
                if let Some(event) = self.asked.take() {
                    let _ = self.apply(&event);
                }
            }
            Move::Webhook(attempt) => {
                let Some(attempt) = self.attempt(attempt).cloned() else {
                    return;
                };
                if Self::has_effect(&attempt, second) {
                    let _ = self.apply(&happened(attempt.lease.holder.life, 201));
                }
            }
            Move::CleanUp => {
                let n = self.fresh();
                let over = self.row.as_ref().map(|row| row.version);
                let _ = self.apply(&Event::CleanUp { arrival: arrival(n), over });
            }
            Move::Reap => {
                let _ = self.apply(&reap());
            }
        }
    }

    /// At most one effect a life, ever: also those still on their way.
    fn check(&self) {
        for attempt in self.attempts.iter().filter(|a| a.effect.is_some()) {
            let life = attempt.lease.holder.life;
            let effects = self.attempts.iter().filter(|a| a.lease.holder.life == life && a.effect.is_some());
            assert!(effects.count() <= 1, "a second effect: {:?}", self.attempts);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn no_walk_finds_a_second_effect_or_a_changed_answer(walk in proptest::collection::vec(moves(), 1..60)) {
        let mut world = World::new();
        for step in walk {
            world.make(step);
            world.check();
        }
    }
}

/// The walk can fail: with the horizon rule taken back (a horizon of zero), it finds the late effect of attack 1.
#[test]
fn the_walk_finds_attack_1_when_the_horizon_lies() {
    let mut world = World::new();
    let trace = [
        Move::Arrive,
        Move::Send { attempt: 0, delay: Some(50) },
        Move::Settle { attempt: 0, knows: true },
        Move::Pass(1),
        Move::Ask,
        Move::Deliver,
        Move::Arrive,
        Move::Send { attempt: 1, delay: Some(0) },
    ];
    for (n, step) in trace.into_iter().enumerate() {
        world.make(step);
        if n == 0
            && let Some(row) = &mut world.row
        {
            row.terms.horizon = Some(Duration::ZERO);
        }
    }
    let effects = world.attempts.iter().filter(|a| a.effect.is_some()).count();
    assert_eq!(effects, 2, "a provider later than its declared horizon is a limit that remains");
}
