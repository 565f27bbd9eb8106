//! Who may open a schema, and what becomes of it when many do.

use oncegate_conformance::samples::FAR_AHEAD;
use oncegate_store::join::Join as _;
use oncegate_store::{Effect, Kind, Store};
use oncegate_store_sql::postgres::PostgresOptions;
use oncegate_test_servers::Postgres;

use crate::place::{Place, apply_all, completed, insert, leased, raw as raw_client, read, swap, told};

/// How many nodes start together.
const NODES: usize = 10;
/// How many scripts a schema has had.
pub(crate) const MIGRATIONS: i64 = 15;

async fn open_together(place: &Place, url: &str) {
    let opened = futures_of(place, url).await;
    for opened in opened {
        apply_all(&opened.expect("each opens"), &[]).await;
    }
    assert_eq!(place.number("SELECT count(*) FROM {}.migration").await, MIGRATIONS, "migrated once");
}

async fn futures_of(
    place: &Place,
    url: &str,
) -> Vec<oncegate_store::Result<oncegate_store_sql::PostgresStore>> {
    let mut tasks = Vec::new();
    for _ in 0..NODES {
        let options = PostgresOptions::new(url).and_then(|options| options.schema(&place.schema));
        tasks.push(tokio::spawn(options.expect("a valid URL").open()));
    }
    let mut opened = Vec::new();
    for task in tasks {
        opened.push(task.await.expect("no panic"));
    }
    opened
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nodes_that_start_together_migrate_once() {
    for _ in 0..10 {
        let place = Place::shared();
        open_together(&place, &place.url).await;
    }
}

/// Found by review: under another default isolation, whoever came second looked with eyes from before the first had come.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_database_s_own_isolation_does_not_matter() {
    for _ in 0..3 {
        let place = Place::shared();
        let separator = if place.url.contains('?') { '&' } else { '?' };
        let url =
            format!("{}{separator}options=-c%20default_transaction_isolation%3Dserializable", place.url);
        open_together(&place, &url).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_may_have_any_fit_name_and_be_named_in_the_url() {
    let server = Postgres::start(&[]);
    // A word that SQL keeps for itself is a name like any other.
    for name in ["order", "_", "a0_"] {
        let mut place = Place::at(&server.url());
        place.schema = format!("\"{name}\"");
        let url = format!("{}?schema={name}", place.url);
        let row = leased("named");
        let store = PostgresOptions::new(&url).expect("a fit name").open().await.expect("the store opens");
        apply_all(&store, &[insert(&row)]).await;
        apply_all(&store, &[swap(&row, &completed(&row))]).await;
        assert_eq!(read(&store, "named").await, Some(completed(&row)));
        assert_eq!(place.number("SELECT count(*) FROM {}.record").await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_not_fit_are_refused() {
    let options = || PostgresOptions::new("postgres://nobody@127.0.0.1:1/nowhere").expect("a valid URL");
    for name in ["", "1a", "A", "a-b", "a.b", "a\"b", "pg_a", "a b", &"x".repeat(49), "é"] {
        let error = options().schema(name).expect_err(name);
        assert_eq!(error.kind(), Kind::Misconfigured, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_not_ours_is_refused_and_not_touched() {
    let place = Place::shared();
    let schema = &place.schema;
    let theirs = format!("CREATE SCHEMA {schema}; CREATE TABLE {schema}.record AS SELECT 42 AS theirs");
    place.raw().await.batch_execute(&theirs).await.expect("their table is there");
    let error = place.try_open_through(&place.url).await.expect_err("it is not ours");
    assert_eq!((error.kind(), error.effect()), (Kind::Misconfigured, Effect::None), "{error}");
    assert!(error.to_string().contains("not Oncegate's"), "{error}");
    assert_eq!(place.number("SELECT theirs::bigint FROM {}.record").await, 42);
    let tables = format!("SELECT count(*) FROM pg_tables WHERE schemaname = '{schema}'");
    assert_eq!(place.number(&tables).await, 1, "nothing was added");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schema_of_a_newer_release_is_refused() {
    let place = Place::shared();
    drop(place.open().await);
    let newer = format!("INSERT INTO {}.migration (number) VALUES ({})", place.schema, MIGRATIONS + 1);
    place.raw().await.batch_execute(&newer).await.expect("a newer release was here");
    let error = place.try_open_through(&place.url).await.expect_err("it is newer");
    assert_eq!((error.kind(), error.effect()), (Kind::Unreadable, Effect::None), "{error}");
    assert!(error.to_string().contains("newer release"), "{error}");
}

/// The grants that docs/postgres.md names are enough, and what is missing is said.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_needs_no_more_than_it_is_said_to() {
    let server = Postgres::start(&[]);
    let place = Place::at(&server.url());
    let (raw, schema) = (place.raw().await, &place.schema);
    raw.batch_execute("CREATE ROLE app LOGIN; CREATE ROLE owner LOGIN").await.expect("roles are made");
    // As where databases are hardened.
    let nobodys = "ALTER DEFAULT PRIVILEGES FOR ROLE owner REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC";
    raw.batch_execute(nobodys).await.expect("functions are nobody's by default");
    let url_of = |role: &str| server.url().replace("oncegate@", &format!("{role}@"));

    let error = place.try_open_through(&url_of("app")).await.expect_err("it may create nothing");
    assert_eq!((error.kind(), error.effect()), (Kind::Misconfigured, Effect::None), "{error}");
    assert!(error.to_string().contains("permission denied for database"), "{error}");

    // A schema of its own is enough to migrate in: no right to create others is needed.
    raw.batch_execute(&format!("CREATE SCHEMA {schema} AUTHORIZATION owner")).await.expect("it is made");
    let owned = place.open_through(&url_of("owner")).await;
    apply_all(&owned, &[insert(&leased("owned"))]).await;

    let error = place.try_open_through(&url_of("app")).await.expect_err("it may look at nothing");
    assert_eq!(error.kind(), Kind::Misconfigured, "{error}");
    assert!(error.to_string().contains("permission denied for schema"), "{error}");

    let grants = format!(
        "GRANT USAGE ON SCHEMA {schema} TO app; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO app; \
         GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO app"
    );
    raw.batch_execute(&grants).await.expect("it is granted");
    let store = place.open_through(&url_of("app")).await;
    let row = leased("granted");
    apply_all(&store, &[insert(&row)]).await;
    apply_all(&store, &[told(swap(&row, &completed(&row)), &row, "node")]).await;
    let entries = store.story(row.id, 10).await.expect("it may be told");
    store.tell(&entries).await.expect("it may tell");
    assert_eq!(store.drop_entries(FAR_AHEAD, 10).await.expect("it may drop"), 1);
    assert_eq!(read(&store, "granted").await, Some(completed(&row)));
    for due in oncegate_store::Due::ALL {
        assert!(store.due(due, FAR_AHEAD, 10).await.is_ok());
    }
    assert_eq!(store.counts().await.expect("they are counted").completed, 1);
    let signals = store.signals().expect("nothing is in between");
    signals.tell(&[]).await.expect("it may tell");
    let joined = completed(&leased("joined"));
    let opening = store.opening(joined.id).expect("transactions may begin with a key");
    let closing = store.closing(&insert(&joined)).expect("and end with its row");
    let app = raw_client(&url_of("app")).await;
    app.batch_execute(&format!("{}; BEGIN; ROLLBACK", opening.or_fail)).await.expect("it may begin one");
    app.batch_execute(&format!("{}; BEGIN", opening.or_tell.in_full())).await.expect("in either way");
    app.batch_execute(&format!("{}; COMMIT AND CHAIN", closing.in_full())).await.expect("it may end it");
    assert_eq!(read(&store, "joined").await, Some(joined));
    // By names, too.
    let named = completed(&leased("named"));
    let opening = store.opening(named.id).expect("transactions may begin with a key").or_tell;
    let closing = store.closing(&insert(&named)).expect("and end with its row");
    for call in [&opening, &closing] {
        let prepare = format!("PREPARE {} AS {}", call.routine.name, call.routine.statement);
        app.batch_execute(&prepare).await.expect("it may prepare them");
    }
    let named_ones = format!("{}; BEGIN; {}; COMMIT", opening.by_name(), closing.by_name());
    app.batch_execute(&named_ones).await.expect("it may execute them");
    assert_eq!(read(&store, "named").await, Some(named));
}
