//! The time of one sweeper's pass over lapsed leases among so many completed rows, beside the same among few.
//!
//! The completed rows are copies of one, multiplied by the database itself: no pass reads them, which is what is to be shown. Their
//! answers are left out, because they are in a table of their own that no scan looks at.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use oncegate_engine::{Worker, WorkerOptions};
use oncegate_store::Store;
use oncegate_test_servers::Postgres;
use tokio_postgres::NoTls;

use oncegate::SqliteStore;

use super::{Node, POSTGRES, SQLITE, no_file, on_postgres, on_sqlite};
use crate::measure::{Summary, interleave};
use crate::options::Options;
use crate::rows::RowMaker;
use crate::store::{reserved, settled};
use crate::{Outcome, fill, postgres};

/// Completed rows; the first is the base of the ratios.
const SIZES: [u32; 3] = [10_000, 1_000_000, 5_000_000];
/// Rows that are made in one transaction.
const CHUNK: usize = 200_000;
const LAPSED: usize = 100;
/// A turn is the median of so many.
const PASSES: usize = 9;

/// Milliseconds of a pass.
#[derive(Clone, Copy)]
struct Turn {
    nothing_lapsed: f64,
    lapsed: f64,
}

/// Measures both stores.
pub(crate) fn run(options: &Options) -> Outcome {
    if options.admits(SQLITE) {
        let files = SIZES.map(|rows| filled_file(options, rows));
        let files = files.into_iter().collect::<Outcome<Vec<_>>>()?;
        let nodes = files.iter().map(|file| on_sqlite(file)).collect::<Outcome<_>>()?;
        measure(options, SQLITE, nodes)?;
    }
    if options.admits(POSTGRES) {
        let server = Postgres::start(&postgres::SETTINGS);
        let nodes = SIZES.map(|rows| {
            let schema = format!("kept_{rows}");
            let node = on_postgres(&server, &schema)?;
            insert_template(&node)?;
            node.runtime.block_on(multiply_in_postgres(&server.url(), &schema, rows))?;
            Ok(node)
        });
        measure(options, POSTGRES, nodes.into_iter().collect::<Outcome<_>>()?)?;
    }
    Ok(())
}

fn measure<S: Store>(options: &Options, store: &str, mut nodes: Vec<Node<S>>) -> Outcome {
    let mut leases = fill::old_rows();
    let turns = interleave(options.rounds, &mut nodes, |node| {
        eprint!(".");
        turn(node, &mut leases)
    })?;
    eprintln!();
    let column = |of: fn(&Turn) -> f64| -> Vec<Vec<f64>> {
        turns.iter().map(|turns| turns.iter().map(of).collect()).collect()
    };
    let (nothing, lapsed) = (column(|turn| turn.nothing_lapsed), column(|turn| turn.lapsed));
    println!(
        "\n| {store}, completed rows | {LAPSED} lapsed, ms | : {} | nothing lapsed, ms | : {0} |",
        SIZES[0]
    );
    println!("| --- | --- | --- | --- | --- |");
    for ((rows, nothing_lapsed), lapsed_here) in SIZES.iter().zip(&nothing).zip(&lapsed) {
        println!(
            "| {rows} | {:.1} | {} | {:.2} | {} |",
            Summary::of(lapsed_here).median,
            Summary::of_ratio(lapsed_here, &lapsed[0]),
            Summary::of(nothing_lapsed).median,
            Summary::of_ratio(nothing_lapsed, &nothing[0])
        );
    }
    Ok(())
}

/// New leases that lapsed long ago, and a pass over them; then one that finds nothing. As often as a turn wants it.
fn turn<S: Store>(node: &Node<S>, leases: &mut RowMaker) -> Outcome<Turn> {
    let options = WorkerOptions::default();
    let timed = |expected: usize| -> Outcome<f64> {
        let started = Instant::now();
        let pass = node.pass(Worker::Sweeper, &options)?;
        let taken = started.elapsed().as_secs_f64() * 1e3;
        if pass.changed == expected { Ok(taken) } else { Err(format!("not {expected}: {pass:?}").into()) }
    };
    let (mut lapsed, mut nothing) = (Vec::new(), Vec::new());
    for _ in 0..PASSES {
        node.insert(leases.batch(LAPSED).iter().map(reserved).collect::<Outcome<_>>()?)?;
        lapsed.push(timed(LAPSED)?);
        nothing.push(timed(0)?);
    }
    Ok(Turn { nothing_lapsed: Summary::of(&nothing).median, lapsed: Summary::of(&lapsed).median })
}

/// One completed row of today, of which copies are made.
fn insert_template<S: Store>(node: &Node<S>) -> Outcome {
    let row = fill::fresh_rows().batch(1).remove(0);
    node.insert(vec![settled(&reserved(&row)?, &row)?])
}

/// A file that is kept, and found again by its name.
fn filled_file(options: &Options, rows: u32) -> Outcome<PathBuf> {
    let path = options.dir.join(format!("sweeper-{rows}.db"));
    if path.exists() {
        return Ok(path);
    }
    // Under another name until it is complete: an interrupted fill must not be taken for a file.
    let part = no_file(options, "sweeper-part")?;
    fill_sqlite(&on_sqlite(&part)?, rows)?;
    fs::rename(part, &path)?;
    Ok(path)
}

/// A row decodes only under the id of its own key, so each is made by the store.
fn fill_sqlite(node: &Node<SqliteStore>, rows: u32) -> Outcome {
    let mut fresh = fill::fresh_rows();
    for (first, last) in chunks(rows) {
        let batch = fresh.batch(usize::try_from(last - first + 1)?);
        node.insert(batch.iter().map(|row| settled(&reserved(row)?, row)).collect::<Result<_, _>>()?)?;
    }
    Ok(())
}

/// With a note for a hundred rows, as batches of that size would have left them, put off until the rows expire.
async fn multiply_in_postgres(url: &str, schema: &str, rows: u32) -> Outcome {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute(&format!("CREATE TABLE {schema}.template AS SELECT * FROM {schema}.record")).await?;
    let of = "(1000000 + n / 100) * 65536";
    for (first, last) in chunks(rows) {
        client
            .batch_execute(&format!(
                "INSERT INTO {schema}.record SELECT {of} + n % 100, uuid_send(gen_random_uuid()), version, state, due_at + n, rest \
                 FROM {schema}.template, generate_series({first}::bigint, {last}) n; \
                 INSERT INTO {schema}.note (about, due_at, first, last) SELECT 2, due_at + n, {of}, {of} + 65535 \
                 FROM {schema}.template, generate_series({first}::bigint, {last}, 100) n"
            ))
            .await?;
    }
    let end = format!("DROP TABLE {schema}.template; ANALYZE {schema}.record, {schema}.note");
    client.batch_execute(&end).await?;
    client.batch_execute("CHECKPOINT").await?;
    Ok(())
}

/// The numbers of the copies, a transaction's worth at a time; says how far it is.
fn chunks(rows: u32) -> impl Iterator<Item = (u32, u32)> {
    let copies = rows - 1;
    (1..=copies).step_by(CHUNK).map(move |first| {
        eprintln!("filling: {first} of {rows}");
        (first, copies.min(first.saturating_add(u32::try_from(CHUNK).unwrap_or(u32::MAX) - 1)))
    })
}
