//! A provider that dedupes by the key it is given, counts, and does what it is told to.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate_core::response::{Answer, Response};
use oncegate_engine::{Delivering, Delivery, Effect, Effects, OutboxOptions, Patience, Sent};

/// One call, as it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) key: String,
    pub(crate) payload: String,
    pub(crate) tries: u32,
}

type Rule = dyn Fn(&Call) -> Does + Send + Sync;

/// What it does with a call.
pub(crate) enum Does {
    /// Charges, if it has not yet, and answers.
    Charge,
    /// Charges, if it has not yet, and never answers.
    ChargeAndHang,
    /// Something else.
    Say(Sent),
    Panic,
}

#[derive(Clone)]
pub(crate) struct Provider {
    calls: Arc<Mutex<Vec<Call>>>,
    charges: Arc<Mutex<BTreeMap<String, u32>>>,
    rule: Arc<Rule>,
    patience: Patience,
}

/// Quick enough for a test that has to see a pause end.
pub(crate) const QUICK: Patience = Patience {
    timeout: Duration::from_millis(300),
    backoff: Duration::from_millis(5),
    backoff_max: Duration::from_millis(20),
    park_after: 5,
};

impl Provider {
    pub(crate) fn new(rule: impl Fn(&Call) -> Does + Send + Sync + 'static) -> Self {
        Self { calls: Arc::default(), charges: Arc::default(), rule: Arc::new(rule), patience: QUICK }
    }

    /// Always willing.
    pub(crate) fn willing() -> Self {
        Self::new(|_| Does::Charge)
    }

    /// One that may take this long to answer.
    pub(crate) fn patient(self, timeout: Duration) -> Self {
        Self { patience: Patience { timeout, ..self.patience }, ..self }
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    /// How many charges there are in all; none has a key twice.
    pub(crate) fn charges(&self) -> usize {
        self.charges.lock().unwrap().len()
    }

    pub(crate) fn effects(&self) -> Effects {
        Effects::new().with("charge", self.clone())
    }
}

pub(crate) fn later(why: &str) -> Sent {
    Sent::Later { after: None, why: why.into() }
}

/// What the provider answers to a key.
pub(crate) fn receipt(key: &str) -> Answer {
    Answer::Kept(Response { status: 201, headers: vec![], body: format!("charged {key}").into_bytes() })
}

impl Effect for Provider {
    fn deliver<'a>(&'a self, delivery: &'a Delivery<'a>) -> Delivering<'a> {
        Box::pin(async move {
            let call = Call {
                key: delivery.downstream_key.to_owned(),
                payload: String::from_utf8(delivery.payload.to_vec()).unwrap(),
                tries: delivery.tries,
            };
            self.calls.lock().unwrap().push(call.clone());
            let does = (self.rule)(&call);
            if matches!(does, Does::Charge | Does::ChargeAndHang) {
                *self.charges.lock().unwrap().entry(call.key.clone()).or_default() += 1;
            }
            match does {
                Does::Charge => Sent::Delivered {
                    reference: Some(format!("ch_{}", call.key).into()),
                    answer: Some(Box::new(receipt(&call.key))),
                },
                Does::ChargeAndHang => std::future::pending().await,
                Does::Say(sent) => sent,
                Does::Panic => panic!("as it was told to"),
            }
        })
    }

    fn patience(&self) -> Patience {
        self.patience
    }
}

/// Quick enough for a test. Claims are not: on a busy machine one that ends while its holder lives is another delivery.
pub(crate) fn quick() -> OutboxOptions {
    OutboxOptions { every: Duration::from_millis(20), ..OutboxOptions::default() }
}
