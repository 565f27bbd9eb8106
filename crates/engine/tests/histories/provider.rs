//! The provider: it dedupes nothing, may be silent or late, and keeps the ledger.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use oncegate_core::record::Record;
use oncegate_core::response::{Answer, Response};
use oncegate_engine::{Asking, Found, Patience, Probe};

/// An effect that its client did not hear of comes at most so late.
pub(crate) const LATE: Duration = Duration::from_millis(150);
/// The declared horizon. Later than any effect, also on a machine that stands still for a while.
pub(crate) const HORIZON: Duration = Duration::from_secs(3);

/// What a call gave.
pub(crate) enum Called {
    Charged(Answer),
    /// No answer came: there may be an effect, now or later.
    Silent,
    /// The connection was refused: there is none.
    Refused,
}

#[derive(Clone, Default)]
pub(crate) struct Provider(Arc<Mutex<Ledger>>);

#[derive(Default)]
struct Ledger {
    charges: HashMap<String, Vec<String>>,
    count: usize,
    /// What happened when, for the message of a failed history.
    log: Vec<(Instant, String)>,
}

impl Provider {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap()
    }

    /// Notes what happened to a key, or to all of them.
    pub(crate) fn note(&self, event: impl Into<String>) {
        self.ledger().log.push((Instant::now(), event.into()));
    }

    /// What was noted of a key, and of all of them.
    pub(crate) fn story(&self, key: &str) -> String {
        let ledger = self.ledger();
        let began = ledger.log.first().map(|(at, _)| *at);
        let of_key = |event: &str| event.contains(key) || !event.contains("history-");
        let lines = ledger.log.iter().filter(|(_, event)| of_key(event)).map(|(at, event)| {
            format!("\n{:8.3} s  {event}", at.duration_since(began.unwrap_or(*at)).as_secs_f64())
        });
        lines.collect()
    }

    fn charge(&self, key: &str) -> Answer {
        let mut ledger = self.ledger();
        ledger.count += 1;
        let charge = format!("charge {}", ledger.count);
        ledger.charges.entry(key.to_owned()).or_default().push(charge.clone());
        ledger.log.push((Instant::now(), format!("{key}: {charge}")));
        answer(&charge)
    }

    /// A call, as the dice say.
    pub(crate) async fn call(&self, key: &str, dice: usize) -> Called {
        let late = LATE * u32::try_from(dice / 100 % 100).unwrap() / 100;
        match dice % 100 {
            0..60 => Called::Charged(self.charge(key)),
            60..70 => {
                tokio::time::sleep(late).await;
                Called::Charged(self.charge(key))
            }
            70..80 => {
                let (provider, key) = (self.clone(), key.to_owned());
                std::thread::spawn(move || {
                    std::thread::sleep(late);
                    provider.charge(&key);
                });
                Called::Silent
            }
            80..90 => Called::Silent,
            _ => Called::Refused,
        }
    }

    /// The charges of a key.
    pub(crate) fn charges(&self, key: &str) -> Vec<String> {
        self.ledger().charges.get(key).cloned().unwrap_or_default()
    }
}

pub(crate) fn answer(charge: &str) -> Answer {
    Answer::Kept(Response { status: 201, headers: Vec::new(), body: charge.as_bytes().to_vec() })
}

pub(crate) fn charge_of(answer: &Answer) -> String {
    let Answer::Kept(response) = answer else { panic!("not kept: {answer:?}") };
    String::from_utf8(response.body.clone()).unwrap()
}

/// It can be asked what became of a key.
impl Probe for Provider {
    fn ask<'a>(&'a self, record: &'a Record) -> Asking<'a> {
        let found = match self.charges(record.address.key.as_str()).first() {
            Some(charge) => Found::Happened { answer: Arc::new(answer(charge)), reference: None },
            None => Found::DidNotHappen,
        };
        Box::pin(std::future::ready(found))
    }

    fn patience(&self, _record: &Record) -> Patience {
        let pause = Duration::from_millis(100);
        Patience { backoff: pause, backoff_max: pause, park_after: u32::MAX, ..Patience::default() }
    }
}
