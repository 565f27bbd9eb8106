//! Who is in a story, and what can happen to them.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use example_payments::post::{self, NoReply, Reply};
use example_payments::provider::{self, Faults, Late, Secret};
use example_payments::{Serving, api};
use hyper::Request;
use hyper::body::Bytes;
use oncegate_test_servers::{FakeClock, wait_until};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::gateway::Gateway;
use crate::messenger::Messenger;
use crate::order::Order;
use crate::postman::Postman;

/// What provider, API and gateway share.
pub(crate) use crate::gateway::PROVIDER_SECRET as WEBHOOK_SECRET;
/// Reached only if something is broken.
pub(crate) const FOREVER: Duration = Duration::from_mins(1);
const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// A horizon past what anybody in these stories waits for.
pub(crate) const FAR: &str = "1h";
/// A horizon that is over soon; but not before the first question, also on a machine whose disk stands still for some seconds.
pub(crate) const NEAR: &str = "8s";

/// A node counts horizons from three seconds after its start: it cannot know of a step of the clock just before.
const STEP_KNOWN_AFTER: Duration = Duration::from_secs(4);

/// A lease that is over soon: for stories of a crash.
pub(crate) const LEASE: &str = "5s";

/// How the gateway finds out.
#[derive(Clone, Copy)]
pub(crate) struct Care<'a> {
    /// "Not found" means that it did not happen once so much time has passed.
    pub(crate) horizon: &'a str,
    pub(crate) asks: Asks,
    /// How long it waits for an answer. Its claim on the question lasts longer by ten seconds.
    pub(crate) timeout: &'a str,
    /// Shorter in stories of an attempt whose gateway is killed. All others are the same on a machine that stands still for some seconds.
    pub(crate) lease: &'a str,
    /// Whether first executions are in the audit trail too.
    pub(crate) tells_all: bool,
    /// More keys of `[defaults]`.
    pub(crate) defaults: &'a str,
    /// More keys of `[workers]`.
    pub(crate) workers: &'a str,
    /// More keys of its `[[webhook]]`.
    pub(crate) webhook: &'a str,
}

/// Whom it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asks {
    Api,
    /// The API, by the messenger.
    Messenger,
    Nobody,
}

impl<'a> Care<'a> {
    /// It asks the API.
    const fn until(horizon: &'a str) -> Self {
        let (asks, tells_all) = (Asks::Api, false);
        Self { horizon, asks, timeout: "5s", lease: LEASE, tells_all, defaults: "", workers: "", webhook: "" }
    }

    /// It asks by the messenger, who may take as long as the story wants, and its audit trail has everything.
    pub(crate) const fn told(horizon: &'a str) -> Self {
        Self { asks: Asks::Messenger, timeout: "1m", lease: "1m", tells_all: true, ..Self::until(horizon) }
    }

    /// Stands behind `[defaults]`.
    fn text(self) -> String {
        let Self { horizon, asks, timeout, lease, tells_all, defaults, workers, webhook } = self;
        let (probe, webhooks) = (asks.text(timeout), example_payments::WEBHOOK);
        format!(
            r#"
forward_key = "derived"
horizon = "{horizon}"
lease = "{lease}"
{defaults}
{probe}
[workers]
reconcile_every = "50ms"
sweep_every = "100ms"
audit_executions = {tells_all}
{workers}
[[webhook]]
name = "provider"
secrets = ["env:PROVIDER_SECRET"]
{webhooks}
{webhook}"#
        )
    }
}

impl Asks {
    fn text(self, timeout: &str) -> String {
        let probe = match self {
            Self::Nobody => return String::new(),
            Self::Api => example_payments::PROBE.to_owned(),
            Self::Messenger => {
                example_payments::PROBE.replace("\"/payments?", "\"http://messenger/payments?")
            }
        };
        format!(
            r#"
[defaults.probe]
timeout = "{timeout}"
backoff = "50ms"
backoff_max = "200ms"
park_after = 1000
{probe}"#
        )
    }
}

/// Whether the provider tells a repetition by its own `Idempotency-Key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Good,
    None,
}

/// A story that comes out the same with either provider is told with both.
pub(crate) const EITHER: [Memory; 2] = [Memory::Good, Memory::None];

/// How long the API waits for the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    Endless,
    Short,
}

impl Patience {
    const fn span(self) -> Duration {
        match self {
            Self::Endless => FOREVER,
            Self::Short => Duration::from_millis(200),
        }
    }
}

/// Provider, API, postman and gateway, with their files in a folder that goes with them.
pub(crate) struct Town {
    gateway: RefCell<Gateway>,
    api: Cell<Option<Serving>>,
    api_options: api::Options,
    provider: Cell<Option<Serving>>,
    provider_options: provider::Options,
    pub(crate) postman: Postman,
    pub(crate) messenger: Messenger,
    time: watch::Sender<bool>,
    orders: Cell<u32>,
    /// The API is sent other keys than the clients'.
    pub(crate) derives: Cell<bool>,
    pub(crate) runtime: Runtime,
    folder: TempDir,
    opened: Instant,
}

impl Town {
    /// A town whose API waits for the provider as long as it takes.
    pub(crate) fn opens(memory: Memory) -> Self {
        Self::opens_with(memory, Patience::Endless)
    }

    /// A town in which whatever is late stays late until [`Town::time_passes`].
    pub(crate) fn opens_with(memory: Memory, patience: Patience) -> Self {
        Self::opens_configured(memory, patience, "")
    }

    /// A town whose gateway asks the API, and hears the provider; "not found" means that it did not happen once so much time has passed.
    pub(crate) fn opens_reconciled(memory: Memory, patience: Patience, horizon: &str) -> Self {
        Self::opens_with_care(memory, patience, Care::until(horizon))
    }

    /// A town whose gateway finds out in this way.
    pub(crate) fn opens_with_care(memory: Memory, patience: Patience, care: Care<'_>) -> Self {
        Self::opens_with_care_over(None, memory, patience, care)
    }

    /// The same, with its records there.
    pub(crate) fn opens_with_care_over(
        store: Option<&str>,
        memory: Memory,
        patience: Patience,
        care: Care<'_>,
    ) -> Self {
        let town = Self::opens_over(store, memory, patience, &care.text());
        town.derives.set(true);
        town
    }

    /// The gateway has run for so long that it believes a "not found" as soon as the horizon is over.
    pub(crate) fn watches_the_clock(&self) {
        wait_until("a step of the clock before the start would be known", || {
            self.opened.elapsed() > STEP_KNOWN_AFTER
        });
    }

    /// A town whose gateway believes the provider's "failed", of the attempt that it names.
    pub(crate) fn opens_believing_failures(memory: Memory) -> Self {
        let webhook = "did_not_happen_is_final = true\nfence = \"/data/merchant_attempt\"";
        Self::opens_with_care(memory, Patience::Short, Care { webhook, ..Care::told(FAR) })
    }

    /// A town in disorder, whose gateway keeps its records there, asks, and hears the provider itself.
    pub(crate) fn opens_in_a_storm(store: Option<&str>, horizon: &str, clock: Option<FakeClock>) -> Self {
        let more = Care::until(horizon).text();
        let mut town = Self::opens_by_clock(store, Memory::None, Patience::Short, &more, clock);
        town.provider_stops();
        let secret = Secret::parse(WEBHOOK_SECRET).unwrap();
        let webhook = format!("{}/.oncegate/webhooks/provider", town.gateway_address());
        town.provider_options.webhook = Some((webhook, secret));
        town.provider_options.late = Late::By(Duration::from_millis(50));
        town.provider_returns();
        town.derives.set(true);
        town
    }

    fn opens_configured(memory: Memory, patience: Patience, more: &str) -> Self {
        Self::opens_over(None, memory, patience, more)
    }

    fn opens_over(store: Option<&str>, memory: Memory, patience: Patience, more: &str) -> Self {
        Self::opens_by_clock(store, memory, patience, more, None)
    }

    /// The same; the gateway runs by this clock.
    fn opens_by_clock(
        store: Option<&str>,
        memory: Memory,
        patience: Patience,
        more: &str,
        clock: Option<FakeClock>,
    ) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        if let Some(url) = store {
            std::fs::write(folder.path().join("store.url"), url).unwrap();
        }
        let secret = Secret::parse(WEBHOOK_SECRET).unwrap();
        let postman = runtime.block_on(Postman::starts());
        let (time, is_over) = watch::channel(false);
        let mut provider_options = provider::Options {
            listen: ANYWHERE,
            ledger: folder.path().join("provider.db"),
            is_idempotent: memory == Memory::Good,
            faults: Faults::default(),
            webhook: Some((postman.address(), secret.clone())),
            late: Late::Until(is_over),
        };
        let provider = runtime.block_on(provider::start(provider_options.clone())).unwrap();
        provider_options.listen = provider.address();
        let mut api_options = api::Options {
            listen: ANYWHERE,
            book: folder.path().join("payments.db"),
            provider: provider.address().to_string(),
            patience: patience.span(),
            webhook_secret: Some(secret),
        };
        let api = runtime.block_on(api::start(api_options.clone())).unwrap();
        api_options.listen = api.address();
        let messenger = runtime.block_on(Messenger::starts(api.address()));
        let more = more.replace("http://messenger", &format!("http://{}", messenger.address));
        std::fs::write(folder.path().join("more.toml"), more).unwrap();
        let gateway = Gateway::start_by_clock(folder.path(), api.address(), None, clock);
        Self {
            gateway: RefCell::new(gateway),
            api: Cell::new(Some(api)),
            api_options,
            provider: Cell::new(Some(provider)),
            provider_options,
            postman,
            messenger,
            time,
            orders: Cell::new(0),
            derives: Cell::new(false),
            runtime,
            folder,
            opened: Instant::now(),
        }
    }

    /// A town in which what is late is late by the clock, webhooks go straight to the API, and the provider remembers nothing.
    pub(crate) fn opens_in_disorder() -> Self {
        let mut town = Self::opens_with(Memory::None, Patience::Short);
        town.provider_stops();
        let secret = Secret::parse(WEBHOOK_SECRET).unwrap();
        town.provider_options.webhook = Some((format!("{}/webhooks/provider", town.api_address()), secret));
        town.provider_options.late = Late::By(Duration::from_millis(50));
        town.provider_returns();
        town
    }

    /// Somebody wants to pay; nothing is sent yet.
    pub(crate) fn order(&self, amount: u32) -> Order<'_> {
        let body = format!(r#"{{"amount": {amount}, "currency": "EUR"}}"#);
        Order::new(self, self.new_key(), "/payments".to_owned(), body)
    }

    /// A key that nobody has used.
    pub(crate) fn new_key(&self) -> String {
        self.orders.set(self.orders.get() + 1);
        format!("order-{:04}-payment", self.orders.get())
    }

    /// What was late happens now.
    pub(crate) fn time_passes(&self) {
        self.time.send_replace(true);
    }

    pub(crate) fn api_stops(&self) {
        self.runtime.block_on(self.api.take().unwrap().stop());
    }

    pub(crate) fn api_returns(&self) {
        self.api.set(Some(self.runtime.block_on(api::start(self.api_options.clone())).unwrap()));
    }

    pub(crate) fn provider_stops(&self) {
        self.runtime.block_on(self.provider.take().unwrap().stop());
    }

    pub(crate) fn provider_returns(&self) {
        self.provider
            .set(Some(self.runtime.block_on(provider::start(self.provider_options.clone())).unwrap()));
    }

    /// Killed, and started with another configuration.
    pub(crate) fn gateway_returns_configured(&self, instead_of: &str, text: &str) {
        self.gateway_is_killed();
        let config = self.folder().join("gateway.toml");
        let before = std::fs::read_to_string(&config).unwrap();
        assert_eq!(before.matches(instead_of).count(), 1, "{before}");
        std::fs::write(&config, before.replace(instead_of, text)).unwrap();
        self.gateway_returns();
    }

    /// A second gateway over the same records. Clients, mail and operators come to it from now on; the first goes on, and is returned.
    pub(crate) fn a_second_gateway_opens(&self) -> Gateway {
        let folder = self.folder().join("second");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("store.url"), crate::gateway::store_of(self.folder())).unwrap();
        std::fs::copy(self.folder().join("more.toml"), folder.join("more.toml")).unwrap();
        self.gateway.replace(Gateway::start(&folder, self.api_address(), None))
    }

    /// `kill -9`.
    pub(crate) fn gateway_is_killed(&self) {
        self.gateway.borrow_mut().is_killed();
    }

    pub(crate) fn gateway_returns(&self) {
        self.gateway.borrow_mut().starts_again();
    }

    pub(crate) fn gateway_address(&self) -> SocketAddr {
        self.gateway.borrow().address
    }

    pub(crate) fn admin_address(&self) -> SocketAddr {
        self.gateway.borrow().admin
    }

    /// Where everybody's files are.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) const fn api_address(&self) -> SocketAddr {
        self.api_options.listen
    }

    pub(crate) const fn provider_address(&self) -> SocketAddr {
        self.provider_options.listen
    }

    /// The judge's verdict.
    pub(crate) fn the_judge_convicts(&self, references: usize) {
        let verdict = self.get(self.provider_address(), "/ledger");
        assert_eq!(verdict["charged_twice"].as_array().unwrap().len(), references, "{verdict}");
    }

    pub(crate) fn send(&self, to: SocketAddr, request: Request<Bytes>) -> Result<Reply, NoReply> {
        self.runtime.block_on(post::send(&to.to_string(), request, FOREVER))
    }

    pub(crate) fn get(&self, from: SocketAddr, path: &str) -> Value {
        let request = Request::get(path).header("host", "localhost").body(Bytes::new()).unwrap();
        let reply = self.send(from, request).unwrap_or_else(|why| panic!("{from}{path} {why}"));
        assert_eq!(reply.status, 200, "{path}: {}", reply.json());
        reply.json()
    }

    /// What the gateway with this address for operators has counted: the sum of all whose name and labels begin so.
    pub(crate) fn counted(&self, by: SocketAddr, what: &str) -> usize {
        let request = Request::get("/metrics").header("host", "localhost").body(Bytes::new()).unwrap();
        let reply = self.send(by, request).unwrap();
        let text = String::from_utf8_lossy(&reply.body);
        let lines = text.lines().filter(|line| line.starts_with(what));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap()).sum()
    }

    pub(crate) fn put(&self, to: SocketAddr, path: &str, body: &Value) {
        let request =
            Request::put(path).header("host", "localhost").header("content-type", "application/json");
        let reply = self.send(to, request.body(Bytes::from(body.to_string())).unwrap()).unwrap();
        assert_eq!(reply.status, 204, "{path}: {}", reply.json());
    }
}
