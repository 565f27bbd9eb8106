//! The payment service; see the README.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use example_payments_atomic::{Options, start};
use oncegate::OutboxOptions;

/// A payment API whose key, payment and promise to charge are one transaction.
#[derive(Parser)]
struct Arguments {
    /// Where it listens
    #[arg(long, default_value = "127.0.0.1:4000")]
    listen: SocketAddr,
    /// Payments, keys and promises: postgres://… or sqlite:FILE
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, default_value = "sqlite:payments.db")]
    database: String,
    /// The provider's host and port
    #[arg(long, default_value = "127.0.0.1:4001")]
    provider: String,
    /// How long the provider may take, in milliseconds
    #[arg(long, default_value_t = 3000)]
    patience_ms: u64,
    /// How long after a crash a promise that was being kept is taken up again, in milliseconds; added to the provider's own time
    #[arg(long, default_value_t = 10_000)]
    slack_ms: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { listen, database, provider, patience_ms, slack_ms } = Arguments::parse();
    let patience = Duration::from_millis(patience_ms);
    let outbox = OutboxOptions { claim_slack: Duration::from_millis(slack_ms), ..OutboxOptions::default() };
    match start(Options { listen, database, provider, patience, outbox }).await {
        Ok(service) => {
            println!("the payment service listens on http://{}", service.serving.address());
            service.serving.forever().await;
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
