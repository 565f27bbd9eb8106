//! Probes and webhooks: what is refused at start, what is warned of, and that no secret is shown.

use oncegate_gateway::{Config, ConfigError};

use crate::parse_with;

const ENVIRONMENT: &[(&str, &str)] = &[
    ("SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
    ("SHORT", "whsec_AAAA"),
    ("EMPTY", ""),
    ("TOKEN", "hunter2hunter2"),
];

fn parse(text: &str) -> Result<Config, ConfigError> {
    parse_with(ENVIRONMENT, text)
}

/// Place and words of the error.
fn refused(text: &str) -> String {
    let error = parse(text).expect_err(text).to_string();
    error.lines().next().unwrap().trim_start_matches("the configuration:").to_owned()
}

/// A probe that is right, with a line taken out or put in.
fn probe(out: &str, put: &str) -> String {
    let lines = [
        "[[route]]",
        "match = \"POST /payments\"",
        "forward_key = \"derived\"",
        "[route.probe]",
        "url = \"/payments?key={forwarded_key}\"",
        "happened = [{ pointer = \"/id\", exists = true }]",
        "answer = { status = 201, body = \"found\" }",
    ];
    let kept: Vec<_> = lines.into_iter().filter(|line| out.is_empty() || !line.starts_with(out)).collect();
    format!("{}\n{put}", kept.join("\n"))
}

fn webhook(out: &str, put: &str) -> String {
    let lines = [
        "[[route]]",
        "match = \"POST /payments\"",
        "forward_key = \"derived\"",
        "[[webhook]]",
        "name = \"provider\"",
        "scheme = \"standard\"",
        "secrets = [\"env:SECRET\"]",
        "record = { forwarded_key = \"/data/key\" }",
        "happened = [{ pointer = \"/type\", equals = \"done\" }]",
        "answer = { status = 201, pointer = \"/data\" }",
    ];
    let kept: Vec<_> = lines.into_iter().filter(|line| out.is_empty() || !line.starts_with(out)).collect();
    format!("{}\n{put}", kept.join("\n"))
}

#[test]
fn a_right_one_is_taken() {
    assert!(parse(&probe("", "")).unwrap().routes[0].probe.is_some());
    assert_eq!(parse(&webhook("", "")).unwrap().webhooks[0].path(), "/.oncegate/webhooks/provider");
    let defaults = "[defaults]\nforward_key = \"derived\"\n[defaults.probe]\nurl = \"/p?k={forwarded_key}\"\nhappened = [200]\nanswer = { status = 200 }\n";
    let config = parse(&format!(
        "{defaults}[[route]]\nmatch = \"POST /a\"\n[[route]]\nmatch = \"POST /b\"\nprofile = \"ietf\""
    ))
    .unwrap();
    assert!(config.otherwise.probe.is_some());
    assert_eq!(
        config.routes[0].probe, config.otherwise.probe,
        "a route that names no profile starts from [defaults]"
    );
    assert_eq!(config.routes[1].probe, None);
}

#[test]
fn wrong_probes_are_refused_with_their_line() {
    for (out, put, expected) in [
        ("url", "", "4:1: a probe needs `url`, such as"),
        ("url", "url = \"payments\"", "7:7: expected a path on the upstream, such as"),
        ("url", "url = \"https://{key}.example.com/\"", "7:7: a variable may not stand in the host"),
        ("url", "url = \"/p?k={kee}\"", "7:7: there is no variable {kee}; there are {key}, {forwarded_key},"),
        ("happened", "", "4:1: a probe that never finds that something happened settles nothing"),
        ("happened", "happened = []", "7:12: a probe that never finds"),
        ("happened", "happened = [99]", "7:13: invalid value: integer `99`, expected a condition: a status"),
        ("happened", "happened = [\"2x\"]", "7:13: invalid value: string \"2x\", expected a condition"),
        ("happened", "happened = [{}]", "7:13: a condition that tests nothing holds always"),
        (
            "happened",
            "happened = [{ pointer = \"id\", exists = true }]",
            "7:25: a JSON Pointer begins with \"/\"",
        ),
        ("happened", "happened = [{ pointer = \"/id\" }]", "7:13: `pointer` needs a test beside it"),
        ("happened", "happened = [{ exists = true }]", "7:13: of what? Say pointer"),
        ("happened", "happened = [{ pointer = \"/id\", one_of = [] }]", "7:13: nothing is one of none"),
        (
            "happened",
            "happened = [{ pointer = \"/id\", equals = 1.5 }]",
            "7:41: invalid type: floating point `1.5`, expected a text, a whole number",
        ),
        (
            "happened",
            "happened = [{ pointer = \"/id\", is = 1 }]",
            "7:32: unknown field `is`, expected one of",
        ),
        ("answer", "", "4:1: what are clients told then?"),
        ("answer", "answer = { body = \"found\" }", "7:10: an answer needs `status`"),
        ("answer", "answer = { status = 101 }", "7:21: expected a status from 200 to 599"),
        (
            "answer",
            "answer = { status = 200, body = \"x\", pointer = \"/a\" }",
            "7:33: `body` is a text, and `pointer` a part",
        ),
        ("answer", "answer = { status = 200, body = \"{pointer:a}\" }", "7:33: a JSON Pointer begins with"),
        (
            "answer",
            "answer = { status = 200, headers = { date = \"x\" } }",
            "7:38: date is not for a configuration to set",
        ),
        ("answer", "answers = [{ status = 200 }, { status = 201 }]", "7:30: is never used"),
        ("", "answers = [{ status = 200 }]", "7:10: `answer` and `answers` are two answers to one question"),
        ("", "method = \"POST\"", "8:10: invalid value: string \"POST\", expected one of \"GET\", \"HEAD\""),
        ("", "method = \"HEAD\"", "8:10: the answer to a HEAD has no body to look at"),
        ("", "timeout = \"0s\"", "8:11: must be greater than zero"),
        ("", "backoff = \"1m\"\nbackoff_max = \"1s\"", "9:15: the longest pause is shorter than the first"),
        ("", "park_after = 0", "8:14: expected a number from 1 to 1000000"),
        ("", "clock_error = \"2s\"", "8:15: has an effect only with `created`"),
        (
            "",
            "created = \"/at\"\nkeys_are_never_reused = true",
            "9:25: `created` and `keys_are_never_reused` are two",
        ),
        ("", "headers = { host = \"x\" }", "8:13: host is not for a configuration to set"),
        (
            "",
            "headers = { authorization = \"env:NO_SUCH\" }",
            "8:29: the environment variable NO_SUCH is not set, or is empty",
        ),
        (
            "",
            "headers = { authorization = \"env:EMPTY\" }",
            "8:29: the environment variable EMPTY is not set, or is empty",
        ),
        ("", "interval = \"5s\"", "8:1: unknown field `interval`"),
    ] {
        let said = refused(&probe(out, put));
        assert!(said.starts_with(expected), "{put}\n  {said}\n  {expected}");
    }
}

/// Attack 7: life 1's effect, found by a probe, completes life 2.
#[test]
fn a_probe_must_name_the_life() {
    let words = "what this probe finds could be of an earlier request with the same key";
    for wrong in [
        probe("forward_key", ""),
        probe("forward_key", "").replace("{forwarded_key}", "{key}"),
        probe("", "").replace("{forwarded_key}", "{key}"),
        probe("", "").replace("{forwarded_key}", "{id}"),
        probe("", "").replace("{forwarded_key}", "{fence}"),
        probe("", "keys_are_never_reused = false").replace("{forwarded_key}", "{key}"),
    ] {
        let said = refused(&wrong);
        assert!(said.contains(words), "{wrong}\n{said}");
    }
    for right in [
        probe("forward_key", "").replace("{forwarded_key}", "{id}&life={life}"),
        probe("forward_key", "headers = { x-life = \"{life}\" }").replace("{forwarded_key}", "{key}"),
        probe("forward_key", "created = \"/created_at\""),
        probe("forward_key", "keys_are_never_reused = true"),
    ] {
        assert!(parse(&right).is_ok(), "{right}");
    }
    // What suits [defaults] may not suit a route that starts from it.
    let defaults = "[defaults]\nforward_key = \"derived\"\n[defaults.probe]\nurl = \"/p?k={forwarded_key}\"\nhappened = [200]\nanswer = { status = 200 }\n[[route]]\nmatch = \"POST /a\"\n";
    assert!(refused(&format!("{defaults}forward_key = \"as-is\"")).starts_with("8:9: what this probe finds"));
    assert!(
        refused(&format!("{defaults}forward_key = \"none\""))
            .starts_with("8:9: the probe asks by {forwarded_key}, and forward_key = \"none\"")
    );
    let late = probe("forward_key", "created = \"/at\"\nclock_error = \"2d\"");
    assert!(refused(&late).contains("`clock_error` is not shorter than `retention`"));
}

#[test]
fn a_negative_that_is_never_believed_is_warned_of() {
    let negative = probe("", "did_not_happen = [404]");
    let warnings = parse(&negative).unwrap().warnings;
    let words = "POST /payments: the probe has `did_not_happen`, and the route no `horizon`";
    let of_it = |words: &&String| words.contains("did_not_happen");
    let found: Vec<_> = warnings.iter().filter(of_it).collect();
    assert!(matches!(&found[..], [one] if one.starts_with(&format!("line 4: {words}"))), "{warnings:?}");
    let declared = negative.replace("[route.probe]", "horizon = \"2m\"\n[route.probe]");
    let warnings = parse(&declared).unwrap().warnings;
    assert_eq!(warnings.iter().find(of_it), None);
}

#[test]
fn an_unprotected_route_has_nothing_to_ask_about() {
    let off = probe("forward_key", "keys_are_never_reused = true")
        .replace("[route.probe]", "profile = \"off\"\n[route.probe]");
    assert!(refused(&off).contains("the profile \"off\" lets requests pass untouched"));
}

#[test]
fn wrong_webhooks_are_refused_with_their_line() {
    for (out, put, expected) in [
        ("name", "", "4:1: a [[webhook]] needs `name`"),
        ("name", "name = \"../x\"", "10:8: expected 1 to 64 small letters"),
        ("name", "name = \"\"", "10:8: expected 1 to 64 small letters"),
        ("scheme", "", "4:1: how are its events signed?"),
        (
            "scheme",
            "scheme = \"github\"",
            "10:10: invalid value: string \"github\", expected one of \"standard\", \"stripe\"",
        ),
        ("secrets", "", "4:1: without a secret anybody could send events"),
        ("secrets", "secrets = []", "10:11: without a secret anybody could send events"),
        (
            "secrets",
            "secrets = [\"env:EMPTY\"]",
            "10:12: the environment variable EMPTY is not set, or is empty",
        ),
        (
            "secrets",
            "secrets = [\"env:SECRET\", \"env:NO\"]",
            "10:26: the environment variable NO is not set, or is empty",
        ),
        (
            "secrets",
            "secrets = [\"env:SHORT\"]",
            "10:12: the environment variable SHORT is empty, or so short that it can be guessed",
        ),
        (
            "secrets",
            "secrets = [\"env:TOKEN\"]",
            "10:12: the environment variable TOKEN is not a secret of Standard Webhooks",
        ),
        ("secrets", "secrets = [\"hunter2hunter2hunter2\"]", "10:12: a secret does not belong in a file"),
        ("record", "", "4:1: which record is an event about?"),
        (
            "record",
            "record = { id = \"/id\", reference = \"/ref\" }",
            "10:10: which record is an event about?",
        ),
        ("record", "record = { scope = \"/id\" }", "10:20: has an effect only with `key`"),
        ("record", "record = { key = \"/id\" }", "10:18: whose key?"),
        (
            "record",
            "record = { id = \"/id\" }",
            "4:1: an event could be about an earlier request with the same key",
        ),
        (
            "record",
            "record = { key = \"/k\", scope = \"acme\" }",
            "4:1: an event could be about an earlier request",
        ),
        (
            "record",
            "record = { id = \"/id\" }\nlife = \"/l\"\ncreated = \"/c\"",
            "11:8: `life`, `created` and",
        ),
        ("", "life = \"/life\"", "11:8: the record is found by a name that names its life already"),
        ("", "created = \"/created\"", "11:11: the record is found by a name that names its life already"),
        ("forward_key", "", "7:28: no route has forward_key = \"derived\""),
        ("happened", "", "4:1: which events say something?"),
        (
            "happened",
            "happened = [{ status = 200, pointer = \"/a\", exists = true }]",
            "10:12: an event has no status",
        ),
        ("answer", "", "4:1: what are clients told then?"),
        ("", "did_not_happen_is_final = true", "11:27: the last word on which attempt?"),
        ("", "fence = \"/fence\"", "11:9: has an effect only with did_not_happen_is_final = true"),
        ("", "tolerance = \"0s\"", "11:13: must be greater than zero"),
    ] {
        let said = refused(&webhook(out, put));
        assert!(said.starts_with(expected), "{put}\n  {said}\n  {expected}");
    }
    let twice = webhook(
        "",
        "[[webhook]]\nname = \"provider\"\nscheme = \"stripe\"\nsecrets = [\"env:SECRET\"]\nrecord = { reference = \"/r\" }\ndid_not_happen = [{ pointer = \"/a\", exists = true }]",
    );
    assert!(refused(&twice).starts_with("12:8: there is a webhook \"provider\" already"));
}

/// Whoever sees the error, the warning or the table may be a CI log's reader.
#[test]
fn secrets_are_shown_nowhere() {
    let shown =
        parse(&probe("", "headers = { authorization = \"Bearer {env:TOKEN}\", x-key = \"hunter2literal\" }"))
            .unwrap();
    let text = format!("{:?} {:?} {shown:?}", shown.routes[0].settings(), shown.routes[0].settings_json());
    assert!(!text.contains("hunter2hunter2"), "{text}");
    let settings = format!("{:?}", shown.routes[0].settings());
    assert!(settings.contains("{env:TOKEN}") && !settings.contains("hunter2"), "{settings}");
    let url =
        parse(&probe("url", "url = \"/p?api_key=hunter2&k={forwarded_key}\"")).unwrap().routes[0].settings();
    assert!(url.contains(&("probe.url", "\"/p?api_key=…&k={forwarded_key}\"".to_owned())), "{url:?}");

    let hidden = [
        probe("", "headers = { authorization = \"hunter2{\" }"),
        probe("", "headers = { authorization = \"{hunter2}\" }"),
        probe("", "headers = { authorization = 1, x = \"hunter2\" }"),
        probe("", "[route.probe.headers]\nauthorization = \"hunter2}\""),
        probe("", "[route.probe.headers]\nx-key = \"hunter2 {\""),
        probe("", "headers = {\n  authorization = \"hunter2 {nobody}\"\n}"),
        webhook("secrets", "secrets = [\"whsec_hunter2hunter2hunter2=\"]"),
        webhook("secrets", "secrets = [\n  \"env:SECRET\",\n  \"whsec_hunter2hunter2hunter2=\",\n]"),
        webhook("secrets", "secrets = \"hunter2\""),
        probe("", "headers = \"hunter2\""),
        probe("", "headers = { authorization = { a = \"hunter2\" } }"),
    ];
    for text in hidden {
        let error = parse(&text).expect_err(&text).to_string();
        assert!(!error.contains("hunter2"), "{text}\n{error}");
    }
}

fn effect(out: &str, put: &str) -> String {
    let lines = ["[[effect]]", "name = \"charge\"", "url = \"https://api.example.com/charges\""];
    let kept: Vec<_> = lines.into_iter().filter(|line| out.is_empty() || !line.starts_with(out)).collect();
    format!("{}\n{put}", kept.join("\n"))
}

#[test]
fn effects_that_could_not_work_are_refused_with_what_to_do() {
    for (text, words) in [
        (effect("name", ""), "an [[effect]] needs `name`"),
        (effect("url", ""), "an [[effect]] needs `url`"),
        (effect("url", "url = \"charges\""), "expected a path on the upstream"),
        (
            effect("url", "url = \"/charges/{id}\""),
            "has no variables; what is the job's own goes into `body`",
        ),
        (effect("", "method = \"GET\""), "POST"),
        (effect("", "headers = { x = \"{key}\" }"), "no variables but {env:NAME}"),
        (effect("", "headers = { x = \"{env:NOBODY}\" }"), "the environment variable NOBODY is not set"),
        (effect("", "headers = { Idempotency-Key = \"x\" }"), "carries the downstream key"),
        (effect("", "key_header = \"host\""), "is not for a configuration to set"),
        (effect("", "body = \"{pointer:x}\""), "an insertion is written like"),
        (effect("", "backoff = \"1m\"\nbackoff_max = \"1s\""), "the longest pause is shorter than the first"),
        (effect("", "park_after = 0"), "expected a number from 1 to 1000000"),
        (effect("", "timeout = \"0s\""), "must be greater than zero"),
        (effect("", "answer = { body = \"found\" }"), "an answer needs `status`"),
        (format!("{}\n{}", effect("", ""), effect("", "")), "there is an effect \"charge\" already"),
    ] {
        let refused = refused(&text);
        assert!(refused.contains(words), "{text}\n{refused}");
    }
    assert!(parse(&effect("", "headers = { authorization = \"Bearer {env:TOKEN}\" }")).is_ok());
}
