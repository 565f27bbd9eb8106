//! Asks upstreams and providers what became of an attempt, as each route's probe says.
//!
//! **Invariant:** whatever goes wrong on the way is "not known"; only an answer that a condition covers says more.
//! Not here: what an answer means (`reconcile`), when it is asked, and what follows (the engine's reconciler).

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use http::{HeaderMap, Request, Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use oncegate_core::policy::Policy;
use oncegate_core::record::Record;
use oncegate_engine::{Asking, Found, Patience};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::config::{Authorities, Config, Http, Rule, Trust, Upstream};
use crate::proxy::{Connector, Wire};
use crate::reconcile::{About, Judgement, Probe, ProbeAnswer, Question, Target, judge};

/// The probes of all routes, exchanged as a whole when the file is read again.
pub(crate) struct Asker {
    upstream: Upstream,
    routes: RwLock<Arc<Routes>>,
}

/// What is protected here, by its operation.
struct Routes {
    /// The `[[route]]`s.
    by_pattern: HashMap<String, Route>,
    /// What holds where none matches; `None`: such requests pass untouched.
    otherwise: Option<Route>,
    /// The largest answer that is kept of an operation that is none of these.
    answer_bytes_max: u64,
    /// To find a route by what it was called before.
    layer: oncegate_tower::Routes,
}

/// What is known of one route's doubts.
struct Route {
    policy: Policy,
    probe: Option<Arc<Probe>>,
    patience: Patience,
    /// A webhook may tell of it: worth waiting for.
    is_told: bool,
}

impl Asker {
    pub(crate) fn new(config: &Config) -> Self {
        Self { upstream: config.upstream.clone(), routes: RwLock::new(Arc::new(Routes::of(config))) }
    }

    /// Takes over the probes of another configuration.
    pub(crate) fn reload(&self, config: &Config) {
        *self.routes.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Routes::of(config));
    }

    /// The routes as they are now.
    fn routes(&self) -> Arc<Routes> {
        Arc::clone(&self.routes.read().unwrap_or_else(PoisonError::into_inner))
    }

    async fn find_out(&self, record: &Record) -> Found {
        let routes = self.routes();
        let Some(route) = routes.route(record) else {
            // Dropped since it was claimed. Nobody is asked, and nothing is said of it.
            return Found::NotKnown("this gateway has no route of its operation any more".into());
        };
        let Some(probe) = &route.probe else {
            return if route.is_told {
                Found::NotKnown("no probe is configured; a webhook may tell".into())
            } else {
                Found::NobodyToAsk
            };
        };
        let about = About::of(record, &route.policy);
        let question = match probe.question(&about) {
            Ok(question) => question,
            Err(unaskable) => return Found::NotKnown(unaskable.to_string().into()),
        };
        match self.ask(question, probe).await {
            Ok((status, headers, body)) => {
                let answer = ProbeAnswer { status, headers: &headers, body: &body };
                match judge(probe, &answer, &about) {
                    Judgement::Happened { answer, reference } => {
                        Found::Happened { answer: Arc::new(answer), reference }
                    }
                    Judgement::DidNotHappen => Found::DidNotHappen,
                    Judgement::NotKnown { why } => Found::NotKnown(format!("status {status}: {why}").into()),
                }
            }
            Err(unanswered) => Found::NotKnown(unanswered.words.into()),
        }
    }

    async fn ask(&self, question: Question, probe: &Probe) -> Result<Answered, Unanswered> {
        let upstream = server(&self.upstream, &question.target, probe.tls_ca.as_ref())?;
        send(&upstream, question, Bytes::new(), probe.body_bytes_max).await
    }
}

/// Status, headers and body.
pub(crate) type Answered = (u16, HeaderMap, Vec<u8>);

/// Why there is no answer.
pub(crate) struct Unanswered {
    pub(crate) words: String,
    /// There was nobody to speak to: nothing was said.
    pub(crate) is_unreached: bool,
}

impl From<String> for Unanswered {
    fn from(words: String) -> Self {
        Self { words, is_unreached: false }
    }
}

/// One exchange with this server, on a connection of its own: one that hangs delays no other.
pub(crate) async fn send(
    server: &Upstream,
    question: Question,
    body: Bytes,
    bytes_max: u64,
) -> Result<Answered, Unanswered> {
    let Question { target, method, headers } = question;
    let path = match target {
        Target::Upstream(path) => format!("{}{path}", server.base_path),
        Target::Elsewhere(uri) => path_of(&uri),
    };
    let connector = Connector::new(server).map_err(|error| error.to_string())?;
    let mut request = Request::builder().method(method).uri(path).body(Full::new(body));
    if let Ok(request) = &mut request {
        *request.headers_mut() = headers;
        let host = server.authority.as_str().parse().map_err(|_| "its host is no header".to_owned())?;
        request.headers_mut().insert(header::HOST, host);
    }
    let request = request.map_err(|error| error.to_string())?;
    let unreached = |words| Unanswered { words, is_unreached: true };
    let wire = connector.wire().await.map_err(|failed| unreached(failed.0.to_string()))?;
    let answered = match wire {
        Wire::Plain(stream) => exchange(stream, request, bytes_max).await,
        Wire::Tls(stream) => exchange(stream, request, bytes_max).await,
    };
    Ok(answered?)
}

/// The server that is asked: the upstream by its path, or another one by its whole URL.
pub(crate) fn server(
    upstream: &Upstream,
    target: &Target,
    more: Option<&Authorities>,
) -> Result<Upstream, String> {
    let (authority, is_tls, trust) = match target {
        Target::Upstream(_) => (upstream.authority.clone(), upstream.is_tls, upstream.trust.and(more)),
        Target::Elsewhere(uri) => {
            let authority = uri.authority().cloned().ok_or("its URL has no host")?;
            let is_tls = uri.scheme() == Some(&http::uri::Scheme::HTTPS);
            (authority, is_tls, Trust::system_and(more))
        }
    };
    Ok(Upstream { authority, is_tls, trust, http: Http::One, ..upstream.clone() })
}

impl oncegate_engine::Probe for Asker {
    fn ask<'a>(&'a self, record: &'a Record) -> Asking<'a> {
        Box::pin(self.find_out(record))
    }

    fn knows(&self, record: &Record) -> bool {
        self.routes().route(record).is_some()
    }

    fn patience(&self, record: &Record) -> Patience {
        self.routes().route(record).map_or_else(Patience::default, |route| route.patience)
    }

    fn answer_bytes_max(&self, record: &Record) -> u64 {
        let routes = self.routes();
        routes.route(record).map_or(routes.answer_bytes_max, |route| route.policy.answer_bytes_max)
    }
}

impl Routes {
    fn of(config: &Config) -> Self {
        let is_told = !config.webhooks.is_empty();
        let one = |rule: &Rule| Route {
            policy: rule.policy.clone(),
            probe: rule.probe.clone(),
            patience: patience(rule),
            is_told,
        };
        let protected = config.routes.iter().filter(|rule| !rule.is_off());
        Self {
            by_pattern: protected.map(|rule| (rule.pattern.clone(), one(rule))).collect(),
            otherwise: (!config.otherwise.is_off()).then(|| one(&config.otherwise)),
            answer_bytes_max: config.otherwise.policy.answer_bytes_max,
            // They were checked when the configuration was read.
            layer: config.layer_routes().unwrap_or_default(),
        }
    }

    /// The route under which the record was made, also if its pattern was spelled otherwise then.
    /// No other may ask about it: a probe finds nothing of another resource, and that would be
    /// believed. `None`: it is gone from here, or was never here; the record is another
    /// gateway's, or an operator's.
    fn route(&self, record: &Record) -> Option<&Route> {
        let stored = record.operation.as_str();
        let today = self.layer.of_stored(stored).map_or(stored, |route| route.operation().as_str());
        self.by_pattern.get(today).or_else(|| is_otherwise(today).then_some(self.otherwise.as_ref())?)
    }
}

/// What was made where no route matched is called `POST *`, whatever its path: a pattern's path begins with a slash.
pub(crate) fn is_otherwise(operation: &str) -> bool {
    operation.split_once(' ').is_some_and(|(_, path)| path == "*")
}

fn patience(rule: &Rule) -> Patience {
    let asked = rule.policy.reconcile;
    Patience {
        timeout: rule.probe.as_ref().map_or_else(|| Patience::default().timeout, |probe| probe.timeout),
        backoff: asked.backoff_first,
        backoff_max: asked.backoff_max,
        park_after: asked.park_after,
    }
}

fn path_of(uri: &Uri) -> String {
    uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string)
}

async fn exchange<T>(stream: T, request: Request<Full<Bytes>>, bytes_max: u64) -> Result<Answered, String>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let said = |error: hyper::Error| format!("no answer: {error}");
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(said)?;
    // Ends with the exchange: whoever gives up waiting closes the connection.
    let mut connection = std::pin::pin!(connection);
    let asking = async {
        let response = sender.send_request(request).await.map_err(said)?;
        let (head, body) = response.into_parts();
        Ok((head.status.as_u16(), head.headers, read(body, bytes_max).await?))
    };
    let mut asking = std::pin::pin!(asking);
    tokio::select! {
        biased;
        answered = &mut asking => answered,
        ended = &mut connection => match ended {
            Err(error) => Err(said(error)),
            // The answer may be read already.
            Ok(()) => asking.await,
        },
    }
}

/// The body, or a little more of it than may be: then it is known to be too large.
async fn read(mut body: Incoming, bytes_max: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| format!("the answer was cut off: {error}"))?;
        if let Some(data) = frame.data_ref() {
            bytes.extend_from_slice(data);
        }
        if u64::try_from(bytes.len()).is_ok_and(|read| read > bytes_max) {
            break;
        }
    }
    Ok(bytes)
}
