//! In front of servers in other languages, made of their standard libraries.

use std::path::Path;
use std::process::Command;

use oncegate_test_servers::{programs, wait_until};
use tokio::task::JoinSet;

use crate::client::{Call, within};
use crate::process::Running;
use crate::reply::Reply;
use crate::world::{CHARGE, Place, another_charge, charge};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_front_of_node() {
    in_front_of("node", "nodejs", "server.js").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_front_of_python() {
    in_front_of("python3", "python3", "server.py").await;
}

/// A server of `upstreams/`.
struct Server {
    running: Running,
    port: u16,
}

impl Server {
    fn start(program: &Path, file: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/upstreams");
        let mut running = Running::start(Command::new(program).arg(folder.join(file)));
        let mut port = None;
        wait_until("the upstream listens", || {
            port = running.said().lines().find_map(|line| line.strip_prefix("listens on ")?.parse().ok());
            port.is_some() || running.has_ended()
        });
        Self { port: port.unwrap_or_else(|| panic!("no port in:\n{}", running.said())), running }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn wait_until_acted(&self, key: &str) {
        wait_until("the upstream has acted", || times(&self.running.said(), key) > 0);
    }
}

/// How often a server has acted on a key, by what it said.
fn times(said: &str, key: &str) -> usize {
    said.lines().filter(|line| line.strip_prefix("acted ") == Some(key)).count()
}

async fn in_front_of(program: &str, package: &str, file: &str) {
    let program = programs::must(programs::find(program), package);
    let server = Server::start(&program, file);
    let place = Place::sqlite();
    let gateway = place.start(&server.url(), "");
    let to = gateway.address;

    let first = charge("first").send(to).await;
    assert_eq!((first.status, first.is_replay()), (201, false), "{first:?}");
    let told: serde_json::Value = serde_json::from_slice(&first.body).unwrap();
    assert_eq!((&told["act"], &told["amount"]), (&1.into(), &100.into()));
    for _ in 0..3 {
        let again = charge("first").send(to).await;
        assert!(again.is_replay(), "{again:?}");
        assert_eq!(again.in_common(), first.in_common());
    }
    another_charge("first").send(to).await.expect_problem(422, "key_reused");

    let mut racers = JoinSet::new();
    for _ in 0..20 {
        racers.spawn(async move { charge("race").send(to).await });
    }
    let replies: Vec<Reply> = within(racers.join_all()).await;
    let (answers, refusals): (Vec<_>, Vec<_>) = replies.iter().partition(|reply| reply.status == 201);
    assert_eq!(answers.iter().filter(|reply| !reply.is_replay()).count(), 1, "{replies:?}");
    assert!(answers.iter().all(|reply| reply.body == answers[0].body), "{answers:?}");
    for refusal in refusals {
        refusal.expect_problem(409, "in_progress");
    }

    // Killed over a request, and then not there.
    let hang = Call::post("/hang").key("hang").json(CHARGE);
    let mut hanging = hang.open(to).await;
    server.wait_until_acted("hang");
    let said = server.running.kill_9();
    assert_eq!(["first", "race", "hang"].map(|key| times(&said, key)), [1, 1, 1], "{said}");
    hanging.reply().await.unwrap().expect_problem(504, "outcome_unknown");
    hang.send(to).await.expect_problem(409, "outcome_unknown");
    charge("later").send(to).await.expect_problem(502, "upstream_unreachable");
    assert_eq!(
        (gateway.state("hang").as_str(), gateway.state("later").as_str()),
        ("unknown", "failed_retryable")
    );
    gateway.kill_9();

    let server = Server::start(&program, file);
    let gateway = place.start(&server.url(), "");
    let later = charge("later").send(gateway.address).await;
    assert_eq!((later.status, later.is_replay()), (201, false), "what was not executed runs now: {later:?}");
    let again = charge("first").send(gateway.address).await;
    assert!(again.is_replay(), "{again:?}");
    assert_eq!(again.in_common(), first.in_common());
    hang.send(gateway.address).await.expect_problem(409, "outcome_unknown");
    let said = server.running.kill_9();
    assert_eq!(["later", "first", "hang"].map(|key| times(&said, key)), [1, 0, 0], "{said}");
}
