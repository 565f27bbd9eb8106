//! What a dedicated pool's sessions prepare, so that a transaction begins and ends by name; and what becomes of it where a session does not keep the names.

use std::sync::Arc;

use oncegate_conformance::samples::{FAR_AHEAD, reserved};
use oncegate_core::policy::Profile;
use oncegate_core::record::Record;
use oncegate_store::drive::read_one;
use oncegate_store::join::{self, Closed, Join as _, Opened, Transaction as _, Transactions as _};
use oncegate_store::{Effect, Write};
use oncegate_store_sql::PostgresStore;
use oncegate_store_sql::sqlx::{DedicatedTransaction, PgDedicated};
use oncegate_test_servers::PgBouncer;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Row as _};
use tokio::task::JoinSet;
use tokio_postgres::SimpleQueryMessage;

use crate::base::{Base as _, OnDedicated, OnPostgres};
use crate::client::{Call, within};
use crate::close::{nothing, settled};
use crate::cut::expect_one_to_one;
use crate::dedicated::opened;
use crate::node::{LONG, Node, Work};

/// A pool of few connections.
struct Stage {
    base: OnDedicated,
    store: PostgresStore,
    pool: PgDedicated,
}

impl Stage {
    async fn start(connections: u32) -> Self {
        let base = OnDedicated::rested(connections).await;
        Self { store: base.store().await, pool: base.pool(), base }
    }

    /// Requests that have come and gone: the connection's session has what it needs.
    async fn prepared() -> Self {
        let stage = Self::start(1).await;
        for key in ["first", "second"] {
            stage.keep(stage.opened(key).await, key).await;
        }
        stage
    }

    async fn opened(&self, key: &str) -> DedicatedTransaction {
        opened(&self.pool, self.store.opening(settled(key, b"{}").id).unwrap()).await
    }

    /// Ends with the key's row.
    async fn keep(&self, transaction: DedicatedTransaction, key: &str) {
        let closed = transaction.commit_with(closing(&self.store, key)).await;
        assert!(matches!(closed.unwrap(), Closed::Committed));
        let row = read_one(&self.store, settled(key, b"{}").id).await.unwrap();
        assert_eq!(row.as_ref().map(Record::is_resumable), Some(false), "{key} is kept");
    }

    /// How often the session has executed what it has prepared, the opening first. Not by a prepared statement: that would be another.
    async fn executed(&self, transaction: &mut DedicatedTransaction) -> Vec<i64> {
        let text = "SELECT generic_plans + custom_plans FROM pg_prepared_statements WHERE name LIKE 'oncegate_%' ORDER BY name DESC";
        let rows = sqlx::raw_sql(text).fetch_all(&mut **transaction).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    fn forget(&self, what: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(format!("DEALLOCATE oncegate_{what}_{}", self.base.of.place.schema))
    }
}

fn closing(store: &PostgresStore, key: &str) -> join::Call {
    store.closing(&Write::insert(Arc::new(settled(key, b"{}")))).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_used_again_executes_by_name() {
    let stage = Stage::start(1).await;
    for key in ["0", "1"] {
        let mut next = stage.opened(key).await;
        assert_eq!(
            stage.executed(&mut next).await,
            [0; 0],
            "nothing is prepared for one that may be the last"
        );
        stage.keep(next, key).await;
    }
    for (key, executed) in [("2", [1, 0]), ("3", [2, 1]), ("4", [3, 2])] {
        let mut next = stage.opened(key).await;
        assert_eq!(stage.executed(&mut next).await, executed);
        stage.keep(next, key).await;
    }
    // A key that is used, by its name.
    let opening = stage.store.opening(settled("2", b"{}").id).unwrap();
    assert!(matches!(stage.pool.begin_with(opening).await.unwrap(), Opened::Occupied));
    // A row that is there: the closing is refused, and is no doubt.
    let error = stage.opened("5").await.commit_with(closing(&stage.store, "2")).await.unwrap_err();
    assert_eq!(error.effect(), Effect::None, "{error}");
}

/// There are two texts for it, and a session goes from the one to the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_opening_tells_the_same_in_full_and_by_name() {
    let stage = Stage::prepared().await;
    let (holder, asker) = (stage.base.of.place.raw().await, stage.base.of.place.raw().await);
    let opening = |key: &str| stage.store.opening(settled(key, b"{}").id).unwrap().or_tell;
    holder.batch_execute(&format!("BEGIN; {}", opening("taken").in_full())).await.unwrap();
    let join::Routine { name, statement, .. } = &*opening("free").routine;
    asker.batch_execute(&format!("PREPARE {name} AS {statement}")).await.unwrap();
    for (key, expected) in [("free", "t"), ("first", "f"), ("taken", "f"), ("free", "t")] {
        for text in [opening(key).in_full(), opening(key).by_name()] {
            let told = asker.simple_query(&text).await.unwrap();
            let told: Vec<_> = told
                .iter()
                .filter_map(|message| match message {
                    SimpleQueryMessage::Row(row) => row.get(0),
                    _ => None,
                })
                .collect();
            assert_eq!(told, [expected], "{key}: {text}");
        }
    }
}

/// Nothing had begun, so nothing is lost; alone, and with another's closing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_opening_whose_name_is_lost_is_sent_in_full() {
    for is_along in [false, true] {
        let stage = Stage::prepared().await;
        let mut third = stage.opened("third").await;
        sqlx::raw_sql(stage.forget("take")).execute(&mut *third).await.unwrap();
        let (pool, opening) = (stage.pool.clone(), stage.store.opening(settled("4", b"{}").id).unwrap());
        let fourth = async move { opened(&pool, opening).await };
        let fourth = if is_along {
            let mut fourth = Box::pin(fourth);
            assert!(futures_util::poll!(&mut fourth).is_pending());
            stage.keep(third, "third").await;
            within(fourth).await
        } else {
            stage.keep(third, "third").await;
            fourth.await
        };
        stage.keep(fourth, "4").await;
        // Names do not last here: none is made again.
        let mut fifth = stage.opened("5").await;
        assert_eq!(stage.executed(&mut fifth).await.len(), 1, "the other one's is still there");
        stage.keep(fifth, "5").await;
    }
}

/// Its transaction has failed with it: nothing was executed. The next one's has not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closing_whose_name_is_lost_is_rolled_back_and_the_next_one_is_in_full() {
    let stage = Stage::prepared().await;
    let mut third = stage.opened("third").await;
    sqlx::raw_sql(stage.forget("finish")).execute(&mut *third).await.unwrap();
    let error = third.commit_with(closing(&stage.store, "third")).await.unwrap_err();
    assert_eq!(error.effect(), Effect::None, "{error}");
    assert_eq!(read_one(&stage.store, settled("third", b"{}").id).await.unwrap(), None);
    for key in ["third", "4", "5"] {
        stage.keep(stage.opened(key).await, key).await;
    }
}

/// The handler has ended its transaction by hand, with what it prepared: what it did since is committed, so the row must be there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closing_whose_name_is_lost_outside_of_a_transaction_is_sent_in_full() {
    let stage = Stage::prepared().await;
    let mut third = stage.opened("third").await;
    assert_eq!(stage.executed(&mut third).await, [1, 0]);
    sqlx::raw_sql("COMMIT; DEALLOCATE ALL").execute(&mut *third).await.unwrap();
    stage.keep(third, "third").await;
    stage.keep(stage.opened("4").await, "4").await;
}

/// sqlx has lost the transaction, and another was begun for the row. Behind a pooler that may be on a session without names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_was_begun_anew_is_closed_in_full() {
    let stage = Stage::prepared().await;
    let mut third = stage.opened("third").await;
    assert_eq!(stage.executed(&mut third).await, [1, 0]);
    sqlx::raw_sql("SELECT 1 / 0").execute(&mut *third).await.unwrap_err();
    assert!(sqlx::Connection::begin(&mut *third).await.is_err());
    assert!(third.is_lost());
    third.regain().await.unwrap();
    sqlx::raw_sql(stage.forget("finish")).execute(&mut *third).await.unwrap();
    stage.keep(third, "third").await;
}

/// Its code is that of a name that is lost, but it is the commit that is refused: all is rolled back, and the key is not kept alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trigger_that_refuses_at_the_commit_is_believed_whatever_its_code() {
    let stage = Stage::prepared().await;
    let trigger = "CREATE FUNCTION {}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no' USING ERRCODE = '26000'; END $$; \
                   CREATE CONSTRAINT TRIGGER refuses AFTER INSERT ON {}.charge DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {}.refuse()";
    let place = &stage.base.of.place;
    place.raw().await.batch_execute(&trigger.replace("{}", &place.schema)).await.unwrap();
    let mut third = stage.opened("third").await;
    assert_eq!(stage.executed(&mut third).await, [1, 0]);
    stage.base.charge(&mut third, "third").await.unwrap();
    let error = third.commit_with(closing(&stage.store, "third")).await.unwrap_err();
    assert_eq!(error.effect(), Effect::None, "{error}");
    assert_eq!(read_one(&stage.store, settled("third", b"{}").id).await.unwrap(), None);
    assert_eq!(stage.base.charges().await, [""; 0]);
}

/// One session has lost its names: from then on no other is asked for its own, to begin or to end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_are_lost_are_lost_for_all() {
    let stage = Stage::start(2).await;
    for [one, other] in [["1", "2"], ["a", "b"]] {
        let (first, second) = (stage.opened(one).await, stage.opened(other).await);
        stage.keep(first, one).await;
        stage.keep(second, other).await;
    }
    let (mut third, mut fourth) = (stage.opened("3").await, stage.opened("4").await);
    for (transaction, names) in [(&mut third, &["take"][..]), (&mut fourth, &["take", "finish"])] {
        assert_eq!(stage.executed(transaction).await, [1, 0]);
        for name in names {
            sqlx::raw_sql(stage.forget(name)).execute(&mut **transaction).await.unwrap();
        }
    }
    assert!(matches!(fourth.commit_with(nothing()).await.unwrap(), Closed::Committed));
    stage.keep(third, "3").await;
    // The one that came back last is asked in vain; the other is not asked.
    for [one, other] in [["5", "6"], ["7", "8"], ["9", "0"]] {
        let (mut first, mut second) = (stage.opened(one).await, stage.opened(other).await);
        let mut names = [stage.executed(&mut first).await.len(), stage.executed(&mut second).await.len()];
        names.sort_unstable();
        assert_eq!(names, [0, 1], "none is made again");
        stage.keep(first, one).await;
        stage.keep(second, other).await;
    }
}

/// A pooler gives every transaction another session: names come and go, and nobody is told of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_of_transactions_may_change_sessions() {
    let base = OnPostgres::start().await;
    let settings = [
        ("pool_mode", "transaction"),
        ("default_pool_size", "3"),
        ("ignore_startup_parameters", "extra_float_digits"),
    ];
    let bouncer = PgBouncer::start(&base.place.url, &settings);
    let pool = PgPoolOptions::new().max_connections(4).connect_lazy(&bouncer.url()).unwrap();
    let schema = base.place.schema.clone();
    let handler = move |mut work: Work<OnPostgres, PgDedicated>| {
        // Without sqlx's own prepared statements, which such a pooler does not know.
        let insert = AssertSqlSafe(format!("INSERT INTO {schema}.charge VALUES ('{}')", work.key()));
        async move {
            sqlx::raw_sql(insert).execute(&mut *work.tx).await.unwrap();
            "paid"
        }
    };
    let node = Node::with(&base, PgDedicated::new(pool), Profile::Ietf, LONG, handler).await;
    let mut clients = JoinSet::new();
    for client in 0..8 {
        let addr = node.addr;
        clients.spawn(async move {
            for round in 0..20 {
                let call = Call::post("/charges").key(&format!("{client}-{round}"));
                call.send(addr).await.expect_first(200, "paid");
            }
        });
    }
    while let Some(client) = within(clients.join_next()).await {
        client.unwrap();
    }
    assert_eq!(expect_one_to_one(&base).await.len(), 160);
}

/// The schema has another name now, and another has the one that it had. What was prepared before is not what is meant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_of_the_schema_that_is_there_now() {
    let stage = Stage::prepared().await;
    let (name, raw) = (stage.base.of.place.schema.clone(), stage.base.of.place.raw().await);
    raw.batch_execute(&format!("ALTER SCHEMA {name} RENAME TO {name}_moved")).await.unwrap();
    let anew = stage.base.store().await;
    // It has no row here.
    let transaction = opened(&stage.pool, anew.opening(settled("first", b"{}").id).unwrap()).await;
    let closed = transaction.commit_with(closing(&anew, "first")).await;
    assert!(matches!(closed.unwrap(), Closed::Committed));
    let fresh = opened(&stage.pool, anew.opening(reserved("fresh", 1, FAR_AHEAD).id).unwrap()).await;
    assert!(matches!(fresh.commit_with(closing(&anew, "fresh")).await.unwrap(), Closed::Committed));
    let rows = |schema: &str| format!("SELECT count(*) FROM {schema}.record");
    let moved = raw.query_one(&rows(&format!("{name}_moved")), &[]).await.unwrap().get::<_, i64>(0);
    let here = raw.query_one(&rows(&name), &[]).await.unwrap().get::<_, i64>(0);
    assert_eq!((moved, here), (2, 2));
}
