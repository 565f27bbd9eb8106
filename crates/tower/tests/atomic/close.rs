//! The short way to end: the row and the commit are one message.

use std::io;
use std::sync::{Arc, Mutex};

use axum::http::StatusCode;
use oncegate_conformance::samples::{FAR_AHEAD, answer, entry, every_shape, moved_to, reserved};
use oncegate_core::audit::Act;
use oncegate_core::policy::Profile;
use oncegate_core::record::{Record, State, StateKind};
use oncegate_store::drive::read_one;
use oncegate_store::join::{self, Closed, Join, Joined, Transaction, Transactions};
use oncegate_store::{Effect, Write};
use oncegate_store_sql::PostgresStore;
use oncegate_store_sql::sqlx::{PgTransactions, SqlxTransaction};
use sqlx::{PgConnection, PgPool, Postgres, Row as _};
use tracing_subscriber::filter::LevelFilter;

use crate::base::{Base as _, OnDedicated, OnPostgres, Remote};
use crate::client::Call;
use crate::node::{Node, Work};
use crate::row::begun;

fn call(key: &str) -> Call {
    Call::post("/charges").key(key)
}

pub(crate) fn insert(row: &Record) -> Write {
    Write::insert(Arc::new(row.clone()))
}

/// A row that is settled.
pub(crate) fn settled(key: &str, body: &[u8]) -> Record {
    let mut row = moved_to(&reserved(key, 1, FAR_AHEAD), StateKind::Completed, FAR_AHEAD);
    row.state = State::Completed(answer(200, body));
    row
}

/// A closing, or an opening, that is none of a store's.
pub(crate) fn calling(function: &str, values: &str) -> join::Call {
    let statement = format!("SELECT {function}");
    let routine = join::Routine { function: function.to_owned(), name: "nobodys".to_owned(), statement };
    join::Call::new(Arc::new(routine), values.to_owned())
}

/// One that does nothing.
pub(crate) fn nothing() -> join::Call {
    calling("abs", "(1)")
}

/// A transaction that has the row's key.
async fn opened(store: &PostgresStore, pool: &PgTransactions, row: &Record) -> SqlxTransaction<Postgres> {
    begun(pool.begin_with(store.opening(row.id).unwrap()).await.unwrap())
}

/// Whether a statement of the pool's only connection is outside of a transaction, and how many advisory locks its session has.
async fn left_behind(pool: &PgTransactions) -> (bool, i64) {
    left_behind_in(&pool.0).await
}

async fn left_behind_in(pool: &PgPool) -> (bool, i64) {
    let text = "SELECT transaction_timestamp() = statement_timestamp(), (SELECT count(*) FROM pg_locks \
                WHERE locktype = 'advisory' AND pid = pg_backend_pid())";
    // As a simple query: a prepared one begins with its preparation.
    let row = sqlx::raw_sql(text).fetch_one(pool).await.unwrap();
    (row.get::<bool, _>(0), row.get(1))
}

/// sqlx would have ended the innermost in place of the outer one: by the long way a client was told of a commit that there was none of, and the connection was of no use to the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nested_transactions_that_nobody_has_ended_are_part_of_what_is_committed() {
    let base = OnPostgres::start().await;
    let store = base.store().await;
    let shared = base.through_one(&base.place.url).pool();
    left_nested(&base, &store, &shared).await;
    let dedicated = OnDedicated::by(&base, &base.place.url, 1).pool();
    left_nested(&base, &store, &dedicated).await;
}

async fn left_nested<P>(base: &OnPostgres, store: &PostgresStore, pool: &P)
where
    P: Transactions<Transaction: Transaction<Inner = PgConnection>>,
{
    let before = base.charges().await.len();
    for nested in 1..=3 {
        let row = settled(&format!("{before} and {nested}"), b"{}");
        let mut transaction = begun(pool.begin_with(store.opening(row.id).unwrap()).await.unwrap());
        for _ in 0..nested {
            std::mem::forget(sqlx::Connection::begin(&mut *transaction).await.unwrap());
        }
        base.charge(&mut transaction, row.address.key.as_str()).await.unwrap();
        if nested < 3 {
            let closing = store.closing(&insert(&row)).unwrap();
            assert!(matches!(transaction.commit_with(closing).await.unwrap(), Closed::Committed));
        } else {
            assert_eq!(store.join(&mut transaction, &insert(&row)).await.unwrap(), Joined::Written);
            transaction.commit().await.unwrap();
        }
        assert_eq!(read_one(store, row.id).await.unwrap(), Some(row));
        assert_eq!(base.charges().await.len(), before + nested);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_is_written_as_the_long_way_writes_it_and_the_connection_comes_back_as_it_was() {
    let base = OnPostgres::start().await;
    let (store, through_one) = (base.store().await, base.through_one(&base.place.url));
    let pool = through_one.pool();
    let mut closed = 0;
    for row in every_shape() {
        let Some(closing) = store.closing(&insert(&row)) else { continue };
        let mut transaction = opened(&store, &pool, &row).await;
        base.charge(&mut transaction, row.address.key.as_str()).await.unwrap();
        assert!(matches!(transaction.commit_with(closing).await.unwrap(), Closed::Committed));
        assert_eq!(read_one(&store, row.id).await.unwrap().as_ref(), Some(&row));
        assert_eq!(left_behind(&pool).await, (true, 0));
        closed += 1;
        assert_eq!(base.charges().await.len(), closed);
    }
    assert!(closed > 1, "those that are settled");
    // Every column is as it is in a row of the long way, but for its place; also where the session has the statement by a name. A key may be anything.
    let (short, named) = (settled("'; $1 \"{}\" \\ -- $$ short", b"{}"), settled("named", b"{}"));
    let closing = store.closing(&insert(&short)).unwrap();
    let transaction = opened(&store, &pool, &short).await;
    assert!(matches!(transaction.commit_with(closing).await.unwrap(), Closed::Committed));
    let closing = store.closing(&insert(&named)).unwrap();
    let join::Routine { name, statement, .. } = &*closing.routine;
    let text = format!("PREPARE {name} AS {statement}; {}", closing.by_name());
    let raw = base.place.raw().await;
    raw.batch_execute(&text).await.unwrap();
    let long = settled("long", b"{}");
    let mut transaction = pool.begin().await.unwrap();
    assert_eq!(store.join(&mut transaction, &insert(&long)).await.unwrap(), Joined::Written);
    transaction.commit().await.unwrap();
    let text = format!(
        "SELECT (to_jsonb(r) - ARRAY['seq', 'id', 'rest'])::text FROM {0}.record r \
         WHERE id IN (SELECT id FROM {0}.keys WHERE key ~ '(short|named|long)$')",
        base.place.schema
    );
    let columns: Vec<String> = raw.query(&text, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert!(columns.len() == 3 && columns.iter().all(|row| *row == columns[0]), "{columns:#?}");
    for row in [short, named, long] {
        assert_eq!(read_one(&store, row.id).await.unwrap(), Some(row));
    }
}

/// Nobody had a row when it began, and another has written one since, by a way that asks for no lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_overtaken_is_refused_with_all_that_it_did_and_leaves_nothing_behind() {
    let base = OnPostgres::start().await;
    let (store, through_one) = (base.store().await, base.through_one(&base.place.url));
    let pool = through_one.pool();
    let (first, second) = (settled("k", b"first"), settled("k", b"second"));
    let mut transaction = opened(&store, &pool, &second).await;
    base.charge(&mut transaction, "second").await.unwrap();
    let mut other = base.pool().begin().await.unwrap();
    assert_eq!(store.join(&mut other, &insert(&first)).await.unwrap(), Joined::Written);
    other.commit().await.unwrap();
    let error = transaction.commit_with(store.closing(&insert(&second)).unwrap()).await.unwrap_err();
    assert_eq!(error.effect(), Effect::None, "{error}");
    assert_eq!(read_one(&store, first.id).await.unwrap().as_ref(), Some(&first));
    assert_eq!(base.charges().await, [""; 0]);
    assert_eq!(left_behind(&pool).await, (true, 0));
}

/// What a handler does that goes on after a failure: sqlx rolls back the outer transaction where a nested one could not begin.
async fn lose(connection: &mut PgConnection) {
    sqlx::query("SELECT nonsense").execute(&mut *connection).await.unwrap_err();
    sqlx::Connection::begin(connection).await.map(drop).unwrap_err();
}

async fn jobs<B: Remote>(base: &B) -> i64 {
    base.place().number("SELECT count(*) FROM {}.job").await
}

on_both_pools! {
    /// What it does after that is committed by itself. So are the key and what it promised: nobody is told that nothing was executed, and a retry does not run it again.
    async fn a_handler_that_has_lost_its_transaction_runs_once<B: Remote>() {
        for promises in [false, true] {
            let base = B::start().await;
            let node = Node::new(&base, Profile::Ietf, move |mut work: Work<B>| async move {
                lose(&mut work.tx).await;
                work.charge().await.unwrap();
                if promises {
                    work.tx.enqueue("mail", &"a letter").unwrap();
                }
                format!("run {}", work.run)
            })
            .await;
            call("k").send(node.addr).await.expect_first(200, "run 1");
            let another = crate::node::simple(&base, Profile::Ietf).await;
            call("k").send(another.addr).await.expect_replay(200, "run 1");
            assert_eq!(base.charges().await, ["k"]);
            assert_eq!(jobs(&base).await, i64::from(promises));
        }
    }

    /// And where the key cannot be written, its client is not told so.
    async fn a_handler_that_has_lost_its_transaction_is_in_doubt_without_its_key<B: Remote>() {
        for promises in [false, true] {
            let base = B::start().await;
            let refuse = "CREATE FUNCTION {}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$; \
                          CREATE TRIGGER refuses BEFORE INSERT ON {}.record FOR EACH ROW EXECUTE FUNCTION {}.refuse()";
            base.place().raw().await.batch_execute(&refuse.replace("{}", &base.place().schema)).await.unwrap();
            let node = Node::new(&base, Profile::Ietf, move |mut work: Work<B>| async move {
                if work.key() == "lost" {
                    lose(&mut work.tx).await;
                }
                work.charge().await.unwrap();
                if promises {
                    work.tx.enqueue("mail", &"a letter").unwrap();
                }
            })
            .await;
            call("kept").send(node.addr).await.expect_problem(503, "store_unavailable");
            assert_eq!(base.charges().await, [""; 0]);
            call("lost").send(node.addr).await.expect_problem(504, "outcome_unknown");
            assert_eq!((base.charges().await, jobs(&base).await), (vec!["lost".to_owned()], 0));
        }
    }

    /// The handler has begun one by hand after that, which sqlx does not know of. It ends with the request, one way or the other; nobody else finds
    /// the connection in a transaction, and the next handler's is not ended by the end of a nested one.
    async fn a_transaction_that_sqlx_does_not_count_ends_with_its_request<B: Remote>() {
        let base = OnPostgres::start().await;
        let base = B::by(&base, &base.place.url, 1);
        let node = Node::new(&base, Profile::Ietf, move |mut work: Work<B>| async move {
            let key = work.key().to_owned();
            if key.starts_with("odd") {
                lose(&mut work.tx).await;
                sqlx::raw_sql("BEGIN").execute(&mut *work.tx).await.unwrap();
                work.charge().await.unwrap();
                if key == "odd-promises" {
                    work.tx.enqueue("mail", &"a letter").unwrap();
                }
            } else {
                let mut nested = sqlx::Connection::begin(&mut *work.tx).await.unwrap();
                sqlx::raw_sql("SELECT 1").execute(&mut *nested).await.unwrap();
                nested.commit().await.unwrap();
                work.charge().await.unwrap();
            }
            let fails = key.ends_with("fails");
            (if fails { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK }, "done")
        })
        .await;
        for key in ["odd", "odd-promises"] {
            call(key).send(node.addr).await.expect_first(200, "done");
            for failing in ["nested-fails", "odd-fails"] {
                let reply = call(failing).send(node.addr).await;
                assert_eq!(reply.status, 500, "{reply:?}");
                assert_eq!(left_behind_in(&base.connections()).await, (true, 0));
            }
        }
        assert_eq!(base.charges().await, ["odd", "odd-promises"]);
        assert_eq!(jobs(&base).await, 1);
        let another = crate::node::simple(&base, Profile::Ietf).await;
        call("odd").send(another.addr).await.expect_replay(200, "done");
    }

    /// It has begun a COPY, and has not waited for its end: sqlx takes what the server says of that for the answer to the commit. So nothing is known of it, and it is looked for.
    async fn a_handler_that_leaves_a_copy_unfinished_is_answered_by_what_is_there<B: Remote>() {
        let base = B::start().await;
        let copy = format!("COPY {}.charge FROM STDIN", base.place().schema);
        let node = Node::new(&base, Profile::Ietf, move |mut work: Work<B>| {
            let copy = copy.clone();
            async move {
                work.charge().await.unwrap();
                let mut finishing = Box::pin(work.tx.copy_in_raw(&copy).await.unwrap().finish());
                // Mostly the server is not as quick; with `along` there is one that cannot be.
                let _ = futures_util::poll!(&mut finishing);
                drop(finishing);
                format!("run {}", work.run)
            }
        })
        .await;
        for run in 1..=5 {
            let key = format!("{run}");
            call(&key).send(node.addr).await.expect_first(200, &format!("run {run}"));
        }
        assert_eq!(crate::cut::expect_one_to_one(&base).await, ["1", "2", "3", "4", "5"]);
    }

    /// Its code is that of a commit outside of a transaction, but it is a refusal like others: all is rolled back, and the key is not kept alone.
    async fn a_trigger_that_refuses_at_the_commit_is_believed_whatever_its_code<B: Remote>() {
        let base = B::start().await;
        let trigger = "CREATE FUNCTION {}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no' USING ERRCODE = '25P01'; END $$; \
                       CREATE CONSTRAINT TRIGGER refuses AFTER INSERT ON {}.charge DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {}.refuse()";
        base.place().raw().await.batch_execute(&trigger.replace("{}", &base.place().schema)).await.unwrap();
        let node = crate::node::simple(&base, Profile::Ietf).await;
        call("k").send(node.addr).await.expect_problem(503, "store_unavailable");
        assert_eq!(node.state("k").await, None);
        assert_eq!(base.charges().await, [""; 0]);
    }

    /// The schema has another name now, and another has the one that it had: as when one is copied within a database. What a handler keeps is kept where it belongs.
    async fn a_schema_that_was_renamed_is_not_taken_for_the_one_that_has_its_name<B: Remote>() {
        let before = OnPostgres::start().await;
        let (name, raw) = (before.place.schema.clone(), before.place.raw().await);
        let moved = before.moved_to(&format!("{name}_moved"));
        raw.batch_execute(&format!("ALTER SCHEMA {name} RENAME TO {name}_moved")).await.unwrap();
        let anew = before.store().await;
        let base = B::by(&moved, &moved.place.url, 2);
        let node = crate::node::simple(&base, Profile::Ietf).await;
        call("k").send(node.addr).await.expect_first(200, "run 1");
        let another = crate::node::simple(&base, Profile::Ietf).await;
        call("k").send(another.addr).await.expect_replay(200, "run 1");
        assert_eq!(crate::cut::expect_one_to_one(&base).await, ["k"]);
        assert_eq!(read_one(&anew, crate::stage::id_of("k")).await.unwrap(), None, "it is nobody's there");
    }
}

/// And so where it was ended by hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outside_of_a_transaction_nothing_is_closed() {
    let base = OnPostgres::start().await;
    let (store, row) = (base.store().await, settled("k", b"{}"));
    let mut transaction = opened(&store, &base.pool(), &row).await;
    sqlx::raw_sql("ROLLBACK").execute(&mut *transaction).await.unwrap();
    let closed = transaction.commit_with(store.closing(&insert(&row)).unwrap()).await.unwrap();
    assert!(matches!(closed, Closed::Outside(_)));
    assert_eq!(read_one(&store, row.id).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_the_usual_row_goes_the_long_way() {
    let base = OnPostgres::start().await;
    let store = base.store().await;
    let row = settled("k", b"{}");
    assert!(store.closing(&insert(&row)).is_some());
    assert!(store.closing(&insert(&settled("k", &vec![b'x'; 20_000]))).is_none(), "it is long");
    assert!(store.closing(&insert(&reserved("k", 1, FAR_AHEAD))).is_none(), "it is not settled");
    let told = insert(&row).telling(Some(entry(&row, FAR_AHEAD, Act::Completed)));
    assert!(store.closing(&told).is_none(), "it has something to tell");
    assert!(
        store.closing(&Write::swap(row.version, Arc::new(row.clone()))).is_none(),
        "it takes another's place"
    );
    let known = Record { provider_reference: Some("ch_1".into()), ..row };
    assert!(store.closing(&insert(&known)).is_none(), "it has a name at the provider's");
    // And is as good: a long answer through the layer.
    let long = "x".repeat(20_000);
    let answered = long.clone();
    let node = Node::new(&base, Profile::Ietf, move |mut work: Work<OnPostgres>| {
        let answered = answered.clone();
        async move {
            work.charge().await.unwrap();
            answered
        }
    })
    .await;
    call("long").send(node.addr).await.expect_first(200, &long);
    let another = crate::node::simple(&base, Profile::Ietf).await;
    call("long").send(another.addr).await.expect_replay(200, &long);
    assert_eq!(base.charges().await, ["long"]);
}

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// sqlx logs the text of every statement, and this one has the answer in it. Nor does the server warn of a transaction that is not there.
#[tokio::test]
async fn nothing_of_the_answer_gets_into_a_log() {
    let base = OnPostgres::start().await;
    let (store, through_one) = (base.store().await, base.through_one(&base.place.url));
    let pool = through_one.pool();
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let row = settled("k", b"a secret");
    // It is the first statement of all: others are heard of all the same.
    let transaction = opened(&store, &pool, &row).await;
    let closing = store.closing(&insert(&row)).unwrap();
    assert!(closing.in_full().contains("6120736563726574"), "its digits: {}", closing.in_full());
    assert!(!format!("{closing:?}").contains("6120736563726574"), "{closing:?}");
    assert!(matches!(transaction.commit_with(closing).await.unwrap(), Closed::Committed));
    assert_eq!(left_behind(&pool).await, (true, 0));
    // One that fails, too.
    let transaction = pool.begin().await.unwrap();
    transaction.commit_with(store.closing(&insert(&row)).unwrap()).await.unwrap_err();
    left_behind(&pool).await;
    assert!(!log.text().contains("there is no transaction in progress"), "{}", log.text());
    // And one that is given up while the server has it: another's row stands in its way.
    let (other, mut twin) = (settled("other", b"a secret"), base.pool().begin().await.unwrap());
    assert_eq!(store.join(&mut twin, &insert(&other)).await.unwrap(), Joined::Written);
    let given_up = pool.begin().await.unwrap().commit_with(store.closing(&insert(&other)).unwrap());
    assert!(futures_util::poll!(Box::pin(given_up)).is_pending());
    twin.roll_back().await;
    left_behind(&pool).await;
    let mut transaction = pool.begin().await.unwrap();
    base.charge(&mut transaction, "k").await.unwrap();
    transaction.roll_back().await;
    let text = log.text();
    assert!(text.contains("INSERT INTO"), "others are logged: {text}");
    for found in ["6120736563726574", "oncegate_finish"] {
        assert!(!text.contains(found), "{found}: {text}");
    }
}
