//! A process that is killed in the middle of an operation, and a new one that goes on with the same key.
//!
//! The binary is its own child: started with a URL in its environment it runs the operation, otherwise it runs the test.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

#[path = "client/scripted.rs"]
#[expect(dead_code, reason = "other tests need more of it")]
mod scripted;

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use libtest_mimic::{Arguments, Failed, Trial};
use oncegate_client::{Client, FileKeep};
use scripted::Scripted;
use serde_json::{Value, json};

const URL: &str = "ONCEGATE_TEST_URL";
const KEYS: &str = "ONCEGATE_TEST_KEYS";

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if let Ok(url) = std::env::var(URL) {
        println!("{}", runtime.block_on(pay(&url, &std::env::var(KEYS).unwrap())));
        return ExitCode::SUCCESS;
    }
    let test = move || {
        runtime.block_on(killed_twice());
        Ok::<(), Failed>(())
    };
    let name = "a_process_that_is_killed_goes_on_with_its_key_when_it_is_started_again";
    libtest_mimic::run(&Arguments::from_args(), vec![Trial::test(name, test)]).exit_code()
}

/// The operation, and what became of it, as a line of JSON.
async fn pay(url: &str, keys: &str) -> Value {
    let client = Client::builder().keep(FileKeep::new(keys)).build().unwrap();
    let outcome = client.post(url).json(&json!({ "amount": 100 })).named("order 17").run().await.unwrap();
    let told = json!({ "outcome": outcome.as_str(), "key": outcome.asked().key.as_str() });
    client.done(&outcome).await.unwrap();
    told
}

/// This program, in its other role. Killed when dropped.
struct Process(Child);

impl Process {
    fn start(url: &str, keys: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(URL, url).env(KEYS, keys).stdin(Stdio::null()).stdout(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// What it says at its end.
    fn says(mut self) -> Value {
        let mut said = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        serde_json::from_str(&said).unwrap()
    }
}

impl Drop for Process {
    /// SIGKILL.
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

async fn killed_twice() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    let (hang, replay, answer) =
        (json!({ "do": "hang" }), json!({ "status": 201, "replayed": true }), json!({ "status": 201 }));
    let mut server = Scripted::start(&json!([hang, hang, replay, answer])).await;
    for death in 1..=2 {
        let process = Process::start(&server.url, &keys);
        server.has_been_asked(death).await;
        drop(process);
    }
    let third = Process::start(&server.url, &keys);
    let told = tokio::task::spawn_blocking(move || third.says()).await.unwrap();
    let sent = |server: &Scripted| -> Vec<_> {
        server.requests().iter().map(|asked| asked.key().unwrap().trim_matches('"').to_owned()).collect()
    };
    assert_eq!(sent(&server).len(), 3);
    for key in sent(&server) {
        assert_eq!(told, json!({ "outcome": "happened", "key": key }));
    }
    // Its outcome was taken note of: the next one under this name is another operation.
    let fourth = Process::start(&server.url, &keys);
    let another = tokio::task::spawn_blocking(move || fourth.says()).await.unwrap();
    assert_eq!(another["outcome"], "happened");
    assert_ne!(another["key"], told["key"]);
}
