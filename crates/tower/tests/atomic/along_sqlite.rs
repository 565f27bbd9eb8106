//! On SQLite, by a dedicated pool: the call that commits one transaction begins the next.

use std::cmp::Ordering;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use futures_util::poll;
use oncegate_conformance::samples::{FAR_AHEAD, reserved};
use oncegate_core::identity::RecordId;
use oncegate_core::policy::Profile;
use oncegate_store::drive::read_one;
use oncegate_store::join::{
    After, Closed, Connection as _, First, Join as _, Joined, Last, Opened, Transaction as _, Transactions,
    Turn, Waited,
};
use oncegate_store::{Effect, Result, Store as _};
use oncegate_store_sql::SqliteStore;
use oncegate_store_sql::sqlx::{
    SqliteDedicated, SqliteDedicatedTransaction, SqliteTransactions, SqlxTransaction,
};
use oncegate_test_servers::until;
use sqlx::Sqlite;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

use crate::base::{Base as _, OnSqlite, OnSqliteDedicated};
use crate::client::{Call, within};
use crate::close::{insert, settled};
use crate::counted::{Count, Counted};
use crate::last;
use crate::node::{LONG, Node, Work};
use crate::stage::Gate;

type Stage = last::Stage<SqliteDedicated>;
/// One that waits for its turn, and is in the line for it.
type Waiting<'s> = Pin<Box<dyn Future<Output = Waited<SqliteDedicatedTransaction>> + Send + 's>>;

fn id(key: &str) -> RecordId {
    settled(key, b"{}").id
}

fn last(store: &SqliteStore, key: &str) -> Last {
    store.last(&insert(&settled(key, b"{}"))).unwrap()
}

/// A transaction that has its key, the turn, and a charge.
async fn begun(stage: &Stage, key: &str) -> SqliteDedicatedTransaction {
    let Waited::Turn(turn) = within(stage.pool.wait(&stage.store, id(key))).await else {
        panic!("nobody has taken it along");
    };
    let opened = stage.pool.begin_first(stage.store.first(id(key)).unwrap(), turn).await;
    charged(stage, key, opened).await
}

async fn charged(
    stage: &Stage,
    key: &str,
    opened: Result<Opened<SqliteDedicatedTransaction>>,
) -> SqliteDedicatedTransaction {
    let Opened::Begun(mut transaction) = opened.unwrap() else { panic!("{key} is new") };
    stage.base.charge(&mut transaction, key).await.unwrap();
    transaction
}

async fn waiting<'s>(stage: &'s Stage, key: &str) -> Waiting<'s> {
    let mut waiting: Waiting<'s> = Box::pin(stage.pool.wait(&stage.store, id(key)));
    assert!(poll!(&mut waiting).is_pending(), "the turn is another's");
    waiting
}

/// What came of the beginning of one that was taken along.
async fn along(waiting: Waiting<'_>) -> Result<Opened<SqliteDedicatedTransaction>> {
    match within(waiting).await {
        Waited::Along(opened) => opened,
        Waited::Turn(_) => panic!("it was taken along"),
    }
}

/// The turn of one that was not.
async fn turn(waiting: Waiting<'_>) -> Turn {
    match within(waiting).await {
        Waited::Turn(turn) => turn,
        Waited::Along(_) => panic!("it was not taken along"),
    }
}

async fn commit(stage: &Stage, transaction: SqliteDedicatedTransaction, key: &str) {
    let closed = within(transaction.commit_after(last(&stage.store, key))).await.unwrap();
    assert!(matches!(closed, Closed::Committed));
}

/// How many rows there are, but for the one that every stage begins with.
async fn rows(stage: &Stage) -> i64 {
    let text = "SELECT count(*) - 1 FROM record";
    sqlx::query_scalar(text).fetch_one(&stage.base.pool().0).await.unwrap()
}

/// Whether somebody else could write now.
async fn is_held(stage: &Stage) -> bool {
    let mut other = stage.base.pool().0.acquire().await.unwrap();
    sqlx::query("PRAGMA busy_timeout = 0").execute(&mut *other).await.unwrap();
    let begun = sqlx::query("BEGIN IMMEDIATE").execute(&mut *other).await.is_ok();
    if begun {
        sqlx::query("ROLLBACK").execute(&mut *other).await.unwrap();
    }
    !begun
}

/// They are two transactions, one after the other: the first is there for all to see, the second not before its own end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_begins_the_next_one() {
    let stage = Stage::start().await;
    let first = begun(&stage, "1").await;
    let (second, third) = (waiting(&stage, "2").await, waiting(&stage, "3").await);
    commit(&stage, first, "1").await;
    let second = charged(&stage, "2", along(second).await).await;
    assert_eq!(stage.base.charges().await, ["1"]);
    assert!(is_held(&stage).await, "it has begun");
    assert_eq!(read_one(&stage.base.store().await, id("1")).await.unwrap(), Some(settled("1", b"{}")));
    // By whoever has waited longest, and by nobody else's turn.
    commit(&stage, second, "2").await;
    let third = charged(&stage, "3", along(third).await).await;
    third.roll_back().await;
    assert_eq!(stage.base.charges().await, ["1", "2"]);
    assert_eq!(rows(&stage).await, 2);
    for key in ["1", "2"] {
        assert_eq!(read_one(&stage.store, id(key)).await.unwrap(), Some(settled(key, b"{}")));
    }
    assert!(!is_held(&stage).await);
    stage.is_as_ever("after").await;
}

/// Another transaction has written its row; or it is the very key that is committed; or it was
/// committed before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_not_new_has_begun_nothing() {
    let stage = Stage::start().await;
    let mut other = stage.base.pool().begin().await.unwrap();
    let joined = stage.store.join(&mut other, &insert(&settled("used", b"{}"))).await.unwrap();
    assert_eq!(joined, Joined::Written);
    other.commit().await.unwrap();
    let first = begun(&stage, "1").await;
    let (used, twin) = (waiting(&stage, "used").await, waiting(&stage, "2").await);
    commit(&stage, first, "1").await;
    assert!(matches!(along(used).await.unwrap(), Opened::Occupied));
    assert!(!is_held(&stage).await);
    // Its turn has ended with that.
    let opened = stage.pool.begin_first(stage.store.first(id("2")).unwrap(), turn(twin).await).await;
    let second = charged(&stage, "2", opened).await;
    let (twin, known) = (waiting(&stage, "2").await, waiting(&stage, "1").await);
    commit(&stage, second, "2").await;
    assert!(turn(twin).await.waiting().is_some());
    assert!(turn(known).await.waiting().is_some());
    assert_eq!(stage.base.charges().await, ["1", "2"]);
    stage.is_as_ever("after").await;
}

/// In the same call, but another process has come between the commit and the beginning: its row may be the key's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_process_has_written_in_between_is_noticed() {
    let stage = Stage::start().await;
    let closing = last(&stage.store, "1");
    let first = closing.after.first(id("2")).unwrap();
    let values = [&closing.values[..], &first.values].concat();
    let is_new = async || {
        let mut transaction = stage.base.pool().begin().await.unwrap();
        let told = transaction.ask(first.sql, &values).await.unwrap();
        transaction.roll_back().await;
        told.first().unwrap().number == Some(1)
    };
    assert!(is_new().await);
    let transaction = stage.base.pool().begin().await.unwrap();
    assert!(matches!(transaction.commit_after(closing).await.unwrap(), Closed::Committed));
    assert!(is_new().await);
    let another = stage.base.store().await;
    assert_eq!(another.apply(&[insert(&reserved("2", 2, FAR_AHEAD))]).await.unwrap().len(), 1);
    assert!(!is_new().await);
}

/// The row is refused, because another process has taken the key: nothing of the call is left, and
/// the waiting handler is still the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_is_refused_begins_nothing() {
    let stage = Stage::start().await;
    let closing = last(&stage.store, "1");
    let another = stage.base.store().await;
    let turn_of_first = stage.store.turn().await;
    assert_eq!(another.apply(&[insert(&reserved("1", 2, FAR_AHEAD))]).await.unwrap().len(), 1);
    let opened = stage.pool.begin_first(stage.store.first(id("free")).unwrap(), turn_of_first).await;
    let first = charged(&stage, "1", opened).await;
    let (mut second, mut third) = (waiting(&stage, "2").await, waiting(&stage, "3").await);
    let Closed::Unable(mut first) = within(first.commit_after(closing)).await.unwrap() else {
        panic!("its key is taken");
    };
    assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
    assert_eq!(stage.store.join(&mut first, &insert(&settled("1", b"{}"))).await.unwrap(), Joined::Refused);
    first.roll_back().await;
    assert_eq!(stage.base.charges().await, Vec::<String>::new());
    let second_turn = turn(second).await;
    assert!(poll!(&mut third).is_pending(), "it has waited less long");
    drop(second_turn);
    assert!(turn(third).await.waiting().is_some());
}

/// By hand, or by a statement that failed badly. Whoever waited has the turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_transaction_has_ended_nothing_is_begun() {
    let stage = Stage::start().await;
    for (n, end) in ["ROLLBACK", "INSERT OR ROLLBACK INTO charge VALUES (NULL)"].into_iter().enumerate() {
        let key = format!("lost {n}");
        let mut first = begun(&stage, &key).await;
        let second = waiting(&stage, "next").await;
        let _ = first.ask(end, &[]).await;
        let error = within(first.commit_after(last(&stage.store, &key))).await.unwrap_err();
        assert_eq!(error.effect(), Effect::Unknown, "it is looked for: {error}");
        assert_eq!(read_one(&stage.store, id(&key)).await.unwrap(), None);
        drop(turn(second).await);
        stage.is_as_ever(&format!("after {n}")).await;
    }
    assert_eq!(stage.base.charges().await, ["after 0", "after 1"]);
}

/// A store's word about a commit, with this statement for the next one.
struct Saying(Box<dyn After>, &'static str);

impl After for Saying {
    fn committed(&self) {
        self.0.committed();
    }

    fn first(&self, id: RecordId) -> Option<First> {
        self.0.first(id).map(|first| First { sql: self.1, ..first })
    }
}

fn saying(last: Last, sql: &'static str) -> Last {
    Last { after: Box::new(Saying(last.after, sql)), ..last }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_beginning_that_fails_takes_no_commit_back() {
    let stage = Stage::start().await;
    let first = begun(&stage, "1").await;
    let (second, third) = (waiting(&stage, "2").await, waiting(&stage, "3").await);
    let closing = saying(last(&stage.store, "1"), "SELECT number FROM nobody_has_made_this");
    assert!(matches!(within(first.commit_after(closing)).await.unwrap(), Closed::Committed));
    assert_eq!(along(second).await.unwrap_err().effect(), Effect::None);
    assert_eq!(stage.base.charges().await, ["1"]);
    assert_eq!(read_one(&stage.store, id("1")).await.unwrap(), Some(settled("1", b"{}")));
    drop(turn(third).await);
    stage.is_as_ever("after").await;
}

/// Another process may hold the file by then: that is the other's to wait for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_committed_does_not_wait_for_the_other_to_begin() {
    let mut stage = Stage::start().await;
    // It stands still where it compares.
    let (go_on, stopped) = std::sync::mpsc::channel::<()>();
    let stopped = Arc::new(Mutex::new(stopped));
    let compare = move |_: &str, _: &str| {
        let _ = stopped.lock().unwrap().recv();
        Ordering::Equal
    };
    let options = SqliteConnectOptions::new().filename(stage.base.path()).collation("slowly", compare);
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    stage.pool = SqliteDedicated::new(pool);
    let first = begun(&stage, "1").await;
    let mut second = waiting(&stage, "2").await;
    let closing = saying(last(&stage.store, "1"), "SELECT 1 AS number WHERE 'it' = 'not it' COLLATE slowly");
    assert!(matches!(within(first.commit_after(closing)).await.unwrap(), Closed::Committed));
    assert!(poll!(&mut second).is_pending(), "it has not begun");
    assert_eq!(read_one(&stage.store, id("1")).await.unwrap(), Some(settled("1", b"{}")));
    go_on.send(()).unwrap();
    let second = charged(&stage, "2", along(second).await).await;
    commit(&stage, second, "2").await;
    assert_eq!(stage.base.charges().await, ["1", "2"]);
}

/// A client has hung up, or a limit has passed: before it was taken along, after that, or on the other side.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_has_left_is_in_nobodys_way() {
    let stage = Stage::start().await;
    let first = begun(&stage, "1").await;
    let (left, next) = (waiting(&stage, "left").await, waiting(&stage, "2").await);
    drop(left);
    commit(&stage, first, "1").await;
    let second = charged(&stage, "2", along(next).await).await;

    // Taken along, and gone before it has begun: it is rolled back, and the turn is the next one's.
    let (left, next) = (waiting(&stage, "left").await, waiting(&stage, "3").await);
    let mut closing = Box::pin(second.commit_after(last(&stage.store, "2")));
    let closed = poll!(&mut closing);
    drop(left);
    let closed = match closed {
        Poll::Ready(closed) => closed,
        Poll::Pending => within(closing).await,
    };
    assert!(matches!(closed.unwrap(), Closed::Committed));
    let next = turn(next).await;
    let opened = within(stage.pool.begin_first(stage.store.first(id("3")).unwrap(), next)).await;
    let third = charged(&stage, "3", opened).await;

    // Nobody waits for the commit, which is the other's beginning, too.
    let next = waiting(&stage, "4").await;
    let mut closing = Box::pin(third.commit_after(last(&stage.store, "3")));
    let _ = poll!(&mut closing);
    drop(closing);
    let fourth = charged(&stage, "4", along(next).await).await;
    commit(&stage, fourth, "4").await;
    assert_eq!(stage.base.charges().await, ["1", "2", "3", "4"]);
    assert_eq!(rows(&stage).await, 4);
}

/// Somebody else has the pool's connection. Whoever does not wait for it any longer is in nobody's way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_for_a_connection_in_vain_takes_its_turn_along() {
    let stage = Stage::start().await;
    let others = stage.pool.pool().acquire().await.unwrap();
    let first = stage.store.first(id("1")).unwrap();
    let mut beginning = Box::pin(stage.pool.begin_first(first, stage.store.turn().await));
    assert!(poll!(&mut beginning).is_pending());
    drop(beginning);
    assert!(poll!(&mut Box::pin(stage.store.turn())).is_ready());
    drop(others);
    stage.is_as_ever("after").await;
}

/// A batch of the engine's that came first is not passed over, however many handlers wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_passed_over() {
    let stage = Stage::start().await;
    let first = begun(&stage, "1").await;
    let mut engines = Box::pin(stage.store.turn());
    assert!(poll!(&mut engines).is_pending());
    let mut second = waiting(&stage, "2").await;
    commit(&stage, first, "1").await;
    let engines = within(engines).await;
    assert!(poll!(&mut second).is_pending(), "it came later");
    drop(engines);
    let opened = stage.pool.begin_first(stage.store.first(id("2")).unwrap(), turn(second).await).await;
    charged(&stage, "2", opened).await.roll_back().await;
}

/// One whose turn is its caller's has none to hand on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_was_begun_without_its_key_takes_nobody_along() {
    let stage = Stage::start().await;
    let callers = stage.store.turn().await;
    let mut first = stage.pool.begin().await.unwrap();
    stage.base.charge(&mut first, "1").await.unwrap();
    let mut second = waiting(&stage, "2").await;
    commit(&stage, first, "1").await;
    assert!(poll!(&mut second).is_pending());
    drop(callers);
    drop(turn(second).await);
}

/// A pool that is closed gives out nothing more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_is_closed_takes_nobody_along() {
    let stage = Stage::start().await;
    let first = begun(&stage, "1").await;
    let second = waiting(&stage, "2").await;
    let pool = stage.pool.pool().clone();
    let closing = tokio::spawn(async move { pool.close().await });
    until("it is closed", async || stage.pool.pool().is_closed()).await;
    commit(&stage, first, "1").await;
    let opened = stage.pool.begin_first(stage.store.first(id("2")).unwrap(), turn(second).await).await;
    assert_eq!(opened.unwrap_err().effect(), Effect::None);
    drop(stage);
    within(closing).await.unwrap();
}

/// A service under load: whoever waits begins with the commit before it, and nobody asks for a turn of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_that_wait_are_taken_along_one_after_the_other() {
    let base = OnSqliteDedicated::start().await;
    let (gate, count) = (Gate::new(), Arc::new(Count::default()));
    let pool = Counted { inner: base.pool(), count: Arc::clone(&count) };
    let at_gate = gate.clone();
    let handler = move |mut work: Work<OnSqliteDedicated, Counted<SqliteDedicated>>| {
        let gate = at_gate.clone();
        async move {
            work.charge().await.unwrap();
            if work.key() == "first" {
                gate.pass().await;
            }
            format!("run {}", work.run)
        }
    };
    let node = Node::with(&base, pool, Profile::Ietf, LONG, handler).await;
    let call = |key: &str| Call::post("/charges").key(key);
    // A process looks at the file before it knows what is new.
    call("warm").send(node.addr).await.expect_first(200, "run 1");
    let mut first = call("first").open(node.addr).await;
    gate.entered().await;
    let mut others = Vec::new();
    for n in 0..8 {
        others.push(call(&format!("other-{n}")).open(node.addr).await);
        until("it is in the line", async || count.waited() == n + 1).await;
    }
    gate.open();
    within(first.reply()).await.unwrap().expect_first(200, "run 2");
    for (n, other) in others.iter_mut().enumerate() {
        // In the order in which they came.
        within(other.reply()).await.unwrap().expect_first(200, &format!("run {}", n + 3));
    }
    assert_eq!((count.waited(), count.along(), count.committed()), (8, 8, 10));
    assert_eq!(base.charges().await.len(), 10);
}

/// A library that would look first, and cannot.
struct Unable(SqliteTransactions);

impl Transactions for Unable {
    type Transaction = SqlxTransaction<Sqlite>;

    async fn begin(&self) -> Result<Self::Transaction> {
        self.0.begin().await
    }

    const LOOKS_FIRST: bool = true;
}

/// Nobody has looked for the row then; its handler must not run for nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nothing_was_tried_the_row_is_looked_for() {
    let base = OnSqlite::start().await;
    let node = Node::with(&base, Unable(base.pool()), Profile::Ietf, LONG, Work::done).await;
    let call = |key: &str| Call::post("/charges").key(key);
    call("warm").send(node.addr).await.expect_first(200, "run 1");
    // Of another service, which has left it in the table of which nothing is remembered.
    let other = Node::with(&base, base.pool(), Profile::Ietf, LONG, |mut work: Work<OnSqlite>| async move {
        work.charge().await.unwrap();
        work.tx.enqueue("charge", &1).unwrap();
        "done"
    });
    call("used").send(other.await.addr).await.expect_first(200, "done");
    call("used").send(node.addr).await.expect_replay(200, "done");
    assert_eq!((node.runs(), base.charges().await.len()), (1, 2));
}
