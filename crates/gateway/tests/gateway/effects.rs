//! `[[effect]]`: what a service has promised in its own transaction, a gateway on the same store delivers.

use oncegate::AnyStore;
use oncegate_core::decide::{Arrival, Decision, Event};
use oncegate_core::fingerprint::{self, Content, Mode};
use oncegate_core::identity::{RecordId, Token};
use oncegate_core::key::Key;
use oncegate_core::policy::Profile;
use oncegate_core::record::State;
use oncegate_core::response::Answer;
use oncegate_core::scope::{Address, Operation};
use oncegate_engine::{Engine, Options, Route};
use oncegate_gateway::Gateway;
use oncegate_store::Store as _;
use oncegate_store::jobs::{Job, JobId, Jobs as _, Stage as JobStage};
use oncegate_test_servers::until_some;

use crate::client::Call;
use crate::gateway::{admin, config, in_front_of};
use crate::http2::Both;
use crate::tls::Certificates;
use crate::upstream::{Act, Gate, Seen, Upstream, answer};

/// The service's own handle on the store.
struct Service {
    store: AnyStore,
    folder: tempfile::TempDir,
}

impl Service {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("records.db").display());
        Self { store: oncegate::open(&url).await.unwrap(), folder }
    }

    fn toml(&self, effect: &str) -> String {
        let file = self.folder.path().join("records.db");
        format!(
            "[store]\nurl = \"sqlite://{}\"\n[[effect]]\nname = \"charge\"\nurl = \"/charges\"\n{effect}",
            file.display()
        )
    }

    async fn promise(&self, n: u32, payload: &str) -> Job {
        let life = Token::from_bytes([7; 16]);
        let whose = (RecordId::from_bytes([1; 16]), life);
        let now = self.store.clock().await.unwrap();
        let job = Job::promised(JobId::of(life, n), "charge", payload.into(), whose, now);
        self.store.promise(std::slice::from_ref(&job)).await.unwrap();
        job
    }

    /// The job once it is as far as this.
    async fn until(&self, job: &Job, is_there: impl Fn(&JobStage) -> bool) -> Job {
        let job = async || self.store.job(job.id).await.unwrap().filter(|job| is_there(&job.stage));
        until_some("the job is so far", job).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promise_is_delivered_with_its_key_and_the_provider_s_name_for_it_is_kept() {
    let service = Service::new().await;
    // The first answer is lost, and the second says when to come again.
    let upstream = Upstream::start(|seen: Seen| async move {
        match seen.number {
            1 => Act::Reset,
            2 => Act::Answer(answer(429, &[("retry-after", "0")], "")),
            _ => Act::Answer(answer(201, &[("content-type", "application/json")], r#"{"id":"ch_17"}"#)),
        }
    })
    .await;
    let effect = "backoff = \"10ms\"\nkey_header = \"x-once\"\nheaders = { x-version = \"3\" }\nreference = \"/id\"\n\
                  body = '{\"of\":\"{pointer:/order}\",\"amount\":{pointer:/amount}}'";
    let gateway = in_front_of(upstream.addr, &service.toml(effect)).await;
    let job = service.promise(1, r#"{"order":"a\"b","amount":100}"#).await;
    let done = service.until(&job, |stage| matches!(stage, JobStage::Done(_))).await;
    let JobStage::Done(receipt) = done.stage else { panic!("{done:?}") };
    assert_eq!(receipt.reference.as_deref(), Some("ch_17"));
    let seen = upstream.seen();
    assert_eq!(seen.len(), 3);
    for seen in seen {
        assert!(seen.line.starts_with("POST /charges "), "{}", seen.line);
        assert_eq!(seen.header("x-once"), Some(&*job.downstream_key()), "the same at every try");
        assert_eq!(seen.header("x-version"), Some("3"));
        assert_eq!(str::from_utf8(&seen.body).unwrap(), r#"{"of":"a\"b","amount":100}"#);
    }
    gateway.shut_down().await;
}

/// The service waits for the call's answer: what the file says that clients are told is the record's answer, refused or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_whose_answer_is_the_request_s_completes_its_record() {
    let service = Service::new().await;
    let upstream = Upstream::start(|seen: Seen| async move {
        let status = if &*seen.body == b"\"dear\"" { 402 } else { 200 };
        Act::Answer(answer(status, &[("content-type", "application/json")], r#"{"id":"ch_17","paid":true}"#))
    })
    .await;
    let effect = "delivered = [\"2xx\", 402]\nreference = \"/id\"\n\
                  answers = [{ when = 402, status = 402, pointer = \"/id\" }, { status = 201, body = \"found\" }]";
    let gateway = in_front_of(upstream.addr, &service.toml(effect)).await;
    let file = format!("sqlite://{}", service.folder.path().join("records.db").display());
    let engine = Engine::start(oncegate::open(&file).await.unwrap(), Options::default()).await.unwrap();
    let route = Route::new("ietf", Profile::Ietf.policy(), Operation::new("POST /orders").unwrap());
    let content = Content { method: "POST", path: "/orders", query: None, content_type: None, body: b"" };
    let told = [("cheap", 201, r#"{"id":"ch_17","paid":true}"#), ("dear", 402, r#""ch_17""#)];
    for (payload, status, body) in told {
        // As an atomic handler leaves it: the record is open, and the job carries its lease on.
        let (scope, key) = (route.scope("acme").unwrap(), Key::from_text(payload).unwrap());
        let id = RecordId::of(&Address { scope: scope.clone(), key: key.clone() });
        let fingerprint = fingerprint::of(&Mode::Raw, &content).unwrap();
        let token = Token::from_bytes([u8::try_from(payload.len()).unwrap(); 16]);
        let arrival = Arrival { token, ..route.arrival(scope, key, fingerprint, None) };
        let step = engine.drive(id, &Event::Arrive(arrival)).await.unwrap();
        let Decision::Execute(lease) = step.decision else { panic!("{:?}", step.decision) };
        let holder = lease.holder;
        let _ = engine.drive(id, &Event::Entrust { holder }).await.unwrap();
        let name = JobId::of(holder.life, 0);
        let text = serde_json::to_vec(payload).unwrap();
        let job = Job::promised(name, "charge", text, (id, holder.life), engine.now().at);
        let job = Job { answers: Some(holder), ..job };
        service.store.promise(std::slice::from_ref(&job)).await.unwrap();
        service.until(&job, |stage| matches!(stage, JobStage::Done(_))).await;
        let record = service.store.read(&[id]).await.unwrap().remove(0).unwrap().unwrap();
        let State::Completed(kept) = &record.state else { panic!("{record:?}") };
        let Answer::Kept(kept) = &**kept else { panic!("{kept:?}") };
        assert_eq!((kept.status, str::from_utf8(&kept.body).unwrap()), (status, body));
        assert_eq!(record.provider_reference.as_deref(), Some("ch_17"));
    }
    assert_eq!(upstream.seen().len(), 2, "each once");
    gateway.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_put_before_an_operator_who_may_have_it_tried_again() {
    let service = Service::new().await;
    let upstream = Upstream::start(|seen: Seen| async move {
        if seen.number == 1 { Act::Answer(answer(422, &[], "")) } else { Act::Answer(answer(200, &[], "{}")) }
    })
    .await;
    let gateway = in_front_of(upstream.addr, &service.toml("")).await;
    let job = service.promise(1, "{}").await;
    let parked = service.until(&job, |stage| *stage == JobStage::Parked).await;
    assert_eq!(parked.last_error.unwrap().to_string(), "refused: status 422");
    let listed = admin(&gateway, "/api/v1/jobs/parked").await.json();
    assert_eq!(listed["jobs"][0]["id"], job.id.to_string());
    let call = Call::operator("POST", &format!("/api/v1/jobs/{}/retry", job.id))
        .json(r#"{"reason":"mended","operator":"ada"}"#);
    let retried = call.send(gateway.admin_address().tcp().unwrap()).await;
    assert_eq!(retried.status, 200, "{retried:?}");
    service.until(&job, |stage| matches!(stage, JobStage::Done(_))).await;
    gateway.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_put_before_an_operator_who_may_end_it() {
    let service = Service::new().await;
    let upstream = Upstream::start(|_: Seen| async { Act::Answer(answer(422, &[], "")) }).await;
    let gateway = in_front_of(upstream.addr, &service.toml("")).await;
    let job = service.promise(1, "{}").await;
    service.until(&job, |stage| *stage == JobStage::Parked).await;
    let withdraw = async || {
        let path = format!("/api/v1/jobs/{}/withdraw", job.id);
        let call =
            Call::operator("POST", &path).json(r#"{"reason":"the customer has left","operator":"ada"}"#);
        call.send(gateway.admin_address().tcp().unwrap()).await
    };
    let done = withdraw().await;
    assert_eq!(
        (done.status, &done.json()["job"]["stage"]),
        (200, &serde_json::json!("withdrawn")),
        "{done:?}"
    );
    let again = withdraw().await;
    assert_eq!(again.status, 409, "{again:?}");
    assert!(again.json()["detail"].as_str().unwrap().contains("it was withdrawn"), "{again:?}");
    assert_eq!(admin(&gateway, "/api/v1/jobs/parked").await.json()["jobs"], serde_json::json!([]));
    assert_eq!(upstream.seen().len(), 1, "and it is not sent any more");
    gateway.shut_down().await;
}

/// Nothing listens, then somebody who says that he is out of order: more often than a job may be tried.
#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_is_away_does_not_use_up_a_job_s_tries() {
    let service = Service::new().await;
    let upstream = Upstream::start(|seen: Seen| async move {
        if seen.number < 8 { Act::Answer(answer(503, &[], "")) } else { Act::Answer(answer(200, &[], "{}")) }
    })
    .await;
    let quick = "backoff = \"1ms\"\nbackoff_max = \"1ms\"\npark_after = 2";
    let gateway = in_front_of(upstream.addr, &service.toml(quick)).await;
    let job = service.promise(1, "{}").await;
    service.until(&job, |stage| matches!(stage, JobStage::Done(_))).await;
    assert_eq!(upstream.seen().len(), 8);
    gateway.shut_down().await;
    // A port that nobody is given: one that was somebody's may be another test's by now.
    let gone = service.toml(quick).replace("/charges", "http://127.0.0.1:1/charges");
    let gateway = in_front_of(upstream.addr, &gone).await;
    let job = service.promise(2, "{}").await;
    let is_unreachable = |job: &Job| job.last_error.as_ref().is_some_and(|why| why.code() == "unreachable");
    let tried = async || {
        let found = service.store.job(job.id).await.unwrap().unwrap();
        assert_ne!(found.stage, JobStage::Parked, "{found:?}");
        is_unreachable(&found).then_some(())
    };
    until_some("nobody is there", tried).await;
    gateway.shut_down().await;
    let impatient = format!("{gone}\noutage = \"1ms\"");
    let gateway = in_front_of(upstream.addr, &impatient).await;
    let parked = service.until(&job, |stage| *stage == JobStage::Parked).await;
    assert_eq!(parked.last_error.unwrap().code(), "unreachable_too_long");
    gateway.shut_down().await;
}

/// Another file while it runs: what is under way ends as it began, and is not sent again; what comes is delivered as the new file says.
#[tokio::test(flavor = "multi_thread")]
async fn effects_are_taken_over_from_another_file() {
    let service = Service::new().await;
    let gate = Gate::new();
    let at_gate = gate.clone();
    let upstream = Upstream::start(move |seen: Seen| {
        let gate = at_gate.clone();
        async move {
            if seen.line.starts_with("POST /charges ") {
                gate.pass().await;
            }
            Act::Answer(answer(200, &[("content-type", "application/json")], r#"{"id":"ch_17"}"#))
        }
    })
    .await;
    let mut gateway = in_front_of(upstream.addr, &service.toml("reference = \"/id\"")).await;
    let old = service.promise(1, "{}").await;
    gate.entered().await;
    let new_file = service.toml("").replace("/charges", "/charges/v2");
    let reloaded = gateway.reload(config(&format!("http://{}", upstream.addr), &new_file)).unwrap();
    assert!(reloaded.needs_restart.is_empty(), "{reloaded:?}");
    let is_done = |stage: &JobStage| matches!(stage, JobStage::Done(_));
    let new = service.promise(2, "{}").await;
    let JobStage::Done(receipt) = service.until(&new, is_done).await.stage else { unreachable!() };
    assert_eq!(receipt.reference, None, "as the new file says");
    gate.open();
    let JobStage::Done(receipt) = service.until(&old, is_done).await.stage else { unreachable!() };
    assert_eq!(receipt.reference.as_deref(), Some("ch_17"), "as the old one said");
    let lines = upstream.seen().into_iter().map(|seen| seen.line.split(' ').nth(1).unwrap().to_owned());
    assert_eq!(lines.collect::<Vec<_>>(), ["/charges", "/charges/v2"], "each once");
    // Without any, nothing is delivered any more; and they may come back.
    let (none, _) = new_file.split_once("[[effect]]").unwrap();
    gateway.reload(config(&format!("http://{}", upstream.addr), none)).unwrap();
    let waiting = service.promise(3, "{}").await;
    gateway.reload(config(&format!("http://{}", upstream.addr), &new_file)).unwrap();
    service.until(&waiting, is_done).await;
    gateway.shut_down().await;
}

#[tokio::test]
async fn a_store_without_an_outbox_is_refused_at_start() {
    let redis = oncegate_test_servers::Redis::start(&[]);
    let toml =
        format!("[store]\nurl = \"{}\"\n[[effect]]\nname = \"charge\"\nurl = \"/charges\"", redis.url());
    let Err(error) = Gateway::start(config("http://127.0.0.1:9", &toml), None).await else {
        panic!("it started")
    };
    assert!(error.to_string().contains("keeps no outbox"), "{error}");
}

/// The upstream has an authority of its own, and so has a provider; neither vouches for the other.
#[tokio::test(flavor = "multi_thread")]
async fn an_effect_trusts_its_own_authority_and_not_the_one_of_the_upstream() {
    let (ours, theirs) = (Certificates::new(), Certificates::new());
    let provider = Both::start(Some(theirs.acceptor(&["http/1.1"]))).await;
    for (trust, is_delivered) in [(theirs.trust(), true), (ours.trust(), false), (String::new(), false)] {
        let service = Service::new().await;
        let file = service.folder.path().join("records.db");
        let toml = format!(
            "[upstream]\n{}[store]\nurl = \"sqlite://{}\"\n[[effect]]\nname = \"charge\"\n\
             url = \"https://localhost:{}/charges\"\nbackoff = \"10ms\"\n{trust}",
            theirs.trust(),
            file.display(),
            provider.addr.port()
        );
        let upstream = Upstream::start(|_: Seen| async { Act::Reset }).await;
        let gateway = in_front_of(upstream.addr, &toml).await;
        let job = service.promise(1, "{}").await;
        let tried = async || {
            let job = service.store.job(job.id).await.unwrap().unwrap();
            (matches!(job.stage, JobStage::Done(_)) || job.last_error.is_some()).then_some(job)
        };
        let tried = until_some("it was tried", tried).await;
        assert_eq!(matches!(tried.stage, JobStage::Done(_)), is_delivered, "{trust:?}: {tried:?}");
        gateway.shut_down().await;
    }
}
