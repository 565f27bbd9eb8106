//! SIGHUP: the file is read again.

use oncegate_test_servers::wait_until;
use rustix::process::Signal;

use crate::upstream::Upstream;
use crate::world::{Place, charge};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_are_taken_over_and_a_wrong_file_changes_nothing() {
    let (place, upstream) = (Place::sqlite(), Upstream::start().await);
    let gateway = place.start(&upstream.url(), "[[route]]\nmatch = \"POST /charges\"\nprofile = \"off\"\n");
    let key = "a-key-of-sixteen-or-more";
    for _ in 0..2 {
        let passed = charge(key).send(gateway.address).await;
        assert_eq!((passed.status, passed.is_replay()), (201, false));
    }
    assert_eq!(upstream.requests(), 2, "off: whatever comes is passed on");
    assert_eq!(gateway.state(key), "absent");

    place.configure(&upstream.url(), "[[route]]\nmatch = \"POST /charges\"\nprofile = \"payments\"\n");
    gateway.signal(Signal::HUP);
    gateway.hear("reloaded routes, scope, webhooks and effects");
    let first = charge(key).send(gateway.address).await;
    let second = charge(key).send(gateway.address).await;
    assert_eq!((first.status, first.is_replay(), second.is_replay()), (201, false, true));
    charge("short").send(gateway.address).await.expect_problem(400, "key_invalid");
    assert_eq!(upstream.requests(), 3);

    let wrong =
        place.configure(&upstream.url(), "[[route]]\nmatch = \"POST /charges\"\nprofile = \"paiments\"\n");
    gateway.signal(Signal::HUP);
    gateway.hear("the file was not taken over, and everything stays as it was");
    // Where it is wrong, and what.
    let text = std::fs::read_to_string(&wrong).unwrap();
    let line = text.lines().position(|line| line.contains("paiments")).unwrap() + 1;
    gateway.hear(&format!("{}:{line}:", wrong.display()));
    gateway.hear("paiments");
    assert!(charge(key).send(gateway.address).await.is_replay(), "still protected");
    charge("short").send(gateway.address).await.expect_problem(400, "key_invalid");

    std::fs::remove_file(&wrong).unwrap();
    gateway.signal(Signal::HUP);
    gateway.hear("the file could not be read");
    assert!(charge(key).send(gateway.address).await.is_replay(), "still protected");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_needs_a_restart_is_named_and_the_rest_is_taken_over() {
    let (place, upstream) = (Place::sqlite(), Upstream::start().await);
    let gateway = place.start(&upstream.url(), "");
    let file = place.configure("http://127.0.0.1:1", "[defaults]\nprofile = \"off\"\n");
    let text = std::fs::read_to_string(&file).unwrap();
    // The listener's address, and with it the upstream's.
    std::fs::write(&file, text.replacen("127.0.0.1:0", "127.0.0.1:1", 1)).unwrap();
    gateway.signal(Signal::HUP);
    gateway.hear("changed, and needs a restart: listen, upstream");
    gateway.hear("reloaded routes, scope, webhooks and effects");
    for _ in 0..2 {
        let passed = charge("key-1").send(gateway.address).await;
        assert_eq!((passed.status, passed.is_replay()), (201, false), "where it was, and with the new rules");
    }
    assert_eq!(upstream.requests(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_under_way_ends_by_the_rules_that_it_began_under() {
    let (place, upstream) = (Place::sqlite(), Upstream::start().await);
    let gateway = place.start(&upstream.url(), "");
    upstream.shut();
    let mut client = charge("key-1").open(gateway.address).await;
    upstream.wait_for_waiting(1);
    place.configure(&upstream.url(), "[defaults]\nprofile = \"off\"\n");
    gateway.signal(Signal::HUP);
    gateway.hear("reloaded routes, scope, webhooks and effects");
    upstream.open();
    assert_eq!(client.reply().await.unwrap().status, 201);
    gateway.wait_for_state("key-1", "completed");

    place.configure(&upstream.url(), "");
    gateway.signal(Signal::HUP);
    wait_until("it was reloaded twice", || {
        gateway.said().matches("reloaded routes, scope, webhooks and effects").count() == 2
    });
    assert!(charge("key-1").send(gateway.address).await.is_replay());
    assert_eq!(upstream.requests(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_drains_for_as_long_as_the_last_file_says() {
    let (place, upstream) = (Place::sqlite(), Upstream::start().await);
    let mut gateway = place.start(&upstream.url(), "[shutdown]\ndrain = \"1h\"\n");
    upstream.shut();
    let mut client = charge("key-1").open(gateway.address).await;
    upstream.wait_for_waiting(1);
    place.configure(&upstream.url(), "[shutdown]\ndrain = \"20ms\"\n");
    gateway.signal(Signal::HUP);
    gateway.hear("reloaded routes, scope, webhooks and effects");
    assert_eq!(gateway.terminate(), 0, "{}", gateway.said());
    assert!(gateway.said().contains("for up to 20ms"), "{}", gateway.said());
    client.reply().await.unwrap().expect_problem(504, "outcome_unknown");
}
