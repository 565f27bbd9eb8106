//! The short way to end on SQLite: the row and the commit are one call of the thread that owns the connection.

use std::sync::Arc;
use std::time::Duration;

use futures_util::poll;
use oncegate_conformance::samples::{FAR_AHEAD, entry, reserved};
use oncegate_core::audit::Act;
use oncegate_store::drive::read_one;
use oncegate_store::join::{Closed, Connection as _, Join as _, Joined, Transaction as _, Transactions as _};
use oncegate_store::{Effect, Store as _, Write};
use oncegate_store_sql::SqliteStore;
use oncegate_store_sql::sqlx::{SqliteTransactions, SqlxTransaction};
use sqlx::Sqlite;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous};

use crate::base::{Base as _, OnSqlite};
use crate::close::{insert, settled};

/// A service of one connection: what it leaves behind is what the next one finds.
struct Stage {
    base: OnSqlite,
    store: SqliteStore,
    pool: SqliteTransactions,
}

impl Stage {
    async fn start() -> Self {
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
        Self { store, pool: SqliteTransactions(pool), base }
    }

    /// A transaction that has charged.
    async fn charged(&self, key: &str) -> SqlxTransaction<Sqlite> {
        let mut transaction = self.pool.begin().await.unwrap();
        self.base.charge(&mut transaction, key).await.unwrap();
        transaction
    }

    /// The whole of one, by the short way, on the connection that the one before has left.
    async fn is_as_ever(&self, key: &str) {
        let row = settled(key, b"{}");
        let last = self.store.last(&insert(&row)).unwrap();
        assert!(matches!(self.charged(key).await.commit_after(last).await.unwrap(), Closed::Committed));
        assert_eq!(read_one(&self.store, row.id).await.unwrap(), Some(row));
        assert!(self.base.charges().await.contains(&key.to_owned()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_is_written_as_the_long_way_writes_it_and_the_connection_comes_back_as_it_was() {
    let stage = Stage::start().await;
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
    let places = "SELECT count(*), count(DISTINCT r.seq), max(r.seq) - min(r.seq) FROM record r JOIN answer a ON a.seq = r.seq";
    let places: (i64, i64, i64) = sqlx::query_as(places).fetch_one(&stage.pool.0).await.unwrap();
    assert_eq!(places, (4, 4, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_the_usual_row_goes_the_long_way() {
    let stage = Stage::start().await;
    let row = settled("k", b"{}");
    assert!(stage.store.last(&insert(&row)).is_some());
    assert!(stage.store.last(&insert(&reserved("k", 1, FAR_AHEAD))).is_none(), "it is not settled");
    let told = insert(&row).telling(Some(entry(&row, FAR_AHEAD, Act::Completed)));
    assert!(stage.store.last(&told).is_none(), "it has something to tell");
    let swap = Write::swap(row.version, Arc::new(row.clone()));
    assert!(stage.store.last(&swap).is_none(), "it takes another's place");
}

/// By a row of another's, by a row of the happy path that this process does not know of, and by the commit itself: nothing of the call is left, and the transaction goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_refused_has_committed_nothing_and_goes_on() {
    let stage = Stage::start().await;
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

    // Whatever else the file has seen since, this row may be there: the long way looks.
    let (late, flying) = (settled("late", b"{}"), reserved("flying", 2, FAR_AHEAD));
    let last = stage.store.last(&insert(&late)).unwrap();
    let another = stage.base.store().await;
    assert_eq!(another.apply(&[insert(&flying)]).await.unwrap().len(), 1);
    let Closed::Unable(mut transaction) = stage.charged("late").await.commit_after(last).await.unwrap()
    else {
        panic!("the file is further on");
    };
    assert_eq!(stage.store.join(&mut transaction, &insert(&late)).await.unwrap(), Joined::Written);
    transaction.commit().await.unwrap();
    assert_eq!(stage.base.charges().await, ["before", "late"]);

    // The commit is refused: a reference to nothing.
    let table = "CREATE TABLE child (of INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)";
    for text in ["CREATE TABLE parent (id INTEGER PRIMARY KEY)", table] {
        sqlx::query(text).execute(&stage.pool.0).await.unwrap();
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
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_transaction_has_ended_nothing_is_written_and_the_connection_is_as_ever() {
    let stage = Stage::start().await;
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

/// Half-way, sqlx would count a transaction that is not there, and the next one on this connection could not begin.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_nobody_waits_for_any_more_is_seen_to_its_end() {
    let stage = Stage::start().await;
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
