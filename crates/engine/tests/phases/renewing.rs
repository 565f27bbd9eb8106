//! A lease is renewed while phases run: both write one row, and neither is in the other's way.

use std::sync::Arc;
use std::time::Duration;

use oncegate_engine::Settled;
use oncegate_engine::phases::{DownstreamKey, Retry};
use oncegate_store_sql::sqlx::SqliteTransactions;
use oncegate_test_servers::until;

use crate::ride::{KEY, Town, insert};
use crate::world::{complete, id, row};

#[tokio::test]
async fn phases_and_renewals_write_one_row_one_after_the_other() {
    let town = Town::in_real_time(|policy| policy.lease = Duration::from_secs(3)).await;
    let mut held = town.attempt().await;
    let phases = held.phases();
    let id = id(&town.route, KEY);
    let work = async {
        let mut run = phases.run(Arc::new(SqliteTransactions(town.pool.clone()))).unwrap();
        let mut seen = row(&town.engine, id).await.grant.unwrap().lease_until;
        for n in 0..3 {
            let name = format!("phase {n}");
            run.atomic(&name, async |tx| insert(tx, &name).await).await.unwrap();
            // Each call outlasts a renewal.
            let call = async |_: DownstreamKey| {
                until("the lease was renewed", async || {
                    let until = row(&town.engine, id).await.grant.unwrap().lease_until;
                    std::mem::replace(&mut seen, until) < until
                })
                .await;
                Ok(n)
            };
            run.foreign(&format!("call {n}"), Retry, call).await.unwrap();
        }
        run.finish("done").unwrap()
    };
    let answer = held.run(work).await;
    let settlement = held.as_its_phases_say(complete(answer));
    assert!(matches!(held.settle(settlement).await, Settled::Done(_)));
    assert_eq!(town.effects().await.len(), 3);
}
