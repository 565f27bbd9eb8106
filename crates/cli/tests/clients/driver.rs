//! Runs the operations of a file, so many at once, and writes down what became of each. Started, and killed, by storm.py.

use std::ffi::OsString;
use std::fs::{File, read_to_string};
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate_client::{Client, FileKeep, Last, Limits, Outcome, Why};
use serde_json::{Value, json};
use tokio::task::JoinSet;

struct Work {
    client: Client<FileKeep>,
    url: String,
    limits: Limits,
    jobs: Mutex<Vec<Value>>,
    results: File,
}

pub(crate) async fn run(words: impl Iterator<Item = OsString>) -> ExitCode {
    let words: Vec<_> = words.map(|word| word.into_string().unwrap()).collect();
    let [url, keys, jobs, results, workers, try_timeout_ms] = words.try_into().unwrap();
    let limits = Limits {
        try_timeout: Duration::from_millis(try_timeout_ms.parse().unwrap()),
        backoff: Duration::from_millis(20),
        backoff_max: Duration::from_millis(500),
        retry_after_max: Duration::from_millis(500),
        ..Limits::default()
    };
    let client = Client::builder().keep(FileKeep::new(Path::new(&keys))).build().unwrap();
    let jobs =
        read_to_string(jobs).unwrap().lines().rev().map(|line| serde_json::from_str(line).unwrap()).collect();
    let results = File::options().append(true).open(results).unwrap();
    let work = Arc::new(Work { client, url, limits, jobs: Mutex::new(jobs), results });
    let mut tasks = JoinSet::new();
    for _ in 0..workers.parse().unwrap() {
        let work = Arc::clone(&work);
        tasks.spawn(async move {
            while let Some(job) = work.next() {
                work.one(&job).await;
            }
        });
    }
    tasks.join_all().await;
    ExitCode::SUCCESS
}

impl Work {
    fn next(&self) -> Option<Value> {
        self.jobs.lock().unwrap().pop()
    }

    async fn one(&self, job: &Value) {
        let deadline = Duration::from_secs_f64(job["deadline_ms"].as_f64().unwrap() / 1000.0);
        let attempts_max = job["attempts_max"].as_u64().unwrap().try_into().unwrap();
        let path = job["path"].as_str().unwrap();
        let operation =
            self.client.post(&format!("{}{path}", self.url)).header("authorization", "Bearer storm");
        let operation = match job["prefer"].as_str() {
            Some(preference) => operation.header("prefer", preference),
            None => operation,
        };
        let operation = operation
            .json(&json!({ "amount": job["amount"], "currency": job["currency"] }))
            .named(job["name"].as_str().unwrap())
            .limits(Limits { deadline, attempts_max, ..self.limits });
        let outcome = operation.run().await.unwrap();
        let line = format!("{}\n", told(job, &outcome));
        (&self.results).write_all(line.as_bytes()).unwrap();
        self.client.done(&outcome).await.unwrap();
    }
}

fn told(job: &Value, outcome: &Outcome) -> Value {
    let answer = outcome.answer();
    let body = answer.and_then(|answer| answer.body.as_deref());
    let replayed = match outcome {
        Outcome::Happened(happened) => Some(happened.replayed),
        _ => None,
    };
    let error = match outcome {
        Outcome::Happened(_) => None,
        Outcome::DidNotHappen(no) => error(&no.last),
        Outcome::MayHaveHappened(open) => error(&open.last),
    };
    json!({
        "name": job["name"],
        "amount": job["amount"],
        "outcome": outcome.as_str(),
        "key": outcome.asked().key.as_str(),
        "attempts": outcome.asked().attempts,
        "why": outcome.why().map(Why::as_str),
        "replayed": replayed,
        "status": answer.map(|answer| answer.status.as_u16()),
        "body": body.map(String::from_utf8_lossy),
        "error": error,
    })
}

fn error(last: &Last) -> Option<String> {
    match last {
        Last::NoAnswer(error) => Some(format!("{error:?}")),
        Last::Nothing | Last::Answer(_) => None,
    }
}
