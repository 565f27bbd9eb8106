//! Webhooks, signed by the Standard Webhooks scheme: HMAC-SHA256 over `id.timestamp.payload`.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{HeaderMap, Request};
use sha2::Sha256;

use super::Late;
use super::fault::Fault;
use super::ledger::{Charge, Order};
use crate::post;

/// What provider and merchant share.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Reads `whsec_` and base64; an empty one signs nothing.
    pub fn parse(text: &str) -> Result<Self, WrongSignature> {
        let encoded = text.strip_prefix("whsec_").ok_or(WrongSignature("a secret begins with whsec_"))?;
        let bytes = STANDARD.decode(encoded).map_err(|_| WrongSignature("a secret is base64"))?;
        if bytes.len() < 16 {
            return Err(WrongSignature("a secret has at least 16 bytes"));
        }
        Ok(Self(bytes))
    }

    /// The `webhook-signature` of an event that is sent at `timestamp`, seconds since 1970.
    #[must_use]
    pub fn sign(&self, id: &str, timestamp: u64, payload: &[u8]) -> Option<String> {
        let mac = self.mac(id, timestamp, payload)?;
        Some(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
    }

    fn mac(&self, id: &str, timestamp: u64, payload: &[u8]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(payload);
        Some(mac)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Why a webhook is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongSignature(&'static str);

impl fmt::Display for WrongSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for WrongSignature {}

/// A webhook whose signature was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The same for each delivery of one event.
    pub id: String,
}

/// How far a webhook's time may be from ours.
const TOLERANCE_S: u64 = 300;

impl Signed {
    /// Checks a webhook; `now` is seconds since 1970.
    pub fn check(
        headers: &HeaderMap,
        payload: &[u8],
        secret: &Secret,
        now: u64,
    ) -> Result<Self, WrongSignature> {
        let field = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let id = field("webhook-id").ok_or(WrongSignature("no webhook-id"))?;
        let timestamp = field("webhook-timestamp").and_then(|text| text.parse::<u64>().ok());
        let timestamp = timestamp.ok_or(WrongSignature("no webhook-timestamp"))?;
        if timestamp.abs_diff(now) > TOLERANCE_S {
            return Err(WrongSignature("too old, or from the future"));
        }
        let signatures = field("webhook-signature").ok_or(WrongSignature("no webhook-signature"))?;
        let mut signatures = signatures.split(' ').filter_map(|signature| signature.strip_prefix("v1,"));
        let is_right = signatures.any(|signature| {
            let Ok(signature) = STANDARD.decode(signature) else { return false };
            secret.mac(id, timestamp, payload).is_some_and(|mac| mac.verify_slice(&signature).is_ok())
        });
        if is_right {
            Ok(Self { id: id.to_owned() })
        } else {
            Err(WrongSignature("not signed with our secret"))
        }
    }
}

/// Tells a merchant.
pub(super) struct Webhooks {
    /// Host, port and path.
    pub(super) address: String,
    pub(super) secret: Secret,
    pub(super) late: Late,
}

/// A webhook on its way; another may wait for it.
pub(super) type Telling = tokio::task::JoinHandle<()>;

/// How often one is tried.
const TRIES: u32 = 5;

impl Webhooks {
    /// Tells of an order that it failed, if that is what goes wrong: before anybody knows.
    pub(super) fn tell_before(&self, order: &Order, faults: &[Fault]) -> Option<Telling> {
        if !faults.contains(&Fault::WebhookFailedFirst) {
            return None;
        }
        let payload = serde_json::json!({ "type": "charge.failed", "data": order }).to_string();
        let id = format!("evt_{:016x}", fastrand::u64(..));
        let (address, secret) = (self.address.clone(), self.secret.clone());
        Some(tokio::spawn(async move { deliver(&address, &secret, &id, &payload).await }))
    }

    /// Tells what became of a charge, some time after this returns, and after what is told of it already.
    pub(super) fn tell(&self, charge: &Charge, faults: &[Fault], before: Option<Telling>) {
        if faults.contains(&Fault::WebhookLost) {
            return;
        }
        let late = faults.contains(&Fault::WebhookLate).then(|| self.late.clone());
        let times = if faults.contains(&Fault::WebhookTwice) { 2 } else { 1 };
        let payload = serde_json::json!({ "type": format!("charge.{}", charge.status), "data": charge });
        let (address, secret) = (self.address.clone(), self.secret.clone());
        let (id, payload) = (format!("evt_{}", charge.id), payload.to_string());
        tokio::spawn(async move {
            if let Some(before) = before {
                let _told = before.await;
            }
            if let Some(late) = late {
                late.pass().await;
            }
            for _ in 0..times {
                deliver(&address, &secret, &id, &payload).await;
            }
        });
    }
}

async fn deliver(address: &str, secret: &Secret, id: &str, payload: &str) {
    let (host, path) = address.split_at(address.find('/').unwrap_or(address.len()));
    let mut pause = Duration::from_millis(100);
    for _ in 0..TRIES {
        let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let Some(signature) = secret.sign(id, timestamp, payload.as_bytes()) else { return };
        let request = Request::post(if path.is_empty() { "/" } else { path })
            .header("host", host)
            .header("content-type", "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", timestamp)
            .header("webhook-signature", signature)
            .body(Bytes::from(payload.to_owned()));
        let Ok(request) = request else { return };
        match post::send(host, request, Duration::from_secs(5)).await {
            Ok(reply) if reply.status.is_success() => return,
            _ => tokio::time::sleep(pause).await,
        }
        pause *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the scheme's own documentation.
    #[test]
    fn the_published_example_is_signed_as_published() {
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let payload = br#"{"test": 2432232314}"#;
        let signature = secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, payload).unwrap();
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn only_our_own_recent_signature_is_believed() {
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek".parse().unwrap());
        headers.insert("webhook-timestamp", "1614265330".parse().unwrap());
        let right = "v1,AAAA v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        headers.insert("webhook-signature", right.parse().unwrap());
        let payload = br#"{"test": 2432232314}"#;
        let check =
            |payload: &[u8], now| Signed::check(&headers, payload, &secret, now).map(|signed| signed.id);
        assert_eq!(check(payload, 1_614_265_331).unwrap(), "msg_p5jXN8AQM9LWM0D4loKWxJek");
        assert!(check(br#"{"test": 2432232315}"#, 1_614_265_331).is_err());
        assert!(check(payload, 1_614_265_330 + 301).is_err());
        let other = Secret::parse("whsec_AAAAAAAAAAAAAAAAAAAAAAAA").unwrap();
        assert!(Signed::check(&headers, payload, &other, 1_614_265_331).is_err());
        for bad in ["", "whsec_", "whsec_AAAA", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"] {
            assert!(Secret::parse(bad).is_err(), "{bad}");
        }
    }
}
