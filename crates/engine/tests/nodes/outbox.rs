//! A worker of the outbox that is killed: what it had begun is finished by another, and nobody is charged twice.
//!
//! The provider is in the parent, so that it knows what was asked of it whoever died. It dedupes by the key that it is given, as
//! providers do. The child only delivers.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate_core::decide::{Arrival, Decision, Event};
use oncegate_core::identity::Token;
use oncegate_core::policy::Profile;
use oncegate_engine::{
    Delivering, Delivery, Effect, Effects, Engine, Options, OutboxOptions, Patience, Route, Sent,
};
use oncegate_store::jobs::{Job, JobId, Jobs, Stage};
use oncegate_store_sql::{PostgresStore, SqliteStore};
use oncegate_test_servers::{shared, until};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

use crate::actor::{Actor, block_on, orders, say, var};
use crate::node::URL;
use crate::schema::own_schema;
use crate::world::{Dice, answer, id, replayed, request, route};

const PROVIDER: &str = "ONCEGATE_TEST_PROVIDER";
const JOBS: u32 = 60;
/// A bound on what a test waits for. Reached only by a test that fails.
const PATIENCE: Duration = Duration::from_mins(2);

// ---- the provider ----------------------------------------------------------------------------------------------------

/// What was asked of it, by key; and whether it answers.
struct Provider {
    address: String,
    asked: Arc<Mutex<BTreeMap<String, u32>>>,
    is_silent: Arc<AtomicBool>,
    charged: Receiver<String>,
}

impl Provider {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (asked, is_silent) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (told, charged) = channel();
        let (all, silent) = (Arc::clone(&asked), Arc::clone(&is_silent));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (asked, is_silent, told) = (Arc::clone(&all), Arc::clone(&silent), told.clone());
                std::thread::spawn(move || serve(&stream, &asked, &is_silent, &told));
            }
        });
        Self { address, asked, is_silent, charged }
    }

    /// Waits until so many more calls have come.
    fn until_asked(&self, times: usize) {
        for _ in 0..times {
            self.charged.recv_timeout(PATIENCE).unwrap();
        }
    }
}

/// The charge is made before anything is said: whoever dies now does not know of it.
fn serve(
    stream: &TcpStream,
    asked: &Mutex<BTreeMap<String, u32>>,
    is_silent: &AtomicBool,
    told: &Sender<String>,
) {
    let mut key = String::new();
    if BufReader::new(stream).read_line(&mut key).is_err() || !key.ends_with('\n') {
        return;
    }
    let key = key.trim_end().to_owned();
    *asked.lock().unwrap().entry(key.clone()).or_default() += 1;
    let is_silent = is_silent.load(Ordering::SeqCst);
    let _ = told.send(key.clone());
    if is_silent {
        // Until whoever asked is gone.
        let _ = BufReader::new(stream).read_line(&mut String::new());
        return;
    }
    let _ = (&*stream).write_all(format!("ch_{key}\n").as_bytes());
}

// ---- the child -------------------------------------------------------------------------------------------------------

struct Charge {
    provider: String,
}

impl Effect for Charge {
    fn deliver<'a>(&'a self, delivery: &'a Delivery<'a>) -> Delivering<'a> {
        Box::pin(async move {
            match ask(&self.provider, delivery.downstream_key).await {
                Ok(reference) => Sent::Delivered {
                    answer: Some(Box::new(answer(&reference))),
                    reference: Some(reference.into()),
                },
                Err(error) => Sent::Later { after: None, why: error.to_string().into() },
            }
        })
    }

    fn patience(&self) -> Patience {
        let quick = Duration::from_millis(20);
        Patience { timeout: Duration::from_secs(2), backoff: quick, backoff_max: quick, park_after: 1_000 }
    }
}

async fn ask(provider: &str, key: &str) -> std::io::Result<String> {
    let mut stream = tokio::net::TcpStream::connect(provider).await?;
    stream.write_all(format!("{key}\n").as_bytes()).await?;
    let mut reference = String::new();
    tokio::io::BufReader::new(stream).read_line(&mut reference).await?;
    Ok(reference.trim_end().to_owned())
}

pub(crate) fn worker() {
    let mut orders = orders();
    block_on(async {
        let url = var(URL);
        // Both are kept until the parent ends this process.
        let _outbox = if url.starts_with("postgres") {
            deliver(PostgresStore::open(&url).await.unwrap()).await
        } else {
            deliver(SqliteStore::open(&url).unwrap()).await
        };
        say("ready");
        while orders.recv().await.is_some() {}
    });
}

async fn deliver<S: Jobs>(store: S) -> oncegate_engine::Outbox {
    let engine = Engine::start(store, Options::default()).await.unwrap();
    let options = OutboxOptions {
        every: Duration::from_millis(50),
        at_once: 8,
        claim_slack: Duration::from_millis(500),
        ..OutboxOptions::default()
    };
    engine.start_outbox(&Effects::new().with("charge", Charge { provider: var(PROVIDER) }), &options)
}

// ---- the trials ------------------------------------------------------------------------------------------------------

/// A lease that outlasts every pause of a job.
fn lasting() -> Route {
    route(Profile::Ietf, |policy| {
        policy.lease = Duration::from_hours(1);
        policy.attempt_deadline = Duration::from_hours(1);
    })
}

/// Every other request waits for its job's answer.
async fn promise<S: Jobs>(engine: &Engine<S>) -> Vec<Job> {
    let route = lasting();
    let mut jobs = Vec::new();
    for n in 0..JOBS {
        let key = format!("order-{n}");
        let record = id(&route, &key);
        let arrival =
            Arrival { token: Token::from_bytes(u128::from(n).to_be_bytes()), ..request(&route, &key) };
        let step = engine.drive(record, &Event::Arrive(arrival)).await.unwrap();
        let Decision::Execute(lease) = step.decision else { panic!("{:?}", step.decision) };
        let life = lease.holder.life;
        let job =
            Job::promised(JobId::of(life, 0), "charge", b"{}".to_vec(), (record, life), engine.now().at);
        jobs.push(Job { answers: (n % 2 == 0).then_some(lease.holder), ..job });
    }
    engine.store().promise(&jobs).await.unwrap();
    jobs
}

async fn is_open<S: Jobs>(engine: &Engine<S>) -> bool {
    engine.store().depth().await.unwrap().iter().any(|depth| depth.waiting > 0)
}

/// Everything promised is done, under one name each, and whoever waited gets the answer.
async fn is_done_once<S: Jobs>(engine: &Engine<S>, provider: &Provider, jobs: &[Job]) {
    let route = lasting();
    let asked = provider.asked.lock().unwrap().clone();
    let keys: BTreeSet<_> = jobs.iter().map(Job::downstream_key).collect();
    assert_eq!(
        asked.keys().cloned().collect::<BTreeSet<_>>(),
        keys,
        "one charge for each promise, and no other"
    );
    for (n, job) in jobs.iter().enumerate() {
        let reference = format!("ch_{}", job.downstream_key());
        let Stage::Done(receipt) = engine.store().job(job.id).await.unwrap().unwrap().stage else {
            panic!("{job:?}")
        };
        assert_eq!(receipt.reference.as_deref(), Some(&*reference));
        if job.answers.is_some() {
            let again = request(&route, &format!("order-{n}"));
            assert_eq!(replayed(engine.arrive(&route, again).await.unwrap()), reference);
        }
    }
}

/// Killed while the provider has charged and has not said so; then a few times at random instants; then let be.
async fn killed<S: Jobs>(store: S, url: &str) {
    let engine = Engine::start(store, Options::default()).await.unwrap();
    let jobs = promise(&engine).await;
    let provider = Provider::start();
    provider.is_silent.store(true, Ordering::SeqCst);
    let environment = [(URL, url), (PROVIDER, &provider.address)];
    let first = Actor::start("outbox", &environment);
    first.hear_word("ready");
    provider.until_asked(8);
    drop(first);
    let known = provider.asked.lock().unwrap().clone();
    provider.is_silent.store(false, Ordering::SeqCst);
    let mut dice = Dice::new(8);
    for _ in 0..4 {
        let worker = Actor::start("outbox", &environment);
        provider.until_asked(1 + dice.below(10));
        drop(worker);
    }
    let last = Actor::start("outbox", &environment);
    until("every promise is kept", async || !is_open(&engine).await).await;
    drop(last);
    is_done_once(&engine, &provider, &jobs).await;
    let asked = provider.asked.lock().unwrap().clone();
    for (key, times) in known {
        assert!(
            asked[&key] > times,
            "{key} was charged by the one that died, and asked for again under the same key"
        );
    }
}

pub(crate) fn killed_on_postgres() {
    let schema = own_schema(&shared::postgres_url());
    block_on(async { killed(PostgresStore::open(&schema.url).await.unwrap(), &schema.url).await });
}

pub(crate) fn killed_on_sqlite() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("records.db");
    block_on(async { killed(SqliteStore::open(&file).unwrap(), file.to_str().unwrap()).await });
}
