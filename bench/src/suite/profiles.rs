//! Where a request's time goes: flame graphs of the gateway while it is asked for fresh keys, for replays, and for what it does not protect.
//!
//! By `perf` (Debian's `linux-perf`), which looks at the process so many times a second and notes what it is at. A machine without it has no profiles, and
//! the part says so.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use inferno::collapse::Collapse as _;
use inferno::collapse::perf::Folder;
use inferno::flamegraph;

use super::Run;
use super::load::{Kind, Load, Pace, Until};
use super::matrix::{COLD_CACHE_BYTES, COLD_KEYS};
use super::results::Part;
use super::world::{Settings, Store};
use crate::Outcome;

const CONNECTIONS: usize = 64;
const REPLAYED_KEYS: u64 = 1_000;
/// Replays that are not in the cache: as many keys, and such a cache.
const COLD: (u64, u64) = (COLD_KEYS, COLD_CACHE_BYTES);
/// Looks a second; not a round number, so that they do not fall in step with a timer.
const LOOKS_PER_S: &str = "1999";
/// So much of the stack is copied each time.
const STACK: &str = "dwarf,16384";
/// What is narrower than this share of the picture is left out.
const NARROWEST: f64 = 0.2;

pub(crate) fn run(run: &mut Run) -> Outcome<Part> {
    let mut part = run.part("profiles");
    let is_there = Command::new("perf").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !is_there.is_ok_and(|status| status.success()) {
        part.remarks.push("no profile: this machine has no `perf` (Debian: `linux-perf`)".to_owned());
        return Ok(part);
    }
    let warm = Settings::default().cache_bytes;
    for (name, store, kind, (keys, cache_bytes), title) in [
        ("profile-fresh", Store::Sqlite, Kind::Fresh, (REPLAYED_KEYS, warm), "gateway on SQLite, fresh keys"),
        (
            "profile-replay",
            Store::Sqlite,
            Kind::Replay,
            (REPLAYED_KEYS, warm),
            "gateway on SQLite, warm replays",
        ),
        (
            "profile-fresh-postgres",
            Store::Postgres,
            Kind::Fresh,
            (1, warm),
            "gateway on PostgreSQL, fresh keys",
        ),
        ("profile-cold", Store::Postgres, Kind::Replay, COLD, "gateway on PostgreSQL, cold replays"),
        ("profile-get", Store::Sqlite, Kind::Get, (1, warm), "gateway, unprotected GET"),
    ] {
        let mut front = run.world.gateway(name, store, Settings { cache_bytes, ..Settings::default() })?;
        let settled = run.settle(&front, keys)?;
        let gateway = front.first_id().ok_or("the gateway has no process")?;
        let record = run.world.directory().join(format!("{name}.perf"));
        let load = Load {
            addresses: front.addresses.clone(),
            connections: CONNECTIONS,
            kind,
            pace: Pace::Closed,
            until: Until::Elapsed { warm: run.warming(), counted: Duration::from_secs(3) },
            request_bytes: 200,
            answer_bytes: 200,
            settled,
            is_ours: true,
            path: None,
        };
        let mut looking = None;
        let mut look = || -> Outcome {
            // Called twice: when counting begins, and when it ends.
            if looking.is_none() {
                looking = Some(look_at(gateway, &record)?);
            }
            Ok(())
        };
        load.run(&mut run.keys, &mut look)?;
        let Some(mut looking) = looking else { return Err("nothing was looked at".into()) };
        if !looking.wait()?.success() {
            return Err("`perf record` failed".into());
        }
        front.end();
        let directory = run.options.docs.join("performance");
        fs::create_dir_all(&directory)?;
        draw(&record, &directory.join(format!("{name}.svg")), title)?;
    }
    Ok(part)
}

fn look_at(process: u32, record: &Path) -> Outcome<std::process::Child> {
    let mut perf = Command::new("perf");
    perf.args([
        "record",
        "--quiet",
        "--freq",
        LOOKS_PER_S,
        "--call-graph",
        STACK,
        "--pid",
        &process.to_string(),
    ]);
    perf.arg("--output").arg(record).args(["--", "sleep", "2"]);
    Ok(perf.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
}

fn draw(record: &Path, picture: &Path, title: &str) -> Outcome {
    let folded = record.with_extension("folded");
    let mut perf = Command::new("perf");
    perf.args(["script", "--no-inline", "--input"]).arg(record);
    let mut script = perf.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let text = script.stdout.take().ok_or("`perf script` says nothing")?;
    Folder::default().collapse(BufReader::new(text), BufWriter::new(File::create(&folded)?))?;
    if !script.wait()?.success() {
        return Err("`perf script` failed".into());
    }
    let mut options = flamegraph::Options::default();
    title.clone_into(&mut options.title);
    options.min_width = NARROWEST;
    options.no_javascript = true;
    let folded = BufReader::new(File::open(&folded)?);
    flamegraph::from_reader(&mut options, folded, BufWriter::new(File::create(picture)?))?;
    Ok(())
}
