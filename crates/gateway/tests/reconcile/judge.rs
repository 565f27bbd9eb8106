//! What a probe asks, and what the answer means.

use std::sync::Arc;

use http::HeaderMap;
use oncegate_core::policy::ForwardKey;
use oncegate_core::response::Answer;
use oncegate_gateway::reconcile::{
    About, Judgement, Probe, ProbeAnswer, Target, Unaskable, forwarded_key, judge,
};
use proptest::prelude::*;

use crate::{about, config, examples, shown};

fn payments() -> Arc<Probe> {
    config(examples()[0]).routes[0].probe.clone().unwrap()
}

/// A probe of its own, on a route that promises not to use keys twice.
fn probe(lines: &str) -> Arc<Probe> {
    let text = format!(
        "[[route]]\nmatch = \"POST /payments\"\nhorizon = \"1m\"\n[route.probe]\nurl = \"/p?k={{key}}\"\n{lines}"
    );
    config(&text).routes[0].probe.clone().unwrap()
}

fn told(probe: &Probe, status: u16, body: &str, about: &About) -> String {
    let mut headers = HeaderMap::new();
    headers.insert("content-type", "application/json; charset=utf-8".parse().unwrap());
    match judge(probe, &ProbeAnswer { status, headers: &headers, body: body.as_bytes() }, about) {
        Judgement::Happened { answer, reference } => {
            format!("{} ({})", shown(&answer), reference.as_deref().unwrap_or("-"))
        }
        Judgement::DidNotHappen => "did not happen".to_owned(),
        Judgement::NotKnown { why } => format!("not known: {}", why.code()),
    }
}

/// The answers of the payments example, and what comes instead of them when something is wrong on the way.
#[test]
fn the_payments_example() {
    let probe = payments();
    let succeeded = r#"{"id":"pay_1","status":"succeeded","amount":1.10,"charge":"ch_7"}"#;
    let declined = r#"{ "id": "pay_2", "status": "declined" }"#;
    for (status, body, expected) in [
        (
            200,
            format!(r#"{{"payments":[{succeeded}]}}"#),
            format!("201 content-type: application/json; location: /payments/pay_1 {succeeded} (ch_7)"),
        ),
        // A refusal has happened, and is what every retry gets.
        (
            200,
            format!(r#"{{"payments":[ {declined} ]}}"#),
            format!("402 content-type: application/json {declined} (-)"),
        ),
        (200, r#"{"payments":[]}"#.to_owned(), "did not happen".to_owned()),
        (200, r#"{"payments":[{"status":"failed"}]}"#.to_owned(), "did not happen".to_owned()),
        (200, r#"{"payments":[{"status":"unknown"}]}"#.to_owned(), "did not happen".to_owned()),
        (200, r#"{"payments":[{"status":"reversed"}]}"#.to_owned(), "not known: undecided".to_owned()),
        (200, r#"{"payments":null}"#.to_owned(), "not known: undecided".to_owned()),
        (200, "{}".to_owned(), "not known: undecided".to_owned()),
        // A login page, a proxy's error, an answer cut short: nothing was learnt.
        (200, "<html>".to_owned(), "not known: not_json".to_owned()),
        (200, r#"{"payments":[]"#.to_owned(), "not known: not_json".to_owned()),
        (200, String::new(), "not known: not_json".to_owned()),
        (
            200,
            r#"{"payments":[],"payments":[{"status":"succeeded"}]}"#.to_owned(),
            "not known: not_json".to_owned(),
        ),
        (404, r#"{"payments":[]}"#.to_owned(), "not known: undecided".to_owned()),
        (500, format!(r#"{{"payments":[{succeeded}]}}"#), "not known: undecided".to_owned()),
        // The API could not ask its provider.
        (503, "the provider did not answer in time".to_owned(), "not known: undecided".to_owned()),
        // It happened, and its answer cannot be made.
        (200, r#"{"payments":[{"status":"succeeded"}]}"#.to_owned(), "not known: not_there".to_owned()),
        (
            200,
            r#"{"payments":[{"status":"succeeded","id":"a\nb"}]}"#.to_owned(),
            "not known: not_a_header".to_owned(),
        ),
        (
            200,
            r#"{"payments":[{"status":"succeeded","id":"\ud800"}]}"#.to_owned(),
            "not known: not_json".to_owned(),
        ),
    ] {
        assert_eq!(told(&probe, status, &body, &about()), expected, "{status} {body}");
    }
}

#[test]
fn a_question_names_the_life_and_only_that() {
    let about = about();
    let question = payments().question(&about).unwrap();
    let key = forwarded_key(ForwardKey::Derived, &about.address, about.life).unwrap();
    let Target::Upstream(path) = &question.target else { panic!("{question:?}") };
    assert_eq!(path.as_str(), format!("/payments?idempotency_key={key}"));
    assert_eq!(question.method, http::Method::GET);

    let stripe = config(examples()[1]).routes[0].probe.clone().unwrap().question(&about).unwrap();
    let Target::Elsewhere(uri) = &stripe.target else { panic!("{stripe:?}") };
    assert_eq!(uri.host(), Some("api.stripe.example"));
    assert!(uri.query().unwrap().contains(&key));
    assert_eq!(stripe.headers["authorization"], "Bearer sk_test_1");
    assert!(stripe.headers["authorization"].is_sensitive() && !format!("{stripe:?}").contains("sk_test"));

    let by_reference = probe(
        "keys_are_never_reused = true\nhappened = [200]\nanswer = { status = 200 }\nheaders = { x-reference = \"{reference}\" }",
    );
    assert!(matches!(by_reference.question(&about), Err(Unaskable::Missing(_))));
}

/// `forward_key` has become "derived" since the record began: its upstream knows the client's own key, by which an earlier request's
/// effect is found as well.
#[test]
fn what_is_found_by_a_key_without_a_life_is_nobodys() {
    let begun_before = About { forward_key: ForwardKey::AsIs, ..about() };
    let Target::Upstream(path) = payments().question(&begun_before).unwrap().target else { panic!() };
    assert_eq!(path.as_str(), "/payments?idempotency_key=order-1");
    let found = r#"{"payments":[{"id":"pay_1","status":"succeeded"}]}"#;
    assert_eq!(told(&payments(), 200, found, &begun_before), "not known: life_not_asked");
    // Nothing at all by that key is nothing of this life either.
    assert_eq!(told(&payments(), 200, r#"{"payments":[]}"#, &begun_before), "did not happen");
    let without_a_key = About { forward_key: ForwardKey::None, ..about() };
    assert!(matches!(payments().question(&without_a_key), Err(Unaskable::Missing(_))));
}

#[test]
fn the_stripe_example() {
    let probe = config(examples()[1]).routes[0].probe.clone().unwrap();
    let found = |status: &str| format!(r#"{{"data":[{{"id":"pi_\"1","amount":2000,"status":"{status}"}}]}}"#);
    for (body, expected) in [
        // A text is escaped as JSON, a number stays as it is.
        (
            found("succeeded"),
            r#"201 content-type: application/json {"payment": "pi_\"1", "amount": 2000} (pi_"1)"#,
        ),
        (
            found("canceled"),
            r#"402 content-type: application/json {"error": "payment_canceled", "payment": "pi_\"1"} (pi_"1)"#,
        ),
        (found("processing"), "not known: not_yet"),
        (r#"{"data":[]}"#.to_owned(), "did not happen"),
    ] {
        assert_eq!(told(&probe, 200, &body, &about()), expected, "{body}");
    }
}

#[test]
fn the_first_list_that_holds_decides_and_all_tests_must() {
    let lists = probe(
        r#"keys_are_never_reused = true
happened = [{ status = [200, 203], all = [{ pointer = "/a", equals = 1 }, { pointer = "/b", one_of = [true, "x"] }] }, { pointer = "/c", exists = true, empty = false }]
did_not_happen = ["4xx", { pointer = "/a", exists = false }]
not_yet = [{ pointer = "/a", equals = 1 }]
answer = { status = 200, body = "found" }"#,
    );
    for (status, body, expected) in [
        (200, r#"{"a":1,"b":true}"#, "happened"),
        (203, r#"{"a":1,"b":"x"}"#, "happened"),
        (201, r#"{"a":1,"b":"x"}"#, "not known: not_yet"),
        (200, r#"{"a":1,"b":"true"}"#, "not known: not_yet"),
        (200, r#"{"a":1.0,"b":true}"#, "not known: undecided"),
        (200, r#"{"a":"1","b":true}"#, "not known: undecided"),
        (200, r#"{"c":[0]}"#, "happened"),
        (200, r#"{"c":"x","a":2}"#, "happened"),
        // Neither empty nor not, and null is not there.
        (200, r#"{"c":5,"a":2}"#, "not known: undecided"),
        (200, r#"{"c":[ ],"a":2}"#, "not known: undecided"),
        (200, r#"{"c":null,"a":null}"#, "did not happen"),
        (200, "{}", "did not happen"),
        (200, "[]", "did not happen"),
        // A status alone asks no body.
        (404, "<html>", "did not happen"),
        (302, "<html>", "not known: undecided"),
    ] {
        let told = told(&lists, status, body, &about());
        assert!(
            told.starts_with(expected) || (expected == "happened" && told.starts_with("200 ")),
            "{status} {body}: {told}"
        );
    }
    let content_type = told(&lists, 200, r#"{"c":[0]}"#, &about());
    assert_eq!(content_type, r#"200 content-type: application/json; charset=utf-8 {"c":[0]} (-)"#);
}

/// A login page with status 200 must not pass for "there is none" because a later condition looks at the status alone.
#[test]
fn what_cannot_be_asked_is_not_known_whatever_stands_below() {
    let greedy = probe(
        "keys_are_never_reused = true\nhappened = [{ pointer = \"/id\", exists = true }]\ndid_not_happen = [200]\nanswer = { status = 200 }",
    );
    assert_eq!(told(&greedy, 200, "{}", &about()), "did not happen");
    assert_eq!(told(&greedy, 200, "<html>", &about()), "not known: not_json");
    assert_eq!(told(&greedy, 200, r#"{"id":null,"id":1}"#, &about()), "not known: not_json");
}

/// Attack 7: the effect of an earlier life must not settle a later one.
#[test]
fn what_was_made_before_the_life_began_is_of_an_earlier_one() {
    let probe = probe(
        "created = \"/at\"\nhappened = [200]\ndid_not_happen = [404]\nanswer = { status = 200, body = \"\" }",
    );
    for (at, expected) in [
        ("1000", "200  "),
        ("999", "200  "),
        // The provider's clock may be a second behind, and its own second is a whole one.
        ("998", "not known: earlier_life"),
        ("\"1970-01-01T00:16:39.000Z\"", "200  "),
        ("\"1970-01-01T00:16:38.999Z\"", "not known: earlier_life"),
        ("\"1970-01-01T01:16:40+01:00\"", "200  "),
        ("\"1970-01-01T00:16:40+01:00\"", "not known: earlier_life"),
        ("\"yesterday\"", "not known: no_moment"),
        ("1000.5", "not known: no_moment"),
        ("null", "not known: no_moment"),
    ] {
        let told = told(&probe, 200, &format!("{{\"at\":{at}}}"), &about());
        assert!(told.starts_with(expected), "{at}: {told}");
    }
    assert_eq!(told(&probe, 200, "{}", &about()), "not known: no_moment");
    assert_eq!(told(&probe, 404, "", &about()), "did not happen");
}

#[test]
fn what_is_huge_or_deep_is_not_known() {
    let small = probe(
        "keys_are_never_reused = true\nbody_bytes_max = 100\nhappened = [{ pointer = \"/a\", exists = true }]\nanswer = { status = 200 }",
    );
    let body = |bytes: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(bytes - 8));
    assert!(told(&small, 200, &body(100), &about()).starts_with("200 "));
    assert_eq!(told(&small, 200, &body(101), &about()), "not known: too_large");
    let deep = format!("{}{}", "[".repeat(400_000), "]".repeat(400_000));
    assert_eq!(told(&payments(), 200, &deep, &about()), "not known: not_json");
    // Over what the route keeps, the answer is over too, but without its bytes.
    let narrow = About { answer_bytes_max: 10, ..about() };
    assert_eq!(told(&small, 200, &body(100), &narrow), "200 not kept (-)");
}

proptest! {
    /// Only what was described is ever *happened*, or *did not happen*.
    #[test]
    fn no_answer_panics_and_noise_settles_nothing(status in 100_u16..600, body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let headers = HeaderMap::new();
        let judgement = judge(&payments(), &ProbeAnswer { status, headers: &headers, body: &body }, &about());
        let nothing = matches!(judgement, Judgement::NotKnown { .. });
        prop_assert!(nothing);
    }

    /// JSON of any shape with the names that the conditions look for.
    #[test]
    fn no_json_panics(body in json()) {
        let headers = HeaderMap::new();
        for probe in [payments(), config(examples()[1]).routes[0].probe.clone().unwrap()] {
            let judgement = judge(&probe, &ProbeAnswer { status: 200, headers: &headers, body: body.as_bytes() }, &about());
            if let Judgement::Happened { answer: Answer::Kept(response), .. } = judgement {
                prop_assert!(matches!(response.status, 201 | 402));
            }
        }
    }
}

fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        any::<i64>().prop_map(|number| number.to_string()),
        Just("1e999".to_owned()),
        "(succeeded|declined|failed|created|[a-z\\\\\"/]{0,6})"
            .prop_map(|text| serde_json::Value::from(text).to_string()),
    ];
    leaf.prop_recursive(5, 60, 6, |inner| {
        let name = "(payments|status|id|data|charge|amount|[a-z~/]{0,3})";
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(","))),
            proptest::collection::vec((name, inner), 0..5).prop_map(|members| {
                let members: Vec<_> = members
                    .into_iter()
                    .map(|(name, value)| format!("{}: {value}", serde_json::Value::from(name)))
                    .collect();
                format!("{{{}}}", members.join(", "))
            }),
        ]
    })
}
