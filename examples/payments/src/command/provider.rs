//! The payment provider's command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::provider::{self, Faults, Late, Options, Secret};

/// A payment provider that counts every charge, and misbehaves on demand.
#[derive(Parser)]
struct Arguments {
    /// Where it listens
    #[arg(long, default_value = "127.0.0.1:4001")]
    listen: SocketAddr,
    /// Its ledger, a file
    #[arg(long, default_value = "provider.db")]
    ledger: PathBuf,
    /// Do not honour Idempotency-Key: whatever comes twice is charged twice
    #[arg(long)]
    no_idempotency: bool,
    /// What goes wrong by itself, such as slow=0.1,decline=0.05
    #[arg(long, value_delimiter = ',')]
    faults: Vec<String>,
    /// Where webhooks go: host, port and path
    #[arg(long, requires = "webhook_secret")]
    webhook: Option<String>,
    /// What they are signed with: whsec_ and base64
    #[arg(long, env = "WEBHOOK_SECRET", hide_env_values = true)]
    webhook_secret: Option<String>,
    /// How late "slow" and "late" are, in milliseconds
    #[arg(long, default_value_t = 1000)]
    delay_ms: u64,
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
    let mut faults = Faults::default();
    for fault in &arguments.faults {
        let (name, probability) = fault.split_once('=').ok_or("a fault is NAME=PROBABILITY")?;
        faults.0.insert(name.parse()?, probability.parse()?);
    }
    let secret = arguments.webhook_secret.as_deref().map(Secret::parse).transpose()?;
    let serving = provider::start(Options {
        listen: arguments.listen,
        ledger: arguments.ledger,
        is_idempotent: !arguments.no_idempotency,
        faults,
        webhook: arguments.webhook.zip(secret),
        late: Late::By(Duration::from_millis(arguments.delay_ms)),
    })
    .await?;
    println!("the provider listens on http://{}", serving.address());
    serving.forever().await;
    Ok(())
}
