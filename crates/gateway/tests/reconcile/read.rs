//! What a provider's event says, and about which record.

use std::time::Duration;

use http::HeaderMap;
use oncegate_core::identity::{Fence, Token};
use oncegate_core::policy::ForwardKey;
use oncegate_core::time::Timestamp;
use oncegate_gateway::reconcile::{
    About, Reading, RecordName, Said, Told, Unverified, Webhook, forwarded_key, read,
};
use proptest::prelude::*;

use crate::{about, config, examples, shown};

/// A webhook that finds records in this way.
fn webhook(lines: &str) -> Webhook {
    let text = format!(
        "[defaults]\nforward_key = \"derived\"\n[[webhook]]\nname = \"x\"\nscheme = \"standard\"\nsecrets = [\"env:PROVIDER_SECRET\"]\n\
         happened = [{{ pointer = \"/type\", equals = \"done\" }}]\ndid_not_happen = [{{ pointer = \"/type\", equals = \"failed\" }}]\n\
         ignored = [{{ pointer = \"/type\", equals = \"seen\" }}]\nanswer = {{ status = 200, pointer = \"/type\" }}\n{lines}"
    );
    config(&text).webhooks.remove(0)
}

fn derived(about: &About) -> String {
    forwarded_key(ForwardKey::Derived, &about.address, about.life).unwrap()
}

fn said(webhook: &Webhook, body: &str) -> Said {
    match read(webhook, body.as_bytes()) {
        Reading::Said(said) => said,
        other => panic!("{body}: {other:?}"),
    }
}

fn not_understood(webhook: &Webhook, body: &str) -> &'static str {
    match read(webhook, body.as_bytes()) {
        Reading::NotUnderstood { why } => why.code(),
        other => panic!("{body}: {other:?}"),
    }
}

#[test]
fn the_payments_example() {
    let webhook = config(&format!("{}\n{}", examples()[0], examples()[2])).webhooks.remove(0);
    let about = about();
    let event = |kind: &str| {
        format!(
            r#"{{"type":"charge.{kind}","data":{{"id":"ch_1","merchant_key":"{}","status":"{kind}"}}}}"#,
            derived(&about)
        )
    };
    let said = said(&webhook, &event("succeeded"));
    assert_eq!(said.record, RecordName::Id(about.id));
    assert_eq!(said.reference.as_deref(), Some("ch_1"));
    assert!(said.life.is_of(&about));
    let Told::Happened { answer } = &said.finding else { panic!("{said:?}") };
    assert!(shown(answer).starts_with("201 content-type: application/json {\"id\":\"ch_1\""));
    assert_eq!(shown(&answer.clone().bounded(5)), "201 not kept");
    let Told::Happened { answer } = crate::read::said(&webhook, &event("declined")).finding else { panic!() };
    assert!(shown(&answer).starts_with("402 "));
    assert_eq!(not_understood(&webhook, &event("invented")), "undecided");
}

/// Attack 7, by webhook: an event about the key's earlier life.
#[test]
fn an_event_about_an_earlier_life_does_not_name_this_one() {
    let earlier = About { life: Token::from_bytes([2; 16]), ..about() };
    let by_key = webhook("record = { forwarded_key = \"/key\" }");
    let event = format!(r#"{{"type":"done","key":"{}"}}"#, derived(&earlier));
    let told = said(&by_key, &event);
    assert_eq!(told.record, RecordName::Id(about().id), "the same record");
    assert!(told.life.is_of(&earlier) && !told.life.is_of(&about()));

    let by_life = webhook("record = { id = \"/id\" }\nlife = \"/life\"");
    let event = |life: &str| format!(r#"{{"type":"done","id":"{}","life":{life}}}"#, about().id);
    assert!(said(&by_life, &event(&format!("\"{}\"", about().life.life_name()))).life.is_of(&about()));
    assert!(!said(&by_life, &event(&format!("\"{}\"", earlier.life.life_name()))).life.is_of(&about()));
    assert!(!said(&by_life, &event("\"\"")).life.is_of(&about()));
    assert_eq!(not_understood(&by_life, &event("null")), "no_life");

    let by_time = webhook("record = { id = \"/id\" }\ncreated = \"/at\"\nclock_error = \"0s\"");
    let event = |at: u32| format!(r#"{{"type":"done","id":"{}","at":{at}}}"#, about().id);
    assert!(said(&by_time, &event(1_000)).life.is_of(&about()));
    assert!(!said(&by_time, &event(999)).life.is_of(&about()));
    assert_eq!(not_understood(&by_time, &event(1_000).replace("\"at\":1000", "\"at\":\"x\"")), "no_moment");
}

#[test]
fn records_are_found_by_key_and_by_reference() {
    let by_key = webhook(
        "record = { key = \"/data/key\", scope = \"x-tenant:{pointer:/data/tenant}\", operation = \"POST /x\" }\nkeys_are_never_reused = true",
    );
    let told = said(&by_key, r#"{"type":"done","data":{"key":"order-1","tenant":"acme"}}"#);
    let RecordName::Address(address) = told.record else { panic!("{told:?}") };
    assert_eq!((address.scope.tenant_str(), address.key.as_str()), ("x-tenant:acme", "order-1"));
    assert!(address.scope.as_str().ends_with("POST /x") && told.life.is_of(&about()));
    for wrong in [
        r#"{"type":"done","data":{"key":"order-1"}}"#,
        r#"{"type":"done","data":{"tenant":"acme"}}"#,
        r#"{"type":"done","data":{"key":"","tenant":"acme"}}"#,
        r#"{"type":"done","data":{"key":"order-1","tenant":"a\u001fPOST /y"}}"#,
        r#"{"type":"done","data":{"key":["order-1"],"tenant":"acme"}}"#,
    ] {
        assert_eq!(not_understood(&by_key, wrong), "no_record", "{wrong}");
    }
    let by_reference = webhook("record = { reference = \"/id\" }");
    assert_eq!(
        said(&by_reference, r#"{"type":"done","id":"ch_1"}"#).record,
        RecordName::Reference("ch_1".into())
    );
    assert_eq!(said(&by_reference, r#"{"type":"done","id":42}"#).record, RecordName::Reference("42".into()));
    assert_eq!(not_understood(&by_reference, r#"{"type":"done","id":""}"#), "no_record");
    for wrong in ["", "op_", "order-1"] {
        let by_id = webhook("record = { id = \"/id\" }\nkeys_are_never_reused = true");
        assert_eq!(not_understood(&by_id, &format!(r#"{{"type":"done","id":"{wrong}"}}"#)), "no_record");
        let by_key = webhook("record = { forwarded_key = \"/id\" }");
        assert_eq!(not_understood(&by_key, &format!(r#"{{"type":"done","id":"{wrong}"}}"#)), "no_record");
    }
}

/// Attack 5: "failed", then "succeeded" for one payment.
#[test]
fn a_negative_only_wakes_the_probe_unless_it_is_declared_final_of_an_attempt() {
    let waking = webhook("record = { reference = \"/id\" }");
    let event = r#"{"type":"failed","id":"ch_1","fence":"1700000000000001"}"#;
    assert_eq!(said(&waking, event).finding, Told::Negative { final_for: None });
    let last_word =
        webhook("record = { reference = \"/id\" }\ndid_not_happen_is_final = true\nfence = \"/fence\"");
    let fence = Some(Fence::from_raw(1_700_000_000_000_001));
    assert_eq!(said(&last_word, event).finding, Told::Negative { final_for: fence });
    let number = event.replace("\"1700000000000001\"", "1700000000000001");
    assert_eq!(said(&last_word, &number).finding, Told::Negative { final_for: fence });
    // It does not say of which attempt: no proof.
    for without in [event.replace("fence", "other"), event.replace("1700000000000001", "last")] {
        assert_eq!(said(&last_word, &without).finding, Told::Negative { final_for: None });
    }
}

#[test]
fn what_says_nothing_is_ignored_or_not_understood() {
    let webhook = webhook("record = { reference = \"/id\" }\nbody_bytes_max = 60");
    assert_eq!(read(&webhook, br#"{"type":"seen"}"#), Reading::Ignored);
    assert_eq!(not_understood(&webhook, r#"{"type":"other","id":"ch_1"}"#), "undecided");
    assert_eq!(not_understood(&webhook, "type=done"), "not_json");
    assert_eq!(not_understood(&webhook, r#"{"type":"failed","type":"done","id":"ch_1"}"#), "not_json");
    assert_eq!(
        not_understood(&webhook, &format!(r#"{{"type":"done","id":"{}"}}"#, "x".repeat(60))),
        "too_large"
    );
}

#[test]
fn an_event_is_verified_by_its_webhook() {
    let webhook = config(examples()[1]).webhooks.remove(0);
    assert_eq!(webhook.tolerance, Duration::from_mins(5));
    let body = br#"{"id":"evt_1","type":"charge.succeeded"}"#;
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    // hmac.new(b"whsec_fedcba9876543210", b"1700000000." + body, "sha256").hexdigest(): the second of its secrets.
    let signature = "t=1700000000,v1=786cfa9901309eca8a32e70232f1515f7ef189b39af2249ae5b5367a167e82f9";
    let mut headers = HeaderMap::new();
    assert_eq!(webhook.verify(&headers, body, now), Err(Unverified::Unsigned));
    headers.insert("stripe-signature", signature.parse().unwrap());
    assert_eq!(webhook.verify(&headers, body, now), Ok(()));
    assert_eq!(webhook.verify(&headers, &body[1..], now), Err(Unverified::Wrong));
}

proptest! {
    #[test]
    fn no_event_panics(body in proptest::collection::vec(any::<u8>(), 0..200), text in "[{}\\[\\]\":,a-z0-9 ]{0,60}") {
        let stripe = config(examples()[1]).webhooks.remove(0);
        for body in [body.as_slice(), text.as_bytes()] {
            let reading = read(&stripe, body);
            let nothing = matches!(reading, Reading::NotUnderstood { .. });
            prop_assert!(nothing);
        }
    }
}
