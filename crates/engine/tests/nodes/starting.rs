//! Nodes that are started together, as a deploy does.

use oncegate_core::policy::Profile;
use oncegate_engine::Options;
use oncegate_test_servers::shared;

use crate::actor::block_on;
use crate::schema::own_schema;
use crate::world::{completed, granted, node, replayed, request, route};

const ROUNDS: usize = 10;
const NODES: usize = 6;

/// All but the first refused to start: whoever had looked for the schema before it was there was told from the server's memory, also
/// behind the lock, that it still was not; and created it a second time.
pub(crate) fn together() {
    let server = shared::postgres_url();
    for _ in 0..ROUNDS {
        let schema = own_schema(&server);
        block_on(async {
            let starting: Vec<_> = (0..NODES)
                .map(|_| {
                    let url = schema.url.clone();
                    tokio::spawn(async move { node(&url, Options::default()).await })
                })
                .collect();
            let mut nodes = Vec::new();
            for starting in starting {
                nodes.push(starting.await.unwrap());
            }
            let route = route(Profile::Ietf, |_| ());
            completed(granted(nodes[0].arrive(&route, request(&route, "k")).await.unwrap()), "paid").await;
            for node in nodes {
                assert_eq!(replayed(node.arrive(&route, request(&route, "k")).await.unwrap()), "paid");
            }
        });
    }
}
