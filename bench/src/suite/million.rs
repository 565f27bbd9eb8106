//! A million fresh keys in one go: what the gateway's memory comes to, and how large the database is then.

use std::fs;

use super::Run;
use super::contest::Work;
use super::load::{Kind, Until};
use super::matrix::contender;
use super::meter::Memory;
use super::results::{Part, Row};
use super::world::{CACHE_BYTES, Settings, Store};
use crate::{Outcome, fill};

const CONNECTIONS: usize = 256;

pub(crate) fn run(run: &mut Run) -> Outcome<Part> {
    let mut part = run.part("million");
    let count: u32 = if run.options.quick { 50_000 } else { 1_000_000 };
    part.facts.insert("keys".to_owned(), count.into());
    #[expect(clippy::cast_precision_loss, reason = "a size of memory is far below 2^52")]
    part.facts.insert("configured cache, MiB".to_owned(), CACHE_BYTES as f64 / f64::from(1 << 20));
    for store in [Store::Sqlite, Store::Postgres] {
        let name = format!("million-{}", store.name().to_lowercase());
        let mut gateway = run.world.gateway(&name, store, Settings::default())?;
        let id = gateway.first_id().ok_or("a gateway without a process")?;
        let before = Memory::of(id)?;
        let written_before = written(run, id, store)?;
        eprintln!("  {count} fresh keys on {}", store.name());
        let mut all =
            contender(run, &format!("gateway on {}", store.name()), &gateway, Kind::Fresh, CONNECTIONS, 0..1);
        if let Work::Load { load, .. } = &mut all.work {
            load.until = Until::Sent(count.into());
        }
        let round = all.turn(&mut run.keys)?;
        let after = Memory::of(id)?;
        let written = written(run, id, store)? - written_before;
        gateway.end();
        let bytes = database_bytes(run, &name, store)?;
        let mut fact = |what: &str, value: f64| part.facts.insert(format!("{}: {what}", store.name()), value);
        fact("MiB at the start", before.now_mib.round());
        fact("MiB after all keys", after.now_mib.round());
        fact("MiB at most", after.highest_mib.round());
        fact("database bytes a key", (bytes / f64::from(count)).round());
        fact("bytes written a key", (written / f64::from(count)).round());
        println!(
            "| {count} fresh keys on {} | {:.0} MiB at the start, {:.0} after, {:.0} at most | {:.0} database bytes a key |",
            store.name(),
            before.now_mib,
            after.now_mib,
            after.highest_mib,
            bytes / f64::from(count)
        );
        let table = format!("{count} fresh keys");
        part.rows.push(Row { table, name: all.name, connections: CONNECTIONS, rounds: vec![round] });
    }
    Ok(part)
}

/// With its indexes, and what a log still holds.
#[expect(clippy::cast_precision_loss, reason = "a size of a file is far below 2^52")]
fn database_bytes(run: &Run, name: &str, store: Store) -> Outcome<f64> {
    if store == Store::Postgres {
        let all = format!(
            "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = '{}' AND c.relkind = 'r'",
            name.replace('-', "_")
        );
        return Ok(run.world.postgres()?.sql(&all)?.parse()?);
    }
    let file = run.world.directory().join(format!("{name}.db"));
    let size = |ending| fs::metadata(fill::with_ending(&file, ending)).map_or(0, |file| file.len());
    Ok((size("") + size("-wal")) as f64)
}

/// Bytes that have gone to the disk so far: PostgreSQL's log, or all that the gateway itself wrote.
fn written(run: &Run, id: u32, store: Store) -> Outcome<f64> {
    if store == Store::Postgres {
        return Ok(run
            .world
            .postgres()?
            .sql("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')")?
            .parse()?);
    }
    let io = fs::read_to_string(format!("/proc/{id}/io"))?;
    let bytes =
        io.lines().find_map(|line| line.strip_prefix("write_bytes: ")).ok_or("no write_bytes in io")?;
    Ok(bytes.parse()?)
}
