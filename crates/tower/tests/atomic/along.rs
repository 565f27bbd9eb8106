//! A dedicated pool with more requests than connections: what closes one transaction opens the next one's, in one message. What becomes of either is its own.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::poll;
use oncegate_conformance::samples::{FAR_AHEAD, reserved};
use oncegate_core::policy::Profile;
use oncegate_store::join::{Call, Closed, Join as _, Opened, Opening, Transaction as _, Transactions as _};
use oncegate_store::{Effect, Write};
use oncegate_store_sql::PostgresStore;
use oncegate_store_sql::sqlx::{DedicatedTransaction, PgDedicated};
use oncegate_test_servers::{Cut, TcpProxy, until};
use sqlx::AssertSqlSafe;

use crate::base::{Base as _, OnDedicated};
use crate::client::within;
use crate::close::{calling, settled};
use crate::cut::{cut_under_load, expect_one_to_one, proxied_by};
use crate::dedicated::{opened, until_all_are_the_pools};
use crate::node::simple;
use crate::row::begun;

type Beginning = Pin<Box<dyn Future<Output = oncegate_store::Result<Opened<DedicatedTransaction>>> + Send>>;

type Closing = Pin<Box<dyn Future<Output = oncegate_store::Result<Closed<DedicatedTransaction>>> + Send>>;

/// One connection, behind a proxy.
struct Stage {
    base: OnDedicated,
    store: PostgresStore,
    pool: PgDedicated,
    proxy: TcpProxy,
}

impl Stage {
    async fn start() -> Self {
        let (base, proxy) = proxied_by::<OnDedicated>(1).await;
        let function = "CREATE FUNCTION {}.charge(VARIADIC keys text[]) RETURNS void LANGUAGE sql AS \
                        'INSERT INTO {}.charge SELECT unnest(keys)'";
        let place = &base.of.place;
        place.raw().await.batch_execute(&function.replace("{}", &place.schema)).await.unwrap();
        Self { store: base.store().await, pool: base.pool(), base, proxy }
    }

    fn opening(&self, key: u64) -> Opening {
        self.store.opening(reserved(&key.to_string(), 1, FAR_AHEAD).id).unwrap()
    }

    async fn opened(&self, key: u64) -> DedicatedTransaction {
        opened(&self.pool, self.opening(key)).await
    }

    /// One that waits for the connection, and is in the line for it.
    async fn waiting(&self, opening: Option<Opening>) -> Beginning {
        let pool = self.pool.clone();
        let mut beginning: Beginning = Box::pin(async move {
            match opening {
                Some(opening) => pool.begin_with(opening).await,
                None => pool.begin().await.map(Opened::Begun),
            }
        });
        assert!(poll!(&mut beginning).is_pending(), "the connection is another's");
        beginning
    }

    /// A commit whose message is on the way, and stays there until [`TcpProxy::flow`].
    async fn closing_on_the_way(&self, transaction: DedicatedTransaction, key: u64) -> Closing {
        self.proxy.stall();
        let mut closing: Closing = Box::pin(transaction.commit_with(self.closing(key)));
        assert!(poll!(&mut closing).is_pending());
        closing
    }

    /// A statement that stands for the row, and says that it was committed.
    fn closing(&self, key: u64) -> Call {
        calling(&format!("{}.charge", self.base.of.place.schema), &format!("('{key}')"))
    }
}

fn is_committed(closed: oncegate_store::Result<Closed<DedicatedTransaction>>) -> bool {
    matches!(closed.unwrap(), Closed::Committed)
}

/// Which session it is, which of its transactions, and how many locks it has.
async fn seen(transaction: &mut DedicatedTransaction) -> (i32, String, i64) {
    let text = "SELECT pg_backend_pid(), txid_current()::text, (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' \
                AND pid = pg_backend_pid())";
    sqlx::query_as(text).fetch_one(&mut **transaction).await.unwrap()
}

/// One round trip for both; and they are two transactions, each with its own key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closing_opens_the_next_one() {
    let stage = Stage::start().await;
    let mut first = stage.opened(1).await;
    let of_first = seen(&mut first).await;
    let second = stage.waiting(Some(stage.opening(2))).await;
    let third = stage.waiting(None).await;
    let before = stage.proxy.round_trips();
    assert!(is_committed(first.commit_with(stage.closing(1)).await));
    let mut second = begun(second.await.unwrap());
    assert_eq!(stage.proxy.round_trips() - before, 1);
    assert_eq!(stage.base.charges().await, ["1"]);
    let of_second = seen(&mut second).await;
    assert_eq!((of_first.0, of_first.2), (of_second.0, 1), "one session, and one lock at a time");
    assert_ne!(of_first.1, of_second.1, "a transaction of its own");
    // A beginning that takes no key has its turn like any other.
    assert!(is_committed(second.commit_with(stage.closing(2)).await));
    let mut third = begun(third.await.unwrap());
    assert_eq!(seen(&mut third).await.2, 0);
    third.roll_back().await;
    assert_eq!(stage.base.charges().await, ["1", "2"]);
    until_all_are_the_pools(&stage.pool).await;
}

/// The one that waits finds its key used, by the very transaction that takes it along or by another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_opening_that_fails_takes_no_commit_back() {
    let stage = Stage::start().await;
    let schema = &stage.base.of.place.schema;
    let first = stage.opened(1).await;
    let occupied = stage.waiting(Some(stage.opening(2))).await;
    let (mut other, key) = (stage.base.of.pool().0.acquire().await.unwrap(), stage.opening(2));
    let mut holder = sqlx::Connection::begin(&mut *other).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(key.or_fail)).execute(&mut *holder).await.unwrap();
    assert!(is_committed(first.commit_with(stage.closing(1)).await));
    assert!(matches!(occupied.await.unwrap(), Opened::Occupied));
    assert_eq!(stage.base.charges().await, ["1"]);
    // The connection is as good as before: it is the next one's, in no transaction of another's.
    let third = stage.opened(3).await;
    let unknown = calling(&format!("{schema}.nobody_has_made_this"), "()");
    let unable = stage.waiting(Some(Opening { or_fail: unknown.in_full(), or_tell: unknown })).await;
    assert!(is_committed(third.commit_with(stage.closing(3)).await));
    assert!(matches!(unable.await.unwrap(), Opened::Unable));
    assert_eq!(stage.base.charges().await, ["1", "3"]);
    until_all_are_the_pools(&stage.pool).await;
}

/// What fails is in the server's log, with the other's key and answer. So an occupied key is no failure, on a connection that somebody had before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_opening_with_anothers_closing_tells_and_does_not_fail() {
    let stage = Stage::start().await;
    let telling = |key: u64| Opening { or_fail: "SELECT 1 / 0".to_owned(), ..stage.opening(key) };
    let first = stage.opened(1).await;
    let (second, used) = (stage.waiting(Some(telling(2))).await, stage.waiting(Some(telling(1))).await);
    let row = settled("1", b"{}");
    let closing = stage.store.closing(&Write::insert(Arc::new(row))).unwrap();
    assert!(is_committed(first.commit_with(closing).await));
    let second = begun(second.await.unwrap());
    assert!(is_committed(second.commit_with(stage.closing(2)).await));
    assert!(matches!(used.await.unwrap(), Opened::Occupied));
    let mut next = stage.opened(3).await;
    assert_eq!(seen(&mut next).await.2, 1, "its own key, and no other");
}

/// The handler has begun a COPY, and has not waited for its end: sqlx takes what the server says of that for the answer to what is sent next. Nobody is told that a commit was
/// acknowledged which was not, and nobody has that connection any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_out_of_step_is_nobodys() {
    for is_along in [false, true] {
        let stage = Stage::start().await;
        let mut first = stage.opened(1).await;
        let session = seen(&mut first).await.0;
        let second = if is_along { Some(stage.waiting(Some(stage.opening(2))).await) } else { None };
        let copy = format!("COPY {}.charge FROM STDIN", stage.base.of.place.schema);
        let mut copy = first.copy_in_raw(&copy).await.unwrap();
        copy.send(&b"copied\n"[..]).await.unwrap();
        stage.proxy.stall();
        let mut finishing = Box::pin(copy.finish());
        assert!(poll!(&mut finishing).is_pending());
        drop(finishing);
        stage.proxy.flow();
        let error = first.commit_with(stage.closing(1)).await.unwrap_err();
        assert_eq!(error.effect(), Effect::Unknown, "{error}");
        let mut second = match second {
            Some(second) => begun(within(second).await.unwrap()),
            None => stage.opened(2).await,
        };
        assert_ne!(seen(&mut second).await.0, session);
        assert!(is_committed(second.commit_with(stage.closing(2)).await));
        // It had arrived: whoever looks for it finds it.
        until("what was sent is there", async || stage.base.charges().await == ["1", "2", "copied"]).await;
    }
}

/// The row is refused, or what it closes fails at the commit: the other begins all the same, after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closing_that_fails_opens_nothing() {
    let stage = Stage::start().await;
    let schema = &stage.base.of.place.schema;
    let deferred =
        format!("ALTER TABLE {schema}.charge ADD CONSTRAINT once UNIQUE (key) DEFERRABLE INITIALLY DEFERRED");
    stage.base.of.place.raw().await.batch_execute(&deferred).await.unwrap();
    let twice = calling(&format!("{schema}.charge"), "('1', '1')");
    for closing in [calling("1 / abs", "(0)"), twice] {
        let first = stage.opened(1).await;
        let second = stage.waiting(Some(stage.opening(2))).await;
        let error = first.commit_with(closing).await.unwrap_err();
        assert_eq!(error.effect(), Effect::None, "{error}");
        let mut second = begun(within(second).await.unwrap());
        assert_eq!(seen(&mut second).await.2, 1, "its own key, and no other");
        second.roll_back().await;
    }
    assert_eq!(stage.base.charges().await, [""; 0]);
    until_all_are_the_pools(&stage.pool).await;
}

/// It has left before it was taken along, or while its opening was on the way: nothing is left of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_has_left_holds_nothing() {
    let stage = Stage::start().await;
    let first = stage.opened(1).await;
    drop(stage.waiting(Some(stage.opening(2))).await);
    assert!(is_committed(first.commit_with(stage.closing(1)).await));
    let third = stage.opened(3).await;
    let fourth = stage.waiting(Some(stage.opening(4))).await;
    let closing = stage.closing_on_the_way(third, 3).await;
    drop(fourth);
    stage.proxy.flow();
    assert!(is_committed(within(closing).await));
    assert_eq!(stage.base.charges().await, ["1", "3"]);
    until_all_are_the_pools(&stage.pool).await;
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
    assert_eq!(sqlx::query_scalar::<_, i64>(locks).fetch_one(stage.pool.pool()).await.unwrap(), 0);
    stage.opened(4).await.roll_back().await;
}

/// Whoever waits for the commit gives up; the other's transaction was on the same message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closing_that_is_given_up_still_opens_the_other() {
    let stage = Stage::start().await;
    let first = stage.opened(1).await;
    let second = stage.waiting(Some(stage.opening(2))).await;
    let closing = stage.closing_on_the_way(first, 1).await;
    drop(closing);
    stage.proxy.flow();
    let second = begun(within(second).await.unwrap());
    assert!(is_committed(second.commit_with(stage.closing(2)).await));
    assert_eq!(stage.base.charges().await, ["1", "2"]);
}

/// The connection is lost with the message on it, or before: that is the first one's doubt, and nobody else's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_cut_is_in_doubt_for_one_and_not_for_the_other() {
    for cut in [Cut::BeforeSending, Cut::AfterSending] {
        let stage = Stage::start().await;
        let first = stage.opened(1).await;
        // It takes no key: whose it was the server may still believe in.
        let second = stage.waiting(None).await;
        stage.proxy.cut_at(b"COMMIT", 1, cut);
        let error = first.commit_with(stage.closing(1)).await.unwrap_err();
        assert_eq!(error.effect(), Effect::Unknown, "{error}");
        let second = begun(within(second).await.unwrap());
        assert!(is_committed(second.commit_with(stage.closing(2)).await));
        let committed = usize::from(cut == Cut::AfterSending);
        until("what was committed is there", async || stage.base.charges().await.len() == 1 + committed)
            .await;
    }
}

/// Load on few connections, and one COMMIT after the other cut in either way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_cut_under_load_leave_rows_and_keys_one_to_one() {
    let (base, proxy) = proxied_by::<OnDedicated>(2).await;
    let node = simple(&base, Profile::Ietf).await;
    // Its opening was on the message that was cut, and the server has not noticed yet that nobody is there.
    let refusals = &[(503, "store_unavailable"), (409, "in_progress")];
    cut_under_load(&node, &proxy, 12, 9, refusals).await;
    assert_eq!(expect_one_to_one(&base).await.len(), 24 * 12);
}
