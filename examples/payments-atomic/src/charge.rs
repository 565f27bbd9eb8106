//! Keeping the promise: the provider is asked to charge, as often as it takes, always under the same key.

use std::time::Duration;

use bytes::Bytes;
use example_payments::post::{self, NoReply, Reply};
use http::header::RETRY_AFTER;
use http::{Request, StatusCode};
use oncegate::response::{Answer, Response};
use oncegate::{Delivering, Delivery, Effect, Effects, Patience, Sent};
use serde_json::json;

use crate::Options;
use crate::payments::{Payment, Payments};

pub(crate) fn effects(options: &Options, payments: Payments) -> Effects {
    let charge = Charge { provider: options.provider.clone(), patience: options.patience, payments };
    Effects::new().with("charge", charge)
}

struct Charge {
    provider: String,
    patience: Duration,
    payments: Payments,
}

impl Effect for Charge {
    fn deliver<'a>(&'a self, delivery: &'a Delivery<'a>) -> Delivering<'a> {
        Box::pin(async move {
            match serde_json::from_slice(delivery.payload) {
                Ok(payment) => self.charge(payment, delivery.downstream_key).await,
                Err(error) => Sent::Refused(format!("not a payment: {error}").into()),
            }
        })
    }

    fn patience(&self) -> Patience {
        let timeout = self.patience + Duration::from_secs(1);
        Patience { timeout, backoff: Duration::from_millis(200), ..Patience::default() }
    }
}

impl Charge {
    async fn charge(&self, mut payment: Payment, key: &str) -> Sent {
        let order = json!({
            "reference": payment.id, "kind": "payment", "amount": payment.amount, "currency": payment.currency,
        });
        let request = Request::post("/charges")
            .header("host", &self.provider)
            .header("content-type", "application/json")
            .header("idempotency-key", key)
            .body(Bytes::from(order.to_string()));
        let Ok(request) = request else { return later(None, "the request could not be made") };
        let reply = match post::send(&self.provider, request, self.patience).await {
            Ok(reply) => reply,
            // Nobody is there, which says nothing of this payment.
            Err(why @ NoReply::NotSent) => return away(None, &format!("the provider {why}")),
            // Whether or not it has charged: it dedupes by the key.
            Err(why) => return later(None, &format!("the provider {why}")),
        };
        let charge = reply.json()["id"].as_str().unwrap_or_default().to_owned();
        payment.status = match reply.status {
            StatusCode::CREATED => "succeeded".to_owned(),
            StatusCode::PAYMENT_REQUIRED => "declined".to_owned(),
            status => {
                let (after, why) = (retry_after(&reply), format!("the provider answered {status}"));
                let is_away = status == StatusCode::SERVICE_UNAVAILABLE;
                return if is_away { away(after, &why) } else { later(after, &why) };
            }
        };
        if let Err(error) = self.payments.settle(&payment.id, &payment.status, &charge).await {
            return later(None, &format!("the payment could not be written down: {error}"));
        }
        payment.charge = Some(charge.clone());
        Sent::Delivered {
            reference: Some(charge.into()),
            answer: Some(Box::new(answer(reply.status, &payment))),
        }
    }
}

/// What the client of `POST /payments` is told, now and whenever it asks again.
fn answer(status: StatusCode, payment: &Payment) -> Answer {
    let headers = vec![("content-type".to_owned(), b"application/json".to_vec())];
    Answer::Kept(Response { status: status.as_u16(), headers, body: json!(payment).to_string().into_bytes() })
}

fn later(after: Option<Duration>, why: &str) -> Sent {
    Sent::Later { after, why: why.into() }
}

/// Tries while the provider is away do not use up a payment's.
fn away(after: Option<Duration>, why: &str) -> Sent {
    Sent::Unreachable { after, why: why.into() }
}

/// When the provider wants to be asked again.
fn retry_after(reply: &Reply) -> Option<Duration> {
    reply.headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok().map(Duration::from_secs)
}
