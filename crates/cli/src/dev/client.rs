//! Clients of the show.

use std::net::SocketAddr;
use std::time::Duration;

use example_payments::post::{self, NoReply, Reply};
use hyper::Request;
use hyper::body::Bytes;

use super::Error;

/// No request takes longer than this.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// One payment.
#[derive(Clone, Copy)]
pub(super) struct Pay<'a> {
    pub(super) tenant: &'a str,
    pub(super) key: &'a str,
    pub(super) amount: u32,
    /// What the provider will do.
    pub(super) fault: Option<&'a str>,
    /// The payment that is refunded; `None`: this is a payment.
    pub(super) refund_of: Option<&'a str>,
}

impl<'a> Pay<'a> {
    /// The same, and something goes wrong.
    pub(super) const fn with(self, fault: &'a str) -> Self {
        Self { fault: Some(fault), ..self }
    }

    pub(super) fn request(self) -> Result<Request<Bytes>, Error> {
        let path = match self.refund_of {
            Some(payment) => format!("/payments/{payment}/refunds"),
            None => "/payments".to_owned(),
        };
        let mut request = Request::post(path)
            .header("host", "localhost")
            .header("authorization", format!("Bearer {}", self.tenant))
            .header("content-type", "application/json")
            .header("idempotency-key", format!("\"{}\"", self.key));
        if let Some(fault) = self.fault {
            request = request.header("x-fault", fault);
        }
        let body = match self.refund_of {
            Some(_) => format!(r#"{{"amount": {}}}"#, self.amount),
            None => format!(r#"{{"amount": {}, "currency": "EUR"}}"#, self.amount),
        };
        Ok(request.body(Bytes::from(body))?)
    }
}

/// What a client saw.
pub(super) struct Seen {
    /// In a few words.
    pub(super) seen: String,
    pub(super) body: Bytes,
}

pub(super) async fn send(to: SocketAddr, request: Request<Bytes>) -> Result<Seen, NoReply> {
    post::send(&to.to_string(), request, PATIENCE).await.map(|reply| seen(&reply))
}

fn seen(reply: &Reply) -> Seen {
    let body = reply.json();
    let said = body["code"].as_str().or_else(|| body["status"].as_str()).unwrap_or("?");
    let replayed = if reply.headers.contains_key("idempotency-replayed") { ", replayed" } else { "" };
    let seen = format!("{} {said}{replayed}", reply.status.as_u16());
    Seen { seen, body: reply.body.clone() }
}
