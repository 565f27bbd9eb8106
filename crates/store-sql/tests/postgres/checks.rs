//! What start-up says of real servers.

use oncegate_store::{Effect, Kind};
use oncegate_store_sql::PostgresStore;
use oncegate_test_servers::{Postgres, Replication};

use crate::place::{Place, apply_all, insert, leased};

fn about(store: &PostgresStore) -> Vec<&str> {
    store.warnings().iter().map(oncegate_store_sql::postgres::Warning::setting).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sound_server_is_not_complained_of() {
    let server = Postgres::start(&[]);
    assert!(about(&Place::at(&server.url()).open().await).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_lose_keys_are_named() {
    let server =
        Postgres::start(&[("fsync", "off"), ("full_page_writes", "off"), ("synchronous_commit", "off")]);
    let store = Place::at(&server.url()).open().await;
    assert_eq!(about(&store), ["fsync = off", "full_page_writes = off", "synchronous_commit = off"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_asynchronous_standby_is_named_and_a_synchronous_one_is_not() {
    let server = Postgres::start(&[]);
    let _synchronous = server.standby(Replication::Synchronous);
    let place = Place::at(&server.url());
    assert!(about(&place.open().await).is_empty());
    let asynchronous = server.standby(Replication::Asynchronous);
    let store = place.open().await;
    let expected = format!("standby standby_{} is asynchronous", asynchronous.port());
    assert_eq!(about(&store), [expected.as_str()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_decided_from_a_replica() {
    let server = Postgres::start(&[]);
    let place = Place::at(&server.url());
    drop(place.open().await);
    let replica = server.standby(Replication::Asynchronous);
    let error = place.try_open_through(&replica.url()).await.expect_err("it takes no writes");
    assert_eq!((error.kind(), error.effect()), (Kind::Unavailable, Effect::None), "{error}");
    assert!(error.to_string().contains("replica"), "{error}");
    // Named first among several, it is passed over.
    let both = server.url().replace("127.0.0.1:", &format!("127.0.0.1:{},127.0.0.1:", replica.port()));
    apply_all(&place.open_through(&both).await, &[insert(&leased("passed over"))]).await;
}
