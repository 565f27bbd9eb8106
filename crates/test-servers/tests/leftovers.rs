//! A test that is killed drops nothing: its servers are found by their pid files.

use std::net::TcpListener;

use oncegate_test_servers::{Postgres, Redis, choose_directory, end_leftovers};

#[test]
fn servers_of_a_killed_test_are_ended() {
    let run = tempfile::tempdir().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(run.path(), open).unwrap();
    choose_directory(run.path());
    let (postgres, redis) = (Postgres::start(&[]), Redis::start(&[]));
    let ports = [postgres.port(), redis.port()];
    let taken = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_err();
    // Somebody else's pid in a pid file is left alone: ours, which does not work in that directory.
    let other = run.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("other.pid"), std::process::id().to_string()).unwrap();
    std::mem::forget((postgres, redis));
    assert_eq!(ports.map(taken), [true, true]);
    end_leftovers(run.path());
    assert_eq!(ports.map(taken), [false, false]);
}
