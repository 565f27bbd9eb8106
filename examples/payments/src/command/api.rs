//! The payment API's command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::api::{self, Options};
use crate::provider::Secret;

/// A payment API. It knows nothing of retries: put `oncegate serve` in front of it.
#[derive(Parser)]
struct Arguments {
    /// Where it listens
    #[arg(long, default_value = "127.0.0.1:4000")]
    listen: SocketAddr,
    /// Its payments, a file
    #[arg(long, default_value = "payments.db")]
    book: PathBuf,
    /// The provider's host and port
    #[arg(long, default_value = "127.0.0.1:4001")]
    provider: String,
    /// How long the provider may take, in milliseconds
    #[arg(long, default_value_t = 3000)]
    patience_ms: u64,
    /// What the provider's webhooks are signed with: whsec_ and base64
    #[arg(long, env = "WEBHOOK_SECRET", hide_env_values = true)]
    webhook_secret: Option<String>,
}

/// Runs it until it is ended.
pub async fn run(words: impl Iterator<Item = OsString>) -> ExitCode {
    match serve(Arguments::parse_from(words)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(arguments: Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let serving = api::start(Options {
        listen: arguments.listen,
        book: arguments.book,
        provider: arguments.provider,
        patience: Duration::from_millis(arguments.patience_ms),
        webhook_secret: arguments.webhook_secret.as_deref().map(Secret::parse).transpose()?,
    })
    .await?;
    println!("the payment API listens on http://{}", serving.address());
    serving.forever().await;
    Ok(())
}
