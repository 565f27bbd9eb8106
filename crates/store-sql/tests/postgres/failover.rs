//! A primary dies, and its synchronous standby takes over: nothing that was acknowledged is missing.

use oncegate_store::{Outcome, Store};
use oncegate_test_servers::{Postgres, Replication, until};

use crate::place::{Place, in_time, insert, leased, read};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_same_store_goes_on_with_the_promoted_standby() {
    let mut primary = Postgres::start(&[]);
    let place = Place::at(&primary.url());
    drop(place.open().await);
    let mut standby = primary.standby(Replication::Synchronous);
    let both = primary.url().replace("127.0.0.1:", &format!("127.0.0.1:{},127.0.0.1:", standby.port()));
    let store = place.open_through(&both).await;
    let mut acknowledged = Vec::new();
    let ended = in_time(async {
        let write_on = async {
            // Until the primary is gone.
            for n in 0.. {
                let key = format!("before-{n}");
                match store.apply(&[insert(&leased(&key))]).await {
                    Ok(outcomes) => assert_eq!(outcomes, [Outcome::Applied]),
                    Err(error) => return error,
                }
                acknowledged.push(key);
                if n == 50 {
                    primary.kill_9();
                }
            }
            unreachable!("the primary is killed")
        };
        write_on.await
    })
    .await;
    assert_eq!(ended.kind(), oncegate_store::Kind::Unavailable, "{ended}");
    assert!(acknowledged.len() > 50);
    standby.promote();
    let row = leased("after");
    until("the promoted standby is found", async || {
        // The first may be in doubt, and have landed.
        let applied = store.apply(&[insert(&row)]).await;
        applied.is_ok_and(|outcomes| outcomes != [Outcome::Refused { current: None }])
    })
    .await;
    assert!(read(&store, "after").await.is_some());
    for key in &acknowledged {
        assert!(read(&store, key).await.is_some(), "{key} was acknowledged");
    }
}
