//! The short way to end on SQLite: the row and the commit are one call of the thread that owns the connection.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures_util::poll;
use oncegate_conformance::samples::{FAR_AHEAD, entry, reserved};
use oncegate_core::audit::Act;
use oncegate_store::drive::read_one;
use oncegate_store::join::{
    Closed, Connection as _, First, Join as _, Joined, Opened, Transaction, Transactions, Turn,
};
use oncegate_store::{Effect, Store as _, Write};
use oncegate_store_sql::SqliteStore;
use oncegate_store_sql::sqlx::{SqliteDedicated, SqliteTransactions};
use oncegate_test_servers::until;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{SqliteConnection, SqlitePool};

use crate::base::{Base as _, OnSqlite};
use crate::close::{insert, settled};

/// How a service has its one connection.
pub(crate) trait Owns:
    Transactions<Transaction: Transaction<Inner = SqliteConnection> + Debug>
{
    fn of(pool: SqlitePool) -> Self;
    fn pool(&self) -> &SqlitePool;
}

impl Owns for SqliteTransactions {
    fn of(pool: SqlitePool) -> Self {
        Self(pool)
    }

    fn pool(&self) -> &SqlitePool {
        &self.0
    }
}

impl Owns for SqliteDedicated {
    fn of(pool: SqlitePool) -> Self {
        Self::new(pool)
    }

    fn pool(&self) -> &SqlitePool {
        Self::pool(self)
    }
}

/// One test, by a pool of each kind.
macro_rules! by_both {
    ($($(#[$attribute:meta])* async fn $name:ident<$pool:ident: Owns>() $body:block)*) => {
        $($(#[$attribute])* async fn $name<$pool: Owns>() $body)*

        mod by_a_shared_pool {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<super::SqliteTransactions>().await;
            })*
        }

        mod by_a_dedicated_pool {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<super::SqliteDedicated>().await;
            })*
        }
    };
}

/// A service of one connection: what it leaves behind is what the next one finds.
pub(crate) struct Stage<P> {
    pub(crate) base: OnSqlite,
    pub(crate) store: SqliteStore,
    pub(crate) pool: P,
}

impl<P: Owns> Stage<P> {
    pub(crate) async fn start() -> Self {
        let base = OnSqlite::start().await;
        let options = SqliteConnectOptions::new()
            .filename(base.path())
            .foreign_keys(true)
            .busy_timeout(Duration::from_millis(100))
            .synchronous(SqliteSynchronous::Full);
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
        let store = base.store().await;
        // What a process remembers of the file it has read when it first writes.
        assert_eq!(store.apply(&[insert(&reserved("warm", 9, FAR_AHEAD))]).await.unwrap().len(), 1);
        Self { store, pool: P::of(pool), base }
    }

    /// A transaction that has charged.
    async fn charged(&self, key: &str) -> P::Transaction {
        let mut transaction = self.pool.begin().await.unwrap();
        self.base.charge(&mut transaction, key).await.unwrap();
        transaction
    }

    /// The whole of one, by the short way, on the connection that the one before has left.
    pub(crate) async fn is_as_ever(&self, key: &str) {
        let row = settled(key, b"{}");
        let transaction = self.charged(key).await;
        assert_eq!(read_one(&self.store, row.id).await.unwrap(), None);
        let last = self.store.last(&insert(&row)).unwrap();
        assert!(matches!(transaction.commit_after(last).await.unwrap(), Closed::Committed));
        assert_eq!(read_one(&self.store, row.id).await.unwrap(), Some(row));
        assert!(self.base.charges().await.contains(&key.to_owned()));
    }
}

by_both! {
    async fn a_row_is_written_as_the_long_way_writes_it_and_the_connection_comes_back_as_it_was<P: Owns>() {
        let stage = Stage::<P>::start().await;
        stage.is_as_ever("short").await;
        let long = settled("long", b"{}");
        let mut transaction = stage.charged("long").await;
        assert_eq!(stage.store.join(&mut transaction, &insert(&long)).await.unwrap(), Joined::Written);
        transaction.commit().await.unwrap();
        assert_eq!(read_one(&stage.store, long.id).await.unwrap(), Some(long));
        for key in ["third", "fourth"] {
            stage.is_as_ever(key).await;
        }
        assert_eq!(stage.base.charges().await, ["fourth", "long", "short", "third"]);
        // Each has an answer, and a place of its own in the order of arrival, one after the other.
        let places = "SELECT count(*), count(DISTINCT seq), max(seq) - min(seq) FROM record WHERE state = 2";
        let places: (i64, i64, i64) = sqlx::query_as(places).fetch_one(stage.pool.pool()).await.unwrap();
        assert_eq!(places, (4, 4, 3));
    }

    async fn what_is_not_the_usual_row_goes_the_long_way<P: Owns>() {
        let stage = Stage::<P>::start().await;
        let row = settled("k", b"{}");
        assert!(stage.store.last(&insert(&row)).is_some());
        let told = insert(&row).telling(Some(entry(&row, FAR_AHEAD, Act::Completed)));
        assert!(stage.store.last(&told).is_none(), "it has something to tell");
        let swap = Write::swap(row.version, Arc::new(row.clone()));
        assert!(stage.store.last(&swap).is_none(), "it takes another's place");
    }

    /// By a row of another's, by a row of the happy path that this process does not know of, and by the commit itself: nothing of the call is left, and the transaction goes on.
    async fn whoever_is_refused_has_committed_nothing_and_goes_on<P: Owns>() {
        let stage = Stage::<P>::start().await;
        let first = settled("first", b"first");
        stage.is_as_ever("before").await;
        let last = stage.store.last(&insert(&settled("first", b"second"))).unwrap();
        let mut other = stage.base.pool().begin().await.unwrap();
        assert_eq!(stage.store.join(&mut other, &insert(&first)).await.unwrap(), Joined::Written);
        other.commit().await.unwrap();
        let mut transaction = stage.charged("second").await;
        // What was inserted last is nobody's place, so nothing but the guard is in the way of an answer.
        let far = "INSERT INTO charge (rowid, key) VALUES (1000000, 'far')";
        let _ = transaction.ask(far, &[]).await.unwrap();
        let Closed::Unable(mut transaction) = transaction.commit_after(last).await.unwrap() else {
            panic!("there is a row");
        };
        assert_eq!(
            stage.store.join(&mut transaction, &insert(&settled("first", b"second"))).await.unwrap(),
            Joined::Refused
        );
        transaction.roll_back().await;
        assert_eq!(read_one(&stage.store, first.id).await.unwrap(), Some(first));
        assert_eq!(stage.base.charges().await, ["before"]);

        // What another process has written meanwhile is nothing to this key.
        let (late, other) = (settled("late", b"{}"), reserved("other", 2, FAR_AHEAD));
        let last = stage.store.last(&insert(&late)).unwrap();
        let another = stage.base.store().await;
        assert_eq!(another.apply(&[insert(&other)]).await.unwrap().len(), 1);
        let closed = stage.charged("late").await.commit_after(last).await.unwrap();
        assert!(matches!(closed, Closed::Committed));
        assert_eq!(stage.base.charges().await, ["before", "late"]);

        // The commit is refused: a reference to nothing.
        let table = "CREATE TABLE child (of INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)";
        for text in ["CREATE TABLE parent (id INTEGER PRIMARY KEY)", table] {
            sqlx::query(text).execute(stage.pool.pool()).await.unwrap();
        }
        let orphan = settled("orphan", b"{}");
        let mut transaction = stage.charged("orphan").await;
        let _ = transaction.ask("INSERT INTO child VALUES (17)", &[]).await.unwrap();
        let last = stage.store.last(&insert(&orphan)).unwrap();
        let Closed::Unable(transaction) = transaction.commit_after(last).await.unwrap() else {
            panic!("it cannot be committed");
        };
        transaction.roll_back().await;
        assert_eq!(read_one(&stage.store, orphan.id).await.unwrap(), None);
        stage.is_as_ever("after").await;
        assert_eq!(stage.base.charges().await, ["after", "before", "late"]);
    }

    /// By hand, or by a statement that failed badly: the row must not be written by itself.
    async fn where_the_transaction_has_ended_nothing_is_written_and_the_connection_is_as_ever<P: Owns>() {
        let stage = Stage::<P>::start().await;
        for (n, end) in
            ["ROLLBACK", "COMMIT", "INSERT OR ROLLBACK INTO charge VALUES (NULL)"].into_iter().enumerate()
        {
            let row = settled(&format!("lost {n}"), b"{}");
            let mut transaction = stage.charged(row.address.key.as_str()).await;
            let last = stage.store.last(&insert(&row)).unwrap();
            let _ = transaction.ask(end, &[]).await;
            let error = transaction.commit_after(last).await.unwrap_err();
            assert_eq!(error.effect(), Effect::Unknown, "it is looked for: {error}");
            assert_eq!(read_one(&stage.store, row.id).await.unwrap(), None);
            stage.is_as_ever(&format!("next {n}")).await;
        }
    }

    /// What sqlx counts then is a nested transaction of one that is gone. With a pool of one connection, nobody could ever begin again.
    async fn a_nested_transaction_that_is_gone_with_the_outer_one_leaves_the_connection_as_ever<P: Owns>() {
        let stage = Stage::<P>::start().await;
        for nested in 1..=3 {
            let row = settled(&format!("lost {nested}"), b"{}");
            let mut transaction = stage.charged(row.address.key.as_str()).await;
            for _ in 0..nested {
                let inner = sqlx::Connection::begin(&mut *transaction).await.unwrap();
                // Not ended by its own value, as where that fails.
                std::mem::forget(inner);
            }
            let badly = "INSERT OR ROLLBACK INTO charge VALUES (NULL)";
            sqlx::query(badly).execute(&mut *transaction).await.unwrap_err();
            let last = stage.store.last(&insert(&row)).unwrap();
            assert_eq!(transaction.commit_after(last).await.unwrap_err().effect(), Effect::Unknown);
            stage.is_as_ever(&format!("next {nested}")).await;
        }
        assert_eq!(stage.base.charges().await, ["next 1", "next 2", "next 3"]);
    }

    /// sqlx would have ended the innermost in place of the outer one: by the long way a client was told of a commit that there was none of, and the next one's was held up by the short.
    async fn nested_transactions_that_nobody_has_ended_are_part_of_what_is_committed<P: Owns>() {
        let stage = Stage::<P>::start().await;
        for nested in 1..=2 {
            let (short, long) = (settled(&format!("short {nested}"), b"{}"), settled(&format!("long {nested}"), b"{}"));
            for row in [&short, &long] {
                let mut transaction = stage.pool.begin().await.unwrap();
                for _ in 0..nested {
                    std::mem::forget(sqlx::Connection::begin(&mut *transaction).await.unwrap());
                }
                stage.base.charge(&mut transaction, row.address.key.as_str()).await.unwrap();
                if row == &short {
                    let last = stage.store.last(&insert(row)).unwrap();
                    assert!(matches!(transaction.commit_after(last).await.unwrap(), Closed::Committed));
                } else {
                    assert_eq!(stage.store.join(&mut transaction, &insert(row)).await.unwrap(), Joined::Written);
                    transaction.commit().await.unwrap();
                }
                assert_eq!(read_one(&stage.base.store().await, row.id).await.unwrap().as_ref(), Some(row));
                assert!(stage.base.charges().await.contains(&row.address.key.as_str().to_owned()));
            }
            stage.is_as_ever(&format!("next {nested}")).await;
        }
    }

    /// Half-way, sqlx would count a transaction that is not there, and the next one on this connection could not begin.
    async fn a_call_that_nobody_waits_for_any_more_is_seen_to_its_end<P: Owns>() {
        let stage = Stage::<P>::start().await;
        for n in 0..20 {
            let key = format!("left {n}");
            let last = stage.store.last(&insert(&settled(&key, b"{}"))).unwrap();
            let transaction = stage.charged(&key).await;
            let mut closing = Box::pin(transaction.commit_after(last));
            let _ = poll!(&mut closing);
            drop(closing);
            stage.is_as_ever(&format!("next {n}")).await;
            // Before the next one's commit, because the connection was its own until then.
            assert!(read_one(&stage.store, settled(&key, b"{}").id).await.unwrap().is_some());
        }
        assert_eq!(stage.base.charges().await.len(), 40);
    }
}

/// A service of one connection that rests for so long.
async fn rested(rest: Duration) -> (Stage<SqliteDedicated>, SqlitePool) {
    let mut stage = Stage::<SqliteDedicated>::start().await;
    let pool = stage.pool.pool().clone();
    stage.pool = SqliteDedicated::resting_for(rest, pool.clone());
    (stage, pool)
}

/// Whoever else has the file open may write, and shorten the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_rests_has_locked_nothing() {
    let (stage, pool) = rested(Duration::from_hours(1)).await;
    stage.is_as_ever("first").await;
    assert_eq!(pool.num_idle(), 0, "it rests");
    let mut other = stage.base.pool().0.acquire().await.unwrap();
    sqlx::query("PRAGMA busy_timeout = 0").execute(&mut *other).await.unwrap();
    sqlx::query("INSERT INTO charge (key) VALUES ('others')").execute(&mut *other).await.unwrap();
    let cut: (i64, i64, i64) =
        sqlx::query_as("PRAGMA wal_checkpoint(TRUNCATE)").fetch_one(&mut *other).await.unwrap();
    assert_eq!(cut, (0, 0, 0), "nobody was in the way");
    stage.is_as_ever("second").await;
    assert_eq!(pool.size(), 1, "by the same connection");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_has_rested_is_the_pools_again_and_in_no_transaction() {
    let (stage, pool) = rested(Duration::from_millis(1)).await;
    for key in ["first", "second"] {
        stage.is_as_ever(key).await;
        until("it has rested", async || pool.num_idle() == 1).await;
        let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
        stage.base.charge(&mut transaction, "taken back").await.unwrap();
        transaction.rollback().await.unwrap();
    }
    assert_eq!(stage.base.charges().await, ["first", "second"]);
    // At the end it can be closed, and gives out nothing any more.
    stage.is_as_ever("third").await;
    pool.close().await;
    assert_eq!(stage.pool.begin().await.unwrap_err().effect(), Effect::None);
}

/// Another process writes for longer than is waited for: nothing has begun, and the connection is as good as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_rested_and_cannot_begin_says_so() {
    let (stage, pool) = rested(Duration::from_hours(1)).await;
    stage.is_as_ever("first").await;
    let other = stage.base.pool().begin().await.unwrap();
    let error = stage.pool.begin().await.unwrap_err();
    assert_eq!(error.effect(), Effect::None, "{error}");
    other.roll_back().await;
    stage.is_as_ever("second").await;
    assert_eq!(pool.size(), 1);
}

/// Also where nothing runs any more that could take connections back.
#[test]
fn it_may_be_dropped_outside_of_a_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stage = runtime.block_on(async {
        let (stage, _) = rested(Duration::from_hours(1)).await;
        stage.is_as_ever("first").await;
        stage
    });
    drop(runtime);
    drop(stage);
}

/// In whichever table its row is, and whoever has written it; also where this process does not know of it yet. Nothing has begun then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_begins_with_a_key_that_is_new_and_with_no_other() {
    let (stage, pool) = rested(Duration::from_hours(1)).await;
    let another = stage.base.store().await;
    let id = |key: &str| settled(key, b"{}").id;
    // By a connection of the pool's, and by one that has rested.
    for key in ["first", "second"] {
        assert_eq!(read_one(&stage.store, id(key)).await.unwrap(), None);
        let first = stage.store.first(id(key)).unwrap();
        let Opened::Begun(transaction) = stage.pool.begin_first(first, Turn::everybodys()).await.unwrap()
        else {
            panic!("{key} is new");
        };
        let last = stage.store.last(&insert(&settled(key, b"{}"))).unwrap();
        assert!(matches!(transaction.commit_after(last).await.unwrap(), Closed::Committed));
    }
    assert_eq!(read_one(&stage.store, id("first")).await.unwrap(), Some(settled("first", b"{}")));
    let is_occupied = async |key: &str, first: First| {
        let opened = stage.pool.begin_first(first, Turn::everybodys()).await.unwrap();
        assert!(matches!(opened, Opened::Occupied), "{key}");
        // Nobody has locked the file.
        let mut other = stage.base.pool().0.acquire().await.unwrap();
        sqlx::query("PRAGMA busy_timeout = 0").execute(&mut *other).await.unwrap();
        sqlx::query("INSERT INTO charge (key) VALUES (?1)").bind(key).execute(&mut *other).await.unwrap();
        assert_eq!((pool.size(), pool.num_idle()), (1, 0), "the connection rests");
    };
    is_occupied("first", stage.store.first(id("first")).unwrap()).await;
    let first = stage.store.first(id("flying")).unwrap();
    assert_eq!(another.apply(&[insert(&reserved("flying", 2, FAR_AHEAD))]).await.unwrap().len(), 1);
    is_occupied("flying", first).await;
    assert!(read_one(&stage.store, id("flying")).await.unwrap().is_some());
    let first = stage.store.first(id("appended")).unwrap();
    let flown = [insert(&reserved("appended", 1, FAR_AHEAD)), swap_of("appended")];
    assert_eq!(another.apply(&flown).await.unwrap().len(), 2);
    is_occupied("appended", first).await;
    assert!(read_one(&stage.store, id("appended")).await.unwrap().is_some());
    let mut transaction = stage.base.pool().begin().await.unwrap();
    let joined = stage.store.join(&mut transaction, &insert(&settled("joined", b"{}"))).await.unwrap();
    assert_eq!(joined, Joined::Written);
    transaction.commit().await.unwrap();
    is_occupied("joined", stage.store.first(id("joined")).unwrap()).await;
    stage.is_as_ever("after").await;
}

/// What was reserved is settled.
fn swap_of(key: &str) -> Write {
    Write::swap(reserved(key, 1, FAR_AHEAD).version, Arc::new(settled(key, b"{}")))
}
