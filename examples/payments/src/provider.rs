//! The payment provider: charges, counts every charge, and misbehaves on demand.

mod fault;
mod http;
mod ledger;
mod webhook;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::serve::Serving;

pub use fault::{Fault, Faults};
pub use webhook::{Secret, Signed, WrongSignature};

use ledger::Ledger;
use webhook::Webhooks;

/// How a provider is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Its ledger.
    pub ledger: PathBuf,
    /// Whether it honours an `Idempotency-Key`.
    pub is_idempotent: bool,
    /// What goes wrong by itself.
    pub faults: Faults,
    /// Where it tells what became of a charge, and the secret that it signs with.
    pub webhook: Option<(String, Secret)>,
    /// How late "slow" and "late" are.
    pub late: Late,
}

/// How late something is.
#[derive(Clone, Debug)]
pub enum Late {
    /// By so much.
    By(Duration),
    /// Until this says so: a test that tells the time itself has none to wait for.
    Until(watch::Receiver<bool>),
}

impl Late {
    async fn pass(&self) {
        match self {
            Self::By(span) => tokio::time::sleep(*span).await,
            // Whoever could say so being gone, it is late enough.
            Self::Until(time) => drop(time.clone().wait_for(|is_over| *is_over).await),
        }
    }
}

/// What the handlers see.
struct Provider {
    ledger: Ledger,
    is_idempotent: AtomicBool,
    faults: Mutex<Faults>,
    dice: Mutex<fastrand::Rng>,
    webhooks: Option<Webhooks>,
    late: Late,
    /// Orders that were taken and are not in the ledger yet.
    coming: AtomicU64,
    /// How often somebody asked what became of an order.
    asked: AtomicU64,
}

/// Starts a provider.
pub async fn start(options: Options) -> io::Result<Serving> {
    let ledger = Ledger::open(&options.ledger).map_err(io::Error::other)?;
    let provider = Provider {
        ledger,
        is_idempotent: AtomicBool::new(options.is_idempotent),
        faults: Mutex::new(options.faults),
        dice: Mutex::new(fastrand::Rng::new()),
        webhooks: options.webhook.map(|(address, secret)| Webhooks {
            address,
            secret,
            late: options.late.clone(),
        }),
        late: options.late,
        coming: AtomicU64::new(0),
        asked: AtomicU64::new(0),
    };
    Serving::start(options.listen, http::routes(Arc::new(provider))).await
}

impl Provider {
    fn is_idempotent(&self) -> bool {
        self.is_idempotent.load(Ordering::Acquire)
    }

    /// What goes wrong this time: as the request asks, or by the dice.
    fn faults_of(&self, asked: Option<&str>) -> Result<Vec<Fault>, String> {
        if let Some(asked) = asked {
            return asked.split(',').map(|name| name.trim().parse()).collect();
        }
        let mut dice = self.dice.lock().unwrap_or_else(PoisonError::into_inner);
        let faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(faults.roll(&mut dice))
    }
}
