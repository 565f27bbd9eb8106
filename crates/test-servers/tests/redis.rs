//! A Redis of one's own: what survives which death.

use oncegate_test_servers::{Redis, wait_until};

const DURABLE: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

#[test]
fn what_is_appended_survives_kill_9() {
    let mut server = Redis::start(DURABLE);
    let url = server.url();
    assert_eq!(server.command(&["SET", "key", "kept"]), "OK");
    server.kill_9();
    server.start_again();
    assert_eq!((server.command(&["GET", "key"]).as_str(), server.url()), ("kept", url));
}

#[test]
fn without_options_nothing_survives() {
    let mut server = Redis::start(&[]);
    assert_eq!(server.command(&["SET", "key", "lost"]), "OK");
    server.kill_9();
    server.start_again();
    assert_eq!(server.command(&["GET", "key"]), "");
}

#[test]
fn a_restored_server_has_what_was_backed_up() {
    let mut server = Redis::start(DURABLE);
    assert_eq!(server.command(&["SET", "key", "backed up"]), "OK");
    server.back_up();
    assert_eq!(server.command(&["SET", "key", "later"]), "OK");
    server.restore();
    assert_eq!(server.command(&["GET", "key"]), "backed up");
}

#[test]
fn a_replica_follows() {
    let primary = Redis::start(DURABLE);
    assert_eq!(primary.command(&["SET", "before", "1"]), "OK");
    let replica = Redis::replica_of(&primary);
    assert_eq!(replica.command(&["GET", "before"]), "1");
    assert_eq!(primary.command(&["SET", "after", "2"]), "OK");
    wait_until("the write reaches the replica", || replica.command(&["GET", "after"]) == "2");
}

#[test]
fn a_paused_server_answers_nothing_until_it_is_resumed() {
    let server = Redis::start(&[]);
    server.pause();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| server.command(&["PING"]));
        wait_until("the server stands still", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.id())).unwrap();
            stat.contains(" T ")
        });
        assert!(!asked.is_finished());
        server.resume();
        assert_eq!(asked.join().unwrap(), "PONG");
    });
}

#[test]
#[should_panic(expected = "no-such-option")]
fn a_server_that_does_not_start_says_why() {
    let _server = Redis::start(&["--no-such-option", "1"]);
}
