//! `oncegate dev` shows what it says, every step is asserted and not only printed, and nothing is left of it, however it ends.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests: what cannot be run should stop the test"
)]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use example_payments::post::{self, Reply};
use hyper::Request;
use hyper::body::Bytes;
use oncegate_test_servers::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

#[test]
fn every_step_of_the_show_comes_out_right() {
    let folder = tempfile::tempdir().unwrap();
    let started = Instant::now();
    let out = dev(&folder).arg("--once").output().unwrap();
    let shown = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "{shown}\n{}", String::from_utf8_lossy(&out.stderr));
    assert!(!shown.contains('✗'), "{shown}");
    assert!(!shown.contains('\x1b'), "colours only on a terminal");
    // What it promises to whoever watches. It takes a sixth of that on an idle machine.
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "files are left");
    // Every line of every step: what was seen, and that it was checked.
    let checked: Vec<_> = shown.lines().filter_map(|line| line.trim_start().strip_prefix("✓ ")).collect();
    let expected = [
        "the client sends it                201 succeeded",
        "its retry                          201 succeeded, replayed",
        "byte for byte?                     yes",
        "the provider's charges so far      1",
        "clients that were the first        1",
        "the others: refused or replayed    19",
        "the provider's charges so far      2",
        "999 instead of 100                 422 key_reused",
        "another tenant, its own payment    201 succeeded",
        "the provider's charges so far      3",
        "the client                         402 declined",
        "its retry                          402 declined, replayed",
        "the provider's charges so far      3",
        "its retry                          201 succeeded, replayed",
        "the provider's charges so far      4",
        "the client                         502 upstream_unreachable",
        "its retry, the API being back      201 succeeded",
        "the provider's charges so far      5",
        "the client                         504 unknown",
        "its retry, soon after              201 succeeded, replayed",
        "found out by                       probe",
        "the record's state                 completed",
        "the provider's charges so far      6",
        "the client                         504 unknown",
        "its retry, soon after              201 succeeded, replayed",
        "found out by                       webhook provider",
        "the provider's charges so far      7",
        "the client                         no answer",
        "its retry, after the lease         201 succeeded, replayed",
        "the first payment, after all that  201 succeeded, replayed",
        "still byte for byte?               yes",
        "the provider's charges so far      8",
        "references charged twice           0",
        "outcomes that nobody knows         0",
    ];
    assert_eq!(checked, expected);
    assert!(shown.contains("Every step came out right: no key was charged twice."), "{shown}");
}

/// Whatever a shell has set for a gateway of its own is not for these.
#[test]
fn variables_of_another_gateway_do_not_matter() {
    let folder = tempfile::tempdir().unwrap();
    let mut dev = dev(&folder);
    for name in ["STORE", "UPSTREAM", "LISTEN", "ADMIN", "PROFILE", "CONFIG", "LOG", "DEV_LISTEN", "DEV_FILE"]
    {
        dev.env(format!("ONCEGATE_{name}"), "garbage");
    }
    let out = dev.env("ONCEGATE_ADMIN_TOKEN", "0123456789abcdef").arg("--once").output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// It stays up, what it prints to be tried works, and Ctrl-C ends all of it, with its files.
#[test]
fn it_stays_until_it_is_told_to_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut show = Show::runs(&folder);
    let pay = show.says("  curl -i http://");
    let (gateway, rest) = pay.split_once("/payments -H '").unwrap();
    let headers = rest.trim_end_matches(['\\', ' ', '\'']).split("' -H '");
    let next = show.says("       -H '");
    let (content_type, body) = next.split_once("' -d '").unwrap();
    let mut request = Request::post("/payments").header("host", gateway);
    for header in headers.chain([content_type]) {
        let (name, value) = header.split_once(": ").unwrap();
        request = request.header(name, value);
    }
    let request = request.body(Bytes::from(body.trim_end_matches('\'').to_owned())).unwrap();
    let ledger = show.says("  curl http://");
    let (provider, _) = ledger.split_once("/ledger").unwrap();
    let list = show.says("  oncegate keys list --admin http://");
    let story = show.says("  oncegate keys show --admin http://");
    show.says("Ctrl-C ends all of it.");

    let before = send(provider, get("/ledger")).json()["charges"].as_u64().unwrap();
    let (first, second) = (send(gateway, request.clone()), send(gateway, request));
    assert_eq!((first.status, second.status), (201.try_into().unwrap(), 201.try_into().unwrap()));
    assert_eq!(first.body, second.body);
    assert!(second.headers.contains_key("idempotency-replayed"));
    assert_eq!(send(provider, get("/ledger")).json()["charges"], before + 1);
    let operator = |words: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_oncegate")).env_clear().args(words).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    let admin = format!("http://{list}");
    assert!(operator(&["keys", "list", "--admin", &admin]).contains("my-first-order-17"));
    let (admin, key) = story.split_once(' ').unwrap();
    let story = operator(&["keys", "show", "--admin", &format!("http://{admin}"), key]);
    assert!(story.contains("state        completed"), "{story}");

    let parts = show.parts();
    kill_process(show.pid(), Signal::INT).unwrap();
    assert_eq!(show.child.wait().unwrap().code(), Some(0));
    parts.end();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "files are left");
}

/// In the middle of the show, too.
#[test]
fn it_can_be_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let mut show = Show::runs(&folder);
    show.says("1. ");
    let parts = show.parts();
    kill_process(show.pid(), Signal::TERM).unwrap();
    assert_eq!(show.child.wait().unwrap().code(), Some(130));
    parts.end();
}

/// Killed, it cannot end its parts; they end all the same.
#[test]
fn killed_it_leaves_no_process_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut show = Show::runs(&folder);
    show.says("Ctrl-C ends all of it.");
    let parts = show.parts();
    show.child.kill().unwrap();
    show.child.wait().unwrap();
    parts.end();
}

fn dev(folder: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    command.env_clear().env("TMPDIR", folder.path()).arg("dev").stdin(Stdio::null());
    command
}

/// A show that runs. Dropped, it is killed.
struct Show {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Show {
    fn runs(folder: &TempDir) -> Self {
        let mut child = dev(folder).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    /// Reads until a line begins so; what else the line says.
    #[track_caller]
    fn says(&mut self, beginning: &str) -> String {
        let mut lines = (&mut self.stdout).lines().map_while(Result::ok);
        let rest = lines.find_map(|line| line.strip_prefix(beginning).map(str::to_owned));
        rest.unwrap_or_else(|| panic!("it never said {beginning:?}"))
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The ids of its three processes.
    fn parts(&self) -> Parts {
        let parent = self.child.id().to_string();
        let ids =
            fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let parts: Vec<_> = ids.filter(|id| parent_of(id).as_ref() == Some(&parent)).collect();
        assert_eq!(parts.len(), 3, "provider, API and gateway");
        Parts(parts)
    }
}

impl Drop for Show {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

/// `pid (name) state parent …`; nobody, if it has ended.
fn parent_of(id: &str) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let mut words = rest.split_whitespace();
    let is_running = words.next().is_some_and(|state| state != "Z" && state != "X");
    words.next().filter(|_| is_running).map(str::to_owned)
}

/// Processes that should end by themselves. What has not when this is dropped is killed.
struct Parts(Vec<String>);

impl Parts {
    fn end(&self) {
        wait_until("the parts have ended", || self.0.iter().all(|id| !is_part(id)));
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        for id in self.0.iter().filter(|id| is_part(id)) {
            let _gone = kill_process(Pid::from_raw(id.parse().unwrap()).unwrap(), Signal::KILL);
        }
    }
}

/// Whether it runs, and is one of ours: not one that has been given the same id since.
fn is_part(id: &str) -> bool {
    let variables = fs::read_to_string(format!("/proc/{id}/environ"));
    variables.is_ok_and(|variables| variables.contains("ONCEGATE_DEV_PART")) && parent_of(id).is_some()
}

fn get(path: &str) -> Request<Bytes> {
    Request::get(path).header("host", "localhost").body(Bytes::new()).unwrap()
}

fn send(to: &str, request: Request<Bytes>) -> Reply {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(post::send(to, request, Duration::from_mins(1))).unwrap()
}
