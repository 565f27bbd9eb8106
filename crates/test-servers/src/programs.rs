//! Where the servers' programs are, and which Debian package brings what is missing.
//!
//! Not here: installing them (`xtask`).

use std::path::{Path, PathBuf};

/// The Debian packages whose programs are not on this machine.
#[must_use]
pub fn missing_packages() -> Vec<&'static str> {
    let wanted = [
        ("postgresql", postgres("postgres")),
        ("pgbouncer", find("pgbouncer")),
        ("redis-server", find("redis-server")),
        ("redis-tools", find("redis-cli")),
        ("prometheus", find("prometheus").and(find("promtool"))),
        ("faketime", find("faketime")),
        ("valgrind", find("valgrind")),
        ("strace", find("strace")),
        ("nodejs", find("node")),
        ("python3", find("python3")),
    ];
    wanted.into_iter().filter(|(_, program)| program.is_none()).map(|(package, _)| package).collect()
}

/// A program of PostgreSQL's: of the newest version that Debian has put aside, else of the path.
#[must_use]
pub fn postgres(name: &str) -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<u32> =
        versions.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    versions.sort_unstable_by(|a, b| b.cmp(a));
    let debian =
        versions.iter().map(|version| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin/{name}")));
    // A version counts only with its server: the client's package makes the same directory.
    let has_server = |program: &PathBuf| program.is_file() && program.with_file_name("postgres").is_file();
    debian.into_iter().find(has_server).or_else(|| find(name))
}

/// A program of the path, or of the places that are on root's path only.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(system)
        .map(|directory: PathBuf| directory.join(name))
        .find(|file: &PathBuf| Path::is_file(file))
}

/// The program, or a panic that names its package.
#[must_use]
pub fn must(found: Option<PathBuf>, package: &str) -> PathBuf {
    found.unwrap_or_else(|| {
        panic!(
            "the programs of the Debian package `{package}` are not on this machine: `cargo xtask test` installs \
             them when run as root; else `apt-get install --no-install-recommends {package}`"
        )
    })
}
