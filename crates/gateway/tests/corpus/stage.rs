//! A gateway, its upstream, and what must hold after every case.

use std::collections::HashSet;
use std::net::SocketAddr;

use oncegate_gateway::{Config, Gateway, Given, Secret};
use serde_json::Value;

use crate::answer::Answer;
use crate::case::{Case, Forwarded, Script, Setup};
use crate::client::{self, Pace, Seen};
use crate::strict::Request;
use crate::upstream::{Received, Upstream};
use crate::{frames, notation, readings};

pub(crate) struct Stage<'s> {
    gateway: Gateway,
    upstream: Upstream,
    setup: &'s Setup,
    runs: usize,
    /// Requests at the upstream that a route protects, by the case that sent them.
    protected: Vec<(String, Request)>,
    failures: Vec<String>,
}

impl<'s> Stage<'s> {
    pub(crate) async fn start(setup: &'s Setup) -> Self {
        let upstream = Upstream::start().await;
        let given = Given {
            upstream: Some(format!("http://{}{}", upstream.addr, setup.base_path)),
            listen: Some("127.0.0.1:0".to_owned()),
            admin: Some("127.0.0.1:0".to_owned()),
            store: Some(Secret::new("memory:")),
            ..Given::default()
        };
        let config = Config::parse(None, &setup.config, &given).unwrap_or_else(|error| panic!("{error}"));
        let gateway = Gateway::start(config, None).await.unwrap_or_else(|error| panic!("{error}"));
        Self { gateway, upstream, setup, runs: 0, protected: Vec::new(), failures: Vec::new() }
    }

    /// Runs a case in every pace that suits it.
    pub(crate) async fn run(&mut self, case: &Case) {
        let paces: &[Pace] = match &case.script {
            _ if case.typed.once => &[Pace::Written],
            Script::Frames(_) => &[Pace::Written, Pace::Bytes],
            Script::Bytes(_) if case.expect.is_refusal() && case.typed.flood => {
                &[Pace::Written, Pace::Lines, Pace::Bytes, Pace::Flood]
            }
            Script::Bytes(_) => &[Pace::Written, Pace::Lines, Pace::Bytes],
        };
        for pace in paces {
            self.run_once(case, *pace).await;
        }
    }

    async fn run_once(&mut self, case: &Case, pace: Pace) {
        self.runs += 1;
        let id = format!("key-of-the-case-{}", self.runs);
        let to = self.gateway.address();
        let mut wrong = match &case.script {
            Script::Bytes(text) => {
                let steps = notation::steps(text, &id);
                let (answers, closed) = (case.expect.answers.len(), case.expect.closed);
                let seen = client::send(to, case.typed.peer, steps, pace, answers, closed).await;
                wrong_answers(case, &seen, pace)
            }
            Script::Frames(text) => frames::run(to, text, &id, pace, &case.expect).await,
        };
        let received = self.upstream.take();
        wrong.extend(wrong_upstream(case, &received, &id));
        if let Some(reason) = self.wrong_afterwards().await {
            wrong.push(reason);
        }
        if !wrong.is_empty() {
            let lines: Vec<String> = received.requests.iter().map(Request::line).collect();
            let file = case.file.file_name().unwrap_or_default().to_string_lossy();
            let wrong = wrong.join("\n  ");
            self.failures
                .push(format!("{:?} in {file}, {pace:?}:\n  {wrong}\n  upstream: {lines:?}", case.name));
        }
        let setup = self.setup;
        let protected =
            received.requests.into_iter().filter(|request| readings::is_protected(request, setup));
        self.protected.extend(protected.map(|request| (case.name.clone(), request)));
    }

    /// A usual request succeeds.
    async fn wrong_afterwards(&mut self) -> Option<String> {
        let text = "POST /payments HTTP/1.1\\r\\nhost: a\\r\\nx-tenant: acme\\r\\n<key>content-length: 2\\r\\n\\r\\n{}";
        let key = format!("key-after-the-case-{}", self.runs);
        let steps = notation::steps(text, &key);
        let seen = client::send(self.gateway.address(), None, steps, Pace::Written, 1, false).await;
        let received = self.upstream.take();
        let statuses: Vec<u16> = seen.answers.iter().map(|answer| answer.status).collect();
        let keys: Vec<_> =
            received.requests.iter().map(|request| request.header("idempotency-key")).collect();
        (statuses != [200] || keys != [Some(key.as_bytes())])
            .then(|| format!("a usual request afterwards: {statuses:?}, {:?}, {received:?}", seen.error))
    }

    /// Ends the gateway, and gives everything that went wrong.
    pub(crate) async fn finish(mut self) -> Vec<String> {
        let keys = keys(self.gateway.admin_address().tcp().unwrap()).await;
        let mut attempts = HashSet::new();
        for (case, request) in &self.protected {
            let text = |name| request.header(name).map(|value| String::from_utf8_lossy(value).into_owned());
            let (key, attempt) = (text("idempotency-key"), text("idempotency-attempt"));
            let has_record = key.as_ref().is_some_and(|key| keys.contains(key.trim_matches('"')));
            if !has_record || attempt.is_none() {
                self.failures.push(format!(
                    "{case:?}: {} ran without a record: key {key:?}, attempt {attempt:?}",
                    request.line()
                ));
            } else if !attempts.insert((key, attempt)) {
                self.failures.push(format!("{case:?}: {} ran twice under one attempt", request.line()));
            }
        }
        if !self.gateway.shut_down().await {
            self.failures.push("the gateway did not shut down in good order".to_owned());
        }
        let late = self.upstream.take();
        if !late.requests.is_empty() || !late.violations.is_empty() {
            self.failures.push(format!("the upstream was asked after the last case: {late:?}"));
        }
        self.failures
    }
}

/// The keys of all records.
async fn keys(admin: SocketAddr) -> HashSet<String> {
    let mut keys = HashSet::new();
    let mut after = String::new();
    loop {
        let text = format!("GET /api/v1/records?limit=200{after} HTTP/1.1\\r\\nhost: localhost\\r\\n\\r\\n");
        let seen = client::send(admin, None, notation::steps(&text, ""), Pace::Written, 1, false).await;
        let page: Value = serde_json::from_slice(&seen.answers[0].body).unwrap();
        let records = page["records"].as_array().unwrap_or_else(|| panic!("{page}"));
        keys.extend(records.iter().map(|record| record["key"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return keys,
        }
    }
}

/// What the client saw: the answers that the case expects, each whole.
fn wrong_answers(case: &Case, seen: &Seen, pace: Pace) -> Vec<String> {
    let expect = &case.expect;
    let statuses: Vec<String> = seen.answers.iter().map(|answer| answer.status.to_string()).collect();
    let matches = |(status, expected): (&String, &Vec<String>)| expected.contains(status);
    if pace == Pace::Flood {
        // What the flood means is not the case's: the first answer counts.
        let mut wrong: Vec<String> = seen.answers.iter().take(1).filter_map(Answer::wrong).collect();
        if !statuses.iter().zip(&expect.answers).take(1).any(matches) || seen.error.is_some() {
            wrong.push(format!("the client got {statuses:?} while it sent, and then {:?}", seen.error));
        }
        return wrong;
    }
    let mut wrong: Vec<String> = seen.answers.iter().filter_map(Answer::wrong).collect();
    // No answer is one of the alternatives where the connection may just be closed.
    let may_lack = |expected: &Vec<String>| expected.iter().any(|word| word == "closed");
    let are_all =
        statuses.len() <= expect.answers.len() && expect.answers[statuses.len()..].iter().all(may_lack);
    if !are_all || !statuses.iter().zip(&expect.answers).all(matches) {
        wrong.push(format!("the client got {statuses:?}, not {:?}; {:?}", expect.answers, seen.error));
    }
    if expect.closed && !seen.is_closed {
        wrong.push("the gateway did not close the connection".to_owned());
    }
    wrong
}

/// What the upstream received: one reading, and what the case says.
fn wrong_upstream(case: &Case, received: &Received, id: &str) -> Vec<String> {
    let mut wrong = received.violations.clone();
    let lines: Vec<String> = received.requests.iter().map(Request::line).collect();
    if let Forwarded::Lines(expected) = &case.typed.forwarded
        && lines != *expected
    {
        wrong.push(format!("the upstream was asked {lines:?}, not {expected:?}"));
    }
    for request in &received.requests {
        let has = |name: &&String| request.header(name).is_some();
        wrong.extend(case.typed.absent.iter().find(has).map(|name| format!("{name} was forwarded")));
    }
    let Some(last) = received.requests.last() else { return wrong };
    for line in &case.typed.present {
        let (name, value) = line.split_once(": ").expect("a header line");
        let value = value.replace("<id>", id);
        let found = last.header(name);
        if found != Some(value.as_bytes()) {
            let found = found.map(String::from_utf8_lossy);
            wrong.push(format!("the upstream got {name}: {found:?}, not {value:?}"));
        }
    }
    for line in &case.typed.never {
        let (name, value) = line.split_once(": ").expect("a header line");
        if last.header(name) == Some(value.as_bytes()) {
            wrong.push(format!("the upstream got {line:?}"));
        }
    }
    if let Some(body) = &case.typed.body
        && last.body != notation::bytes(body, id)
    {
        wrong.push(format!("the upstream got the body {:?}", String::from_utf8_lossy(&last.body)));
    }
    wrong
}
