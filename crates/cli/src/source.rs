//! Where operators' commands look: a store itself, or a gateway's admin listener. The answers are the same.

use std::error::Error as _;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use example_payments::post;
use hyper::Request;
use hyper::body::Bytes;
use oncegate::{AnyStore, OpenError, Store as _};
use oncegate_core::identity::RecordId;
use oncegate_core::record::StateKind;
use oncegate_core::time::{Now, Timestamp};
use oncegate_gateway::record::{self, Bodies};
use oncegate_store::{Cursor, Filter};
use serde_json::Value;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// Where a gateway's admin listener is if nobody says so.
const HERE: &str = "http://127.0.0.1:9090";

/// Where to look: a store, or a gateway. Without either, the gateway on this machine.
#[derive(clap::Args)]
#[expect(clippy::doc_markdown, reason = "this text is shown in a terminal")]
pub(crate) struct Where {
    /// A store: sqlite://FILE, postgres://…, redis://… [env: ONCEGATE_STORE]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// A gateway's admin listener; its token is in ONCEGATE_ADMIN_TOKEN [env: ONCEGATE_ADMIN] [default: http://127.0.0.1:9090]
    #[arg(long, value_name = "URL", conflicts_with = "store")]
    admin: Option<String>,
}

/// What is asked.
pub(crate) enum Source {
    Store(Box<AnyStore>),
    Gateway { address: String, token: Option<String> },
}

/// Which records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) state: Option<StateKind>,
    pub(crate) parked: Option<bool>,
    pub(crate) scope: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) operation: Option<String>,
    pub(crate) created_from: Option<Timestamp>,
    pub(crate) created_before: Option<Timestamp>,
    pub(crate) limit: usize,
    pub(crate) after: Option<String>,
}

/// What went wrong, and which exit code it is.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// 1: it failed.
    Failed(String),
    /// 2: the input is wrong.
    Wrong(String),
    /// 3: there is no such record.
    NotFound(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(words) | Self::Wrong(words) | Self::NotFound(words) => f.write_str(words),
        }
    }
}

impl Where {
    pub(crate) async fn open(&self) -> Result<Source, Trouble> {
        if let Some(admin) = &self.admin {
            return Source::gateway(admin);
        }
        // Read here, and not by clap: a flag goes before either variable.
        if let Some(store) = &self.store {
            return Source::store(store).await;
        }
        match (variable("ONCEGATE_ADMIN"), variable("ONCEGATE_STORE")) {
            (Some(admin), _) => Source::gateway(&admin),
            (None, Some(store)) => Source::store(&store).await,
            (None, None) => Source::gateway(HERE),
        }
    }
}

/// One that is set, and to something.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Source {
    /// Opened as it is: nothing is created, and nothing migrated.
    async fn store(url: &str) -> Result<Self, Trouble> {
        if url.starts_with("memory") {
            let words =
                format!("a store in memory is its process's own; ask its gateway instead: --admin {HERE}");
            return Err(Trouble::Wrong(words));
        }
        let file = url.strip_prefix("sqlite://").filter(|path| !path.is_empty()).map(Path::new);
        if let Some(file) = file.filter(|file| !file.exists()) {
            let words = format!("there is no file {}; nothing was created", file.display());
            return Err(Trouble::Failed(words));
        }
        let opened = oncegate::open_existing(url).await.map_err(|error| not_opened(&error))?;
        Ok(Self::Store(Box::new(opened)))
    }

    fn gateway(url: &str) -> Result<Self, Trouble> {
        let address = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/');
        if address.contains('@') {
            // Not shown: what stands before it may be a password.
            let words = format!(
                "an admin listener's URL has no user; expected the like of {HERE}, and the token in ONCEGATE_ADMIN_TOKEN"
            );
            return Err(Trouble::Wrong(words));
        }
        let port = address
            .rsplit_once(':')
            .and_then(|(host, port)| port.parse::<u16>().ok().filter(|_| !host.is_empty()));
        if port.is_none() || address.contains(['/', '?', '#']) {
            let words = format!("{url:?} is not an admin listener; expected the like of {HERE}");
            return Err(Trouble::Wrong(words));
        }
        Ok(Self::Gateway { address: address.to_owned(), token: variable("ONCEGATE_ADMIN_TOKEN") })
    }

    /// A page of records, newest first.
    pub(crate) async fn list(&self, asked: &Asked, bodies: Bodies) -> Result<Value, Trouble> {
        let store = match self {
            Self::Store(store) => store,
            Self::Gateway { .. } => {
                return self.get(&format!("/api/v1/records?{}", query(asked, bodies))).await;
            }
        };
        let filter = Filter {
            state: asked.state,
            parked: asked.parked,
            scope: asked.scope.clone(),
            key: asked.key.clone(),
            operation: asked.operation.clone(),
            created_from: asked.created_from,
            created_before: asked.created_before,
        };
        let after = asked.after.clone().map(Cursor::new);
        let page =
            store.browse(&filter, after.as_ref(), asked.limit).await.map_err(|error| failed(&error))?;
        Ok(record::page(&page, self.now().await?, bodies))
    }

    /// One record.
    pub(crate) async fn show(&self, id: RecordId, bodies: Bodies) -> Result<Value, Trouble> {
        let store = match self {
            Self::Store(store) => store,
            Self::Gateway { .. } => {
                let body = if bodies == Bodies::Shown { "?body=true" } else { "" };
                return self.get(&format!("/api/v1/records/{id}{body}")).await;
            }
        };
        let rows = store.read(&[id]).await.map_err(|error| failed(&error))?;
        let row = rows.into_iter().next().transpose().map_err(|error| failed(&error))?.flatten();
        let Some(row) = row else {
            let words = format!(
                "there is no record {id}: it was never made, or it is past its retention and was removed"
            );
            return Err(Trouble::NotFound(words));
        };
        Ok(record::for_operator(&row, self.now().await?, bodies))
    }

    /// How many records are in each state.
    pub(crate) async fn counts(&self) -> Result<Value, Trouble> {
        let store = match self {
            Self::Store(store) => store,
            Self::Gateway { .. } => return self.get("/api/v1/counts").await,
        };
        Ok(record::counts(&store.counts().await.map_err(|error| failed(&error))?))
    }

    async fn now(&self) -> Result<Now, Trouble> {
        match self {
            Self::Store(store) => {
                let at = store.clock().await.map_err(|error| failed(&error))?;
                Ok(Now { at, error: Duration::ZERO })
            }
            Self::Gateway { .. } => Err(Trouble::Failed("a gateway has its own clock".to_owned())),
        }
    }

    async fn get(&self, path: &str) -> Result<Value, Trouble> {
        let Self::Gateway { address, token } = self else {
            return Err(Trouble::Failed("a store is not asked over HTTP".to_owned()));
        };
        let mut request = Request::get(path).header("host", address);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Bytes::new()).map_err(|error| Trouble::Wrong(error.to_string()))?;
        let reply = post::send(address, request, PATIENCE).await.map_err(|why| {
            Trouble::Failed(format!(
                "the gateway at http://{address} {why}; is it running? Name another with --admin, or a store with --store"
            ))
        })?;
        let body = reply.json();
        let words = sentence(body["detail"].as_str().unwrap_or("no reason given"));
        match reply.status.as_u16() {
            200 => Ok(body),
            400 => Err(Trouble::Wrong(words)),
            401 if token.is_some() => Err(Trouble::Failed(
                "the gateway did not take the token in ONCEGATE_ADMIN_TOKEN; it has another".to_owned(),
            )),
            401 => {
                Err(Trouble::Failed("the gateway wants its admin token: set ONCEGATE_ADMIN_TOKEN".to_owned()))
            }
            404 if body["title"] == "No such record" => Err(Trouble::NotFound(words)),
            // The admin listener's own problems have no page.
            status if body["type"] == "about:blank" => {
                Err(Trouble::Failed(format!("the gateway answered {status}: {words}")))
            }
            status => Err(Trouble::Failed(format!(
                "http://{address} answered {status}, as no admin listener does; is it the one for clients?"
            ))),
        }
    }
}

/// The cause alone, if there is one: that it was during opening, and what kind of cause it is, is seen.
pub(crate) fn not_opened(error: &OpenError) -> Trouble {
    let OpenError::Store(store) = error else { return Trouble::Wrong(error.to_string()) };
    let words = match store.source() {
        Some(cause) => format!("the store could not be opened: {cause}"),
        None => error.to_string(),
    };
    Trouble::Failed(words.trim_end_matches('.').to_owned())
}

fn failed(error: &oncegate::StoreError) -> Trouble {
    Trouble::Failed(error.to_string())
}

/// As the second half of one of ours.
fn sentence(words: &str) -> String {
    let words = words.trim_end_matches('.');
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

fn query(asked: &Asked, bodies: Bodies) -> String {
    let limit = asked.limit.to_string();
    let moment = |at: Option<Timestamp>| at.and_then(|at| record::moment(at).as_str().map(str::to_owned));
    let (created_from, created_before) = (moment(asked.created_from), moment(asked.created_before));
    let pairs = [
        ("limit", Some(limit.as_str())),
        ("state", asked.state.map(StateKind::name)),
        ("parked", asked.parked.map(|parked| if parked { "true" } else { "false" })),
        ("scope", asked.scope.as_deref()),
        ("key", asked.key.as_deref()),
        ("operation", asked.operation.as_deref()),
        ("created_from", created_from.as_deref()),
        ("created_before", created_before.as_deref()),
        ("after", asked.after.as_deref()),
        ("body", (bodies == Bodies::Shown).then_some("true")),
    ];
    let given = pairs.into_iter().filter_map(|(name, value)| Some((name, value?)));
    form_urlencoded::Serializer::new(String::new()).extend_pairs(given).finish()
}

/// Runs a command's asking to its end.
pub(crate) fn block_on<T>(asking: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Trouble::Failed(format!("the runtime could not be started: {error}")))?;
    runtime.block_on(asking)
}
