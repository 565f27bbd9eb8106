//! Rows of atomic handlers grow old as all others do.

use std::time::Duration;

use oncegate_core::policy::Profile;
use oncegate_engine::{NoProbe, Worker, WorkerOptions};
use oncegate_store::{Filter, Store as _};
use oncegate_test_servers::until;

use crate::client::Call;
use crate::node::simple;
use crate::stage::policy;

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
