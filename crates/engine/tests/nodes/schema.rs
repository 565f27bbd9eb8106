//! A schema for one trial, in a server that others use too; gone with the trial, however that ends.

use oncegate_engine::Options;
use oncegate_test_servers::shared;

use crate::actor::block_on;
use crate::world::{connect, node, unique};

/// Dropped, it drops the schema. To be declared before all that uses it, so that they are gone by then.
pub(crate) struct Schema {
    /// Where it is, for the tests' own questions.
    pub(crate) server: String,
    pub(crate) name: String,
    /// The same as the URL of a store.
    pub(crate) url: String,
}

/// One that no other test has, not even one that was killed earlier. It is there once a node is started on it.
pub(crate) fn own_schema(server: &str) -> Schema {
    let name = unique("nodes").replace('-', "_");
    let mark = if server.contains('?') { '&' } else { '?' };
    Schema { url: format!("{server}{mark}schema={name}"), server: server.to_owned(), name }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let (server, text) = (self.server.clone(), format!("DROP SCHEMA IF EXISTS {} CASCADE", self.name));
        // On a thread of its own: this one may be inside a runtime.
        let dropped = std::thread::spawn(move || {
            block_on(async { connect(&server).await.batch_execute(&text).await.unwrap() });
        });
        // A trial that fails already is to fail by its own words.
        assert!(dropped.join().is_ok() || std::thread::panicking(), "{} is left behind", self.name);
    }
}

/// Found by review: a server's URL with a parameter of its own made one that no store understands, and no schema was ever dropped.
pub(crate) fn gone_with_its_trial() {
    for server in [shared::postgres_url(), with_a_parameter(&shared::postgres_url())] {
        let [calm, failing] = [own_schema(&server), own_schema(&server)];
        let names = [calm.name.clone(), failing.name.clone()];
        assert_eq!(there(&names), 0);
        for url in [&calm.url, &failing.url] {
            drop(block_on(async { node(url, Options::default()).await }));
        }
        assert_eq!(there(&names), 2, "each store is in its schema");
        drop(calm);
        assert_eq!(there(&names), 1);
        let failed = std::thread::spawn(move || {
            let _schema = failing;
            std::panic::resume_unwind(Box::new("this trial fails"));
        });
        assert!(failed.join().is_err());
        assert_eq!(there(&names), 0, "also after a failure");
    }
}

fn with_a_parameter(url: &str) -> String {
    let mark = if url.contains('?') { '&' } else { '?' };
    format!("{url}{mark}application_name=nodes")
}

/// How many of these are there.
fn there(names: &[String]) -> i64 {
    let text = "SELECT count(*) FROM pg_namespace WHERE nspname = ANY($1)";
    block_on(async {
        connect(&shared::postgres_url()).await.query_one(text, &[&names]).await.unwrap().get(0)
    })
}
