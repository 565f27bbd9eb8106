//! The postman: has the provider's webhooks, and brings them to the API when the story says so.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use example_payments::post::send;
use example_payments::provider::Secret;
use hyper::Request;
use hyper::body::Bytes;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinHandle;

use crate::town::{FOREVER, Town};

const AT_THE_GATEWAY: &str = "/.oncegate/webhooks/provider";

pub(crate) struct Postman {
    address: SocketAddr,
    bag: std::cell::RefCell<UnboundedReceiver<Letter>>,
}

/// A webhook, as it came.
#[derive(Clone)]
pub(crate) struct Letter {
    headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Postman {
    pub(crate) async fn starts() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (letters, bag) = mpsc::unbounded_channel();
        let routes = Router::new().route("/webhooks/provider", post(take)).with_state(letters);
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { address, bag: std::cell::RefCell::new(bag) }
    }

    /// Host, port and path, as the provider wants it.
    pub(crate) fn address(&self) -> String {
        format!("{}/webhooks/provider", self.address)
    }

    /// Waits for a letter.
    pub(crate) fn receives(&self, town: &Town) -> Letter {
        let mut bag = self.bag.borrow_mut();
        let letter = town.runtime.block_on(async { tokio::time::timeout(FOREVER, bag.recv()).await });
        letter.expect("a letter comes in a minute").expect("the postman works")
    }

    /// The two letters of [`Fault::WebhookFailedFirst`](example_payments::provider::Fault).
    pub(crate) fn receives_failed_and_succeeded(&self, town: &Town) -> [Letter; 2] {
        let letters = [self.receives(town), self.receives(town)];
        assert_eq!(letters.each_ref().map(Letter::says), ["charge.failed", "charge.succeeded"]);
        letters
    }

    #[track_caller]
    pub(crate) fn has_nothing(&self) {
        assert!(self.bag.borrow_mut().try_recv().is_err(), "there is a letter in the bag");
    }
}

async fn take(State(letters): State<UnboundedSender<Letter>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    match letters.send(Letter { headers, body }) {
        Ok(()) => StatusCode::NO_CONTENT,
        Err(_) => StatusCode::GONE,
    }
}

impl Letter {
    /// Brought to the API; its answer.
    pub(crate) fn is_delivered(&self, town: &Town) -> u16 {
        self.is_brought(town, town.api_address(), "/webhooks/provider").0
    }

    /// Brought to the gateway; its answer, and what it says has come of it.
    pub(crate) fn is_delivered_to_the_gateway(&self, town: &Town) -> (u16, String) {
        self.is_brought(town, town.gateway_address(), AT_THE_GATEWAY)
    }

    /// On its way to the gateway; nobody waits for its answer yet.
    pub(crate) fn is_on_its_way(&self, town: &Town) -> JoinHandle<u16> {
        let (to, request) = (town.gateway_address().to_string(), self.request(AT_THE_GATEWAY));
        town.runtime.spawn(async move { send(&to, request, FOREVER).await.unwrap().status.as_u16() })
    }

    fn is_brought(&self, town: &Town, to: SocketAddr, path: &str) -> (u16, String) {
        let reply = town.runtime.block_on(send(&to.to_string(), self.request(path), FOREVER)).unwrap();
        let result = reply.json()["result"].as_str().unwrap_or_default().to_owned();
        (reply.status.as_u16(), result)
    }

    fn request(&self, path: &str) -> Request<Bytes> {
        let mut request = Request::post(path).header("host", "localhost");
        for (name, value) in &self.headers {
            if name.as_str().starts_with("webhook-") || name == "content-type" {
                request = request.header(name, value);
            }
        }
        request.body(self.body.clone()).unwrap()
    }

    /// Brought to the gateway, which must say so.
    #[track_caller]
    pub(crate) fn is_heard(&self, town: &Town, status: u16, result: &str) {
        assert_eq!(self.is_delivered_to_the_gateway(town), (status, result.to_owned()), "{}", self.says());
    }

    /// The event's type.
    pub(crate) fn says(&self) -> String {
        let event: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        event["type"].as_str().unwrap().to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.remove(name).unwrap();
        self
    }

    pub(crate) fn with_body(mut self, body: &str) -> Self {
        self.body = Bytes::from(body.to_owned());
        self
    }

    /// The same letter, with somebody's signature.
    pub(crate) fn signed_with(mut self, secret: &str) -> Self {
        let timestamp = self.header("webhook-timestamp").parse().unwrap();
        let signature =
            Secret::parse(secret).unwrap().sign(self.header("webhook-id"), timestamp, &self.body).unwrap();
        self.headers.insert("webhook-signature", signature.parse().unwrap());
        self
    }
}
