//! A queue that delivers at least once, and a consumer that handles each message once.
//!
//! ```sh
//! cargo run -p example-jobs
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use oncegate::{Engine, JobError, Options, open};
use serde::Serialize;
use tokio::sync::mpsc;

/// A message, as brokers deliver it: perhaps more than once.
#[derive(Clone, Serialize)]
struct Invoice {
    id: u64,
    amount: u64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::start(open("memory:").await?, Options::default()).await?;
    let (broker, mut queue) = mpsc::channel(16);
    for id in [1, 2, 1, 3, 2, 1] {
        broker.send(Invoice { id, amount: 10 * id }).await?;
    }
    drop(broker);

    while let Some(invoice) = queue.recv().await {
        let key = format!("invoice-{}", invoice.id);
        let sent = engine.once("mailer", &key, &invoice.clone(), || send(invoice)).await?;
        println!("{key}: mail {}{}", sent.value, if sent.replayed { ", sent before" } else { "" });
    }
    println!("{} mails for 6 deliveries of 3 invoices", MAILS.load(Ordering::Relaxed));
    Ok(())
}

static MAILS: AtomicU64 = AtomicU64::new(0);

/// Sends the mail; its number is what later deliveries are told. An error here would be doubt, unless it is a
/// [`JobError::not_executed`].
async fn send(invoice: Invoice) -> Result<u64, JobError> {
    if invoice.amount == 0 {
        return Err(JobError::not_executed("there is nothing to pay"));
    }
    // The conversation with a mail server.
    tokio::task::yield_now().await;
    Ok(MAILS.fetch_add(1, Ordering::Relaxed) + 1)
}
