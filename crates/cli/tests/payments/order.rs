//! An order: one key. What its client does and sees, and what the others know of it.

use std::cell::RefCell;
use std::net::SocketAddr;

use example_payments::post::{self, NoReply, Reply};
use example_payments::provider::Fault;
use hyper::Request;
use hyper::body::Bytes;
use oncegate_test_servers::wait_until;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::town::{FOREVER, Town};

const TENANT: &str = "ann";
const REPLAYED: &str = ", replayed";

pub(crate) struct Order<'a> {
    pub(crate) town: &'a Town,
    pub(crate) key: String,
    path: String,
    body: String,
    /// The body of the first outcome that the client was given: every later one must be equal to it.
    outcome: RefCell<Option<Bytes>>,
    /// What the client was answered, in a line each; the same again is not said again.
    pub(crate) view: RefCell<Vec<String>>,
}

impl<'a> Order<'a> {
    pub(crate) const fn new(town: &'a Town, key: String, path: String, body: String) -> Self {
        Self { town, key, path, body, outcome: RefCell::new(None), view: RefCell::new(Vec::new()) }
    }

    /// A refund of this, once it is paid.
    pub(crate) fn refund(&self, amount: u32) -> Self {
        let paid: Value = serde_json::from_slice(self.outcome.borrow().as_ref().unwrap()).unwrap();
        let path = format!("/payments/{}/refunds", paid["id"].as_str().unwrap());
        Self::new(self.town, self.town.new_key(), path, format!(r#"{{"amount": {amount}}}"#))
    }

    /// The same key for something else.
    pub(crate) fn misused_for(&self, body: &str) -> Self {
        Self::new(self.town, self.key.clone(), self.path.clone(), body.to_owned())
    }

    /// Clients that know nothing of each other, all at once; the statuses that they see.
    pub(crate) fn are_sent_at_once(orders: &[&Self]) -> Vec<u16> {
        let clients: Vec<_> = orders.iter().map(|order| order.is_on_its_way(&[])).collect();
        let seen = clients.into_iter().map(|client| orders[0].town.runtime.block_on(client).unwrap());
        seen.map(|answer| answer.unwrap().status.as_u16()).collect()
    }

    /// The client sends it, and all goes well behind the gateway.
    pub(crate) fn pays(&self) -> Seen<'_> {
        self.seen(self.town.send(self.town.gateway_address(), self.request(&[])))
    }

    /// The client sends it, and the provider does this.
    pub(crate) fn pays_with(&self, faults: &[Fault]) -> Seen<'_> {
        self.seen(self.town.send(self.town.gateway_address(), self.request(faults)))
    }

    /// The client sends it again, as it is.
    pub(crate) fn retries(&self) -> Seen<'_> {
        self.pays()
    }

    /// The client retries until nothing is in progress any more: settled, or lapsed with a holder that is gone.
    pub(crate) fn retries_until_it_is_over(&self) -> Seen<'_> {
        let mut last = None;
        wait_until("the payment is no longer in progress", || {
            let seen = self.retries();
            let is_over = seen.word() != "in_progress";
            last = Some(seen);
            is_over
        });
        last.unwrap()
    }

    /// The client retries until the outcome is known.
    pub(crate) fn retries_until_it_is_known(&self) -> Seen<'_> {
        let mut last = None;
        wait_until("the outcome is known", || {
            let seen = self.retries();
            let is_known = seen.word() != "outcome_unknown";
            last = Some(seen);
            is_known
        });
        last.unwrap()
    }

    /// Past the gateway, straight to the API.
    pub(crate) fn pays_the_api_itself(&self, faults: &[Fault]) -> Seen<'_> {
        self.seen(self.town.send(self.town.api_address(), self.request(faults)))
    }

    /// The client sends it, and the provider is slow: returns when it is there.
    pub(crate) fn is_being_paid_slowly(&self) -> Waiting<'_> {
        self.is_on_its_way_until("the provider has the order", &[Fault::Slow], || {
            self.town.get(self.town.provider_address(), "/ledger")["still_to_come"] == 1
        })
    }

    /// The client sends it, and the provider does this: returns when the API has it.
    pub(crate) fn is_being_paid_with(&self, faults: &[Fault]) -> Waiting<'_> {
        let before = self.payments().len();
        self.is_on_its_way_until("the API has the order", faults, || self.payments().len() > before)
    }

    /// The client sends it, and waits; it must not be answered before this holds.
    fn is_on_its_way_until(&self, what: &str, faults: &[Fault], holds: impl Fn() -> bool) -> Waiting<'_> {
        let client = self.is_on_its_way(faults);
        let mut is_there = false;
        wait_until(what, || {
            let is_over = client.is_finished();
            is_there = holds();
            is_there || is_over
        });
        let waiting = Waiting { order: self, client };
        assert!(is_there, "before {what}, the client was answered {}", waiting.then().line());
        waiting
    }

    /// The client sends it once its retention is over, and the provider does this: a new life, and what its client sees is a new story.
    pub(crate) fn is_used_again_with(&self, faults: &[Fault]) -> Seen<'_> {
        let mut last = None;
        wait_until("the retention is over", || {
            *self.outcome.borrow_mut() = None;
            self.view.borrow_mut().clear();
            last = Some(self.pays_with(faults));
            !self.view.borrow().iter().any(|line| line.ends_with(REPLAYED))
        });
        last.unwrap()
    }

    fn is_on_its_way(&self, faults: &[Fault]) -> JoinHandle<Result<Reply, NoReply>> {
        let (to, request) = (self.town.gateway_address().to_string(), self.request(faults));
        self.town.runtime.spawn(async move { post::send(&to, request, FOREVER).await })
    }

    pub(crate) fn record(&self) -> Fact<'_> {
        Fact {
            order: self,
            of: "the gateway's record",
            ask: |order| {
                let found = order.found().unwrap_or_default();
                found["state"].as_str().unwrap_or("absent").to_owned()
            },
        }
    }

    /// As the API knows it: the newest, if there are several. What it cannot say without the provider is `nobody can say`.
    pub(crate) fn payment(&self) -> Fact<'_> {
        Fact {
            order: self,
            of: "the API's payment",
            ask: |order| {
                let Some(payments) = order.payments_if_known() else { return "nobody can say".to_owned() };
                payments.first().map_or("absent", |payment| payment["status"].as_str().unwrap()).to_owned()
            },
        }
    }

    /// All that the API knows, newest first.
    fn payments(&self) -> Vec<Value> {
        self.payments_if_known().unwrap()
    }

    /// The same; `None` where it cannot ask the provider.
    fn payments_if_known(&self) -> Option<Vec<Value>> {
        let path = format!("/payments?idempotency_key={}", self.upstream_key());
        let request = Request::get(&path).header("host", "localhost").body(Bytes::new()).unwrap();
        let reply = self.town.send(self.town.api_address(), request).unwrap();
        if reply.status == 503 {
            return None;
        }
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        Some(serde_json::from_value(reply.json()["payments"].take()).unwrap())
    }

    /// How often the provider has charged it.
    pub(crate) fn charges(&self) -> Fact<'_> {
        Fact {
            order: self,
            of: "the provider's charges",
            ask: |order| order.booked_as("succeeded").to_string(),
        }
    }

    /// The key that the API was sent.
    pub(crate) fn upstream_key(&self) -> String {
        if !self.town.derives.get() {
            return self.key.clone();
        }
        self.found().unwrap_or_default()["derived_key"].as_str().unwrap_or_default().to_owned()
    }

    /// The gateway's record of it.
    pub(crate) fn found(&self) -> Option<Value> {
        let path = format!("/api/v1/records?key={}", self.key);
        self.town.get(self.town.admin_address(), &path)["records"].get(0).cloned()
    }

    /// The provider's ledger of it.
    pub(crate) fn booked(&self) -> Vec<Value> {
        let path = format!("/charges?reference={TENANT}/{}", self.upstream_key());
        let mut found = self.town.get(self.town.provider_address(), &path);
        serde_json::from_value(found["charges"].take()).unwrap()
    }

    fn booked_as(&self, status: &str) -> usize {
        self.booked().iter().filter(|charge| charge["status"] == status).count()
    }

    fn request(&self, faults: &[Fault]) -> Request<Bytes> {
        let mut request = Request::post(&self.path)
            .header("host", "localhost")
            .header("authorization", format!("Bearer {TENANT}"))
            .header("content-type", "application/json")
            .header("idempotency-key", format!("\"{}\"", self.key));
        if !faults.is_empty() {
            let names: Vec<_> = faults.iter().map(|fault| fault.name()).collect();
            request = request.header("x-fault", names.join(","));
        }
        request.body(Bytes::from(self.body.clone())).unwrap()
    }

    fn seen(&self, answer: Result<Reply, NoReply>) -> Seen<'_> {
        let seen = Seen { order: self, answer };
        let (mut view, line) = (self.view.borrow_mut(), seen.line());
        if view.last() != Some(&line) {
            view.push(line);
        }
        seen
    }
}

/// A client that waits for its answer.
pub(crate) struct Waiting<'a> {
    order: &'a Order<'a>,
    client: JoinHandle<Result<Reply, NoReply>>,
}

impl<'a> Waiting<'a> {
    pub(crate) fn then(self) -> Seen<'a> {
        self.order.seen(self.order.town.runtime.block_on(self.client).unwrap())
    }

    pub(crate) fn hangs_up(self) {
        self.client.abort();
        assert!(self.order.town.runtime.block_on(self.client).unwrap_err().is_cancelled());
    }
}

/// What a client saw.
#[must_use]
pub(crate) struct Seen<'a> {
    order: &'a Order<'a>,
    answer: Result<Reply, NoReply>,
}

impl Seen<'_> {
    /// An answer with this status, of which the body says this, and not a replay.
    #[track_caller]
    pub(crate) fn sees(self, status: u16, word: &str) {
        let reply = self.check(status, word);
        assert!(!reply.headers.contains_key("idempotency-replayed"), "this is a replay");
        if matches!(status, 201 | 402 | 422) && word != "key_reused" {
            *self.order.outcome.borrow_mut() = Some(reply.body.clone());
        }
    }

    /// The same answer as the first time, byte for byte.
    #[track_caller]
    pub(crate) fn sees_again(self, status: u16, word: &str) {
        let reply = self.check(status, word);
        assert!(reply.headers.contains_key("idempotency-replayed"), "this is no replay");
        if let Some(first) = &*self.order.outcome.borrow() {
            assert_eq!(first, &reply.body);
        }
    }

    #[track_caller]
    pub(crate) fn sees_nothing(self) {
        assert_eq!(self.answer.map(|reply| reply.status).unwrap_err(), NoReply::Closed);
    }

    #[track_caller]
    fn check(&self, status: u16, word: &str) -> &Reply {
        let reply = self.answer.as_ref().unwrap_or_else(|why| panic!("the client saw nothing: it {why}"));
        assert_eq!((reply.status.as_u16(), &*self.word()), (status, word), "{}", reply.json());
        reply
    }

    /// `409 in_progress`, `201 succeeded, replayed`, or `nothing`
    fn line(&self) -> String {
        let Ok(reply) = &self.answer else { return "nothing".to_owned() };
        let replayed = if reply.headers.contains_key("idempotency-replayed") { REPLAYED } else { "" };
        format!("{} {}{replayed}", reply.status.as_u16(), self.word())
    }

    /// What the body says, in a word.
    pub(crate) fn word(&self) -> String {
        let Ok(reply) = &self.answer else { return String::new() };
        let body = reply.json();
        let word = ["code", "error", "status"].iter().find_map(|name| body[name].as_str());
        word.unwrap_or("?").to_owned()
    }
}

/// What somebody knows of an order.
pub(crate) struct Fact<'a> {
    order: &'a Order<'a>,
    of: &'static str,
    ask: fn(&Order<'_>) -> String,
}

impl Fact<'_> {
    #[track_caller]
    pub(crate) fn is(&self, expected: impl ToString) {
        assert_eq!((self.ask)(self.order), expected.to_string(), "{} of {}", self.of, self.order.key);
    }

    /// Sooner or later; nobody gives a signal.
    pub(crate) fn becomes(&self, expected: impl ToString) {
        let expected = expected.to_string();
        let what = format!("{} of {} is {expected}", self.of, self.order.key);
        wait_until(&what, || (self.ask)(self.order) == expected);
    }
}

impl Order<'_> {
    /// Which cards were refused.
    #[track_caller]
    pub(crate) fn was_declined(&self, times: usize) {
        assert_eq!(self.booked_as("declined"), times);
    }

    /// The provider itself is sent this order, under a key of its own.
    pub(crate) fn is_charged_directly(&self, provider: SocketAddr, key: &str) -> Reply {
        let order = format!(r#"{{"reference": "{TENANT}/{}", "amount": 100, "currency": "EUR"}}"#, self.key);
        let request = Request::post("/charges")
            .header("host", "localhost")
            .header("content-type", "application/json")
            .header("idempotency-key", key)
            .body(Bytes::from(order))
            .unwrap();
        self.town.send(provider, request).unwrap()
    }
}
