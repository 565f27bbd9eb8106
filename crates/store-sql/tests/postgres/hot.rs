//! What a key costs the server.

use oncegate_core::record::Record;
use oncegate_store::{Store, Write};
use oncegate_test_servers::{Postgres, until};

use crate::place::{Place, apply_all, completed, insert, leased, number, swap};

const KEYS: usize = 2_000;

/// The second write of a key stays on its page and touches no index; the answer is written once.
///
/// In a server of its own: another test's open transaction would keep dead rows on their pages.
#[tokio::test(flavor = "multi_thread")]
async fn settling_is_a_hot_update_and_answers_are_only_inserted() {
    let server = Postgres::start(&[]);
    let place = Place::at(&server.url());
    let store = place.open().await;
    let rows: Vec<_> = (0..KEYS).map(|n| leased(&format!("hot-{n}"))).collect();
    for batch in rows.chunks(64) {
        apply_all(&store, &batch.iter().map(insert).collect::<Vec<_>>()).await;
    }
    for batch in rows.chunks(64) {
        apply_all(&store, &batch.iter().map(|row| swap(row, &completed(row))).collect::<Vec<_>>()).await;
    }
    // A session that ends has told its counts.
    drop(store);
    let raw = place.raw().await;
    let count = |column: &str, table: &str| {
        let schema = &place.schema;
        format!(
            "SELECT {column} FROM pg_stat_user_tables WHERE schemaname = '{schema}' AND relname = '{table}'"
        )
    };
    let keys = i64::try_from(KEYS).expect("few");
    until("all updates and answers are counted", async || {
        number(&raw, &count("n_tup_upd", "record")).await == keys
            && number(&raw, &count("n_tup_ins", "answer")).await == keys
    })
    .await;
    let hot = number(&raw, &count("n_tup_hot_upd", "record")).await;
    assert!(hot * 100 >= keys * 95, "{hot} of {keys} updates were HOT");
    assert_eq!(number(&raw, &count("n_tup_upd", "answer")).await, 0, "an answer is never updated");
}

/// In a server of its own, because transactions are counted over all of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_one_transaction() {
    let server = Postgres::start(&[("autovacuum", "off")]);
    let place = Place::at(&server.url());
    let store = place.open().await;
    let raw = place.raw().await;
    let rows: Vec<_> = (0..500).map(|n| leased(&format!("one-{n}"))).collect();
    let reserve = |batch: &[Record]| batch.iter().map(insert).collect::<Vec<Write>>();
    let settle =
        |batch: &[Record]| batch.iter().map(|row| swap(row, &completed(row))).collect::<Vec<Write>>();
    // The number of a transaction that writes; asking is one, too.
    let transaction = "SELECT txid_current()";
    for (what, batch_of) in
        [("inserts", &reserve as &dyn Fn(&[Record]) -> Vec<Write>), ("settlements", &settle)]
    {
        let before = number(&raw, transaction).await;
        for batch in rows.chunks(50) {
            apply_all(&store, &batch_of(batch)).await;
        }
        assert_eq!(number(&raw, transaction).await - before, 11, "ten batches of {what}");
    }
    // Mixed, with a key twice, and with a refusal: still one.
    let before = number(&raw, transaction).await;
    let new = leased("new");
    let batch =
        [insert(&new), swap(&new, &completed(&new)), insert(&rows[0]), swap(&rows[1], &completed(&rows[1]))];
    let outcomes = store.apply(&batch).await.expect("it is applied");
    assert_eq!(outcomes.len(), 4);
    assert_eq!(number(&raw, transaction).await - before, 2);
}
