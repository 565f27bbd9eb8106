//! TLS, by libpq's words.

use oncegate_store::{Effect, Kind, StoreError};
use oncegate_test_servers::{Postgres, until};

use crate::place::{Place, apply_all, insert, leased};

/// How many sessions of stores there are, encrypted and not.
async fn encrypted(place: &Place) -> (i64, i64) {
    let count = |is: bool| {
        format!(
            "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
             WHERE application_name = 'oncegate' AND ssl = {is}"
        )
    };
    (place.number(&count(true)).await, place.number(&count(false)).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_as_safe_as_the_url_says() {
    let (server, authority) = Postgres::start_with_tls(&[]);
    let (_other, stranger) = Postgres::start_with_tls(&[]);
    let place = Place::at(&server.url());
    let (authority, stranger) = (authority.display(), stranger.display());
    for (n, words) in [
        "sslmode=require".to_owned(),
        "sslmode=prefer".to_owned(),
        format!("sslmode=require&sslrootcert={authority}"),
        format!("sslmode=verify-full&sslrootcert={authority}"),
    ]
    .into_iter()
    .enumerate()
    {
        let store = place.open_through(&format!("{}?{words}", server.url())).await;
        apply_all(&store, &[insert(&leased(&n.to_string()))]).await;
        let (safe, plain) = encrypted(&place).await;
        assert!(safe > 0 && plain == 0, "{words}: {safe} encrypted, {plain} not");
        drop(store);
        until("its sessions are gone", async || encrypted(&place).await == (0, 0)).await;
    }
    for words in ["verify-full", "require"] {
        let url = format!("{}?sslmode={words}&sslrootcert={stranger}", server.url());
        let error = place.try_open_through(&url).await.expect_err("a stranger vouches for it");
        is_clear(&error, Kind::Unavailable, "certificate");
    }
    // The certificate is for 127.0.0.1 and localhost.
    let url = format!("{}?sslmode=verify-full&sslrootcert={authority}", server.url())
        .replace("127.0.0.1", "127.0.0.2");
    let error = place.try_open_through(&url).await.expect_err("nobody is there, or another");
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    let url = format!("{}?sslmode=verify-full&sslrootcert=/nowhere.crt", server.url());
    is_clear(
        &place.try_open_through(&url).await.expect_err("no such file"),
        Kind::Misconfigured,
        "/nowhere.crt",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_is_refused_where_it_is_required() {
    let server = Postgres::start(&[]);
    let place = Place::at(&server.url());
    let url = format!("{}?sslmode=require", server.url());
    is_clear(&place.try_open_through(&url).await.expect_err("it has no TLS"), Kind::Unavailable, "TLS");
    drop(place.open_through(&format!("{}?sslmode=prefer", server.url())).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_requires_tls_says_so() {
    let (server, _authority) = Postgres::start_with_tls(&[]);
    let place = Place::at(&server.url());
    let rules = "CREATE TABLE rules (line text); INSERT INTO rules VALUES ('local all all trust'), \
                 ('hostssl all all all trust'); COPY rules TO PROGRAM 'cat > $PGDATA/pg_hba.conf'";
    let rules = rules.replace("$PGDATA", &server.sql("show data_directory"));
    let _done = server.sql(&rules);
    let _true = server.sql("select pg_reload_conf()");
    let url = format!("{}?sslmode=disable", server.url());
    let refused = || async { place.try_open_through(&url).await.err() };
    until("the rules are read", async || refused().await.is_some()).await;
    is_clear(&refused().await.expect("it is refused"), Kind::Misconfigured, "no encryption");
    drop(place.open_through(&format!("{}?sslmode=require", server.url())).await);
}

fn is_clear(error: &StoreError, kind: Kind, word: &str) {
    assert_eq!((error.kind(), error.effect()), (kind, Effect::None), "{error}");
    assert!(error.to_string().contains(word), "{error}");
}
