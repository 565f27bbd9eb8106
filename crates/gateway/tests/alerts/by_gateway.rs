//! Alerts about clients, through a whole gateway and its own `/metrics`.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oncegate_gateway::{Config, Environment, Gateway, Given, Secret};

use crate::client::Call;
use crate::upstream::Upstream;
use crate::watched::{Counting, Watched};

const WEBHOOK: &str = r#"
[[webhook]]
name = "provider"
scheme = "standard"
secrets = ["env:PROVIDER_SECRET"]
record = { id = "/id" }
life = "/life"
happened = [{ pointer = "/type", equals = "done" }]
answer = { status = 201, body = "" }
"#;

/// A gateway that a provider may tell things.
pub(crate) async fn gateway(counting: &Counting, upstream: &Upstream) -> Gateway {
    start(counting, upstream, WEBHOOK).await
}

/// A gateway whose certificate, in this folder, expires after so long.
pub(crate) async fn gateway_with_tls(
    counting: &Counting,
    upstream: &Upstream,
    folder: &Path,
    expires_after: Duration,
) -> Gateway {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut certificate = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    certificate.not_after = rcgen::date_time_ymd(1970, 1, 1) + since_1970 + expires_after;
    let certificate = certificate.self_signed(&key).unwrap();
    let (chain_file, key_file) = (folder.join("chain.pem"), folder.join("key.pem"));
    std::fs::write(&chain_file, certificate.pem()).unwrap();
    std::fs::write(&key_file, key.serialize_pem()).unwrap();
    let (chain_file, key_file) = (chain_file.display(), key_file.display());
    let toml = format!("[listen]\ntls_certificate = \"{chain_file}\"\ntls_key = \"{key_file}\"\n");
    start(counting, upstream, &toml).await
}

async fn start(counting: &Counting, upstream: &Upstream, toml: &str) -> Gateway {
    let secret = Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let given = Given {
        upstream: Some(format!("http://{}", upstream.addr)),
        listen: Some("127.0.0.1:0".to_owned()),
        admin: Some("127.0.0.1:0".to_owned()),
        store: Some(Secret::new("memory:")),
        environment: Environment::Only([("PROVIDER_SECRET".to_owned(), secret)].into()),
        ..Given::default()
    };
    let config = Config::parse(None, toml, &given).unwrap_or_else(|error| panic!("{error}"));
    Gateway::start(config, Some(counting.handle())).await.unwrap_or_else(|error| panic!("{error}"))
}

/// Somebody sends what no provider has signed.
pub(crate) async fn tell_without_signature(gateway: &Gateway) {
    let call = Call::anonymous("POST", "/.oncegate/webhooks/provider").json(r#"{"type":"done"}"#);
    assert_eq!(call.send(gateway.address()).await.status, 401);
}

/// Somebody goes on doing so.
#[tokio::test(flavor = "multi_thread")]
async fn events_are_not_believed() {
    let counting = Counting::start().await;
    let upstream = Upstream::numbered().await;
    let gateway = gateway(&counting, &upstream).await;
    Watched::scraping(gateway.admin_address().tcp().unwrap())
        .until_firing("OncegateWebhooksRefused", async || tell_without_signature(&gateway).await)
        .await;
}

/// A client sends every payment under the same key: seen by the route, and by the tenant.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_uses_one_key_for_everything() {
    let counting = Counting::start().await;
    let upstream = Upstream::numbered().await;
    let gateway = gateway(&counting, &upstream).await;
    Call::pay("the-only-key").send(gateway.address()).await.expect_first(200, "run 1");
    let mut amounts = 1..;
    let mut misuse = async || {
        let other = format!("{{\"amount\":{}}}", 1_000 + amounts.next().unwrap());
        let call = Call::post("/payments").key("the-only-key").json(&other);
        assert_eq!(call.send(gateway.address()).await.status, 422);
    };
    let watched = || Watched::scraping(gateway.admin_address().tcp().unwrap());
    watched().until_firing("OncegateKeyMisuse", &mut misuse).await;
    watched().until_firing("OncegateTenantMisuse", &mut misuse).await;
    assert_eq!(upstream.runs(), 1);
}

/// A client does not understand the answer, and asks without pause.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_repeats_itself_without_pause() {
    let counting = Counting::start().await;
    let upstream = Upstream::numbered().await;
    let gateway = gateway(&counting, &upstream).await;
    let call = Call::pay("the-same-payment");
    call.send(gateway.address()).await.expect_first(200, "run 1");
    Watched::scraping(gateway.admin_address().tcp().unwrap())
        .until_firing("OncegateDuplicatesSpike", async || {
            for _ in 0..4 {
                call.send(gateway.address()).await.expect_replay(200, "run 1");
            }
        })
        .await;
    assert_eq!(upstream.runs(), 1);
}

/// A client sends a broken key with every request.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_sends_what_is_refused() {
    let counting = Counting::start().await;
    let upstream = Upstream::numbered().await;
    let gateway = gateway(&counting, &upstream).await;
    Watched::scraping(gateway.admin_address().tcp().unwrap())
        .until_firing("OncegateClientsRefused", async || {
            let call = Call::post("/payments").key("not one key").header("idempotency-key", "but two");
            assert_eq!(call.json("{}").send(gateway.address()).await.status, 400);
        })
        .await;
    assert_eq!(upstream.runs(), 0);
}

/// A certificate was not renewed.
#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_expires_soon() {
    let counting = Counting::start().await;
    let upstream = Upstream::numbered().await;
    let folder = tempfile::tempdir().unwrap();
    let in_ten_days = Duration::from_hours(10 * 24);
    let gateway = gateway_with_tls(&counting, &upstream, folder.path(), in_ten_days).await;
    Watched::scraping(gateway.admin_address().tcp().unwrap())
        .until_firing("OncegateCertificateExpires", async || {})
        .await;
}
