//! The whole: store, engine, proxy and listeners, from start to drain.

use std::error::Error;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::server::graceful::GracefulShutdown;
use oncegate::{AnyStore, OpenError};
use oncegate_engine::{BackgroundWorkers, Engine, Options, Outbox, Probe, Shared, Stats, Workers};
use oncegate_store::Store as _;
use oncegate_store_redis::RedisCacheOptions;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::admin::Admin;
use crate::ask::Asker;
use crate::config::{self, Config, ConfigError, Listen, ListenAddress, TlsFiles};
use crate::deferred::Runner;
use crate::effects;
use crate::listener::{Listener, ServerTls, Side, Socket};
use crate::proxy::{Limiter, Proxy};
use crate::public::{BodyRules, Public};
use crate::reconcile::HttpEffect;
use crate::recorder::MetricsHandle;

/// How long it may take to write down what was abandoned. Not less if the drain is short: a record that is not written stays in
/// progress until its lease lapses.
const RECORDING: Duration = Duration::from_secs(5);

/// A gateway that is running. Dropping it stops nothing: say [`Gateway::shut_down`].
pub struct Gateway {
    config: Config,
    engine: Engine<AnyStore>,
    public: Arc<Public>,
    address: SocketAddr,
    admin_address: ListenAddress,
    tls: Option<ServerTls>,
    admin_tls: Option<ServerTls>,
    warnings: Vec<String>,
    stop: watch::Sender<bool>,
    /// Ends the admin listener, which goes on while the gateway drains.
    stop_admin: watch::Sender<bool>,
    abandon: watch::Sender<bool>,
    asker: Arc<Asker>,
    workers: Workers,
    completer: Workers,
    outbox: Option<Outbox>,
    accepting: JoinHandle<GracefulShutdown>,
    administering: JoinHandle<GracefulShutdown>,
    upkeep: JoinHandle<()>,
}

impl Gateway {
    /// Opens the store, binds both listeners, and begins to serve. `metrics` is what `/metrics` shows.
    pub async fn start(config: Config, metrics: Option<MetricsHandle>) -> Result<Self, StartError> {
        // Whatever can be wrong with the configuration is said before the store is touched.
        let limiter = Arc::new(Limiter::new(&config.limits));
        let (stop, stopping) = watch::channel(false);
        let (abandon, abandoned) = watch::channel(false);
        let proxy = Proxy::new(&config, Arc::clone(&limiter), abandoned)?;
        let load = |side, files: &Option<TlsFiles>| {
            files.as_ref().map(|files| ServerTls::load(side, files)).transpose()
        };
        let tls = load(Side::Public, &config.listen.tls)?;
        let admin_tls = load(Side::Admin, &config.admin.tls)?;
        let socket = Socket::bind(&ListenAddress::Tcp(config.listen.address), "--listen").await?;
        let admin_socket = Socket::bind(&config.admin.address, "--admin").await?;
        let admin_address = local(&admin_socket)?;
        let address = local(&socket)?.tcp().unwrap_or(config.listen.address);

        let store = oncegate::open(config.store.url.expose()).await.map_err(StartError::Store)?;
        let warnings = store.warnings();
        effects::check(&store, &config.effects)?;
        let options = options(&config, &store)?;
        let engine = Engine::start(store, options).await.map_err(StartError::Engine)?;
        let asker = Arc::new(Asker::new(&config));
        let public = Public::new(engine.clone(), proxy, Arc::clone(&limiter), Arc::clone(&asker), &config);
        let public = Arc::new(public?);

        let admin =
            Admin::new(engine.clone(), limiter, stopping.clone(), config.admin.token.clone(), metrics);
        let admin_listener = Listener {
            socket: admin_socket,
            service: Arc::new(admin.service(BodyRules::of(&config.listen))),
            settings: Listen { connections_max: config.admin.connections_max, ..config.listen.clone() },
            tls: admin_tls.as_ref().map(ServerTls::acceptor),
        };
        let (stop_admin, admin_stopping) = watch::channel(false);
        let administering = tokio::spawn(admin_listener.accept(admin_stopping));
        let upkeep = tokio::spawn(admin.run_upkeep());
        let listener = Listener {
            socket,
            service: Arc::clone(&public),
            settings: config.listen.clone(),
            tls: tls.as_ref().map(ServerTls::acceptor),
        };
        let accepting = tokio::spawn(listener.accept(stopping));
        let probe: Arc<dyn Probe> = Arc::clone(&asker) as Arc<dyn Probe>;
        let workers = engine.start_workers(&config.workers.options, &probe);
        let runner = Arc::new(Runner(Arc::clone(&public)));
        let completer = engine.start_completer(&config.workers.options, runner);
        let outbox = effects::start(&engine, &config.upstream, &config.effects);
        Ok(Self {
            config,
            engine,
            public,
            address,
            admin_address,
            tls,
            admin_tls,
            warnings,
            stop,
            stop_admin,
            abandon,
            asker,
            workers,
            completer,
            outbox,
            accepting,
            administering,
            upkeep,
        })
    }

    /// Where clients come: the port is known only now if it was 0.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where operators come.
    #[must_use]
    pub const fn admin_address(&self) -> &ListenAddress {
        &self.admin_address
    }

    /// What about the store would lose acknowledged keys.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// What the engine has done and holds.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// How long a shutdown waits for what is in flight; as the last reload has it.
    #[must_use]
    pub const fn drain(&self) -> Duration {
        self.config.drain
    }

    /// Reads the certificates of both listeners again, and logs when they expire. One that cannot
    /// be used changes nothing.
    pub fn reload_certificates(&self) {
        let listeners = [(&self.tls, &self.config.listen.tls), (&self.admin_tls, &self.config.admin.tls)];
        for (tls, files) in listeners {
            if let (Some(tls), Some(files)) = (tls, files) {
                tls.reload(files);
            }
        }
    }

    /// Takes over the routes, the scope, the webhooks, the effects and the certificates of
    /// another configuration; what else has
    /// changed needs a restart.
    pub fn reload(&mut self, mut config: Config) -> Result<Reloaded, StartError> {
        effects::check(self.engine.store(), &config.effects)?;
        let was = &self.config;
        let listen = Listen {
            tls: tls_after(was.listen.tls.as_ref(), config.listen.tls.as_ref()),
            ..was.listen.clone()
        };
        let admin = config::Admin {
            tls: tls_after(was.admin.tls.as_ref(), config.admin.tls.as_ref()),
            ..was.admin.clone()
        };
        let differences = [
            ("listen", listen != config.listen),
            ("admin", admin != config.admin),
            ("upstream", was.upstream != config.upstream),
            ("store", was.store != config.store),
            ("limits", was.limits != config.limits),
            ("workers", was.workers != config.workers),
        ];
        let needs_restart = differences.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name);
        let reloaded = Reloaded { routes: config.routes.len(), needs_restart: needs_restart.collect() };
        // What needs a restart is left as it is everywhere: also for what is built anew from it.
        config.upstream = was.upstream.clone();
        config.store = was.store.clone();
        self.public.reload(&config)?;
        self.config.listen = listen;
        self.config.admin = admin;
        self.reload_certificates();
        self.asker.reload(&config);
        if self.config.effects != config.effects {
            self.reload_effects(config.effects);
        }
        self.config.webhooks.clone_from(&config.webhooks);
        self.config.routes = config.routes;
        self.config.otherwise = config.otherwise;
        self.config.scope = config.scope;
        self.config.drain = config.drain;
        Ok(reloaded)
    }

    /// What is being delivered ends as it began; what is claimed from now on goes out as the new file says.
    fn reload_effects(&mut self, effects: Vec<HttpEffect>) {
        if let Some(outbox) = self.outbox.take() {
            outbox.retire();
        }
        self.outbox = effects::start(&self.engine, &self.config.upstream, &effects);
        self.config.effects = effects;
    }

    /// Stops accepting, lets what is in flight come to its end within the drain time, and settles the rest as unknown. Says whether
    /// everything was answered or settled.
    pub async fn shut_down(self) -> bool {
        let drain = self.config.drain;
        // Kept back, so that what does not end by itself is written down within the drain, if it is long enough.
        let last = (drain / 4).min(RECORDING);
        let _ = self.stop.send(true);
        // What waits is for others, or for later; what runs is waited for.
        self.completer.stop().await;
        let Ok(connections) = self.accepting.await else { return false };
        let mut closing = tokio::spawn(connections.shutdown());
        let ended = async {
            let _ = (&mut closing).await;
            self.engine.drain(drain).await
        };
        let mut all = tokio::time::timeout(drain.saturating_sub(last), ended).await == Ok(true);
        if !all {
            tracing::warn!(
                "requests are still in flight at the end of the drain: their outcome is recorded as unknown"
            );
            let _ = self.abandon.send(true);
            all = self.engine.drain(RECORDING).await;
            // Answers that are ready leave now; what a client does not take is cut off.
            all &= tokio::time::timeout(Duration::from_secs(1), &mut closing).await.is_ok();
        }
        // What they had begun is found again, here or on another node.
        drop(self.workers);
        drop(self.outbox);
        let _ = tokio::time::timeout(Duration::from_secs(1), self.engine.leave()).await;
        // Until here operators could ask how far it is.
        let _ = self.stop_admin.send(true);
        let closing = async {
            if let Ok(connections) = self.administering.await {
                connections.shutdown().await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(1), closing).await;
        self.upkeep.abort();
        all
    }
}

/// What a reload has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reloaded {
    /// Routes in the file now.
    pub routes: usize,
    /// Sections that have changed and stay as they were until a restart.
    pub needs_restart: Vec<&'static str>,
}

/// The files that a listener reads from now on. It gets or loses TLS by a restart alone.
fn tls_after(was: Option<&TlsFiles>, now: Option<&TlsFiles>) -> Option<TlsFiles> {
    match (was, now) {
        (Some(_), Some(now)) => Some(now.clone()),
        (was, _) => was.cloned(),
    }
}

fn options(config: &Config, store: &AnyStore) -> Result<Options, StartError> {
    let mut options = Options {
        cache_bytes: config.store.cache_bytes,
        audit_executions: config.workers.audit_executions,
        removed_keys_for: config.workers.removed_keys_for,
        // The gateway starts all of them, with its probes and its routes.
        workers: BackgroundWorkers::None,
        ..Options::default()
    };
    if let Some(node) = &config.workers.node {
        options.node = node.as_str().into();
    }
    if let Some(url) = &config.store.shared_cache {
        let wrong = |words: String| ConfigError::of("store.shared_cache", words);
        if store.realm().is_none() {
            let words = "this store cannot have a shared cache in front of it; a PostgreSQL can";
            return Err(wrong(words.to_owned()).into());
        }
        let cache = RedisCacheOptions::new(url.expose()).age(options.cache_age_max).start();
        options.shared_cache = Some(Shared::new(cache.map_err(|error| wrong(error.to_string()))?));
    }
    Ok(options)
}

fn local(socket: &Socket) -> Result<ListenAddress, ConfigError> {
    socket.address().map_err(|error| ConfigError::of("listen", error.to_string()))
}

/// Why a gateway did not start.
#[derive(Debug)]
pub enum StartError {
    /// The configuration, or a socket or file that it names.
    Config(ConfigError),
    /// The store.
    Store(OpenError),
    /// The engine.
    Engine(oncegate_engine::StartError),
    /// A route.
    Routes(oncegate_tower::RouteError),
}

impl From<ConfigError> for StartError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Store(error) => error.fmt(f),
            Self::Engine(error) => error.fmt(f),
            Self::Routes(error) => error.fmt(f),
        }
    }
}

impl Error for StartError {}
