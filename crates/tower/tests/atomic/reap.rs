//! Rows of atomic handlers grow old as all others do.

use std::time::Duration;

use oncegate_core::policy::Profile;
use oncegate_engine::{NoProbe, Worker, WorkerOptions};
use oncegate_store::{Filter, Store as _};
use oncegate_test_servers::until;
use sqlx::AssertSqlSafe;

use crate::base::{Base as _, OnPostgres};
use crate::client::Call;
use crate::node::{Node, Work, simple};
use crate::stage::{id_of, policy};

/// A row of the service's own that refers to the record, as the documentation says it should: the record is written after it, and
/// removed before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reference_to_the_record_is_written_before_it_and_is_null_when_it_is_reaped() {
    let base = OnPostgres::start().await;
    let (schema, raw) = (base.place.schema.clone(), base.place.raw().await);
    let table = format!(
        "CREATE TABLE {schema}.ride (record bytea REFERENCES {schema}.record (id) ON DELETE SET NULL \
         DEFERRABLE INITIALLY DEFERRED); CREATE INDEX ON {schema}.ride (record)"
    );
    raw.batch_execute(&table).await.unwrap();
    let insert = format!("INSERT INTO {schema}.ride (record) VALUES ($1)");
    let handler = move |mut work: Work<OnPostgres>| {
        let insert = insert.clone();
        async move {
            let record = work.tx.record().as_bytes().to_vec();
            sqlx::query(AssertSqlSafe(insert)).bind(record).execute(&mut *work.tx).await.unwrap();
            "there it is"
        }
    };
    let policy = policy(Profile::Ietf, |policy| policy.retention = Duration::from_micros(1));
    let node = Node::new(&base, policy, handler).await;
    Call::post("/rides").key("a").send(node.addr).await.expect_first(200, "there it is");
    let rides = async || {
        let rows = raw.query(&format!("SELECT record FROM {schema}.ride"), &[]).await.unwrap();
        rows.iter().map(|row| row.get::<_, Option<Vec<u8>>>(0)).collect::<Vec<_>>()
    };
    assert_eq!(rides().await, [Some(id_of("a").as_bytes().to_vec())]);
    let options = WorkerOptions::default();
    until("the reaper has removed the record", async || {
        node.engine.work(Worker::Reaper, &options, &NoProbe).await.unwrap();
        node.record("a").await.is_none()
    })
    .await;
    assert_eq!(rides().await, [None], "the ride stays");
}

on_both! {
    async fn past_retention_the_key_is_removed_and_the_business_row_stays<B: Base>() {
        let base = B::start().await;
        let node = simple(&base, policy(Profile::Ietf, |policy| policy.retention = Duration::from_micros(1))).await;
        let lasting = simple(&base, Profile::Ietf).await;
        for key in ["a", "b", "c"] {
            assert_eq!(Call::post("/charges").key(key).send(node.addr).await.status, 200);
        }
        assert_eq!(Call::post("/charges").key("lasting").send(lasting.addr).await.status, 200);
        let keys = async || {
            let page = node.engine.store().browse(&Filter::default(), None, 10).await.unwrap();
            page.records.iter().map(|record| record.address.key.as_str().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(keys().await, ["lasting", "c", "b", "a"], "newest first, as people see them");
        let options = WorkerOptions::default();
        until("the reaper has removed what is past retention", async || {
            node.engine.work(Worker::Reaper, &options, &NoProbe).await.unwrap();
            keys().await == ["lasting"]
        })
        .await;
        assert_eq!(base.charges().await, ["a", "b", "c", "lasting"]);
    }
}
