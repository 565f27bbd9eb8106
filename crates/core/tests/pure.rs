//! Core does no I/O and knows no runtime: proved from its dependency tree.

use std::path::Path;
use std::process::Command;

#[test]
fn core_depends_on_no_runtime_no_sockets_no_database_no_randomness() {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--package", "oncegate-core", "--edges", "normal", "--prefix", "none"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).unwrap();
    let names: Vec<_> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains(&"sha2") && names.contains(&"sfv"), "the tree was read: {tree}");
    let forbidden = [
        "tokio",
        "hyper",
        "axum",
        "tower",
        "mio",
        "socket2",
        "rusqlite",
        "sqlx",
        "rand",
        "getrandom",
        "chrono",
    ];
    for name in forbidden {
        assert!(!names.contains(&name), "core must not depend on {name}:\n{tree}");
    }
}

/// What the standard library could smuggle in: clocks, files, sockets, threads, the environment.
#[test]
fn core_reads_no_clock_and_touches_no_system() {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut read = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            read += 1;
            let source = std::fs::read_to_string(&path).unwrap();
            for word in
                ["std::fs", "std::net", "std::env", "std::process", "std::thread", "SystemTime", "Instant"]
            {
                assert!(!source.contains(word), "{} mentions {word}", path.display());
            }
        }
    }
    assert!(read > 20, "the sources were read");
}
