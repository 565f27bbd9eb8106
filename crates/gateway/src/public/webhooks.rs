//! `POST /.oncegate/webhooks/{name}`: what a provider says by itself.
//!
//! **Invariant:** acknowledged only when what it says is durable, or needs no keeping; believed only if it is signed.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use oncegate::AnyStore;
use oncegate_core::identity::RecordId;
use oncegate_core::problem::{Code, Problem};
use oncegate_engine::{About, Engine, Heard, Life, Message, Says};
use oncegate_store::StoreError;
use oncegate_tower::{RefusedBody, RequestLimit as _, count_refusal};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

use super::{Answer, ClientBody, own, refusal};
use crate::ask::Asker;
use crate::proxy::Limiter;
use crate::reconcile::{Claim, Reading, RecordName, Said, Scheme, Told, Webhook, read};

/// Where providers tell.
pub(super) const WEBHOOKS: &str = "/.oncegate/webhooks/";

/// When an event that came too early may come again, in seconds.
const AGAIN_AFTER_S: u16 = 5;

/// Where events go.
pub(super) struct Ear<'a> {
    pub(super) engine: &'a Engine<AnyStore>,
    /// Knows how large an answer each route keeps.
    pub(super) asker: &'a Asker,
    pub(super) limiter: &'a Limiter,
    /// How long an event about a key that was never seen is kept.
    pub(super) keep_for: Duration,
}

pub(super) async fn answer(ear: Ear<'_>, webhooks: &[Webhook], request: Request<ClientBody>) -> Answer {
    let (head, mut body) = request.into_parts();
    let name = head.uri.path().strip_prefix(WEBHOOKS).unwrap_or_default();
    let Some(webhook) = webhooks.iter().find(|webhook| webhook.name == name) else {
        let answer =
            refusal(&Problem::new(Code::OperationNotFound, "There is no webhook of this name here."));
        count_refusal(&answer, None);
        oncegate_tower::leave(&head.headers, body).await;
        return answer;
    };
    if head.method != Method::POST {
        let words = "webhooks are sent with POST";
        let mut answer = told(webhook, "method_not_allowed", StatusCode::METHOD_NOT_ALLOWED, words);
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        oncegate_tower::leave(&head.headers, body).await;
        return answer;
    }
    let limit = usize::try_from(webhook.body_bytes_max).unwrap_or(usize::MAX);
    let body = match Limited::new(&mut body, limit).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            oncegate_tower::leave(&head.headers, body).await;
            let words = "the event is larger than `body_bytes_max` of this webhook";
            return told(webhook, "too_large", StatusCode::PAYLOAD_TOO_LARGE, words);
        }
        Err(error) => {
            if let Some(RefusedBody(problem)) = error.downcast_ref() {
                count(webhook, problem.reason());
                return refusal(problem);
            }
            return told(webhook, "cut_off", StatusCode::BAD_REQUEST, "the event did not come whole");
        }
    };
    let Some(_place) = ear.limiter.admit() else {
        count(webhook, "overloaded");
        return refusal(&Problem::overloaded());
    };
    let now = ear.engine.now().at;
    if let Err(unverified) = webhook.verify(&head.headers, &body, now) {
        return told(webhook, unverified.code(), StatusCode::UNAUTHORIZED, &unverified.to_string());
    }
    match read(webhook, &body) {
        Reading::Ignored => told(webhook, "ignored", StatusCode::OK, "it is of no interest here"),
        Reading::NotUnderstood { why } => {
            tracing::warn!(webhook = webhook.name, %why, "a signed event is not covered by its mapping");
            told(webhook, "not_understood", StatusCode::UNPROCESSABLE_ENTITY, &why.to_string())
        }
        Reading::Said(said) => match hear(&ear, webhook, &head.headers, &body, said).await {
            Ok(Heard::TooEarly) => {
                let mut answer =
                    told(webhook, word(Heard::TooEarly), status(Heard::TooEarly), words(Heard::TooEarly));
                answer.headers_mut().insert(header::RETRY_AFTER, AGAIN_AFTER_S.into());
                answer
            }
            Ok(came) => told(webhook, word(came), status(came), words(came)),
            Err(error) => {
                tracing::warn!(webhook = webhook.name, %error, "an event could not be recorded; its sender will send it again");
                count(webhook, "store_error");
                let words = "The event could not be recorded right now. Send it again later.";
                refusal(&Problem::new(Code::StoreUnavailable, words).retry_after(Duration::from_secs(5)))
            }
        },
    }
}

async fn hear(
    ear: &Ear<'_>,
    webhook: &Webhook,
    headers: &HeaderMap,
    body: &Bytes,
    said: Said,
) -> Result<Heard, Arc<StoreError>> {
    let says = match said.finding {
        Told::Happened { answer } => Says::Happened(Arc::new(answer)),
        Told::Negative { final_for: Some(fence) } => Says::FailedForGood(fence),
        Told::Negative { final_for: None } => Says::Failed,
    };
    let message = Message {
        name: delivery(webhook, headers, body).into(),
        about: match said.record {
            RecordName::Id(id) => About::Record(id),
            RecordName::Address(address) => About::Record(RecordId::of(&address)),
            RecordName::Reference(reference) => About::Reference(reference),
        },
        life: life(said.life),
        source: format!("webhook {}", webhook.name).into(),
        reference: said.reference,
        says,
    };
    ear.engine.hear(&message, ear.keep_for, ear.asker).await
}

fn life(claim: Claim) -> Life {
    match claim {
        Claim::Certain => Life::Any,
        Claim::Named(name) => Life::Called(name.into()),
        Claim::Created { at, clock_error } => Life::MadeAt(at.latest().plus(clock_error)),
    }
}

/// The same delivery has the same name: by what is signed, and not by when it was sent.
fn delivery(webhook: &Webhook, headers: &HeaderMap, body: &Bytes) -> String {
    let id = match webhook.scheme {
        Scheme::Standard => headers.get("webhook-id").and_then(|id| id.to_str().ok()),
        Scheme::Stripe => None,
    };
    let name = id.map_or_else(|| STANDARD_NO_PAD.encode(Sha256::digest(body)), str::to_owned);
    format!("{}/{name}", webhook.name)
}

fn told(webhook: &Webhook, result: &'static str, status: StatusCode, words: &str) -> Answer {
    count(webhook, result);
    let body = json!({ "result": result, "detail": words });
    own(status, "application/json", body.to_string().into_bytes())
}

fn count(webhook: &Webhook, result: &'static str) {
    metrics::counter!("oncegate.webhook.count", "webhook" => webhook.name.clone(), "result" => result)
        .increment(1);
}

const fn word(heard: Heard) -> &'static str {
    match heard {
        Heard::Settled => "settled",
        Heard::KeptAsEvidence => "kept_as_evidence",
        Heard::Woken => "woken",
        Heard::KeptApart => "kept_apart",
        Heard::AnotherLife => "another_life",
        Heard::TooEarly => "too_early",
        Heard::Confirmed => "confirmed",
        Heard::Nothing => "nothing_to_do",
    }
}

const fn status(heard: Heard) -> StatusCode {
    match heard {
        Heard::KeptApart | Heard::KeptAsEvidence | Heard::Woken => StatusCode::ACCEPTED,
        Heard::TooEarly => StatusCode::SERVICE_UNAVAILABLE,
        Heard::Settled | Heard::AnotherLife | Heard::Confirmed | Heard::Nothing => StatusCode::OK,
    }
}

const fn words(heard: Heard) -> &'static str {
    match heard {
        Heard::Settled => "the record is settled by it",
        Heard::KeptAsEvidence => "the attempt is still running; applied if it ends in doubt",
        Heard::Woken => "it proves nothing by itself; the probe will ask",
        Heard::KeptApart => {
            "there is no such record yet, or none that has learnt this reference; kept for a while"
        }
        Heard::AnotherLife => "it is about an earlier or later use of the key",
        Heard::TooEarly => {
            "the attempt is still running, and nothing was recorded; send it again when the attempt has ended"
        }
        Heard::Confirmed => "the record says so already",
        Heard::Nothing => "it changes nothing; what contradicts the record is in its story",
    }
}
