//! The processes of the show: this binary, as somebody else.
//!
//! Each ends when its standard input does, so that nothing is left behind, however the show ends.

use std::io::Read as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use example_payments::{api, provider};
use oncegate_gateway::{Config, Gateway, Given};

use super::Error;

/// Who to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Provider,
    Api,
    Gateway,
}

impl Part {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Provider => "provider",
            Self::Api => "api",
            Self::Gateway => "gateway",
        }
    }
}

/// Whether this process is one of the show's. Not a flag: completions would offer it.
pub(super) fn told() -> Option<Part> {
    let name = std::env::var(told::PART).ok()?;
    [Part::Provider, Part::Api, Part::Gateway].into_iter().find(|part| part.name() == name)
}

/// What a part is told, by its environment.
pub(super) mod told {
    pub(crate) const PART: &str = "ONCEGATE_DEV_PART";
    pub(crate) const LISTEN: &str = "ONCEGATE_DEV_LISTEN";
    pub(crate) const FILE: &str = "ONCEGATE_DEV_FILE";
    pub(crate) const BEHIND: &str = "ONCEGATE_DEV_BEHIND";
    /// Host, port and path that the provider tells.
    pub(crate) const WEBHOOK: &str = "ONCEGATE_DEV_WEBHOOK";
    /// What it signs with.
    pub(crate) const SECRET: &str = "ONCEGATE_DEV_SECRET";
}

/// How late "slow" is.
const SLOW: Duration = Duration::from_millis(700);
/// How long the API waits for the provider.
const PROVIDER_PATIENCE: Duration = Duration::from_millis(1500);

/// Plays it until the show ends.
pub(super) fn run(part: Part) -> ExitCode {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    match runtime.block_on(play(part)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

async fn play(part: Part) -> Result<(), Error> {
    let listen: SocketAddr = variable(told::LISTEN)?.parse()?;
    let file = PathBuf::from(variable(told::FILE)?);
    match part {
        Part::Provider => {
            let options = provider::Options {
                listen,
                ledger: file,
                is_idempotent: true,
                faults: provider::Faults::default(),
                webhook: webhook()?,
                late: provider::Late::By(SLOW),
            };
            let serving = provider::start(options).await?;
            println!("{}", serving.address());
            serving.forever().await;
        }
        Part::Api => {
            let options = api::Options {
                listen,
                book: file,
                provider: variable(told::BEHIND)?,
                patience: PROVIDER_PATIENCE,
                webhook_secret: None,
            };
            let serving = api::start(options).await?;
            println!("{}", serving.address());
            serving.forever().await;
        }
        Part::Gateway => {
            let (listen, admin) = (listen, variable("ONCEGATE_DEV_ADMIN")?);
            let text = format!(
                "[listen]\naddress = \"{listen}\"\n[admin]\naddress = \"{admin}\"\n[upstream]\nurl = \"http://{}\"\n{}",
                variable(told::BEHIND)?,
                rules()
            );
            let store = format!("sqlite://{}", file.display());
            let given = Given { store: Some(oncegate_gateway::Secret::new(store)), ..Given::default() };
            let gateway =
                Gateway::start(Config::parse(None, &text, &given)?, oncegate_gateway::install_recorder())
                    .await?;
            println!("{} {}", gateway.address(), gateway.admin_address());
            std::future::pending::<()>().await;
        }
    }
    Ok(())
}

/// Where the provider tells of its charges, and what it signs with; nowhere until the gateway is there.
fn webhook() -> Result<Option<(String, provider::Secret)>, Error> {
    let Ok(address) = std::env::var(told::WEBHOOK) else { return Ok(None) };
    Ok(Some((address, provider::Secret::parse(&variable(told::SECRET)?)?)))
}

/// Payments are asked about; refunds are not, so that the provider's webhook is all there is.
fn rules() -> String {
    format!(
        r#"
[defaults]
profile = "payments"
lease = "2s"
attempt_deadline = "2m"
forward_key = "derived"
horizon = "10m"

[workers]
sweep_every = "500ms"
reconcile_every = "200ms"

[[route]]
match = "POST /payments"
[route.probe]
timeout = "5s"
backoff = "200ms"
backoff_max = "1s"
{}
[[route]]
match = "POST /payments/{{id}}/refunds"

[[webhook]]
name = "provider"
secrets = ["env:ONCEGATE_DEV_SECRET"]
{}"#,
        example_payments::PROBE,
        example_payments::WEBHOOK
    )
}

fn variable(name: &str) -> Result<String, Error> {
    std::env::var(name).map_err(|_| format!("{name} is not set: this is a part of `oncegate dev`").into())
}

fn failed(error: &Error) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::FAILURE
}
