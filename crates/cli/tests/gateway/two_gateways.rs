//! Two gateways on one PostgreSQL are as one.

use oncegate_test_servers::wait_until;
use tokio::task::JoinSet;

use crate::client::within;
use crate::reply::Reply;
use crate::upstream::Upstream;
use crate::world::{Place, another_charge, charge};

const RACERS: usize = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_race_over_both_runs_once_and_its_answer_is_replayed_by_both() {
    let (place, upstream) = (Place::postgres(), Upstream::start().await);
    let (a, b) = (place.start(&upstream.url(), ""), place.start(&upstream.url(), ""));
    upstream.shut();
    let mut racers = JoinSet::new();
    for number in 0..RACERS {
        let address = if number % 2 == 0 { a.address } else { b.address };
        racers.spawn(async move { charge("key-1").send(address).await });
    }
    // All but one are told while that one is still at work.
    let mut refused = 0;
    while refused < RACERS - 1 {
        let reply = within(racers.join_next()).await.expect("one is left").unwrap();
        reply.expect_problem(409, "in_progress");
        refused += 1;
    }
    upstream.wait_for_waiting(1);
    upstream.open();
    let first = within(racers.join_next()).await.expect("one is left").unwrap();
    assert_eq!((first.status, first.is_replay()), (201, false), "{first:?}");
    for gateway in [&a, &b, &a] {
        let again = charge("key-1").send(gateway.address).await;
        assert!(again.is_replay(), "{again:?}");
        assert_eq!(again.in_common(), first.in_common());
        another_charge("key-1").send(gateway.address).await.expect_problem(422, "key_reused");
    }
    assert_eq!((upstream.acted("key-1"), upstream.requests()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn races_without_a_referee_run_once_each() {
    const ROUNDS: usize = 20;
    let (place, upstream) = (Place::postgres(), Upstream::start().await);
    let (a, b) = (place.start(&upstream.url(), ""), place.start(&upstream.url(), ""));
    let mut refused = 0;
    for round in 0..ROUNDS {
        let mut racers = JoinSet::new();
        for number in 0..RACERS {
            let address = if (number + round) % 2 == 0 { a.address } else { b.address };
            racers.spawn(async move { charge(&format!("key-{round}")).send(address).await });
        }
        let replies: Vec<Reply> = within(racers.join_all()).await;
        let firsts: Vec<_> =
            replies.iter().filter(|reply| reply.status == 201 && !reply.is_replay()).collect();
        assert_eq!(firsts.len(), 1, "round {round}");
        for reply in replies.iter().filter(|reply| !std::ptr::eq(*reply, firsts[0])) {
            if reply.status == 201 {
                assert_eq!(reply.in_common(), firsts[0].in_common());
            } else {
                reply.expect_problem(409, "in_progress");
                refused += 1;
            }
        }
    }
    assert_eq!(upstream.effects().len(), ROUNDS);
    assert_eq!(upstream.requests(), ROUNDS, "{:?}", upstream.effects());
    println!(
        "{ROUNDS} races of {RACERS}: {} requests upstream, {refused} refused meanwhile",
        upstream.requests()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_at_one_is_answered_when_the_other_is_done() {
    let more = "[defaults]\nprofile = \"lenient\"\nwait_limit = \"10m\"\n";
    let (place, upstream) = (Place::postgres(), Upstream::start().await);
    let (a, b) = (place.start(&upstream.url(), more), place.start(&upstream.url(), more));
    upstream.shut();
    let mut first = charge("key-1").open(a.address).await;
    upstream.wait_for_waiting(1);
    let mut second = charge("key-1").open(b.address).await;
    wait_until("the other gateway knows that it has to wait", || {
        b.metric("api_idempotency_reserve_in_progress_count") >= 1.0
    });
    assert!(second.is_silent(), "it waits");
    upstream.open();
    let (first, second) = (first.reply().await.unwrap(), second.reply().await.unwrap());
    assert_eq!((first.status, first.is_replay(), second.is_replay()), (201, false, true));
    assert_eq!(first.in_common(), second.in_common());
    assert_eq!((upstream.acted("key-1"), upstream.requests()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_one_is_killed_at_work_the_other_knows_and_does_not_guess() {
    let more = "[defaults]\nlease = \"1s\"\n";
    let (place, upstream) = (Place::postgres(), Upstream::start().await);
    let (a, b) = (place.start(&upstream.url(), more), place.start(&upstream.url(), more));
    upstream.shut();
    let client = charge("key-1").open(a.address).await;
    upstream.wait_for_waiting(1);
    charge("key-1").send(b.address).await.expect_problem(409, "in_progress");
    another_charge("key-1").send(b.address).await.expect_problem(422, "key_reused");
    a.kill_9();
    drop(client);
    upstream.open();
    assert_eq!(b.count("in_progress"), 1, "as it was when its holder died");
    // Through the rest of its lease it is in progress; then nobody knows.
    charge("key-1").send_until_settled(b.address).await.expect_problem(409, "outcome_unknown");
    assert_eq!(b.state("key-1"), "unknown");
    assert_eq!((upstream.acted("key-1"), upstream.requests()), (1, 1));
    let a = place.start(&upstream.url(), more);
    charge("key-1").send(a.address).await.expect_problem(409, "outcome_unknown");
    assert_eq!(upstream.requests(), 1);
}
