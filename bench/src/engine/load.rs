//! Closed loops through the engine and through the layer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use oncegate_core::fingerprint::Fingerprint;
use oncegate_core::key::Key;
use oncegate_core::policy::Profile;
use oncegate_core::response::{Answer, Response};
use oncegate_core::scope::{Operation, Scope};
use oncegate_engine::{Arrived, Engine, Options as EngineOptions, Route, Settled, Settlement};
use oncegate_store::Store;
use oncegate_tower::{Idempotency, Idempotent, Routes, scope};
use tokio::runtime::Runtime;
use tower_layer::Layer as _;
use tower_service::Service as _;

use super::upstream::{BODY, Upstream};
use super::{start, timed};
use crate::Outcome;
use crate::cost::Turn;

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// An engine, and a layer over it.
pub(crate) struct Bench<S: Store> {
    runtime: Runtime,
    engine: Engine<S>,
    layer: Idempotent<S, Upstream>,
    route: Route,
}

/// Keys are never used twice, also across turns and files.
static KEYS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn next_key() -> String {
    // Spread like UUIDs.
    let n = KEYS.fetch_add(1, Ordering::Relaxed);
    let (high, low) = (n.wrapping_mul(0x9E37_79B9_7F4A_7C15), n.wrapping_mul(0xD1B5_4A32_D192_ED03));
    format!("{high:016x}-{low:016x}-{:02}", n % 100)
}

impl<S: Store> Bench<S> {
    pub(crate) fn start(store: S, runtime: Runtime, options: EngineOptions) -> Outcome<Self> {
        let engine = start(store, &runtime, options)?;
        let routes = Routes::all(Profile::Ietf)?;
        let layer = Idempotency::new(engine.clone(), scope::one("tenant"), routes).layer(Upstream);
        let route = Route::of_profile(Profile::Ietf, Operation::new("POST /payments")?);
        Ok(Self { runtime, engine, layer, route })
    }

    /// Arrive and settle, `in_flight` at a time.
    pub(crate) fn fresh(&self, requests: usize, in_flight: usize) -> Outcome<Turn> {
        self.counting_commits(|| {
            self.in_tasks(requests, in_flight, || {
                let (engine, route) = (self.engine.clone(), self.route.clone());
                move || {
                    let (engine, route) = (engine.clone(), route.clone());
                    async move { once(&engine, &route, &next_key()).await }
                }
            })
        })
    }

    /// The same through the layer, with a body to read and fingerprint.
    pub(crate) fn fresh_through_layer(&self, requests: usize, in_flight: usize) -> Outcome<Turn> {
        self.counting_commits(|| {
            self.in_tasks(requests, in_flight, || {
                let layer = self.layer.clone();
                move || {
                    let mut layer = layer.clone();
                    async move {
                        layer.call(request(&next_key())?).await?;
                        Ok(())
                    }
                }
            })
        })
    }

    /// One key, settled once and asked for again and again.
    pub(crate) fn replays(&self, requests: usize) -> Outcome<Turn> {
        let key = next_key();
        self.runtime.block_on(once(&self.engine, &self.route, &key)).map_err(|error| error.to_string())?;
        let (scope, key) = (Scope::tenant("tenant")?, Key::from_text(&key)?);
        timed(requests, || {
            self.runtime.block_on(async {
                for _ in 0..requests {
                    let arrival = self.route.arrival(scope.clone(), key.clone(), fingerprint(), None);
                    let Arrived::Replay { .. } = self.engine.arrive(&self.route, arrival).await? else {
                        return Err("not a replay".into());
                    };
                }
                Ok(())
            })
        })
    }

    /// The same through the layer.
    pub(crate) fn replays_through_layer(&self, requests: usize) -> Outcome<Turn> {
        let key = next_key();
        let mut layer = self.layer.clone();
        let mut send = async || -> Result<bool, Error> {
            let response = layer.call(request(&key)?).await?;
            Ok(response.headers().contains_key("idempotency-replayed"))
        };
        self.runtime.block_on(send()).map_err(|error| error.to_string())?;
        timed(requests, || {
            self.runtime.block_on(async {
                for _ in 0..requests {
                    if !send().await.map_err(|error| error.to_string())? {
                        return Err("not a replay".into());
                    }
                }
                Ok(())
            })
        })
    }

    /// Keys that are settled, to be replayed.
    pub(crate) fn settled_keys(&self, count: usize) -> Outcome<Arc<[Key]>> {
        self.runtime.block_on(async {
            let mut keys = Vec::with_capacity(count);
            for chunk in 0..count.div_ceil(64) {
                let names: Vec<_> = (chunk * 64..count.min(chunk * 64 + 64)).map(|_| next_key()).collect();
                let settled = names.iter().map(|key| once(&self.engine, &self.route, key));
                for settled in futures_util::future::join_all(settled).await {
                    settled.map_err(|error| error.to_string())?;
                }
                for name in &names {
                    keys.push(Key::from_text(name)?);
                }
            }
            Ok(keys.into())
        })
    }

    /// Asks for each of `keys` in turn, `in_flight` at a time.
    pub(crate) fn replays_of(&self, keys: &Arc<[Key]>, requests: usize, in_flight: usize) -> Outcome<Turn> {
        let next = Arc::new(AtomicU64::new(0));
        self.in_tasks(requests, in_flight, || {
            let (engine, route, keys, next) =
                (self.engine.clone(), self.route.clone(), Arc::clone(keys), Arc::clone(&next));
            move || {
                let (engine, route) = (engine.clone(), route.clone());
                let place = next.fetch_add(1, Ordering::Relaxed) % keys.len() as u64;
                let key = keys[usize::try_from(place).unwrap_or(0)].clone();
                async move {
                    let arrival = route.arrival(Scope::tenant("tenant")?, key, fingerprint(), None);
                    match engine.arrive(&route, arrival).await? {
                        Arrived::Replay { .. } => Ok(()),
                        other => Err(format!("not a replay: {other:?}").into()),
                    }
                }
            }
        })
    }

    fn counting_commits(&self, work: impl FnOnce() -> Outcome<Turn>) -> Outcome<Turn> {
        let before = self.engine.stats();
        let turn = work()?;
        let after = self.engine.stats();
        #[expect(clippy::cast_precision_loss, reason = "counts of one turn are far below 2^52")]
        let commits_per_write =
            (after.commits - before.commits) as f64 / (after.writes - before.writes) as f64;
        Ok(Turn { commits_per_write, ..turn })
    }

    /// `in_flight` tasks share `requests` requests.
    fn in_tasks<T, F>(&self, requests: usize, in_flight: usize, task: impl Fn() -> T) -> Outcome<Turn>
    where
        T: Fn() -> F + Send + 'static,
        F: Future<Output = Result<(), Error>> + Send,
    {
        timed(requests, || {
            let left = Arc::new(AtomicU64::new(requests as u64));
            let tasks: Vec<_> = (0..in_flight)
                .map(|_| {
                    let (left, request) = (Arc::clone(&left), task());
                    self.runtime.spawn(async move {
                        let take = |left: u64| left.checked_sub(1);
                        while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
                            request().await?;
                        }
                        Ok::<_, Error>(())
                    })
                })
                .collect();
            for task in tasks {
                self.runtime.block_on(task)?.map_err(|error| error.to_string())?;
            }
            Ok(())
        })
    }
}

/// Arrives with a fresh key and settles it.
pub(crate) async fn once<S: Store>(engine: &Engine<S>, route: &Route, key: &str) -> Result<(), Error> {
    let arrival = route.arrival(Scope::tenant("tenant")?, Key::from_text(key)?, fingerprint(), None);
    let Arrived::Execute(mut held) = engine.arrive(route, arrival).await? else {
        return Err("a fresh key was not granted".into());
    };
    held.begin()?;
    let headers = vec![("content-type".to_owned(), b"application/json".to_vec())];
    let answer = Answer::Kept(Response { status: 201, headers, body: BODY.to_vec() });
    match held.settle(Settlement::Complete(Arc::new(answer))).await {
        Settled::Done(_) => Ok(()),
        Settled::Fenced(_) => Err("it was not settled".into()),
    }
}

fn request(key: &str) -> Result<Request<Full<Bytes>>, Error> {
    let body = Full::new(Bytes::from_static(br#"{"amount":100,"currency":"EUR","to":"acct_0123456789"}"#));
    let request = Request::post("/payments").header("content-type", "application/json");
    Ok(request.header("idempotency-key", key).body(body)?)
}

fn fingerprint() -> Fingerprint {
    Fingerprint::from_parts(1, [7; 32])
}
