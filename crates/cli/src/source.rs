//! Where operators' commands look and act: a store itself, or a gateway's admin listener. The answers are the same.

use std::error::Error as _;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oncegate::{AnyStore, BackgroundWorkers, Engine, OpenError, Options, Store as _};
use oncegate_core::audit::Comparison;
use oncegate_core::identity::RecordId;
use oncegate_core::record::StateKind;
use oncegate_core::time::{Now, Timestamp};
use oncegate_engine::Told;
use oncegate_gateway::audit::{self, AuditFilter};
use oncegate_gateway::operate::{self, Refused, Verb, Wish};
use oncegate_gateway::record::{self, Bodies};
use oncegate_gateway::story::{STORY_MAX, story};
use oncegate_gateway::{Environment, Secret, comparison, job};
use oncegate_store::jobs::{JobId, Jobs as _};
use oncegate_store::{Cursor, EntryPlace, Filter};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::admin_client::{AdminClient, DEFAULT_URL};
use crate::shown::ABSENT;

/// How long the other nodes are told before this one ends.
const TELLING: Duration = Duration::from_secs(5);

/// Where to look: a store, or a gateway. Without either, the gateway on this machine.
#[derive(clap::Args)]
#[expect(clippy::doc_markdown, reason = "this text is shown in a terminal")]
pub(crate) struct Where {
    /// A store: sqlite://FILE, postgres://…, redis://…, or where its URL stands: env:NAME,
    /// file:PATH [env: ONCEGATE_STORE]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// A gateway's admin listener: http://…, https://… or unix:PATH; its token is in ONCEGATE_ADMIN_TOKEN [env: ONCEGATE_ADMIN] [default: http://127.0.0.1:9090]
    #[arg(long, value_name = "URL", conflicts_with = "store")]
    admin: Option<String>,
    /// With --admin https://…: a PEM file of certificates to trust besides the system's [env: ONCEGATE_ADMIN_CA]
    #[arg(long, value_name = "FILE", conflicts_with = "store")]
    ca: Option<PathBuf>,
}

/// What is asked.
pub(crate) enum Source {
    Store(Box<AnyStore>),
    /// A store, and a node of one's own over it.
    Engine(Engine<AnyStore>),
    Gateway(AdminClient),
}

/// What can be done to a parked job.
#[derive(Clone, Copy)]
pub(crate) enum JobAct {
    Retry,
    Withdraw,
}

/// How much of a list, and in which form.
#[derive(clap::Args)]
pub(crate) struct Page {
    /// So many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
    pub(crate) limit: u16,
    /// Go on where a list ended
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after: Option<String>,
    /// For programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) state: Option<StateKind>,
    pub(crate) parked: Option<bool>,
    pub(crate) scope: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) operation: Option<String>,
    pub(crate) reference: Option<String>,
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
    /// 4: the record has changed, or its state does not allow it.
    Refused(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(words) | Self::Wrong(words) | Self::NotFound(words) | Self::Refused(words) => {
                f.write_str(words)
            }
        }
    }
}

impl Where {
    pub(crate) async fn open(&self) -> Result<Source, Trouble> {
        if let Some(admin) = &self.admin {
            return self.gateway(admin);
        }
        // Read here, and not by clap: a flag goes before either variable.
        if let Some(store) = &self.store {
            return Source::store(store).await;
        }
        match (variable("ONCEGATE_ADMIN"), variable("ONCEGATE_STORE")) {
            (Some(admin), _) => self.gateway(&admin),
            (None, Some(store)) => Source::store(&store).await,
            (None, None) => self.gateway(DEFAULT_URL),
        }
    }

    fn gateway(&self, url: &str) -> Result<Source, Trouble> {
        // A variable that is set for other gateways does no harm to one without TLS.
        let variable = || url.starts_with("https://").then(|| variable("ONCEGATE_ADMIN_CA")).flatten();
        let ca = self.ca.clone().or_else(|| variable().map(PathBuf::from));
        AdminClient::new(url, ca.as_deref()).map(Source::Gateway)
    }
}

/// The store's URL, which may stand in a variable (`env:NAME`) or a file (`file:PATH`).
pub(crate) fn store_url(named: &str) -> Result<Secret, Trouble> {
    oncegate_gateway::store_url(named, &Environment::Process)
        .map_err(|words| Trouble::Wrong(format!("--store: {words}")))
}

/// One that is set, and to something.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Source {
    /// Opened as it is: nothing is created, and nothing migrated.
    async fn store(named: &str) -> Result<Self, Trouble> {
        let url = store_url(named)?;
        let url = url.expose();
        if url.starts_with("memory") {
            let words = format!(
                "a store in memory is its process's own; ask its gateway instead: --admin {DEFAULT_URL}"
            );
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

    /// A page of records, newest first.
    pub(crate) async fn list(&self, asked: &Asked, bodies: Bodies) -> Result<Value, Trouble> {
        let Some(store) = self.in_store() else {
            return self.client()?.get(&format!("/api/v1/records?{}", query(asked, bodies))).await;
        };
        let filter = Filter {
            state: asked.state,
            parked: asked.parked,
            scope: asked.scope.clone(),
            key: asked.key.clone(),
            operation: asked.operation.clone(),
            reference: asked.reference.clone(),
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
        let Some(store) = self.in_store() else {
            let body = if bodies == Bodies::Shown { "?body=true" } else { "" };
            return self.client()?.get(&format!("/api/v1/records/{id}{body}")).await;
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

    /// One record with its story; only the story, if the record is gone.
    pub(crate) async fn whole(&self, id: RecordId, bodies: Bodies) -> Result<Value, Trouble> {
        let shown = self.show(id, bodies).await;
        match (shown, self.story(id).await?) {
            (Ok(mut record), (story, left_out)) => {
                record["story"] = story;
                record["story_left_out"] = left_out;
                Ok(record)
            }
            (Err(Trouble::NotFound(_)), (story, left_out))
                if story.as_array().is_some_and(|story| !story.is_empty()) =>
            {
                let id = id.to_string();
                Ok(json!({ "id": id, "state": ABSENT, "story": story, "story_left_out": left_out }))
            }
            (Err(trouble), _) => Err(trouble),
        }
    }

    /// What has happened to a record, oldest first, and how many entries before that are left out; nothing, if it never was.
    async fn story(&self, id: RecordId) -> Result<(Value, Value), Trouble> {
        if let Some(store) = self.in_store() {
            let entries = store.story(id, STORY_MAX).await.map_err(|error| failed(&error))?;
            let (told, left_out) = story(&entries);
            return Ok((told, left_out.into()));
        }
        match self.client()?.get(&format!("/api/v1/records/{id}/story")).await {
            Ok(mut told) => Ok((told["story"].take(), told["left_out"].take())),
            Err(Trouble::NotFound(_)) => Ok((json!([]), 0.into())),
            Err(trouble) => Err(trouble),
        }
    }

    /// A page of the audit trail, oldest first.
    pub(crate) async fn audit(
        &self,
        filter: &AuditFilter,
        after: Option<EntryPlace>,
        limit: usize,
    ) -> Result<Value, Trouble> {
        let Some(store) = self.in_store() else {
            return self.client()?.get(&format!("/api/v1/audit?{}", audit_query(filter, after, limit))).await;
        };
        audit::page(store, filter, after, limit).await.map_err(|error| failed(&error))
    }

    /// Adds the end of a run of `compare` to the audit trail.
    pub(crate) async fn record_comparison(&self, run: &Comparison) -> Result<(), Trouble> {
        let Some(store) = self.in_store() else {
            return self
                .client()?
                .post("/api/v1/comparisons", &comparison::comparison_json(run))
                .await
                .map(drop);
        };
        let node = format!("{} (command line)", Options::default().node);
        comparison::record(store, run, &node).await.map(drop).map_err(|error| failed(&error))
    }

    /// Jobs of the outbox that wait for an operator, oldest first.
    pub(crate) async fn parked_jobs(&self, after: Option<JobId>, limit: usize) -> Result<Value, Trouble> {
        let Some(store) = self.in_store() else {
            let after = after.map(|id| format!("&after={id}")).unwrap_or_default();
            return self.client()?.get(&format!("/api/v1/jobs/parked?limit={limit}{after}")).await;
        };
        if !store.keeps_outbox() {
            return Ok(json!({ "jobs": [], "next": null }));
        }
        Ok(job::page(&store.parked(after, limit + 1).await.map_err(|error| failed(&error))?, limit))
    }

    /// One job.
    pub(crate) async fn job(&self, id: JobId, bodies: Bodies) -> Result<Value, Trouble> {
        let Some(store) = self.in_store() else {
            let body = if bodies == Bodies::Shown { "?body=true" } else { "" };
            return self.client()?.get(&format!("/api/v1/jobs/{id}{body}")).await;
        };
        let found = store.job(id).await.map_err(|error| failed(&error))?;
        let found = found.ok_or_else(|| Trouble::NotFound(sentence(&operate::no_job(id))))?;
        Ok(job::for_operator(&found, bodies))
    }

    /// Does something to a parked job.
    pub(crate) async fn act_on_job(&self, act: JobAct, id: JobId, wish: &Value) -> Result<Value, Trouble> {
        let engine = match self {
            Self::Engine(engine) => engine,
            Self::Gateway(client) => {
                let path = match act {
                    JobAct::Retry => format!("/api/v1/jobs/{id}/retry"),
                    JobAct::Withdraw => format!("/api/v1/jobs/{id}/withdraw"),
                };
                return client.post(&path, wish).await;
            }
            Self::Store(_) => return Err(Trouble::Failed("a store is acted on by an engine".to_owned())),
        };
        let wish = operate::read_wish(wish.to_string().as_bytes());
        let wish = wish.map_err(|bad| Trouble::Wrong(sentence(&bad.to_string())))?;
        let done = match act {
            JobAct::Retry => operate::retry_job(engine, id, &wish).await,
            JobAct::Withdraw => operate::withdraw_job(engine, id, &wish).await,
        };
        done.map_err(refused)
    }

    /// How many records are in each state, and the clock steps that a gateway has noticed.
    pub(crate) async fn counts(&self) -> Result<Value, Trouble> {
        let Some(store) = self.in_store() else { return self.client()?.get("/api/v1/counts").await };
        let mut counts = record::counts(&store.counts().await.map_err(|error| failed(&error))?);
        // Only a running node watches the clock.
        counts["clock_steps"] = Value::Null;
        Ok(counts)
    }

    async fn now(&self) -> Result<Now, Trouble> {
        let Some(store) = self.in_store() else {
            return Err(Trouble::Failed("a gateway has its own clock".to_owned()));
        };
        let at = store.clock().await.map_err(|error| failed(&error))?;
        Ok(Now { at, error: Duration::ZERO })
    }

    fn in_store(&self) -> Option<&AnyStore> {
        match self {
            Self::Store(store) => Some(store),
            Self::Engine(engine) => Some(engine.store()),
            Self::Gateway(_) => None,
        }
    }

    /// Becomes one that can be acted through: over a store, a node of its own, which tells the others.
    pub(crate) async fn into_acting(self) -> Result<Self, Trouble> {
        let Self::Store(store) = self else { return Ok(self) };
        let options = Options::default();
        let node = format!("{} (command line)", options.node).into();
        let options = Options { node, workers: BackgroundWorkers::None, ..options };
        let engine = Engine::start(*store, options).await;
        Ok(Self::Engine(engine.map_err(|error| Trouble::Failed(error.to_string()))?))
    }

    /// Does what `wish` says, in the admin interface's JSON, to this record.
    pub(crate) async fn act(&self, verb: Verb, id: RecordId, wish: &Value) -> Result<Value, Trouble> {
        let engine = match self {
            Self::Engine(engine) => engine,
            Self::Gateway(client) => {
                return client.post(&format!("/api/v1/records/{id}/{}", verb.name()), wish).await;
            }
            Self::Store(_) => return Err(Trouble::Failed("a store is acted on by an engine".to_owned())),
        };
        let wish = Wish::read(verb, wish.to_string().as_bytes());
        let wish = wish.map_err(|bad| Trouble::Wrong(sentence(&bad.to_string())))?;
        operate::carry_out(engine, id, &wish).await.map_err(refused)
    }

    /// Waits until the other nodes have heard of what was done here; says whether those that hold an answer let go of it. A gateway
    /// tells them itself.
    pub(crate) async fn tell_others(&self) -> Option<&'static str> {
        let Self::Engine(engine) = self else { return None };
        Some(match engine.told(TELLING).await {
            Told::All => "the other nodes were told through the store's signals",
            Told::NoSignals => {
                "this store carries no signals: a running gateway replays an answer from its cache until that is too old; told through \
                 its admin listener (--admin) it lets go at once"
            }
            Told::NotInTime => {
                "the other nodes could not be told in time: one that holds the answer replays it until that is too old"
            }
        })
    }

    fn client(&self) -> Result<&AdminClient, Trouble> {
        match self {
            Self::Gateway(client) => Ok(client),
            Self::Store(_) | Self::Engine(_) => {
                Err(Trouble::Failed("a store is not asked over HTTP".to_owned()))
            }
        }
    }
}

fn refused(refused: Refused) -> Trouble {
    match refused {
        Refused::NotFound(words) => Trouble::NotFound(sentence(&words)),
        Refused::Changed { words, .. } | Refused::NotAllowed { words, .. } => {
            Trouble::Refused(sentence(&words))
        }
        Refused::Store(words) => Trouble::Failed(sentence(&words)),
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
pub(crate) fn sentence(words: &str) -> String {
    let words = words.trim_end_matches('.');
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

fn audit_query(filter: &AuditFilter, after: Option<EntryPlace>, limit: usize) -> String {
    let moment = |at: Option<Timestamp>| at.and_then(|at| record::moment(at).as_str().map(str::to_owned));
    let pairs = [
        ("limit", Some(limit.to_string())),
        ("since", moment(filter.since)),
        ("until", moment(filter.until)),
        ("scope", filter.scope.clone()),
        ("operation", filter.operation.clone()),
        ("act", filter.act.map(|act| act.name().to_owned())),
        ("after", after.map(|after| after.to_string())),
    ];
    let given = pairs.into_iter().filter_map(|(name, value)| Some((name, value?)));
    form_urlencoded::Serializer::new(String::new()).extend_pairs(given).finish()
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
        ("reference", asked.reference.as_deref()),
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
    runtime()?.block_on(asking)
}

/// Where a command's asking runs.
pub(crate) fn runtime() -> Result<Runtime, Trouble> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Trouble::Failed(format!("the runtime could not be started: {error}")))
}
