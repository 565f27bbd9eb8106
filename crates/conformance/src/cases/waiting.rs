//! The cases about accepted work that waits: lines, their turns, and how much there is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use oncegate_core::record::{Record, State, StateKind};
use oncegate_core::scope::{Address, Operation, Scope};
use oncegate_core::time::Timestamp;
use oncegate_store::{Backlog, Doubts, Store, Turn, Waiting};

use super::{applied, fill, remove, swap};
use crate::Harness;
use crate::samples::{FAR_AHEAD, LONG_AGO, address, moved_to, reserved, reserved_at};

const JOBS: &str = "POST /jobs";

fn second(n: u64) -> Timestamp {
    LONG_AGO.plus(Duration::from_secs(n))
}

/// What `tenant` has waiting since that second. Each has a path of its own, and is in its tenant's line all the same.
fn waiting(tenant: &str, operation: &str, since: u64) -> Record {
    let key = format!("{operation} {since}");
    let path = Operation::new(&format!("{operation}/{since}")).expect("a valid path");
    let scope = Scope::tenant_and_operation(tenant, &path).expect("a valid tenant");
    let address = Address { scope, ..address(tenant, &key) };
    let mut row = moved_to(&reserved_at(address, since, LONG_AGO), StateKind::Pending, second(since));
    row.operation = Operation::new(operation).expect("a valid pattern");
    row
}

fn turn(limit: usize) -> Turn {
    Turn { operations: vec![Operation::new(JOBS).expect("a valid pattern")].into(), after: None, limit }
}

async fn take(store: &impl Store, turn: &mut Turn) -> Waiting {
    let waiting = store.waiting(turn, second(1_000)).await.expect("looked for");
    assert_eq!(waiting.scan.unreadable, 0);
    turn.after.clone_from(&waiting.next);
    waiting
}

fn tenants(waiting: &Waiting) -> Vec<&str> {
    waiting.scan.records.iter().map(|row| row.address.scope.tenant_str()).collect()
}

pub async fn lines_take_turns<H: Harness>(harness: H) {
    let store = harness.open().await;
    // The busy one was there first, with everything.
    let mut rows: Vec<_> = (0..40).rev().map(|n| waiting("busy", JOBS, n)).collect();
    rows.extend([100, 101].map(|n| waiting("small", JOBS, n)));
    rows.push(waiting("rare", JOBS, 200));
    fill(&store, &rows).await;
    let whole = take(&store, &mut turn(8)).await;
    assert!(whole.is_round, "all lines were looked at");
    let mut first: Vec<_> = tenants(&whole)[..3].to_vec();
    first.sort_unstable();
    assert_eq!(first, ["busy", "rare", "small"], "one of each before a second of any");
    assert_eq!(tenants(&whole)[5..], ["busy"; 3], "what is left goes to whoever has something");
    let mut of_each: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for row in &whole.scan.records {
        of_each.entry(row.address.scope.tenant_str()).or_default().push(row);
    }
    for (tenant, since) in [("busy", vec![0, 1, 2, 3, 4]), ("small", vec![100, 101]), ("rare", vec![200])] {
        let expected: Vec<_> = since.into_iter().map(|n| waiting(tenant, JOBS, n)).collect();
        assert!(of_each[tenant].iter().copied().eq(&expected), "{tenant}'s, oldest first and whole");
    }
    // One at a time: each has every third turn.
    let mut one = turn(1);
    let mut called = Vec::new();
    for _ in 0..6 {
        called.extend(tenants(&take(&store, &mut one).await).into_iter().map(str::to_owned));
    }
    assert_eq!(called[..3], called[3..], "round and round");
    assert_eq!(called[..3].iter().collect::<BTreeSet<_>>().len(), 3, "{called:?}");
}

pub async fn no_line_is_passed_over<H: Harness>(harness: H) {
    let store = harness.open().await;
    // More lines than a turn looks at, most of them with nothing due, or nothing that was asked for.
    let mut rows = Vec::new();
    for n in 0..700 {
        let tenant = format!("tenant-{n}");
        rows.push(match n % 3 {
            0 => waiting(&tenant, "POST /others", 5),
            1 => waiting(&tenant, JOBS, 2_000 + n),
            _ => waiting(&tenant, JOBS, n),
        });
    }
    fill(&store, &rows).await;
    let mut turn = turn(32);
    let mut seen = BTreeMap::new();
    let mut turns = 0;
    while seen.len() < 233 {
        turns += 1;
        assert!(turns <= 20, "{} of 233 after {turns} turns", seen.len());
        for row in take(&store, &mut turn).await.scan.records {
            *seen.entry(row.address.scope.tenant_str().to_owned()).or_insert(0) += 1;
        }
    }
    assert!(seen.values().all(|times| *times <= 2), "none a third time before another's first: {seen:?}");
}

pub async fn only_what_waits_is_called<H: Harness>(harness: H) {
    let store = harness.open().await;
    let (due, later) = (waiting("a", JOBS, 10), waiting("a", JOBS, 5_000));
    let (others, lone) = (waiting("a", "POST /others", 1), waiting("b", JOBS, 6_000));
    fill(&store, &[later.clone(), others.clone(), due.clone(), lone]).await;
    let given =
        async |turn: &Turn| store.waiting(turn, second(1_000)).await.expect("looked for").scan.records;
    assert_eq!(given(&turn(8)).await, std::slice::from_ref(&due));
    assert_eq!(given(&turn(0)).await, []);
    assert_eq!(given(&Turn { operations: Vec::new().into(), ..turn(8) }).await, []);
    let both = Turn { operations: vec![others.operation.clone(), due.operation.clone()].into(), ..turn(8) };
    let mut found: Vec<_> = given(&both).await.into_iter().map(|row| row.id).collect();
    let mut expected = [due.id, others.id];
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
    // Taken, and queued again for later: it waits behind.
    let taken = moved_to(&due, StateKind::InProgress, FAR_AHEAD);
    applied(&store, &[swap(&due, &taken)]).await;
    assert_eq!(given(&turn(8)).await, []);
    let again = moved_to(&taken, StateKind::Pending, second(900));
    let sooner = moved_to(&later, StateKind::Pending, second(800));
    applied(&store, &[swap(&taken, &again), swap(&later, &sooner)]).await;
    assert_eq!(given(&turn(8)).await, [sooner.clone(), again.clone()]);
    let over = moved_to(&sooner, StateKind::Completed, FAR_AHEAD);
    applied(&store, &[swap(&sooner, &over)]).await;
    assert_eq!(given(&turn(8)).await, [again]);
}

pub async fn the_backlog_is_true<H: Harness>(harness: H) {
    let store = harness.open().await;
    let backlog = async || store.backlog().await.expect("counted");
    assert_eq!(backlog().await, Backlog::default());
    let rows = [waiting("a", JOBS, 30), waiting("b", JOBS, 10), waiting("a", "POST /others", 20)];
    fill(&store, &rows).await;
    assert_eq!(backlog().await, Backlog { rows: 3, oldest: Some(second(10)) });
    let taken = moved_to(&rows[1], StateKind::InProgress, FAR_AHEAD);
    let over = moved_to(&rows[2], StateKind::Completed, FAR_AHEAD);
    applied(&store, &[swap(&rows[1], &taken), swap(&rows[2], &over)]).await;
    assert_eq!(backlog().await, Backlog { rows: 1, oldest: Some(second(30)) });
}

pub async fn the_doubts_are_true<H: Harness>(harness: H) {
    let store = harness.open().await;
    let doubts = async || store.doubts().await.expect("counted");
    let backlog = |rows, oldest: Option<u64>| Backlog { rows, oldest: oldest.map(second) };
    assert_eq!(doubts().await, Doubts::default());
    // The one that came first has been unknown for the shortest time; and when each is asked about next says nothing.
    let since = |n: u64, base: &Record, is_parked: bool| {
        let mut row = moved_to(base, StateKind::Unknown, second(1_000 - n));
        if let State::Unknown(doubt) = &mut row.state {
            (doubt.since, doubt.parked) = (second(n), is_parked);
        }
        row
    };
    let base = |n: u64| reserved(&format!("doubt-{n}"), n, LONG_AGO);
    let rows = [since(40, &base(1), false), since(10, &base(2), false), since(30, &base(3), true), base(4)];
    fill(&store, &rows).await;
    assert_eq!(doubts().await, Doubts { open: backlog(3, Some(10)), parked: backlog(1, Some(30)) });
    // Through every way a record can go.
    let parked = since(10, &rows[1], true);
    let again = since(30, &rows[2], false);
    let doubted = since(5, &rows[3], false);
    applied(&store, &[swap(&rows[1], &parked), swap(&rows[2], &again), swap(&rows[3], &doubted)]).await;
    assert_eq!(doubts().await, Doubts { open: backlog(4, Some(5)), parked: backlog(1, Some(10)) });
    let over = [
        swap(&parked, &moved_to(&parked, StateKind::Completed, FAR_AHEAD)),
        swap(&doubted, &moved_to(&doubted, StateKind::FailedRetryable, FAR_AHEAD)),
        swap(&again, &moved_to(&again, StateKind::InProgress, FAR_AHEAD)),
    ];
    applied(&store, &over).await;
    assert_eq!(doubts().await, Doubts { open: backlog(1, Some(40)), parked: backlog(0, None) });
    let soon = moved_to(&rows[0], StateKind::Completed, second(50));
    applied(&store, &[swap(&rows[0], &soon), remove(&soon)]).await;
    assert_eq!(doubts().await, Doubts::default());
}
