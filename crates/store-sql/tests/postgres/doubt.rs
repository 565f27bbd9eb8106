//! What is said when a connection or a server is lost: "nothing was written" only if that is so.

use oncegate_core::audit::Entry;
use oncegate_core::record::Record;
use oncegate_store::{Effect, Kind, Outcome, Store, StoreError, Write};
use oncegate_store_sql::PostgresStore;
use oncegate_test_servers::{Cut, PgBouncer, Postgres, TcpProxy, until};

use crate::place::{Place, apply_all, completed, in_time, insert, leased, read, swap, told, until_waiting};

/// A store behind a proxy, and one that looks at the same rows directly.
struct Proxied {
    place: Place,
    proxy: TcpProxy,
    store: PostgresStore,
    witness: PostgresStore,
}

impl Proxied {
    async fn start() -> Self {
        let place = Place::shared();
        let proxy = TcpProxy::start(&place.url);
        let (store, witness) = (place.open_through(&proxy.url_of(&place.url)).await, place.open().await);
        Self { place, proxy, store, witness }
    }

    /// One writer, so that what one batch has prepared the next one finds.
    async fn with_one_writer() -> Self {
        let mut proxied = Self::start().await;
        let options =
            oncegate_store_sql::postgres::PostgresOptions::new(&proxied.proxy.url_of(&proxied.place.url));
        let options = options.and_then(|options| options.schema(&proxied.place.schema)).expect("a valid URL");
        proxied.store = options.writers(1).open().await.expect("the store opens");
        proxied
    }

    async fn fails(&self, batch: &[Write]) -> StoreError {
        in_time(self.store.apply(batch)).await.expect_err("no outcome can be known")
    }
}

fn is_settled(record: Option<&Record>) -> bool {
    record.is_some_and(|record| record.version == completed(&leased("any")).version)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_insert_cut_at_its_commit_is_in_doubt() {
    let lost = Proxied::start().await;
    for (cut, is_there) in [(Cut::BeforeSending, false), (Cut::AfterSending, true)] {
        let row = leased(&format!("{cut:?}"));
        lost.proxy.cut_at(b"COMMIT\0", 1, cut);
        let error = lost.fails(&[insert(&row)]).await;
        assert_eq!((error.kind(), error.effect()), (Kind::Unavailable, Effect::Unknown), "{cut:?}: {error}");
        lost.proxy.fired();
        assert_eq!(read(&lost.witness, &format!("{cut:?}")).await.is_some(), is_there, "{cut:?}");
        // On a new connection at once; it waits for the lost transaction, if that has not ended yet.
        let again = in_time(lost.store.apply(&[insert(&row)])).await.expect("the store works again");
        assert_eq!(again[0] == Outcome::Applied, !is_there, "{cut:?}: {again:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_cut_at_its_commit_is_in_doubt() {
    let lost = Proxied::start().await;
    for (cut, is_there) in [(Cut::BeforeSending, false), (Cut::AfterSending, true)] {
        let key = format!("{cut:?}");
        let row = leased(&key);
        apply_all(&lost.store, &[insert(&row)]).await;
        lost.proxy.cut_at(b"COMMIT\0", 1, cut);
        let error = lost.fails(&[swap(&row, &completed(&row))]).await;
        assert_eq!(error.effect(), Effect::Unknown, "{cut:?}: {error}");
        lost.proxy.fired();
        assert_eq!(is_settled(read(&lost.witness, &key).await.as_ref()), is_there, "{cut:?}");
        let again =
            in_time(lost.store.apply(&[swap(&row, &completed(&row))])).await.expect("the store works again");
        assert_eq!(again[0] == Outcome::Applied, !is_there, "{cut:?}: {again:?}");
    }
}

/// An entry has the fate of its write; and what is told by itself may be told again.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_told_and_cut_at_its_commit_is_in_doubt_and_once() {
    let lost = Proxied::start().await;
    for (cut, is_there) in [(Cut::BeforeSending, false), (Cut::AfterSending, true)] {
        let row = leased(&format!("told-{cut:?}"));
        let story = async || lost.witness.story(row.id, 10).await.expect("it is told");
        lost.proxy.cut_at(b"COMMIT\0", 1, cut);
        let error = lost.fails(&[told(insert(&row), &row, "node")]).await;
        assert_eq!(error.effect(), Effect::Unknown, "{cut:?}: {error}");
        lost.proxy.fired();
        // Waits for the lost transaction, if that has not ended yet.
        let again = in_time(lost.store.apply(&[told(insert(&row), &row, "node")])).await.expect("it works");
        assert_eq!(again[0] == Outcome::Applied, !is_there, "{cut:?}: {again:?}");
        assert_eq!(story().await.len(), 1, "{cut:?}");

        let alone = [Entry { node: "alone".into(), ..story().await.remove(0) }];
        lost.proxy.cut_at(b"COMMIT\0", 1, cut);
        let error = in_time(lost.store.tell(&alone)).await.expect_err("it is cut");
        assert_eq!((error.kind(), error.effect()), (Kind::Unavailable, Effect::Unknown), "{cut:?}: {error}");
        lost.proxy.fired();
        in_time(lost.store.tell(&alone)).await.expect("told again");
        assert_eq!(story().await[1..], alone, "{cut:?}: told once");
    }
}

/// A batch that names a key twice is a conversation: only its commit is in doubt.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_several_waves_is_in_doubt_from_its_commit_on() {
    let lost = Proxied::start().await;
    let cases = [
        (&b"BEGIN"[..], Cut::BeforeSending, Effect::None, false),
        (b"BEGIN", Cut::AfterSending, Effect::None, false),
        (b"COMMIT\0", Cut::BeforeSending, Effect::Unknown, false),
        (b"COMMIT\0", Cut::AfterSending, Effect::Unknown, true),
    ];
    for (n, (needle, cut, effect, is_there)) in cases.into_iter().enumerate() {
        let key = format!("twice-{n}");
        let row = leased(&key);
        lost.proxy.cut_at(needle, 1, cut);
        let error = lost.fails(&[insert(&row), swap(&row, &completed(&row))]).await;
        assert_eq!(error.effect(), effect, "case {n}: {error}");
        lost.proxy.fired();
        assert_eq!(is_settled(read(&lost.witness, &key).await.as_ref()), is_there, "case {n}");
        apply_all(&lost.store, &[insert(&leased(&format!("after-{n}")))]).await;
    }
}

/// All of a usual batch is sent in one go: a cut anywhere in it leaves the commit in doubt.
#[tokio::test(flavor = "multi_thread")]
async fn a_usual_batch_is_in_doubt_from_its_first_byte_on() {
    let lost = Proxied::start().await;
    lost.proxy.cut_at(b"BEGIN", 1, Cut::BeforeSending);
    let error = lost.fails(&[insert(&leased("first"))]).await;
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    apply_all(&lost.store, &[insert(&leased("first"))]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_server_is_unavailable_and_nothing_was_written() {
    let mut server = Postgres::start(&[]);
    let place = Place::at(&server.url());
    let store = place.open().await;
    apply_all(&store, &[insert(&leased("before"))]).await;
    server.stop_immediate();
    // The first may still find the old connection open, and is in doubt then.
    let mut effect = Effect::Unknown;
    for _ in 0..2 {
        let error = in_time(store.apply(&[insert(&leased("down"))])).await.expect_err("the server is down");
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
        effect = error.effect();
    }
    assert_eq!(effect, Effect::None, "nobody was reached");
    let error = in_time(store.read(&[leased("before").id])).await.expect_err("the server is down");
    assert_eq!((error.kind(), error.effect()), (Kind::Unavailable, Effect::None), "{error}");
    server.start_again();
    apply_all(&store, &[insert(&leased("down"))]).await;
    assert!(read(&store, "before").await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_not_answered_ends_in_doubt() {
    let lost = Proxied::with_one_writer().await;
    apply_all(&lost.store, &[insert(&leased("warm"))]).await;
    lost.proxy.stall();
    let error = lost.fails(&[insert(&leased("held"))]).await;
    assert_eq!((error.kind(), error.effect()), (Kind::Unavailable, Effect::Unknown), "{error}");
    lost.proxy.flow();
    apply_all(&lost.store, &[insert(&leased("next"))]).await;
}

/// Found by review: making a statement ready had no limit, so that a first settlement on a dead line waited for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_cannot_be_made_ready_ends_without_effect() {
    let lost = Proxied::with_one_writer().await;
    let row = leased("warm");
    apply_all(&lost.store, &[insert(&row)]).await;
    lost.proxy.stall();
    // The session knows the insert, and must ask the server about the settlement first.
    let error = lost.fails(&[swap(&row, &completed(&row))]).await;
    assert_eq!((error.kind(), error.effect()), (Kind::Unavailable, Effect::None), "{error}");
    lost.proxy.flow();
    apply_all(&lost.store, &[swap(&row, &completed(&row))]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_the_server_refuses_writes_nothing() {
    let place = Place::shared();
    let store = place.open().await;
    let (row, other) = (leased("refused"), leased("other"));
    apply_all(&store, &[insert(&row)]).await;
    place.raw().await.batch_execute(&format!("DROP TABLE {}.answer", place.schema)).await.expect("it goes");
    // The insert is fine by itself, and is undone with the settlement; so it is in several waves.
    let settle = swap(&row, &completed(&row));
    for batch in
        [&[insert(&other), settle.clone()][..], &[insert(&other), swap(&other, &completed(&other)), settle]]
    {
        let error = in_time(store.apply(batch)).await.expect_err("there is no table for the answer");
        assert_eq!((error.kind(), error.effect()), (Kind::Misconfigured, Effect::None), "{error}");
        assert_eq!(place.number("SELECT count(*) FROM {}.record").await, 1);
        assert_eq!(place.number("SELECT max(version) FROM {}.record").await, row.version.as_raw());
    }
}

/// Whoever ends a session does not know how far its transaction has come, and a pooler knows even less.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_ended_leaves_its_batch_in_doubt() {
    let mut server = Postgres::start(&[]);
    let bouncer = PgBouncer::start(&server.url(), &[]);
    let place = Place::at(&server.url());
    let row = leased("held");
    apply_all(&place.open().await, &[insert(&row)]).await;
    let terminate = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
         AND query LIKE '%{}%'",
        place.schema
    );
    for (url, is_killed) in [(server.url(), false), (bouncer.url(), false), (bouncer.url(), true)] {
        let store = place.open_through(&url).await;
        let holder = place.raw().await;
        let hold = format!("BEGIN; SELECT FROM {}.record FOR UPDATE", place.schema);
        holder.batch_execute(&hold).await.expect("the row is held");
        let batch = [swap(&row, &completed(&row))];
        let error = in_time(async {
            let (applied, ()) = tokio::join!(store.apply(&batch), async {
                let watcher = place.raw().await;
                until_waiting(&watcher, &place.schema, 1).await;
                if is_killed {
                    tokio::task::block_in_place(|| server.kill_9());
                } else {
                    assert_eq!(crate::place::number(&watcher, &terminate).await, 1);
                }
            });
            applied.expect_err("the session is gone")
        })
        .await;
        assert_eq!((error.kind(), error.effect()), (Kind::Unavailable, Effect::Unknown), "{url}: {error}");
        if is_killed {
            server.start_again();
        }
        drop(holder);
        // PgBouncer may need a moment to see that its server is back.
        until("the store works again", async || {
            store.apply(&[]).await.is_ok() && store.clock().await.is_ok()
        })
        .await;
        assert_eq!(read(&place.open().await, "held").await, Some(row.clone()));
    }
}
