//! Cost against the number of rows that are there already.
//!
//! Tables are filled by the same writes that are measured, reserve and then settle in random order of keys, in large batches. A filled one is kept in
//! `--dir` and found again; later runs add to it. Delete it when the layout changes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use oncegate::AnyStore;
use oncegate_store::{Store as _, Write};
use std::sync::Arc;

use super::Run;
use super::cluster::Cluster;
use super::load::Kind;
use super::matrix::{BARE, contender, hold};
use super::results::Part;
use super::world::{Settings, Store};
use crate::rows::Row;
use crate::store::{check, reserved, settled};
use crate::{Outcome, fill};

const CONNECTIONS: usize = 64;
/// Rows a commit while filling.
const BATCH: usize = 2_000;
/// How long workers may take to look at what was filled in.
const REST_PATIENCE: Duration = Duration::from_mins(10);
/// Batches between a row's reserve and its settle.
const LAG: usize = 4;

pub(crate) fn run(run: &mut Run) -> Outcome<Part> {
    let mut part = run.part("rows");
    let filled = run.options.dir.join("filled");
    std::fs::create_dir_all(&filled)?;
    sqlite(run, &filled, &mut part)?;
    postgres(run, &filled, &mut part)?;
    Ok(part)
}

fn sqlite(run: &mut Run, filled: &Path, part: &mut Part) -> Outcome {
    let mut urls = vec![(0, run.world.empty("rows-0", Store::Sqlite)?.0)];
    for rows in run.options.rows.clone() {
        let file = filled.join(format!("rows-{rows}.db"));
        let url = format!("sqlite://{}", file.display());
        // Marked when it is complete: an interrupted fill must not be taken for a table.
        let mark = fill::with_ending(&file, ".filled");
        if !mark.exists() {
            fill::remove(&file)?;
            fill_up(&url, rows)?;
            std::fs::write(&mark, "")?;
        }
        warm(&file)?;
        urls.push((rows, url));
    }
    measure(run, Store::Sqlite, &urls, None, part)
}

fn postgres(run: &mut Run, filled: &Path, part: &mut Part) -> Outcome {
    let place = PathBuf::from(filled).join("postgres");
    make_reachable(filled)?;
    let server = Cluster::start(&place)?;
    server.sql("DROP SCHEMA IF EXISTS rows_0 CASCADE")?;
    let mut urls = vec![(0, server.url("rows_0"))];
    for rows in run.options.rows.clone() {
        let schema = format!("rows_{rows}");
        let mark = format!("filled_{rows}");
        if server.sql(&format!("SELECT count(*) FROM pg_tables WHERE tablename = '{mark}'"))? == "0" {
            server.sql(&format!("DROP SCHEMA IF EXISTS {schema} CASCADE"))?;
            fill_up(&server.url(&schema), rows)?;
            server.sql("VACUUM ANALYZE")?;
            server.sql(&format!("CREATE TABLE public.{mark} ()"))?;
        }
        // What every write goes through; see `warm`.
        let indexes = server.sql(&format!(
            "SELECT pg_relation_filepath(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = '{schema}' AND c.relname IN ('record_id', 'record_seq', 'answer_pkey')"
        ))?;
        for index in indexes.lines() {
            warm(&place.join("data").join(index))?;
        }
        urls.push((rows, server.url(&schema)));
    }
    server.sql("CHECKPOINT")?;
    measure(run, Store::Postgres, &urls, Some(&server), part)
}

fn measure(
    run: &mut Run,
    store: Store,
    urls: &[(u64, String)],
    server: Option<&Cluster>,
    part: &mut Part,
) -> Outcome {
    let bare = run.world.bare();
    let mut contenders = vec![contender(run, BARE, &bare, Kind::Fresh, CONNECTIONS, 0..1)];
    let mut fronts = Vec::new();
    for (rows, url) in urls {
        let name = format!("rows-{}-{rows}", store.name().to_lowercase());
        let mut front = run.world.gateway_on(&name, url, Settings::default())?;
        front.watched.extend(server.map(Cluster::watched));
        contenders.push(contender(run, &on(*rows, store), &front, Kind::Fresh, CONNECTIONS, 0..1));
        fronts.push(front);
    }
    if let Some(server) = server {
        for (rows, _) in urls.iter().filter(|(rows, _)| *rows > 0) {
            wait_for_rest(server, &format!("rows_{rows}"))?;
        }
    }
    hold(run, &format!("rows already there, {}", store.name()), CONNECTIONS, &mut contenders, part)
}

/// A table that was filled in minutes has all its leases to be looked at once more, which the gateways' workers do now. What is measured is what a table
/// costs that is there, not one that has just come.
fn wait_for_rest(server: &Cluster, schema: &str) -> Outcome {
    let started = Instant::now();
    let due = format!(
        "SELECT count(*) FROM {schema}.note WHERE about = 1 AND first < last \
         AND due_at < (extract(epoch FROM clock_timestamp() - interval '60 s') * 1000000)::bigint"
    );
    loop {
        let left = server.sql(&due)?;
        if left == "0" {
            return Ok(());
        }
        if started.elapsed() > REST_PATIENCE {
            return Err(format!("{left} notes of {schema} are still to be looked at").into());
        }
        eprintln!("  {left} notes of {schema} are to be looked at");
        std::thread::sleep(Duration::from_secs(5));
    }
}

/// A contender's name.
pub(crate) fn on(rows: u64, store: Store) -> String {
    format!("gateway on {}, {rows} rows", store.name())
}

fn fill_up(url: &str, rows: u64) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let store = oncegate::open(url).await?;
        let started = Instant::now();
        let mut maker = fill::fresh_rows();
        let mut lagging = std::collections::VecDeque::new();
        let count = usize::try_from(rows)?;
        for done in (0..count).step_by(BATCH) {
            let batch = maker.batch(BATCH.min(count - done));
            reserve(&store, &batch).await?;
            lagging.push_back(batch);
            if lagging.len() > LAG
                && let Some(batch) = lagging.pop_front()
            {
                settle(&store, &batch).await?;
            }
            if done % 100_000 == 0 && done > 0 {
                eprintln!("  {done} of {rows} rows filled in after {:.0} s", started.elapsed().as_secs_f64());
            }
        }
        for batch in lagging {
            settle(&store, &batch).await?;
        }
        Ok(())
    })
}

async fn reserve(store: &AnyStore, rows: &[Row]) -> Outcome {
    let writes = rows.iter().map(|row| Ok(Write::insert(Arc::new(reserved(row)?))));
    check(store.apply(&writes.collect::<Outcome<Vec<_>>>()?).await?)
}

async fn settle(store: &AnyStore, rows: &[Row]) -> Outcome {
    let write = |row: &Row| -> Outcome<Write> {
        let before = reserved(row)?;
        Ok(Write::swap(before.version, Arc::new(settled(&before, row)?)))
    };
    check(store.apply(&rows.iter().map(write).collect::<Outcome<Vec<_>>>()?).await?)
}

/// Reads the file once. Whether the page cache still holds it is luck.
fn warm(path: &Path) -> Outcome {
    std::io::copy(&mut std::fs::File::open(path)?, &mut std::io::sink())?;
    Ok(())
}

/// PostgreSQL runs as another user, who has to get there.
fn make_reachable(path: &Path) -> Outcome {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?)
}
