//! What a provider says of an attempt: before, during and after it, twice, in any order, of another life, of nobody at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use oncegate_core::audit::Act;
use oncegate_core::decide::Notice;
use oncegate_core::identity::{Fence, RecordId, Token};
use oncegate_core::record::{Record, StateKind};
use oncegate_core::response::Answer;
use oncegate_core::time::Now;
use oncegate_engine::{
    About, Arrived, Asking, Engine, Heard, Life, Message, NoProbe, NodeClock, Options, Pass, Patience, Probe,
    Says, Worker, WorkerOptions,
};
use oncegate_store::faulty::Fault;
use oncegate_store::memory::MemoryStore;
use oncegate_store::{Apart, Store, Write};

use crate::crew::{
    Script, acts, doubt_of, doubted, named, node, not_known, pass, reconcile, story, with_status,
};
use crate::world::{
    HOUR, Hand, Shaky, answer, complete, completed, done, doubt, held, id, ietf, release, replayed, request,
    route, row, shaky_on, start, state,
};

const SECOND: Duration = Duration::from_secs(1);

/// A message about whichever life there is.
pub(crate) fn message(id: RecordId, says: Says) -> Message {
    Message {
        name: "evt_1".into(),
        about: About::Record(id),
        life: Life::Any,
        source: "stripe".into(),
        reference: Some("ch_1".into()),
        says,
    }
}

fn happened(id: RecordId, status: u16) -> Message {
    message(id, Says::Happened(with_status(status)))
}

/// It happened, says the provider of what it calls by this name.
fn by_reference(reference: &str) -> Message {
    let about = About::Reference(reference.into());
    Message { about, ..happened(id(&ietf(), "not looked at"), 201) }
}

fn failed(id: RecordId) -> Message {
    message(id, Says::Failed)
}

async fn hear(engine: &Engine<Shaky>, message: &Message) -> Heard {
    engine.hear(message, HOUR, &NoProbe).await.unwrap()
}

async fn kept_apart(engine: &Engine<Shaky>) -> usize {
    engine.store().apart(None, 100).await.unwrap().len()
}

// ---- Before there is a record ----------------------------------------------------------------------------------------

/// It is kept, once, and applied when the record appears: here as evidence, because the attempt runs.
#[tokio::test]
async fn a_message_before_its_record_is_kept_and_applied_when_it_appears() {
    let (engine, _, hand) = node().await;
    let route = ietf();
    let message = happened(id(&route, "k"), 201);
    for _ in 0..2 {
        assert_eq!(hear(&engine, &message).await, Heard::KeptApart);
        hand.turn(SECOND);
    }
    assert_eq!(kept_apart(&engine).await, 1);
    assert_eq!(pass(&engine, Worker::Apart).await.changed, 0, "still nobody");
    let mut holder = held(&engine, &route, "k").await;
    holder.begin().unwrap();
    assert_eq!(pass(&engine, Worker::Apart).await.changed, 1);
    assert_eq!(kept_apart(&engine).await, 0);
    done_or_fenced(holder.settle(doubt()).await);
    assert_eq!(replayed(&engine, &route, "k").await.status(), 201);
    assert_eq!(row(&engine, id(&route, "k")).await.provider_reference.as_deref(), Some("ch_1"));
}

fn done_or_fenced(settled: oncegate_engine::Settled) {
    drop(settled);
}

#[tokio::test]
async fn a_message_whose_record_never_appears_is_dropped_at_its_end() {
    let (engine, _, hand) = node().await;
    assert_eq!(hear(&engine, &happened(id(&ietf(), "k"), 201)).await, Heard::KeptApart);
    hand.turn(HOUR);
    hand.turn_back(Duration::from_micros(1));
    assert_eq!(pass(&engine, Worker::Apart).await.changed, 0);
    hand.turn(Duration::from_micros(1));
    assert_eq!(pass(&engine, Worker::Apart).await.changed, 1);
    assert_eq!(kept_apart(&engine).await, 0);
}

/// At its very end it is still applied, if the record is there.
#[tokio::test]
async fn a_message_at_its_end_is_applied_if_its_record_is_there() {
    let (engine, _, hand) = node().await;
    let route = ietf();
    hear(&engine, &happened(id(&route, "k"), 201)).await;
    doubted(&engine, &route, "k").await;
    hand.turn(2 * HOUR);
    assert_eq!(pass(&engine, Worker::Apart).await.changed, 1);
    assert_eq!(state(&engine, id(&route, "k")).await, StateKind::Completed);
}

/// It names the provider's charge, which no record has heard of yet. It is kept, once, until one has: here by an event that named the
/// key. Money that moved then weighs more than the refusal.
#[tokio::test]
async fn a_message_by_a_reference_that_nobody_has_learnt_is_kept_until_somebody_has() {
    let (engine, _, hand) = node().await;
    let (route, paid) = (ietf(), by_reference("ch_1"));
    for _ in 0..2 {
        assert_eq!(hear(&engine, &paid).await, Heard::KeptApart);
        hand.turn(SECOND);
    }
    assert_eq!(kept_apart(&engine).await, 1);
    let mut holder = held(&engine, &route, "k").await;
    holder.begin().unwrap();
    assert_eq!(pass(&engine, Worker::Apart).await.changed, 0, "still nobody");
    let declined = happened(id(&route, "k"), 402);
    assert_eq!(hear(&engine, &declined).await, Heard::KeptAsEvidence);
    assert_eq!(pass(&engine, Worker::Apart).await.changed, 1);
    assert_eq!(kept_apart(&engine).await, 0);
    done_or_fenced(holder.settle(doubt()).await);
    assert_eq!(replayed(&engine, &route, "k").await.status(), 201);
    assert_eq!(hear(&engine, &paid).await, Heard::Confirmed, "and from now on it is known");
}

#[tokio::test]
async fn a_message_by_a_reference_that_nobody_ever_learns_is_dropped_at_its_end() {
    let (engine, _, hand) = node().await;
    assert_eq!(hear(&engine, &by_reference("ch_1")).await, Heard::KeptApart);
    doubted(&engine, &ietf(), "k").await;
    hand.turn(HOUR);
    assert_eq!(pass(&engine, Worker::Apart).await.changed, 1);
    assert_eq!(kept_apart(&engine).await, 0);
    assert_eq!(state(&engine, id(&ietf(), "k")).await, StateKind::Unknown, "it was about another");
}

/// A provider tells of everything that it does, also for others. Each reference is a question to the store: so many in a pass, and the
/// next one goes on from there.
#[tokio::test]
async fn references_that_nobody_learns_are_looked_for_a_few_at_a_time() {
    const MANY: usize = 600;
    let (engine, _, hand) = node().await;
    for n in 0..MANY {
        let name = format!("evt_{n}").into();
        hear(&engine, &Message { name, ..by_reference(&format!("ch_{n}")) }).await;
        hand.turn(Duration::from_micros(1));
    }
    let mut seen = Vec::new();
    for _ in 0..4 {
        let passed = pass(&engine, Worker::Apart).await;
        assert!(!passed.more, "nothing came of it, so it can wait");
        seen.push(passed.seen);
    }
    assert_eq!(seen, [256, 256, 88, 256]);
}

/// A patience in which nobody is asked a second time by itself.
fn asked_rarely() -> Patience {
    Patience { backoff: HOUR, backoff_max: HOUR, ..Patience::default() }
}

/// It was answered "nothing to do", and forgotten. It is kept, once, and wakes the probe of the record that has appeared and is in doubt.
#[tokio::test]
async fn a_negative_before_its_record_is_kept_and_wakes_the_probe() {
    let (engine, _, hand) = node().await;
    let route = ietf();
    for _ in 0..2 {
        assert_eq!(hear(&engine, &failed(id(&route, "k"))).await, Heard::KeptApart);
        hand.turn(SECOND);
    }
    assert_eq!(kept_apart(&engine).await, 1);
    let id = doubted(&engine, &route, "k").await;
    reconcile(&engine, &Script::finding([not_known()]).with(asked_rarely())).await;
    assert!(doubt_of(&engine, id).await.reconcile_after > hand.now());
    assert_eq!(pass(&engine, Worker::Apart).await.changed, 1);
    assert_eq!(kept_apart(&engine).await, 0);
    assert_eq!(doubt_of(&engine, id).await.reconcile_after, hand.now(), "woken");
    assert_eq!(acts(&engine, id).await, [Act::Doubted, Act::NotKnown, Act::Woken]);
}

/// The record appears while its attempt runs: there is nobody to wake, and whatever falls into doubt is asked about at once.
#[tokio::test]
async fn a_negative_whose_record_appears_in_progress_has_nobody_to_wake() {
    let (engine, _, hand) = node().await;
    let route = ietf();
    assert_eq!(hear(&engine, &failed(id(&route, "k"))).await, Heard::KeptApart);
    let mut holder = held(&engine, &route, "k").await;
    holder.begin().unwrap();
    assert_eq!(pass(&engine, Worker::Apart).await.changed, 1);
    assert_eq!(kept_apart(&engine).await, 0);
    done(holder, doubt()).await;
    assert_eq!(doubt_of(&engine, id(&route, "k")).await.reconcile_after, hand.now());
}

/// The last word on an attempt whose record is not there, or not yet: kept while that attempt runs, and applied when it ends in doubt.
#[tokio::test]
async fn a_final_negative_before_its_record_is_kept_and_settles_the_attempt_that_it_names() {
    let (engine, _, hand) = node().await;
    let route = ietf();
    let fence = Fence::next(None, hand.now());
    let id = id(&route, "k");
    assert_eq!(hear(&engine, &message(id, Says::FailedForGood(fence))).await, Heard::KeptApart);
    let mut holder = held(&engine, &route, "k").await;
    assert_eq!(holder.fence(), fence);
    holder.begin().unwrap();
    assert_eq!(pass(&engine, Worker::Apart).await.changed, 0);
    assert_eq!(kept_apart(&engine).await, 1, "it does not hold yet");
    done(holder, doubt()).await;
    assert_eq!(pass(&engine, Worker::Apart).await.changed, 1);
    assert_eq!((state(&engine, id).await, kept_apart(&engine).await), (StateKind::FailedRetryable, 0));
}

/// Attack 4, for what was kept apart: an attempt that began after the event is not the one that it names.
#[tokio::test]
async fn a_final_negative_before_its_record_does_not_settle_an_attempt_that_begins_after_it() {
    let (engine, _, hand) = node().await;
    let route = ietf();
    let older = Fence::next(None, hand.now());
    assert_eq!(hear(&engine, &message(id(&route, "k"), Says::FailedForGood(older))).await, Heard::KeptApart);
    hand.turn(SECOND);
    let id = doubted(&engine, &route, "k").await;
    reconcile(&engine, &Script::finding([not_known()]).with(asked_rarely())).await;
    assert_eq!(pass(&engine, Worker::Apart).await.changed, 1);
    assert_eq!((state(&engine, id).await, kept_apart(&engine).await), (StateKind::Unknown, 0));
    assert_eq!(doubt_of(&engine, id).await.reconcile_after, hand.now(), "it only wakes the probe");
    assert_eq!(story(&engine, id).await.pop().unwrap().notices, [Notice::NegativeDropped]);
}

/// Nobody missed anything.
#[tokio::test]
async fn a_negative_whose_record_never_appears_is_dropped_at_its_end() {
    let (engine, _, hand) = node().await;
    for says in [Says::Failed, Says::FailedForGood(Fence::from_raw(1))] {
        let message = Message { name: format!("{says:?}").into(), ..message(id(&ietf(), "k"), says) };
        assert_eq!(hear(&engine, &message).await, Heard::KeptApart);
    }
    hand.turn(HOUR);
    assert_eq!(pass(&engine, Worker::Apart).await.changed, 2);
    assert_eq!(kept_apart(&engine).await, 0);
}

/// More than one page of them, and only some have their records.
#[tokio::test]
async fn all_that_is_kept_apart_is_looked_through() {
    const MANY: usize = 200;
    let (engine, _, hand) = node().await;
    let route = ietf();
    for n in 0..MANY {
        let id = id(&route, &format!("k-{n}"));
        let name = format!("evt_{n}").into();
        hear(&engine, &Message { name, ..happened(id, 201) }).await;
        hand.turn(Duration::from_micros(1));
    }
    for n in (0..MANY).step_by(2) {
        doubted(&engine, &route, &format!("k-{n}")).await;
    }
    let passed = pass(&engine, Worker::Apart).await;
    assert_eq!((passed.seen, passed.changed), (MANY, MANY / 2));
    assert_eq!(engine.store().counts().await.unwrap().completed, MANY as u64 / 2);
}

/// A provider tells of much that never comes by here. A pass takes its part, asks for the records a page at a time, and the next one goes
/// on from there: what is behind all of that has its turn.
#[tokio::test]
async fn a_pass_over_what_is_kept_apart_is_bounded_and_gone_on_with() {
    let (engine, store, hand) = node().await;
    let route = ietf();
    let of = |key: &str| Message { name: key.into(), ..happened(id(&route, key), 201) };
    hear(&engine, &of("never seen")).await;
    let apart = engine.store().apart(None, 1).await.unwrap().remove(0);
    for n in 1..5_000 {
        let apart = Apart {
            name: format!("evt_{n}").into(),
            at: apart.at.plus(Duration::from_micros(n)),
            ..apart.clone()
        };
        store.keep_apart(&apart).await.unwrap();
    }
    hand.turn(SECOND);
    hear(&engine, &of("last")).await;
    doubted(&engine, &route, "last").await;
    let first = pass(&engine, Worker::Apart).await;
    assert!(!first.more && first.seen < 5_000 && first.changed == 0, "{first:?}");
    let second = pass(&engine, Worker::Apart).await;
    assert_eq!((first.seen + second.seen, second.changed), (5_001, 1));
    assert_eq!(state(&engine, id(&route, "last")).await, StateKind::Completed);
    // From the beginning again.
    assert_eq!(pass(&engine, Worker::Apart).await.seen, first.seen);
}

/// Bytes that nobody understands, as an older or newer release may have written them: the others go on, and they end in their time.
#[tokio::test]
async fn a_kept_message_that_cannot_be_read_hinders_no_other() {
    let (engine, store, hand) = node().await;
    let route = ietf();
    for (name, bytes) in [("empty", vec![]), ("noise", vec![1; 40]), ("newer", vec![99])] {
        let apart = Apart { name: name.into(), at: hand.now(), until: hand.now().plus(HOUR), bytes };
        store.keep_apart(&apart).await.unwrap();
    }
    hand.turn(SECOND);
    hear(&engine, &happened(id(&route, "k"), 201)).await;
    doubted(&engine, &route, "k").await;
    assert_eq!(pass(&engine, Worker::Apart).await.changed, 1);
    assert_eq!(state(&engine, id(&route, "k")).await, StateKind::Completed);
    assert_eq!(kept_apart(&engine).await, 3);
    hand.turn(HOUR);
    pass(&engine, Worker::Apart).await;
    assert_eq!(kept_apart(&engine).await, 0);
}

/// Every kind of message comes back from the store as it was.
#[tokio::test]
async fn a_kept_message_is_about_the_life_that_it_named() {
    for is_same in [true, false] {
        let (engine, _, hand) = node().await;
        let route = ietf();
        let lives: [fn(bool, Now) -> Life; 2] = [
            |_, _| Life::Named(Token::from_bytes([9; 16])),
            |is_same, now| Life::MadeAt(if is_same { now.at.plus(SECOND) } else { now.at }),
        ];
        for (n, life) in lives.iter().enumerate() {
            let key = format!("k-{n}");
            let life = life(is_same, engine.now());
            let name = key.clone().into();
            let message = Message { name, life: life.clone(), ..happened(id(&route, &key), 201) };
            assert_eq!(hear(&engine, &message).await, Heard::KeptApart);
            hand.turn(SECOND);
            doubted(&engine, &route, &key).await;
            pass(&engine, Worker::Apart).await;
            // Nobody's life is the named one; what may have been made when this life began is this life's.
            let is_applied = is_same && n == 1;
            let expected = if is_applied { StateKind::Completed } else { StateKind::Unknown };
            assert_eq!(state(&engine, id(&route, &key)).await, expected, "{life:?}");
        }
    }
}

/// The record appears after the message has looked for it, and before it is kept: whoever looked through what is kept apart has been
/// by already, or never will be. Here it appears while the message's moment is taken.
#[tokio::test]
async fn a_record_that_appears_between_the_look_and_the_keeping_hears_it() {
    let hand = Hand::new();
    let (elsewhere, route) = (start(shaky_on(&hand), named("elsewhere")).await, ietf());
    let id = doubted(&elsewhere, &route, "k").await;
    let appearing = Arc::new(row(&elsewhere, id).await);
    let store = MemoryStore::with_clock(hand.clock());
    let is_armed = Arc::new(AtomicBool::new(false));
    let clock = {
        let (hand, store, is_armed) = (hand.clone(), store.clone(), Arc::clone(&is_armed));
        NodeClock::from_fn(move || {
            if is_armed.swap(false, Ordering::SeqCst) {
                let write = Write::insert(Arc::clone(&appearing));
                store.apply(&[write]).now_or_never().unwrap().unwrap();
            }
            Now::exact(hand.now())
        })
    };
    let store = oncegate_store::faulty::Faulty::new(store);
    let engine = start(store, Options { clock: Some(clock), ..named("a") }).await;
    is_armed.store(true, Ordering::SeqCst);
    assert_eq!(hear(&engine, &happened(id, 201)).await, Heard::Settled);
    assert!(!is_armed.load(Ordering::SeqCst), "it has appeared");
    assert_eq!(kept_apart(&engine).await, 0);
    assert_eq!(replayed(&engine, &route, "k").await.status(), 201);
}

/// Keeps three bytes of an answer, and has nobody to ask.
struct Narrow;

impl Probe for Narrow {
    fn ask<'a>(&'a self, record: &'a Record) -> Asking<'a> {
        NoProbe.ask(record)
    }

    fn answer_bytes_max(&self, _record: &Record) -> u64 {
        3
    }
}

/// What happened is known; the bytes are not kept, whether the message is applied at once or when its record appears.
#[tokio::test]
async fn an_answer_over_the_limit_is_applied_without_its_bytes() {
    let (engine, _, _) = node().await;
    let route = ietf();
    for (key, body, is_kept) in [("small", "yes", true), ("large", "paid", false)] {
        for is_early in [false, true] {
            let key = format!("{key}-{is_early}");
            let message = message(id(&route, &key), Says::Happened(Arc::new(answer(body))));
            if is_early {
                assert_eq!(engine.hear(&message, HOUR, &Narrow).await.unwrap(), Heard::KeptApart);
                doubted(&engine, &route, &key).await;
                engine.work(Worker::Apart, &WorkerOptions::default(), &Narrow).await.unwrap();
            } else {
                doubted(&engine, &route, &key).await;
                assert_eq!(engine.hear(&message, HOUR, &Narrow).await.unwrap(), Heard::Settled);
            }
            let told = replayed(&engine, &route, &key).await;
            assert_eq!(matches!(*told, Answer::Kept(_)), is_kept, "{key}: {told:?}");
            assert_eq!(told.status(), 201, "{key}");
        }
    }
}

/// The store fails on the way: the provider is told so, and delivers again.
#[tokio::test]
async fn a_message_that_cannot_be_kept_is_not_acknowledged() {
    let (engine, store, _) = node().await;
    let message = happened(id(&ietf(), "k"), 201);
    for failing in 1..=2 {
        store.fail_reads(failing);
        assert!(engine.hear(&message, HOUR, &NoProbe).await.is_err());
        store.fail_reads(0);
    }
    assert_eq!(hear(&engine, &message).await, Heard::KeptApart);
}

/// A message about whose record the store always failed had every pass begin anew, and hid all behind it.
#[tokio::test]
async fn a_message_that_fails_hides_none_behind_it() {
    let (engine, store, hand) = node().await;
    let route = ietf();
    for key in ["one", "two"] {
        let message = Message { name: key.into(), ..happened(id(&route, key), 201) };
        assert_eq!(hear(&engine, &message).await, Heard::KeptApart);
        hand.turn(SECOND);
    }
    for key in ["one", "two"] {
        doubted(&engine, &route, key).await;
    }
    store.queue(Fault::BeforeWrite);
    let failed = engine.work(Worker::Apart, &WorkerOptions::default(), &NoProbe).await;
    assert!(failed.is_err(), "{failed:?}");
    assert_eq!(state(&engine, id(&route, "one")).await, StateKind::Unknown);
    // It goes on behind it, and then begins again.
    assert_eq!(pass(&engine, Worker::Apart).await, Pass { seen: 1, changed: 1, more: false });
    assert_eq!(state(&engine, id(&route, "two")).await, StateKind::Completed);
    pass(&engine, Worker::Apart).await;
    assert_eq!(state(&engine, id(&route, "one")).await, StateKind::Completed);
    assert_eq!(kept_apart(&engine).await, 0);
}

// ---- During the attempt ----------------------------------------------------------------------------------------------

/// Attack 6: acknowledged while the attempt runs; the node dies; nobody can be asked.
#[tokio::test]
async fn a_message_during_the_attempt_is_applied_when_it_ends_in_doubt() {
    let (engine, _, hand) = node().await;
    let route = ietf();
    let mut holder = held(&engine, &route, "k").await;
    holder.begin().unwrap();
    assert_eq!(hear(&engine, &happened(holder.id(), 201)).await, Heard::KeptAsEvidence);
    assert_eq!(hear(&engine, &happened(holder.id(), 201)).await, Heard::Nothing, "twice is once");
    let arrived = engine.arrive(&route, request(&route, "k")).await.unwrap();
    assert!(matches!(arrived, Arrived::Busy { .. }), "{arrived:?}");
    hand.turn(2 * route.policy().lease);
    pass(&engine, Worker::Sweeper).await;
    assert_eq!(replayed(&engine, &route, "k").await.status(), 201);
    assert_eq!(acts(&engine, holder.id()).await, [Act::Happened, Act::Lapsed]);
}

#[tokio::test]
async fn a_message_during_the_attempt_gives_way_to_its_own_answer() {
    let (engine, _, _) = node().await;
    let route = ietf();
    let holder = held(&engine, &route, "k").await;
    hear(&engine, &happened(holder.id(), 200)).await;
    done(holder, complete("the original bytes")).await;
    assert_eq!(*replayed(&engine, &route, "k").await, answer("the original bytes"));
    assert_eq!(row(&engine, id(&route, "k")).await.evidence, None);
}

/// A release says that nothing was executed, and the provider that something was: it was.
#[tokio::test]
async fn a_message_during_the_attempt_is_applied_when_its_holder_says_that_nothing_happened() {
    let (engine, _, _) = node().await;
    let route = ietf();
    let holder = held(&engine, &route, "k").await;
    hear(&engine, &happened(holder.id(), 201)).await;
    done_or_fenced(holder.settle(release()).await);
    assert_eq!(replayed(&engine, &route, "k").await.status(), 201);
}

/// A negative settles nothing that still runs. The last word on the very attempt is not acknowledged: it is said again when it holds.
#[tokio::test]
async fn a_negative_during_the_attempt_changes_nothing() {
    let (engine, _, _) = node().await;
    let route = ietf();
    let holder = held(&engine, &route, "k").await;
    let before = row(&engine, holder.id()).await;
    for (says, heard) in [
        (Says::Failed, Heard::Nothing),
        (Says::FailedForGood(Fence::from_raw(1)), Heard::Nothing),
        (Says::FailedForGood(holder.fence()), Heard::TooEarly),
    ] {
        assert_eq!(hear(&engine, &message(holder.id(), says)).await, heard);
    }
    assert_eq!(row(&engine, holder.id()).await, before);
    done(holder, complete("paid")).await;
}

// ---- After it --------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_message_after_a_doubt_settles_it_and_again_changes_nothing() {
    for status in [201, 402] {
        let (engine, _, hand) = node().await;
        let route = ietf();
        let id = doubted(&engine, &route, "k").await;
        assert_eq!(hear(&engine, &happened(id, status)).await, Heard::Settled);
        assert_eq!(replayed(&engine, &route, "k").await.status(), status);
        let settled = row(&engine, id).await;
        hand.turn(SECOND);
        assert_eq!(hear(&engine, &happened(id, status)).await, Heard::Confirmed);
        assert_eq!(row(&engine, id).await, settled);
        assert_eq!(
            acts(&engine, id).await,
            [Act::Doubted, Act::Happened],
            "what is known already is not told"
        );
        let entry = story(&engine, id).await.swap_remove(1);
        assert_eq!((entry.act, entry.source.as_deref()), (Act::Happened, Some("stripe")));
    }
}

#[tokio::test]
async fn a_message_after_a_completion_changes_nothing_and_only_a_contradiction_is_told() {
    for (says, heard, notice) in [
        (Says::Happened(with_status(200)), Heard::Confirmed, None),
        (Says::Happened(with_status(402)), Heard::Nothing, Some(Notice::Contradiction)),
        (Says::FailedForGood(Fence::from_raw(7)), Heard::Nothing, Some(Notice::Contradiction)),
        (Says::Failed, Heard::Nothing, None),
    ] {
        let (engine, _, _) = node().await;
        let route = ietf();
        completed(&engine, &route, "k", "paid").await;
        let (id, message) = (id(&route, "k"), message(id(&route, "k"), says));
        assert_eq!(hear(&engine, &message).await, heard);
        assert_eq!(*replayed(&engine, &route, "k").await, answer("paid"));
        let told: Vec<_> = story(&engine, id).await.into_iter().flat_map(|one| one.notices).collect();
        assert_eq!(told, Vec::from_iter(notice), "{message:?}");
    }
}

/// Attack 3: a wrong "did not happen" is put right, and told as an alarm.
#[tokio::test]
async fn a_message_after_a_wrong_release_settles_it() {
    let (engine, _, _) = node().await;
    let route = ietf();
    done(held(&engine, &route, "k").await, release()).await;
    assert_eq!(hear(&engine, &happened(id(&route, "k"), 201)).await, Heard::Settled);
    assert_eq!(replayed(&engine, &route, "k").await.status(), 201);
    let last = story(&engine, id(&route, "k")).await.pop().unwrap();
    assert_eq!(last.notices, [Notice::WronglyReleased]);
}

/// Attack 5, in either order.
#[tokio::test]
async fn happened_absorbs_failed_in_either_order() {
    for is_failed_first in [true, false] {
        for says in [None, Some(())] {
            let (engine, _, hand) = node().await;
            let route = ietf();
            let id = doubted(&engine, &route, "k").await;
            let fence = row(&engine, id).await.fence;
            let negative = message(id, says.map_or(Says::Failed, |()| Says::FailedForGood(fence)));
            let positive = happened(id, 201);
            let both = if is_failed_first { [&negative, &positive] } else { [&positive, &negative] };
            for message in both {
                hear(&engine, message).await;
                hand.turn(SECOND);
            }
            assert_eq!(replayed(&engine, &route, "k").await.status(), 201);
        }
    }
}

/// It proves nothing: the probe is asked now rather than later, and decides.
#[tokio::test]
async fn a_negative_that_is_not_final_only_wakes_the_probe() {
    let (engine, _, hand) = node().await;
    let id = doubted(&engine, &ietf(), "k").await;
    let probe = Script::finding([not_known()]).with(asked_rarely());
    reconcile(&engine, &probe).await;
    let asked = doubt_of(&engine, id).await;
    assert!(asked.reconcile_after > hand.now());
    assert_eq!(hear(&engine, &failed(id)).await, Heard::Woken);
    let woken = doubt_of(&engine, id).await;
    assert_eq!((woken.reconcile_after, woken.tries), (hand.now(), asked.tries), "it is no question");
    assert_eq!(hear(&engine, &failed(id)).await, Heard::Nothing, "it is due already");
    assert_eq!(acts(&engine, id).await, [Act::Doubted, Act::NotKnown, Act::Woken]);
    assert_eq!(story(&engine, id).await.pop().unwrap().source.as_deref(), Some("stripe"));
    assert_eq!(reconcile(&engine, &probe).await.seen, 1);
}

/// Attack 4: final of this very attempt it is believed; of an older one it only wakes the probe.
#[tokio::test]
async fn a_final_negative_settles_only_the_attempt_that_it_names() {
    let (engine, _, _) = node().await;
    let route = ietf();
    let first = held(&engine, &route, "k").await;
    let older = first.fence();
    done(first, release()).await;
    let id = doubted(&engine, &route, "k").await;
    let fence = row(&engine, id).await.fence;
    assert!(fence > older);
    let before = row(&engine, id).await.state.kind();
    assert_ne!(hear(&engine, &message(id, Says::FailedForGood(older))).await, Heard::Settled);
    assert_eq!(state(&engine, id).await, before);
    assert_eq!(story(&engine, id).await.pop().unwrap().notices, [Notice::NegativeDropped]);
    assert_eq!(hear(&engine, &message(id, Says::FailedForGood(fence))).await, Heard::Settled);
    assert_eq!(state(&engine, id).await, StateKind::FailedRetryable);
    done(held(&engine, &route, "k").await, complete("paid")).await;
}

/// A message about an older attempt wakes a probe that would be asked much later.
#[tokio::test]
async fn a_final_negative_of_an_older_attempt_wakes_the_probe() {
    let (engine, _, hand) = node().await;
    let id = doubted(&engine, &ietf(), "k").await;
    reconcile(&engine, &Script::finding([not_known()]).with(asked_rarely())).await;
    assert!(doubt_of(&engine, id).await.reconcile_after > hand.now());
    assert_eq!(hear(&engine, &message(id, Says::FailedForGood(Fence::from_raw(1)))).await, Heard::Woken);
    assert_eq!(doubt_of(&engine, id).await.reconcile_after, hand.now());
}

// ---- Of another life -------------------------------------------------------------------------------------------------

/// Attack 7: an effect of life 1 does not complete life 2, whether the message names its life or says when the effect was made.
#[tokio::test]
async fn a_message_about_another_life_settles_nothing_and_is_told() {
    let (engine, _, hand) = node().await;
    let route = route(|policy| policy.retention = HOUR);
    completed(&engine, &route, "k", "life 1").await;
    let first = row(&engine, id(&route, "k")).await;
    hand.turn(HOUR);
    let id = doubted(&engine, &route, "k").await;
    let second = row(&engine, id).await;
    let just_before = second.created_at.minus(Duration::from_micros(1));
    for life in [Life::Named(first.life), Life::MadeAt(first.created_at), Life::MadeAt(just_before)] {
        for says in [Says::Happened(with_status(201)), Says::Failed, Says::FailedForGood(second.fence)] {
            hand.turn(SECOND);
            let message = Message { life: life.clone(), ..message(id, says) };
            assert_eq!(hear(&engine, &message).await, Heard::AnotherLife, "{message:?}");
            assert_eq!(row(&engine, id).await, second, "{message:?}");
            assert_eq!(story(&engine, id).await.pop().unwrap().notices, [Notice::AnotherLife]);
        }
    }
    let made_at = Life::MadeAt(second.created_at);
    assert_eq!(hear(&engine, &Message { life: made_at, ..happened(id, 201) }).await, Heard::Settled);
    assert_eq!(replayed(&engine, &route, "k").await.status(), 201);
}

#[tokio::test]
async fn a_message_that_names_this_life_settles_it() {
    let (engine, _, _) = node().await;
    let id = doubted(&engine, &ietf(), "k").await;
    let life = Life::Named(row(&engine, id).await.life);
    assert_eq!(hear(&engine, &Message { life, ..happened(id, 201) }).await, Heard::Settled);
}
