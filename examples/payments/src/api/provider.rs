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

/// A question changes nothing, so there is time for it: one that is given up too early only has to be asked again.
const FOR_A_QUESTION: Duration = Duration::from_secs(5);

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

    /// Asks what it knows. `None`: it has answered, and knows of nothing, which does not say that nothing will come. An error says nothing at
    /// all: whoever takes it for "nothing" charges a second time as soon as the provider is down.
    pub(super) async fn look_up(&self, reference: &str) -> Result<Option<Charged>, NotAsked> {
        let query =
            form_urlencoded::Serializer::new(String::new()).append_pair("reference", reference).finish();
        let path = format!("/charges?{query}");
        let request = Request::get(path).header("host", &self.address).body(Bytes::new());
        let request = request.map_err(|error| NotAsked(error.to_string()))?;
        let reply = post::send(&self.address, request, self.patience.max(FOR_A_QUESTION)).await;
        let reply = reply.map_err(|why| NotAsked(format!("the provider {why}")))?;
        if reply.status != StatusCode::OK {
            return Err(NotAsked(format!("the provider answered {}", reply.status)));
        }
        let found = reply.json();
        let not_understood = || NotAsked("the provider's answer is not understood".to_owned());
        let Some(charge) = found["charges"].as_array().ok_or_else(not_understood)?.first() else {
            return Ok(None);
        };
        let charge_id = charge["id"].as_str().ok_or_else(not_understood)?.to_owned();
        match charge["status"].as_str() {
            Some("succeeded") => Ok(Some(Charged::Succeeded { charge: charge_id })),
            Some("declined") => Ok(Some(Charged::Declined { charge: charge_id })),
            _ => Err(not_understood()),
        }
    }
}

/// Why nobody could say what the provider knows.
#[derive(Debug)]
pub(super) struct NotAsked(pub(super) String);

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    /// What a provider's answer to a question comes to; `None`: it never answers.
    async fn looked_up(answer: Option<&'static str>) -> Result<Option<Charged>, NotAsked> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut question = [0; 1024];
            assert_ne!(stream.read(&mut question).unwrap(), 0);
            match answer {
                Some(answer) => stream.write_all(answer.as_bytes()).unwrap(),
                // Until whoever asks gives up.
                None => drop(stream.read(&mut question)),
            }
        });
        let patience = Duration::from_secs(if answer.is_some() { 30 } else { 1 });
        Provider { address, patience }.look_up("ann/order-1").await
    }

    /// Only an answer that says so means that there is nothing: a provider that is down, slow or in trouble has said nothing.
    #[tokio::test]
    async fn only_an_empty_list_is_nothing() {
        let empty = "HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n{\"charges\":[]}";
        assert_eq!(looked_up(Some(empty)).await.unwrap(), None);
        for answer in [
            None,
            Some(""),
            Some("HTTP/1.1 500 Internal Server Error\r\ncontent-length: 14\r\n\r\n{\"charges\":[]}"),
            Some("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"),
            Some("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>"),
            Some("HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n{\"charges\":["),
            Some("HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n{\"charges\":[{}]}"),
        ] {
            assert!(looked_up(answer).await.is_err(), "{answer:?}");
        }
        let nobody = Provider { address: "127.0.0.1:1".to_owned(), patience: Duration::from_secs(5) };
        assert!(nobody.look_up("ann/order-1").await.is_err());
    }
}
