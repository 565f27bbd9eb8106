//! The payment API: validates, keeps its payments, asks the provider to charge, and says honestly what it knows.
//!
//! Nothing in it is about retries or duplicates. What it owes to whatever stands in front of it is the truth about each answer:
//! 201 and 402 are outcomes; `Idempotency-Outcome: not-executed` where nothing was sent to the provider; 504 where it does not know.

mod book;
mod http;
mod input;
mod provider;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::provider::Secret;
use crate::serve::Serving;

use book::Book;
use provider::Provider;

/// How an API is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Its payments.
    pub book: PathBuf,
    /// The provider's host and port.
    pub provider: String,
    /// How long the provider may take.
    pub patience: Duration,
    /// What the provider's webhooks are signed with.
    pub webhook_secret: Option<Secret>,
}

/// What the handlers see.
struct Api {
    book: Book,
    provider: Provider,
    webhook_secret: Option<Secret>,
}

/// Starts an API.
pub async fn start(options: Options) -> io::Result<Serving> {
    let api = Api {
        book: Book::open(&options.book).map_err(io::Error::other)?,
        provider: Provider { address: options.provider, patience: options.patience },
        webhook_secret: options.webhook_secret,
    };
    Serving::start(options.listen, http::routes(Arc::new(api))).await
}
