//! The stage: clients, the rules over an embedded store, and a provider whose ledger is the judge.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncegate_core::classify::{Class, Ending as AttemptEnding, Failure, classify};
use oncegate_core::decide::{Arrival, Decision, Event, Finding, Lease, Misuse, Verdict};
use oncegate_core::fingerprint::{self, Content};
use oncegate_core::identity::{RecordId, Token};
use oncegate_core::key::Key;
use oncegate_core::policy::{Policy, Profile};
use oncegate_core::record::State;
use oncegate_core::response::{Answer, Response};
use oncegate_core::scope::{Address, Operation, Scope};
use oncegate_core::time::{Now, Timestamp, micros};
use oncegate_store::Store;
use oncegate_store::clock::Clock;
use oncegate_store::drive::{drive, read_one};
use oncegate_store_sql::SqliteStore;
use oncegate_store_sql::sqlite::SqliteOptions;

use super::Error;

/// How the provider treats a charge.
#[derive(Clone, Copy)]
pub(super) enum Ending {
    Answers,
    RefusesConnection,
    TimesOutAfterCharging,
    /// Our own node dies before it can record the answer.
    DiesAfterCharging,
}

pub(super) struct Shop {
    store: Arc<SqliteStore>,
    policy: Policy,
    provider: Arc<Provider>,
    /// Turned by hand, so that a lease can lapse without waiting for it.
    turned_by: Arc<AtomicI64>,
    dead: Option<(RecordId, Lease, Arc<Answer>)>,
}

/// Counts every charge, with the life of the key that it was sent for. It does not dedupe: a second charge for one key
/// would be one more, and the show would say so.
#[derive(Default)]
struct Provider(Mutex<Vec<Token>>);

impl Provider {
    /// The number of the charge.
    fn charge(&self, life: Token) -> usize {
        let mut ledger = self.ledger();
        ledger.push(life);
        ledger.len()
    }

    fn find(&self, life: Token) -> Option<usize> {
        self.ledger().iter().position(|charged| *charged == life).map(|place| place + 1)
    }

    fn ledger(&self) -> MutexGuard<'_, Vec<Token>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shop {
    pub(super) fn open(file: &Path) -> Result<Self, Error> {
        let turned_by = Arc::new(AtomicI64::new(0));
        let store = open_store(file, &turned_by)?;
        let policy = Profile::Ietf.policy();
        Ok(Self { store: Arc::new(store), policy, provider: Arc::default(), turned_by, dead: None })
    }

    pub(super) fn reopened(self, file: &Path) -> Result<Self, Error> {
        let Self { store, policy, provider, turned_by, dead } = self;
        drop(store);
        let store = Arc::new(open_store(file, &turned_by)?);
        Ok(Self { store, policy, provider, turned_by, dead })
    }

    pub(super) fn pass(&self, span: Duration) {
        self.turned_by.fetch_add(micros(span), Ordering::Relaxed);
    }

    pub(super) fn charges(&self) -> usize {
        self.provider.ledger().len()
    }

    /// One request; says what the client saw.
    pub(super) async fn post(
        &mut self,
        tenant: &str,
        key: &str,
        body: &str,
        ending: Ending,
    ) -> Result<String, Error> {
        let arrival = self.arrival(tenant, key, body)?;
        let id = RecordId::of(&arrival.address);
        let now = now(&self.store).await?;
        match drive(&*self.store, id, &Event::Arrive(arrival), now).await?.decision {
            Decision::Execute(lease) => self.execute(id, lease, ending).await,
            decision => Ok(shown(&decision)),
        }
    }

    async fn execute(&mut self, id: RecordId, lease: Lease, ending: Ending) -> Result<String, Error> {
        let holder = lease.holder;
        let failure = match ending {
            Ending::Answers => {
                let answer = charged(self.provider.charge(holder.life));
                let seen = shown_answer(&answer);
                self.settle(id, Event::Complete { holder, answer }).await?;
                return Ok(seen);
            }
            Ending::DiesAfterCharging => {
                let answer = charged(self.provider.charge(holder.life));
                self.dead = Some((id, lease, answer));
                return Ok("no answer".to_owned());
            }
            Ending::RefusesConnection => Failure::ConnectionRefused,
            Ending::TimesOutAfterCharging => {
                self.provider.charge(holder.life);
                Failure::Timeout
            }
        };
        match classify(&self.policy, &AttemptEnding::Failed(failure)) {
            Class::Release(reason) => {
                self.settle(id, Event::Release { holder, reason, backoff: Duration::ZERO }).await?;
                Ok("502 upstream_unreachable".to_owned())
            }
            Class::Doubt(reason) => {
                self.settle(id, Event::Doubt { holder, reason }).await?;
                Ok("504 outcome_unknown".to_owned())
            }
            Class::Complete => Err("a failure is never a completion".into()),
        }
    }

    /// `clients` requests at once, on tasks of their own.
    pub(super) async fn race(
        &mut self,
        tenant: &str,
        key: &str,
        body: &str,
        clients: usize,
    ) -> Result<String, Error> {
        let start = Arc::new(tokio::sync::Barrier::new(clients));
        let mut running = Vec::new();
        for _ in 0..clients {
            let (store, start, arrival) =
                (Arc::clone(&self.store), Arc::clone(&start), self.arrival(tenant, key, body)?);
            running.push(tokio::spawn(async move {
                start.wait().await;
                let now = now(&store).await?;
                let step =
                    drive(&*store, RecordId::of(&arrival.address), &Event::Arrive(arrival), now).await?;
                Ok::<_, Error>(step.decision)
            }));
        }
        let (mut executing, mut others) = (Vec::new(), BTreeMap::<String, usize>::new());
        for client in running {
            match client.await?? {
                Decision::Execute(lease) => executing.push(lease),
                decision => *others.entry(shown(&decision)).or_default() += 1,
            }
        }
        // The winners, however many there are, charge: nothing here hides a second one.
        let id = RecordId::of(&self.arrival(tenant, key, body)?.address);
        let mut seen = Vec::new();
        for lease in executing {
            seen.push(format!("1 × {}", self.execute(id, lease, Ending::Answers).await?));
        }
        seen.extend(others.into_iter().map(|(what, count)| format!("{count} × {what}")));
        Ok(seen.join(", "))
    }

    /// Asks the provider about the key's present life, and settles the record by what it says.
    pub(super) async fn probe(&mut self, tenant: &str, key: &str) -> Result<String, Error> {
        let id = RecordId::of(&address(tenant, key)?);
        let row = read_one(&*self.store, id).await?.ok_or("there is no such record")?;
        let Some(number) = self.provider.find(row.life) else { return Ok("not found".to_owned()) };
        let finding = Finding::Happened(charged(number));
        let verdict = Verdict { life: row.life, source: "probe".into(), reference: None, finding };
        self.settle(id, Event::Verdict(verdict)).await?;
        Ok(format!("it happened: charge {number}"))
    }

    /// The node that died comes back and settles what it knows.
    pub(super) async fn wake_the_dead(&mut self) -> Result<String, Error> {
        let (id, lease, answer) = self.dead.take().ok_or("nobody died")?;
        self.settle(id, Event::Complete { holder: lease.holder, answer }).await?;
        let row = read_one(&*self.store, id).await?.ok_or("there is no such record")?;
        match &row.state {
            State::Completed(answer) => Ok(format!("recorded: {}", shown_answer(answer))),
            other => Ok(format!("not recorded: {}", other.kind())),
        }
    }

    async fn settle(&self, id: RecordId, event: Event) -> Result<(), Error> {
        let now = now(&self.store).await?;
        match drive(&*self.store, id, &event, now).await?.decision {
            Decision::Done => Ok(()),
            other => Err(format!("the attempt could not be settled: {other:?}").into()),
        }
    }

    fn arrival(&self, tenant: &str, key: &str, body: &str) -> Result<Arrival, Error> {
        let content = Content {
            method: "POST",
            path: "/payments",
            query: None,
            content_type: Some(b"application/json"),
            body: body.as_bytes(),
        };
        let mut token = [0; 16];
        getrandom::fill(&mut token).map_err(|error| format!("no randomness: {error}"))?;
        Ok(Arrival {
            address: address(tenant, key)?,
            operation: Operation::new("POST /payments")?,
            fingerprint: fingerprint::of(&self.policy.fingerprint, &content)?,
            token: Token::from_bytes(token),
            terms: self.policy.terms(),
            execution: self.policy.execution,
            lease: self.policy.lease,
            attempt_deadline: self.policy.attempt_deadline,
            misuse: Misuse::Refuse,
            request: None,
        })
    }
}

fn open_store(file: &Path, turned_by: &Arc<AtomicI64>) -> Result<SqliteStore, Error> {
    let (system, turned_by) = (Clock::system(), Arc::clone(turned_by));
    let clock = Clock::from_fn(move || {
        Timestamp::from_micros(system.now().as_micros() + turned_by.load(Ordering::Relaxed))
    });
    Ok(SqliteOptions::new(file).clock(clock).open()?)
}

async fn now(store: &SqliteStore) -> Result<Now, Error> {
    Ok(Now::exact(store.clock().await?))
}

fn address(tenant: &str, key: &str) -> Result<Address, Error> {
    Ok(Address { scope: Scope::tenant(tenant)?, key: Key::from_text(key)? })
}

fn charged(number: usize) -> Arc<Answer> {
    let body = format!("charge {number}").into_bytes();
    Arc::new(Answer::Kept(Response { status: 201, headers: Vec::new(), body }))
}

fn shown_answer(answer: &Answer) -> String {
    match answer {
        Answer::Kept(response) => format!("{} {}", response.status, String::from_utf8_lossy(&response.body)),
        Answer::NotKept { status, .. } => format!("{status}, not kept"),
    }
}

fn shown(decision: &Decision) -> String {
    match decision {
        Decision::Replay(answer) => format!("{}, replayed", shown_answer(answer)),
        Decision::Busy { .. } => "409 in_progress".to_owned(),
        Decision::Unsettled { .. } => "409 outcome_unknown".to_owned(),
        Decision::Mismatch => "422 key_reused".to_owned(),
        other => format!("{other:?}"),
    }
}
