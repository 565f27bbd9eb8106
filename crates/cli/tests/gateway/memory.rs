//! A thousand slow requests at once cost memory within a bound that the README states.

use std::net::SocketAddr;
use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinSet;

use crate::client::{Call, within};
use crate::process::{Gateway, serve};
use crate::reply::Reply;
use crate::upstream::{Manners, Upstream};
use crate::world::Place;

const REQUESTS: usize = 1_000;
const BURSTS: usize = 3;
const BODY_KIB: usize = 10;
const ANSWER_KIB: usize = 10;
/// What a request costs at most beside its body and its answer, as the README says.
const REQUEST_KIB: usize = 192;
/// Kept answers have a bound of their own, and here it is so small that they do not hide anything.
const CACHE_KIB: usize = 1 << 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_slow_requests_stay_within_the_stated_bound() {
    allow_files();
    let manners = Manners { answer_bytes: ANSWER_KIB << 10, ..Manners::default() };
    let (place, upstream) = (Place::postgres(), Upstream::with(manners).await);
    let file = place.configure(&upstream.url(), "");
    let text = std::fs::read_to_string(&file).unwrap();
    let cache = format!("[store]\ncache_bytes = \"{CACHE_KIB} KiB\"");
    std::fs::write(&file, text.replacen("[store]", &cache, 1)).unwrap();
    let gateway = with_few_files(&file);
    let before = memory_kib(&gateway, "VmRSS");
    // More than once: what one burst has left behind must serve the next.
    for burst in 1..=BURSTS {
        upstream.shut();
        let mut clients = JoinSet::new();
        for number in 0..REQUESTS {
            clients.spawn(ask(gateway.address, large(burst, number)));
        }
        upstream.wait_for_waiting(REQUESTS);
        let during = memory_kib(&gateway, "VmRSS");
        upstream.open();
        while let Some(reply) = within(clients.join_next()).await {
            let reply = reply.unwrap();
            assert_eq!((reply.status, reply.body.len()), (201, ANSWER_KIB << 10), "{reply:?}");
            assert!(!reply.is_replay());
        }
        let most = memory_kib(&gateway, "VmHWM");
        println!(
            "{REQUESTS} requests of {BODY_KIB} KiB, answers of {ANSWER_KIB} KiB: {before} KiB before, {during} KiB while all wait, {most} KiB \
             at most: {} KiB a request",
            (most - before) / REQUESTS
        );
        let bound = REQUESTS * (BODY_KIB + ANSWER_KIB + REQUEST_KIB) + CACHE_KIB;
        assert!(most - before <= bound, "{} KiB more than before, and {bound} KiB are stated", most - before);
    }
    assert_eq!(upstream.requests(), BURSTS * REQUESTS);
    assert!(upstream.effects().values().all(|times| *times == 1), "each once");
}

/// As most systems start a process: it may open more files than this only if it asks.
fn with_few_files(config: &Path) -> Gateway {
    let serve = serve();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -S -n 1024 && exec \"$@\"", "sh"]);
    command.arg(serve.get_program()).args(serve.get_args()).arg("--config").arg(config);
    Gateway::of(&mut command)
}

async fn ask(address: SocketAddr, call: Call) -> Reply {
    call.send(address).await
}

fn large(burst: usize, number: usize) -> Call {
    let body = format!("{{\"amount\":{number},\"note\":\"{}\"}}", "n".repeat((BODY_KIB << 10) - 30));
    Call::post("/charges").key(&format!("key-{burst}-{number}")).json(&body)
}

pub(crate) fn memory_kib(gateway: &Gateway, name: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Clients and upstream are both in this process: two connections a request.
fn allow_files() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let is_enough = maximum.is_none_or(|maximum| maximum > 3_000);
    assert!(is_enough, "this test opens 2,000 connections, and the system lets it open {maximum:?} files");
}
