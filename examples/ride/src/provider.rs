//! The payment provider of `examples/payments`, as this service sees it.

use std::time::Duration;

use bytes::Bytes;
use example_payments::post::{self, NoReply};
use http::{Request, StatusCode};
use oncegate_tower::phased::{DownstreamKey, Found, JobError};
use serde::{Deserialize, Serialize};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Provider {
    pub(crate) address: String,
}

/// A charge that was made: the phase's output.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Charged {
    pub(crate) id: String,
}

impl Provider {
    /// Asks it to charge, under the downstream key.
    pub(crate) async fn charge(
        &self,
        key: &DownstreamKey,
        of: &str,
        amount: i64,
    ) -> Result<Charged, JobError> {
        let order = json!({
            "reference": key.as_str(), "amount": amount, "currency": "EUR", "merchant_key": of,
        });
        let request = Request::post("/charges")
            .header("host", &self.address)
            .header("content-type", "application/json")
            .header("idempotency-key", key.as_str())
            .body(Bytes::from(order.to_string()))?;
        let reply = match post::send(&self.address, request, PATIENCE).await {
            Ok(reply) => reply,
            Err(why @ NoReply::NotSent) => return Err(JobError::not_executed(why)),
            Err(why) => return Err(JobError::unknown(why)),
        };
        match (reply.status, reply.json()["id"].as_str()) {
            (StatusCode::CREATED, Some(id)) => Ok(Charged { id: id.to_owned() }),
            (status, _) => Err(JobError::unknown(format_args!("the provider answered {status}"))),
        }
    }

    /// Asks it what came of that.
    pub(crate) async fn find(&self, key: &DownstreamKey) -> Found<Charged> {
        let request = Request::get(format!("/charges?reference={key}"))
            .header("host", &self.address)
            .body(Bytes::new());
        let Ok(request) = request else { return Found::NotKnown("no such request".into()) };
        match post::send(&self.address, request, PATIENCE).await {
            Ok(reply) if reply.status == StatusCode::OK => match reply.json()["charges"][0]["id"].as_str() {
                Some(id) => Found::Happened(Charged { id: id.to_owned() }),
                None => Found::DidNotHappen,
            },
            Ok(reply) => Found::NotKnown(format!("the provider answered {}", reply.status).into()),
            Err(why) => Found::NotKnown(why.to_string().into()),
        }
    }
}
