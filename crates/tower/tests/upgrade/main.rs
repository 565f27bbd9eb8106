//! Records that an earlier release wrote are read, settled, replayed and reaped by this one.
//!
//! `crates/conformance/fixtures` keeps one SQLite file and one PostgreSQL dump per release. Each
//! holds every kind of record that a service leaves behind when it is killed (`write.rs`).
//! `check.rs` opens a copy and must find all of them usable. The same checks run over records
//! that this release writes, so that the list of records and the checks stay in step.
//!
//! To add the fixture of a release, run this at its commit, and commit the folder:
//!
//! ```sh
//! ONCEGATE_WRITE_FIXTURE=0.2.0 cargo xtask test -- -p oncegate-tower --test upgrade
//! ```

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

#[path = "../atomic/base.rs"]
#[expect(dead_code, reason = "another test needs more of it")]
mod base;
mod check;
#[path = "../layer/client.rs"]
#[expect(dead_code, reason = "another test needs more of it")]
mod client;
mod fixture;
#[path = "../../../store-sql/tests/postgres/place.rs"]
#[expect(dead_code, reason = "another test needs more of it")]
mod place;
#[path = "../layer/reply.rs"]
#[expect(dead_code, reason = "another test needs more of it")]
mod reply;
mod service;
#[path = "../layer/stage.rs"]
#[expect(dead_code, reason = "another test needs more of it")]
mod stage;
mod write;

use base::{Base, OnPostgres, OnSqlite};
use fixture::Fixture;

/// Runs `work` on a runtime of its own, and ends the runtime with whatever still runs on it.
fn on_its_own_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.unwrap();
    let result = runtime.block_on(work);
    drop(runtime);
    result
}

/// What this release writes, this release can use. With `ONCEGATE_WRITE_FIXTURE` it is kept.
fn records_of_this_release<B: Base + Fixture>() {
    let base = on_its_own_runtime(async {
        let base = B::start().await;
        write::every_kind_of_record(&base).await;
        base
    });
    on_its_own_runtime(async {
        let base = base.reopened().await;
        if let Some(release) = std::env::var_os("ONCEGATE_WRITE_FIXTURE") {
            base.save(&fixture::folder().join(release)).await;
        }
        check::every_record_is_usable(&base).await;
    });
}

/// What each earlier release wrote, this release can use.
fn records_of_earlier_releases<B: Base + Fixture>() {
    let releases = fixture::releases();
    assert!(!releases.is_empty(), "no fixtures in {}", fixture::folder().display());
    for release in releases {
        eprintln!("records of {}", release.display());
        on_its_own_runtime(async {
            let base = B::load(&release).await;
            check::every_record_is_usable(&base).await;
        });
    }
}

#[test]
fn records_of_this_release_on_sqlite() {
    records_of_this_release::<OnSqlite>();
}

#[test]
fn records_of_this_release_on_postgres() {
    records_of_this_release::<OnPostgres>();
}

#[test]
fn records_of_earlier_releases_on_sqlite() {
    records_of_earlier_releases::<OnSqlite>();
}

#[test]
fn records_of_earlier_releases_on_postgres() {
    records_of_earlier_releases::<OnPostgres>();
}
