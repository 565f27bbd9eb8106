//! Probes and webhooks as an operator writes them: what is asked, what an answer means, what an event says.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod judge;
mod read;

use oncegate_core::identity::{Fence, RecordId, Token};
use oncegate_core::key::Key;
use oncegate_core::policy::ForwardKey;
use oncegate_core::response::Answer;
use oncegate_core::scope::{Address, Operation, Scope};
use oncegate_core::time::Timestamp;
use oncegate_gateway::reconcile::About;
use oncegate_gateway::{Config, Environment, Given, Secret};

/// The page that operators read: its examples are what is tested.
const PAGE: &str = include_str!("../../../../docs/reconciliation.md");

/// The examples of the page, in their order.
fn examples() -> Vec<&'static str> {
    PAGE.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// What the payments example ships, and `oncegate dev` runs.
const SHIPPED_PROBE: &str = include_str!("../../../../examples/payments/gateway/probe.toml");
const SHIPPED_WEBHOOK: &str = include_str!("../../../../examples/payments/gateway/webhook.toml");

/// The page said "not yet" of what the shipped file took for "did not happen", and named another field for the key.
#[test]
fn what_the_page_shows_of_the_payments_example_is_what_is_shipped() {
    let table = |text: &str| text.parse::<toml::Table>().unwrap();
    let first = |text: &str, array: &str| table(text)[array][0].as_table().unwrap().clone();
    let shown = examples();
    let route = first(shown[0], "route");
    assert_eq!(route["forward_key"].as_str(), Some("derived"), "the probe asks by the derived key");
    assert_eq!(route["probe"].as_table(), Some(&table(SHIPPED_PROBE)));
    let mut webhook = first(shown[2], "webhook");
    for own in ["name", "secrets"] {
        assert!(webhook.remove(own).is_some(), "{own}");
    }
    assert_eq!(webhook, table(SHIPPED_WEBHOOK));
}

fn config(text: &str) -> Config {
    let variables = [
        ("STRIPE_KEY", "sk_test_1"),
        ("STRIPE_WEBHOOK_SECRET", "whsec_0123456789abcdef"),
        ("STRIPE_WEBHOOK_SECRET_NEXT", "whsec_fedcba9876543210"),
        ("PROVIDER_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), Secret::new(value)));
    let given = Given {
        upstream: Some("http://127.0.0.1:3000".to_owned()),
        environment: Environment::Only(variables.into()),
        ..Given::default()
    };
    Config::parse(None, text, &given).unwrap()
}

/// A record whose life began at second 1,000.
fn about() -> About {
    let scope = Scope::tenant("acme").unwrap();
    let address = Address { scope, key: Key::from_text("order-1").unwrap() };
    About {
        id: RecordId::of(&address),
        address,
        life: Token::from_bytes([1; 16]),
        operation: Operation::new("POST /payments").unwrap(),
        fence: Fence::from_raw(7),
        reference: None,
        created_at: Timestamp::from_micros(1_000_000_000),
        forward_key: ForwardKey::Derived,
        answer_bytes_max: 1 << 20,
    }
}

/// Status, headers and body, as one text.
fn shown(answer: &Answer) -> String {
    match answer {
        Answer::NotKept { status, .. } => format!("{status} not kept"),
        Answer::Kept(response) => {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let headers: Vec<_> =
                response.headers.iter().map(|(name, value)| format!("{name}: {}", text(value))).collect();
            format!("{} {} {}", response.status, headers.join("; "), text(&response.body))
        }
    }
}
