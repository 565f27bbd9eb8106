//! `oncegate serve`: the gateway, from the command line to the last signal.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use oncegate_gateway::{Config, Environment, Gateway, Given, ListenAddress, Secret, install_recorder};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Put idempotency in front of an HTTP API.
///
/// Flags go before environment variables, which go before the file. Without routes every POST and PATCH is protected.
///
/// SIGTERM drains and exits. SIGHUP reloads the scope, request rules, defaults, routes, webhooks,
/// effects, the drain time and TLS certificates.
#[derive(clap::Args)]
#[expect(clippy::doc_markdown, reason = "this text is shown in a terminal")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) settings: Settings,
    /// How much is logged: error, warn, info, debug, or the like of oncegate_gateway=debug,warn
    #[arg(long, env = "ONCEGATE_LOG", default_value = "info", value_name = "LEVELS")]
    log: Targets,
}

/// What `serve` and `check` are both told.
#[derive(clap::Args)]
pub(crate) struct Settings {
    /// The API behind, such as http://127.0.0.1:3000
    #[arg(long, env = "ONCEGATE_UPSTREAM", value_name = "URL", hide_env_values = true)]
    upstream: Option<String>,
    /// Where clients come [default: 127.0.0.1:8080]
    #[arg(long, env = "ONCEGATE_LISTEN", value_name = "ADDRESS", hide_env_values = true)]
    listen: Option<String>,
    /// Where operators come, an address or unix:PATH [default: 127.0.0.1:9090]
    #[arg(long, env = "ONCEGATE_ADMIN", value_name = "ADDRESS", hide_env_values = true)]
    admin: Option<String>,
    /// Where records are kept: memory:, sqlite://FILE, postgres://…, redis://…, or where that
    /// stands: env:NAME, file:PATH [default: sqlite://oncegate.db]
    #[arg(long, env = "ONCEGATE_STORE", value_name = "URL", hide_env_values = true)]
    store: Option<String>,
    /// Profile where no route matches: ietf, ietf-strict, stripe, payments, accepted, lenient,
    /// off [default: ietf]
    #[arg(long, env = "ONCEGATE_PROFILE", value_name = "NAME")]
    profile: Option<String>,
    /// A TOML file; crates/gateway/reference.toml documents every key
    #[arg(long, env = "ONCEGATE_CONFIG", value_name = "FILE", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
}

impl Settings {
    pub(crate) fn given(&self) -> Given {
        // Not a flag: flags are seen by whoever lists the processes.
        let token = std::env::var("ONCEGATE_ADMIN_TOKEN").ok().filter(|token| !token.is_empty());
        Given {
            upstream: self.upstream.clone(),
            listen: self.listen.clone(),
            admin: self.admin.clone(),
            admin_token: token.map(Secret::new),
            store: self.store.as_deref().map(Secret::new),
            profile: self.profile.clone(),
            environment: Environment::Process,
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    let config = match Config::load(args.settings.config.as_deref(), &args.settings.given()) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("error: {error}");
            eprintln!("  nothing was started; `oncegate check` shows what a configuration comes to");
            return ExitCode::from(2);
        }
    };
    let format =
        tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false).with_target(false);
    tracing_subscriber::registry().with(format).with(args.log.clone()).init();
    allow_files();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("the runtime could not be started: {error}")),
    };
    let ended = runtime.block_on(serve(args, config));
    // What is left, tunnels for instance, is not waited for.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

async fn serve(args: &Args, config: Config) -> ExitCode {
    let signals = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(signal);
    let [Ok(mut terminate), Ok(mut interrupt), Ok(mut hangup)] = signals else {
        return failed("signals cannot be received");
    };
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let mut gateway = match Gateway::start(config.clone(), install_recorder()).await {
        Ok(gateway) => gateway,
        Err(error) => return failed(&error.to_string()),
    };
    // What could be seen before the store was opened has been said.
    let is_new = |warning: &&String| !config.warnings.iter().any(|said| said.ends_with(warning.as_str()));
    for warning in gateway.warnings().iter().filter(is_new) {
        tracing::warn!("{warning}");
    }
    let scheme = if config.listen.tls.is_some() { "https" } else { "http" };
    let upstream_scheme = if config.upstream.is_tls { "https" } else { "http" };
    eprintln!(
        "oncegate listens on {scheme}://{} in front of {upstream_scheme}://{}{}, and for operators on {}",
        gateway.address(),
        config.upstream.authority,
        config.upstream.base_path,
        admin_url(&config, gateway.admin_address())
    );
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => reload(&mut gateway, args),
        }
    }
    tracing::info!("shutting down: what is in flight may end, for up to {:?}", gateway.drain());
    tokio::select! {
        is_done = gateway.shut_down() => {
            if is_done {
                tracing::info!("everything was answered or settled");
                ExitCode::SUCCESS
            } else {
                tracing::warn!("some attempts could not be settled: their keys become `unknown` when their leases lapse");
                ExitCode::FAILURE
            }
        }
        () = again(&mut terminate, &mut interrupt) => failed("told twice to end: attempts in flight become `unknown` when their leases lapse"),
    }
}

/// What operators' commands are given as `--admin`.
pub(crate) fn admin_url(config: &Config, address: &ListenAddress) -> String {
    match (address, &config.admin.tls) {
        (ListenAddress::Unix(_), _) => address.to_string(),
        (ListenAddress::Tcp(address), Some(_)) => format!("https://{address}"),
        (ListenAddress::Tcp(address), None) => format!("http://{address}"),
    }
}

/// Connections are files, two a request, and most systems let a process open 1,024 unless it asks for more.
fn allow_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "no more than {:?} files can be open at once", limit.current);
    }
}

async fn again(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

fn reload(gateway: &mut Gateway, args: &Args) {
    let loaded = Config::load(args.settings.config.as_deref(), &args.settings.given());
    let reloaded = loaded.map_err(|error| error.to_string()).and_then(|config| {
        let warnings = config.warnings.clone();
        let reloaded = gateway.reload(config).map_err(|error| error.to_string())?;
        Ok((reloaded, warnings))
    });
    match reloaded {
        Ok((reloaded, warnings)) => {
            for warning in warnings {
                tracing::warn!("{warning}");
            }
            if !reloaded.needs_restart.is_empty() {
                tracing::warn!("changed, and needs a restart: {}", reloaded.needs_restart.join(", "));
            }
            tracing::info!(routes = reloaded.routes, "reloaded routes, scope, webhooks and effects");
        }
        Err(error) => {
            tracing::error!("the file was not taken over, and every setting stays as it was: {error}");
            // A renewed certificate must not wait until the mistake in the file is corrected.
            gateway.reload_certificates();
        }
    }
}

fn failed(words: &str) -> ExitCode {
    eprintln!("error: {words}");
    ExitCode::FAILURE
}
