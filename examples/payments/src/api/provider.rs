//! The provider, as the API sees it.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use serde_json::json;

use super::book::Payment;
use crate::post::{self, NoReply};

/// Where it is.
pub(super) struct Provider {
    pub(super) address: String,
    pub(super) patience: Duration,
}

/// What became of a charge, as far as one knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Charged {
    Succeeded {
        charge: String,
    },
    Declined {
        charge: String,
    },
    /// Nothing was sent.
    NotSent,
    /// It may have charged.
    Unknown(String),
}

impl Provider {
    /// Asks it to charge. The payment's own id is the key by which the provider can tell a repetition. What the request says of its
    /// attempt, and of what is to go wrong, is passed on.
    pub(super) async fn charge(&self, payment: &Payment, asked: &HeaderMap) -> Charged {
        let attempt = asked.get("idempotency-attempt").and_then(|value| value.to_str().ok());
        let order = json!({
            "reference": payment.reference,
            "kind": payment.kind,
            "amount": payment.amount,
            "currency": payment.currency,
            "merchant_key": payment.idempotency_key,
            "merchant_attempt": attempt,
        });
        let mut request = Request::post("/charges")
            .header("host", &self.address)
            .header("content-type", "application/json")
            .header("idempotency-key", &payment.id);
        if let Some(fault) = asked.get("x-fault") {
            request = request.header("x-fault", fault);
        }
        let Ok(request) = request.body(Bytes::from(order.to_string())) else { return Charged::NotSent };
        let reply = match post::send(&self.address, request, self.patience).await {
            Ok(reply) => reply,
            Err(NoReply::NotSent) => return Charged::NotSent,
            Err(why) => return Charged::Unknown(format!("the provider {why}")),
        };
        let charge = reply.json()["id"].as_str().unwrap_or_default().to_owned();
        match reply.status {
            StatusCode::CREATED => Charged::Succeeded { charge },
            StatusCode::PAYMENT_REQUIRED => Charged::Declined { charge },
            status => Charged::Unknown(format!("the provider answered {status}")),
        }
    }

    /// Asks what it knows. `None`: nothing, which does not say that nothing will come.
    pub(super) async fn look_up(&self, reference: &str) -> Option<Charged> {
        let query =
            form_urlencoded::Serializer::new(String::new()).append_pair("reference", reference).finish();
        let path = format!("/charges?{query}");
        let request = Request::get(path).header("host", &self.address).body(Bytes::new()).ok()?;
        let reply = post::send(&self.address, request, self.patience).await.ok()?;
        let found = reply.json();
        let charge = found["charges"].as_array()?.first()?;
        let id = charge["id"].as_str()?.to_owned();
        match charge["status"].as_str()? {
            "succeeded" => Some(Charged::Succeeded { charge: id }),
            "declined" => Some(Charged::Declined { charge: id }),
            _ => None,
        }
    }
}
