//! Schemas of older releases: what becomes of their rows, and that they end up as new ones are.

use std::time::Duration;

use oncegate_conformance::samples::{FAR_AHEAD, LONG_AGO, moved_to, parked, reserved, stored_request};
use oncegate_core::record::{CrashPolicy, Record, StateKind};
use oncegate_core::scope::Operation;
use oncegate_core::time::Timestamp;
use oncegate_store::turns::Backlog;
use oncegate_store::{Due, Filter, Store};
use oncegate_store_sql::PostgresStore;
use oncegate_store_sql::postgres::PostgresOptions;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::place::{Place, apply_all, completed, leased, read, swap, told};
use crate::startup::MIGRATIONS;

/// The numbered scripts, in order. (The other texts there are of any schema.)
fn scripts() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/postgres");
    let entries = std::fs::read_dir(folder).expect("there are scripts");
    let mut entries: Vec<_> = entries.map(|entry| entry.expect("it is listed")).collect();
    entries.retain(|entry| entry.file_name().to_string_lossy().starts_with("00"));
    entries.sort_by_key(std::fs::DirEntry::file_name);
    let read = |entry: &std::fs::DirEntry| std::fs::read_to_string(entry.path()).expect("it can be read");
    entries.iter().map(read).collect()
}

/// A schema as a release has left it that knew so many scripts.
async fn older(place: &Place, scripts: usize) -> Client {
    let (raw, schema) = (place.raw().await, &place.schema);
    let table = format!(
        "CREATE SCHEMA {schema}; CREATE TABLE {schema}.migration \
         (number integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT clock_timestamp()); \
         INSERT INTO {schema}.migration (number) SELECT n FROM generate_series(1, {scripts}) n"
    );
    raw.batch_execute(&table).await.expect("a schema is made");
    for script in &self::scripts()[..scripts] {
        let script = script.replace("{schema}", schema).replace("{name}", schema);
        raw.batch_execute(&script).await.expect("the script runs");
    }
    raw
}

/// A row of the first release.
async fn write(raw: &Client, schema: &str, seq: i64, record: &Record) {
    let text = format!(
        "INSERT INTO {schema}.record (seq, id, version, state, due_at, attention_at, expires_at, created_at, resumable, scope, key, operation, rest) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
    );
    let micros = |moment: Option<Timestamp>| moment.map(Timestamp::as_micros);
    let is_usual = matches!(record.state.kind(), StateKind::InProgress | StateKind::Completed);
    let attention =
        if record.state.kind() == StateKind::Pending { record.expires_at } else { record.due_at() };
    let state = i16::from(oncegate_core::record::codec::state_number(record.state.kind()));
    raw.execute(
        &text,
        &[
            &seq,
            &&record.id.as_bytes()[..],
            &record.version.as_raw(),
            &state,
            &micros(record.due_at()),
            &micros(attention.filter(|_| !is_usual)),
            &micros(record.expires_at),
            &record.created_at.as_micros(),
            &record.is_resumable(),
            &record.address.scope.as_str(),
            &record.address.key.as_str(),
            &record.operation.as_str(),
            &record.encode_row(),
        ],
    )
    .await
    .expect("the row is written");
    if let Some(answer) = record.encode_answer() {
        let text = format!("INSERT INTO {schema}.answer VALUES ($1, $2)");
        raw.execute(&text, &[&seq, &answer]).await.expect("its answer is written");
    }
}

const HOUR: Duration = Duration::from_hours(1);
const ODD_KEY: &str = "$1; -- \\x";

/// Rows in every state, and what else the release before the last had columns for.
struct Rows {
    leased: Record,
    resumable: Record,
    completed: Record,
    kept: Record,
    pending: Record,
    released: Record,
    unknown: Record,
    parked: Record,
    expired: Record,
}

impl Rows {
    fn new() -> Self {
        let mut resumable = reserved("resumable", 2, LONG_AGO);
        resumable.terms.crash = CrashPolicy::Resume;
        resumable.request = Some(stored_request());
        let mut unknown = moved_to(&leased(ODD_KEY), StateKind::Unknown, LONG_AGO);
        unknown.operation = Operation::new("POST /gr\u{fc}\u{df}e").expect("a name");
        unknown.provider_reference = Some("ch_1".into());
        Self {
            leased: leased("leased"),
            resumable,
            completed: completed(&leased("completed")),
            kept: completed(&leased("kept")),
            pending: moved_to(&leased("pending"), StateKind::Pending, LONG_AGO),
            released: moved_to(&leased("released"), StateKind::FailedRetryable, LONG_AGO),
            unknown,
            parked: parked(&leased("parked")),
            expired: moved_to(&leased("expired"), StateKind::Expired, FAR_AHEAD),
        }
    }

    fn all(&self) -> [&Record; 9] {
        let Self { leased, resumable, completed, kept, pending, released, unknown, parked, expired } = self;
        [leased, resumable, completed, kept, pending, released, unknown, parked, expired]
    }

    /// As the release with twelve scripts has them.
    async fn write(&self, place: &Place, raw: &Client) {
        let schema = &place.schema;
        // Accepted work is in a line as soon as it is there.
        raw.batch_execute(&format!("ALTER TABLE {schema}.record ALTER COLUMN line SET DEFAULT 0"))
            .await
            .expect("it has");
        write(raw, schema, 5, &self.pending).await;
        raw.batch_execute(&format!("ALTER TABLE {schema}.record ALTER COLUMN line DROP DEFAULT"))
            .await
            .expect("it has");
        for (seq, record) in (10..).zip(self.all()) {
            if record.id != self.pending.id {
                write(raw, schema, seq, record).await;
            }
        }
        let more = format!(
            "UPDATE {schema}.record SET line = 17, waits_since = due_at WHERE state = 0; \
             UPDATE {schema}.record SET doubt_since = {doubt}, parked_since = CASE WHEN due_at IS NULL THEN {doubt} END WHERE state = 4; \
             UPDATE {schema}.record SET reference = 'ch_1' WHERE key = '{ODD_KEY}'; \
             UPDATE {schema}.record r SET kept_until = expires_at, answer = a.bytes FROM {schema}.answer a WHERE a.seq = r.seq AND r.key = 'kept'; \
             DELETE FROM {schema}.answer WHERE seq = (SELECT seq FROM {schema}.record WHERE key = 'kept'); \
             INSERT INTO {schema}.note (kind, due_at, first, last) VALUES (1, 0, 0, 65535)",
            doubt = LONG_AGO.as_micros(),
        );
        raw.batch_execute(&more).await.expect("the rest is written");
    }
}

async fn due(store: &PostgresStore, what: Due, now: Timestamp) -> Vec<String> {
    let scan = store.due(what, now, 100).await.expect("it is looked for");
    assert_eq!(scan.unreadable, 0);
    let mut keys: Vec<_> = scan.records.iter().map(|record| record.address.key.as_str().to_owned()).collect();
    keys.sort();
    keys
}

async fn listed(store: &PostgresStore, filter: Filter) -> Vec<String> {
    let page = store.browse(&filter, None, 100).await.expect("they are listed");
    assert_eq!(page.unreadable, 0);
    let mut keys: Vec<_> = page.records.iter().map(|record| record.address.key.as_str().to_owned()).collect();
    keys.sort();
    keys
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_the_release_before_are_kept_and_found() {
    let place = Place::shared();
    let raw = older(&place, 12).await;
    let rows = Rows::new();
    rows.write(&place, &raw).await;
    let store = place.open().await;
    for row in rows.all() {
        assert_eq!(read(&store, row.address.key.as_str()).await.as_ref(), Some(row));
    }
    let unknown = rows.unknown.address.key.as_str();
    let present = Timestamp::from_micros(2_500_000_000_000_000);
    assert_eq!(due(&store, Due::Pending, present).await, ["pending"]);
    assert_eq!(due(&store, Due::Resumable, present).await, ["resumable"]);
    assert_eq!(due(&store, Due::Lapsed, FAR_AHEAD.plus(HOUR)).await, ["leased"]);
    assert_eq!(due(&store, Due::Doubted, present).await, [unknown]);
    assert_eq!(due(&store, Due::Expired, present).await, ["released"]);
    let expired = due(&store, Due::Expired, FAR_AHEAD).await;
    assert_eq!(expired, ["completed", "expired", "kept", "pending", "released"]);
    let by = |filter: Filter| listed(&store, filter);
    assert_eq!(by(Filter { reference: Some("ch_1".into()), ..Filter::default() }).await, [unknown]);
    assert_eq!(by(Filter { parked: Some(true), ..Filter::default() }).await, ["parked"]);
    assert_eq!(by(Filter { key: Some(unknown.into()), ..Filter::default() }).await, [unknown]);
    assert_eq!(
        by(Filter { state: Some(StateKind::InProgress), ..Filter::default() }).await,
        ["leased", "resumable"]
    );
    let doubts = store.doubts().await.expect("they are counted");
    assert_eq!(doubts.open, Backlog { rows: 2, oldest: Some(LONG_AGO) });
    assert_eq!(doubts.parked, Backlog { rows: 1, oldest: Some(LONG_AGO) });
    assert_eq!(store.backlog().await.expect("it is counted"), Backlog { rows: 1, oldest: Some(LONG_AGO) });
    // And they go on.
    for row in [&rows.pending, &rows.released, &rows.unknown, &rows.parked] {
        apply_all(&store, &[swap(row, &completed(row))]).await;
        assert_eq!(read(&store, row.address.key.as_str()).await, Some(completed(row)));
    }
    let found_by = "SELECT count(*) FROM {}.mark WHERE num_nonnulls(line, waits_since, operation, doubt_since, parked_since) > 0";
    assert_eq!(place.number(found_by).await, 0, "they are found by nothing but a reference any more");
    assert_eq!(place.number("SELECT count(*) FROM {}.mark").await, 1);
}

/// A schema of the first release has rows, and no trail: it is brought up to date, and keeps its rows.
#[tokio::test(flavor = "multi_thread")]
async fn the_schema_of_an_older_release_keeps_its_rows_and_gets_a_trail() {
    for scripts in [1, 5, 8, 10] {
        let place = Place::shared();
        let row = leased("old");
        write(&older(&place, scripts).await, &place.schema, 1, &row).await;
        let looker = PostgresOptions::new(&place.url).and_then(|options| options.schema(&place.schema));
        let error = looker.expect("a valid URL").existing().open().await.expect_err("it is older");
        assert!(error.to_string().contains("Run `oncegate migrate` first"), "{error}");
        let store = place.open().await;
        assert_eq!(read(&store, "old").await, Some(row.clone()));
        apply_all(&store, &[told(swap(&row, &completed(&row)), &row, "node")]).await;
        assert_eq!(store.story(row.id, 10).await.expect("it is told").len(), 1);
    }
}

/// Whoever could use the records can use what is found by them; and moments that are never to come stay in their range.
#[tokio::test(flavor = "multi_thread")]
async fn grants_and_endless_moments_are_carried_over() {
    let place = Place::shared();
    let raw = older(&place, 12).await;
    let (rows, schema) = (Rows::new(), &place.schema);
    rows.write(&place, &raw).await;
    let text = format!(
        "GRANT SELECT, DELETE ON {schema}.record TO PUBLIC; \
         UPDATE {schema}.record SET kept_until = {max} WHERE key = 'kept'; \
         UPDATE {schema}.record SET attention_at = {max} WHERE key = 'released' OR state = 4",
        max = i64::MAX
    );
    raw.batch_execute(&text).await.expect("it is as it may be");
    drop(place.open().await);
    let granted = "SELECT count(*) FROM pg_class, aclexplode(relacl) WHERE oid = '{}.mark'::regclass AND grantee = 0 \
                   AND privilege_type IN ('SELECT', 'DELETE')";
    assert_eq!(place.number(granted).await, 2);
    for (n, state) in [(2, 2), (1, 3), (0, 4)] {
        let last = format!(
            "SELECT count(*) FROM {{}}.record WHERE state = {state} AND look_at = (1::bigint << 60) - 1 + ({n}::bigint << 60)"
        );
        assert!(place.number(&last).await > 0, "state {state}");
    }
}

/// A node of an earlier release, which runs beside this one for a while, lays its rows out in another way: nothing that it would write is taken.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_of_an_earlier_release_would_write_is_refused() {
    let place = Place::shared();
    drop(place.open().await);
    let raw = place.raw().await;
    for text in [
        "INSERT INTO {}.record (seq, id, version, state, due_at, created_at, resumable, scope, key, operation, rest) \
         VALUES (1, '', 1, 1, 1, 1, false, 's', 'k', 'o', '')",
        "UPDATE {}.record SET version = 2, state = 2, due_at = 2, attention_at = NULL, expires_at = 2",
        // Nor may it tidy notes: of what it takes for no lease any more it would take the only one away.
        "SELECT due_at, no FROM {}.note WHERE kind = 1",
        "UPDATE {}.note SET kind = 2",
    ] {
        let error = raw.batch_execute(&text.replace("{}", &place.schema)).await.expect_err("it is refused");
        assert_eq!(error.code(), Some(&SqlState::UNDEFINED_COLUMN), "{error}");
    }
}

/// The release before named some keys otherwise, and knew of no quarantine: a node of it that still runs must admit nothing once the schema is newer, and
/// the error says why. These are its own statements. What it has begun it may settle.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_the_release_before_admits_nothing_and_is_told_why() {
    let place = Place::shared();
    // It is there first, with its plans made.
    let raw = older(&place, 13).await;
    let routines = include_str!("../../migrations/postgres/routines.sql");
    let close = "CREATE FUNCTION {}.oncegate_close_{}(id bytea, version bigint, expires_at bigint, rest bytea, answer bytea) \
                 RETURNS void LANGUAGE plpgsql AS $$ BEGIN INSERT INTO {}.record (seq, id, version, state, due_at, rest, look_at, answer) \
                 VALUES (nextval('{}.batch') * 65536, id, version, 2, expires_at, rest, expires_at + 2305843009213693952, answer); END $$";
    assert!(routines.contains(
        "oncegate_close_{name}(id bytea, version bigint, expires_at bigint, rest bytea, answer bytea)"
    ));
    let of_schema = |text: &str| text.replace("{}", &place.schema);
    raw.batch_execute(&of_schema(close)).await.expect("as that release made it");
    let reserve = "WITH batch AS MATERIALIZED (SELECT nextval('{}.batch') * 65536 AS first), \
         inserted AS (INSERT INTO {}.record (seq, id, version, state, due_at, rest) \
         SELECT (SELECT first FROM batch) + place, id, version, 1, due_at, rest \
         FROM unnest($1::integer[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bytea[]) AS new (place, id, version, due_at, rest) \
         ON CONFLICT (id) DO NOTHING RETURNING id), \
         noted AS (INSERT INTO {}.note (about, due_at, first, last) SELECT 1, $6::bigint, first, first + 65535 FROM batch \
         WHERE EXISTS (SELECT FROM inserted)) \
         SELECT count(*), CASE WHEN count(*) < cardinality($1) THEN array_agg(id) END FROM inserted";
    let reserve = raw.prepare(&of_schema(reserve)).await.expect("it is prepared");
    let row = leased("begun");
    let rest = row.encode_row();
    let reserved = async |id: &[u8]| {
        let (ids, rests) = (vec![id], vec![&rest[..]]);
        raw.query(&reserve, &[&vec![0_i32], &ids, &vec![1_i64], &vec![1_i64], &rests, &1_i64]).await
    };
    reserved(b"before").await.expect("until then it may");

    let store = place.open().await;
    apply_all(&store, &[crate::place::insert(&row)]).await;
    let refused = |error: &tokio_postgres::Error| {
        let error = error.as_db_error().expect("the server says so");
        assert_eq!(error.code(), &SqlState::CHECK_VIOLATION, "{error:?}");
        assert_eq!(error.constraint(), Some("this_node_is_older_than_the_schema_upgrade_it"), "{error:?}");
    };
    // Planned before the schema was changed, and after.
    refused(&reserved(b"after").await.expect_err("it is refused"));
    for text in [
        "INSERT INTO {}.record (seq, id, version, state, due_at, look_at, rest) \
         SELECT nextval('{}.batch') * 65536, 'pending', 1, 0, 1, 1, 'rest' ON CONFLICT (id) DO NOTHING RETURNING id, seq",
        "INSERT INTO {}.record (seq, id, version, state, due_at, look_at, rest, answer) \
         VALUES (nextval('{}.batch') * 65536, 'joined', 1, 2, 1, 1, 'rest', 'answer') ON CONFLICT (id) DO NOTHING RETURNING 1",
        "INSERT INTO {}.record (seq, id, version, state, due_at, rest, look_at, answer) \
         VALUES (nextval('{}.batch') * 65536, 'closed', 1, 2, 1, 'rest', 1, 'answer')",
        "SELECT {}.oncegate_close_{}('function', 1, 1, 'rest', 'answer')",
    ] {
        refused(&raw.batch_execute(&of_schema(text)).await.expect_err("it is refused"));
    }
    assert_eq!(place.number("SELECT count(*) FROM {}.record WHERE id IN ('after', 'pending', 'joined', 'closed', 'function')").await, 0);
    // What it has begun it may settle.
    let settle = "UPDATE {}.record SET version = 2, state = 3, due_at = 2, look_at = 3, rest = rest, answer = NULL WHERE id = 'before'";
    assert_eq!(raw.execute(&of_schema(settle), &[]).await.expect("it is settled"), 1);
    // And one that starts is refused, by the number of scripts.
    assert!(place.number("SELECT count(*) FROM {}.migration").await > 13);
}

/// What a schema has, line by line.
async fn catalogue(place: &Place) -> Vec<String> {
    let text = "
        SELECT format('%s.%s %s %s %s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attstorage, a.attidentity,
                      pg_get_expr(d.adbin, d.adrelid))
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE c.relnamespace = to_regnamespace('{}') AND a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'v', 'S')
        UNION ALL SELECT c.relname || ' ' || coalesce(c.reloptions::text, '') FROM pg_class c WHERE c.relnamespace = to_regnamespace('{}')
        UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = '{}'
        UNION ALL SELECT conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = to_regnamespace('{}')
        UNION ALL SELECT pg_get_functiondef(oid) || coalesce(proacl::text, '') FROM pg_proc WHERE pronamespace = to_regnamespace('{}')
        UNION ALL SELECT definition FROM pg_views WHERE schemaname = '{}'
        ORDER BY 1";
    let rows = place.raw().await.query(&text.replace("{}", &place.schema), &[]).await.expect("it is read");
    rows.iter().map(|row| row.get::<_, String>(0).replace(&place.schema, "{}")).collect()
}

/// Columns stand in the same order, too.
async fn columns(place: &Place) -> Vec<String> {
    let text = "SELECT c.relname || '.' || a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid \
                WHERE c.relnamespace = to_regnamespace('{}') AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped \
                ORDER BY c.relname, a.attnum";
    let rows = place.raw().await.query(&text.replace("{}", &place.schema), &[]).await.expect("it is read");
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_schema_ends_up_as_a_new_one_is() {
    let (new, old) = (Place::shared(), Place::shared());
    drop(new.open().await);
    drop(older(&old, 1).await);
    drop(old.open().await);
    let [of_new, of_old] = [catalogue(&new).await, catalogue(&old).await];
    assert!(of_new.len() > 100, "all of it is looked at: {of_new:#?}");
    assert_eq!(of_new, of_old);
    assert_eq!(columns(&new).await, columns(&old).await);
    assert_eq!(scripts().len(), usize::try_from(MIGRATIONS).expect("some"));
    for place in [&new, &old] {
        assert_eq!(place.number("SELECT count(*) FROM {}.migration").await, MIGRATIONS);
    }
    let dropped = "SELECT count(*) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid \
                   WHERE c.relnamespace = to_regnamespace('{}') AND a.attisdropped";
    assert_eq!(new.number(dropped).await, 0, "a new one has nothing that was dropped");
}

/// The view for people shows what the store shows.
#[tokio::test(flavor = "multi_thread")]
async fn people_see_names_and_moments() {
    let place = Place::shared();
    let store = place.open().await;
    let rows = Rows::new();
    for row in rows.all() {
        apply_all(&store, &[crate::place::insert(row)]).await;
    }
    let raw = place.raw().await;
    raw.batch_execute(&format!("INSERT INTO {}.record VALUES (1, '', 1, 2, 1, '\\x01')", place.schema))
        .await
        .expect("a row that cannot be read is there");
    let text = format!(
        "SELECT scope, key, operation, state, (extract(epoch FROM created_at) * 1000000)::bigint, \
         (extract(epoch FROM due_at) * 1000000)::bigint, version, id FROM {}.keys",
        place.schema
    );
    let shown = raw.query(&text, &[]).await.expect("it is shown");
    assert_eq!(shown.len(), rows.all().len());
    for row in rows.all() {
        let seen =
            shown.iter().find(|seen| seen.get::<_, &[u8]>(7) == row.id.as_bytes()).expect("it is among them");
        assert_eq!(seen.get::<_, &str>(0), row.address.scope.as_str());
        assert_eq!(seen.get::<_, &str>(1), row.address.key.as_str());
        assert_eq!(seen.get::<_, &str>(2), row.operation.as_str());
        assert_eq!(seen.get::<_, &str>(3), row.state.kind().to_string());
        assert_eq!(seen.get::<_, i64>(4), row.created_at.as_micros());
        assert_eq!(seen.get::<_, Option<i64>>(5), row.due_at().map(Timestamp::as_micros));
        assert_eq!(seen.get::<_, i64>(6), row.version.as_raw());
    }
}
