//! `reference.toml` is the documentation: it is read, what it calls defaults are the defaults, and no key is missing.

use std::collections::BTreeSet;
use std::time::Duration;

use oncegate_gateway::Config;

use crate::parse;

const REFERENCE: &str = include_str!("../../reference.toml");

/// Without its routes, which are examples.
fn defaults() -> &'static str {
    REFERENCE.split("\n[[route]]").next().unwrap()
}

/// The only warning is the one that its `[scope]` explains.
#[test]
fn it_can_be_used_as_it_stands() {
    let config = Config::parse(None, REFERENCE, &oncegate_gateway::Given::default()).unwrap();
    assert_eq!(config.routes.len(), 3);
    assert!(config.layer_routes().is_ok());
    assert_eq!(config.warnings.len(), 1, "{:?}", config.warnings);
    assert!(config.warnings[0].contains(": scope.from = \"authorization\""));
}

#[test]
fn what_it_calls_defaults_are_the_defaults() {
    let (said, real) = (parse(defaults()).unwrap(), parse("").unwrap());
    assert_eq!(said.otherwise, real.otherwise);
    assert_eq!(said.otherwise.settings(), real.otherwise.settings());
    assert_eq!(said.listen, real.listen);
    assert_eq!(said.admin, real.admin);
    assert_eq!(said.upstream, real.upstream);
    assert_eq!(said.store, real.store);
    assert_eq!(said.scope, real.scope);
    assert_eq!(said.limits, real.limits);
    assert_eq!(said.workers, real.workers);
    assert_eq!(said.drain, real.drain);
    // In a comment, because it goes with another choice than the default.
    assert!(REFERENCE.contains("# tombstone = \"30d\""));
    let gone = parse("[defaults]\nafter_retention = 410").unwrap();
    assert!(gone.otherwise.settings().contains(&("tombstone", "\"30d\"".to_owned())));
}

/// Every setting that `check` shows can be copied into a file, and means the same there.
#[test]
fn what_is_shown_can_be_written() {
    let profiles = ["ietf", "ietf-strict", "stripe", "payments", "lenient", "accepted"];
    let forms = ["'x+'", "'\\d+'", "'a\"b'", "\"a'b\\\\d\"", "\"uuid\"", "\"any\""];
    for (profile, form) in profiles.into_iter().zip(forms) {
        let more = format!(
            "formerly = [\"POST /a/{{b}}\"]\nkey_form = {form}\nfingerprint = {{ only = ['/a\"b', '/c'] }}\nhorizon = \"40d\"\npreauthorize = {{ url = '/a\"b', headers = [\"X-Key\"] }}\npatience = \"1500ms\""
        );
        let shown = parse(&format!("[defaults]\nprofile = \"{profile}\"\n{more}")).unwrap().otherwise;
        let lines: Vec<_> =
            shown.settings().iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let text = lines.join(
            "
",
        );
        let again = parse(&format!("[defaults]\n{text}")).expect(&text).otherwise;
        assert_eq!(shown, again, "{text}");
        assert_eq!(shown.policy.horizon, Some(Duration::from_hours(960)));
    }
}

/// The same of probes and webhooks, but for headers, which may hold secrets.
#[test]
fn what_is_shown_of_a_probe_and_a_webhook_can_be_written() {
    let probe = r#"
forward_key = "derived"
horizon = "2m"
[defaults.probe]
url = "/p?k={forwarded_key}"
park_after = 3
backoff = "1s"
happened = [{ status = [200, "3xx"], all = [{ pointer = "/a~1b", equals = 'x"y' }, { pointer = "/n", one_of = [1, true] }] }, 201]
did_not_happen = [404, { pointer = "/list", empty = true }]
not_yet = ["5xx"]
answers = [{ when = { pointer = "/s", exists = false }, status = 402, body = '{"id": "{pointer:/id}"}' }, { status = 200, pointer = "/a" }]
reference = "/id"
"#;
    let shown = parse(&format!("[defaults]{probe}")).unwrap().otherwise;
    let lines: Vec<_> = shown.settings().iter().map(|(name, value)| format!("{name} = {value}")).collect();
    let text = lines.join("\n");
    assert_eq!(parse(&format!("[defaults]\n{text}")).expect(&text).otherwise, shown, "{text}");

    let webhooks = r#"
[[webhook]]
name = "one"
scheme = "stripe"
secrets = ["env:PROVIDER_SECRET"]
record = { key = "k-{pointer:/k}", scope = "/s", operation = "POST /x" }
created = "/created"
did_not_happen = [{ pointer = "/type", equals = "failed" }]
did_not_happen_is_final = true
fence = "/fence"
[[webhook]]
name = "two"
scheme = "standard"
secrets = ["env:PROVIDER_SECRET"]
record = { id = "/id" }
life = "/life"
happened = [{ pointer = "/type", equals = "done" }]
ignored = [{ pointer = "/type", exists = true }]
answer = { status = 201, headers = { location = "/x/{pointer:/id}" }, body = "" }
"#;
    let config = crate::parse_with(&[("PROVIDER_SECRET", SECRET)], webhooks).unwrap();
    let section = |webhook: &oncegate_gateway::reconcile::Webhook| {
        let lines = webhook.settings().into_iter().map(|(name, value)| format!("{name} = {value}\n"));
        format!("[[webhook]]\n{}", lines.collect::<String>())
    };
    let text: String = config.webhooks.iter().map(section).collect();
    let again = crate::parse_with(&[("PROVIDER_SECRET", SECRET)], &text).expect(&text);
    assert_eq!(again.webhooks, config.webhooks);
}

/// serde itself says which keys there are: a new one that nobody has documented fails here.
#[test]
fn every_key_is_documented() {
    for section in keys_of("") {
        match section.as_str() {
            "route" | "defaults" => {}
            "webhook" => check("webhook", &keys_of("[[webhook]]\n"), webhook()),
            "effect" => check("effect", &keys_of("[[effect]]\n"), effect()),
            section => check(section, &keys_of(&format!("[{section}]\n")), &part(section)),
        }
    }
    let mut rules = keys_of("[defaults]\n");
    assert_eq!(rules, keys_of("[[route]]\n"));
    assert!(rules.remove("probe"), "has a section of its own");
    let probe = part("route.probe");
    check("route.probe", &keys_of("[defaults.probe]\n"), &probe);
    for (table, text) in [
        ("[defaults.probe.answer]", probe.as_str()),
        ("[[defaults.probe.happened]]", &probe),
        ("[[webhook]]\n[webhook.record]", webhook()),
    ] {
        let missing: Vec<_> = keys_of(&format!("{table}\n")).into_iter().collect();
        let missing: Vec<_> = missing.iter().filter(|key| !text.contains(&format!("{key} = "))).collect();
        assert!(missing.is_empty(), "{table}: not in reference.toml: {missing:?}");
    }
    let routes = REFERENCE.split_once("\n[[route]]").unwrap().1;
    check("defaults", &rules, &format!("{}\n{routes}", part("defaults")));
}

/// The example of a webhook, which needs secrets, and so is a comment.
fn webhook() -> &'static str {
    REFERENCE.split_once("\n# [[webhook]]\n").unwrap().1
}

/// The same of an effect.
fn effect() -> &'static str {
    REFERENCE.split_once("\n# [[effect]]\n").unwrap().1.split("\n\n").next().unwrap()
}

#[test]
fn its_effect_can_be_used_and_what_it_calls_defaults_are_the_defaults() {
    let token = [("PROVIDER_TOKEN", SECRET)];
    let lines: Vec<_> = effect().lines().map(|line| line.trim_start_matches("# ")).collect();
    let used: Vec<_> =
        effect().lines().filter(|line| !line.starts_with("# # ")).map(|line| &line[2..]).collect();
    let full = crate::parse_with(&token, &format!("[[effect]]\n{}", used.join("\n"))).unwrap();
    let needed: Vec<_> = lines
        .into_iter()
        .filter(|line| {
            ["name", "url", "headers", "reference", "answer "].iter().any(|key| line.starts_with(key))
        })
        .collect();
    let short = crate::parse_with(&token, &format!("[[effect]]\n{}", needed.join("\n"))).unwrap();
    assert_eq!(full.effects.len(), 1);
    let said = |config: &Config| {
        let mut effect = config.effects[0].clone();
        // One list of three conditions, or one condition with three statuses: the same.
        for list in [&mut effect.delivered, &mut effect.later, &mut effect.refused] {
            let statuses = list.iter().flat_map(|condition| condition.statuses.clone()).collect();
            *list = vec![oncegate_gateway::reconcile::Condition { statuses, tests: Vec::new() }];
        }
        effect
    };
    assert_eq!(said(&full), said(&short));
}

#[test]
fn its_webhook_can_be_used_once_its_secrets_are_there() {
    let lines = webhook().lines().map(|line| line.trim_start_matches("# "));
    let lines: Vec<_> = lines.filter(|line| line.contains(" = ")).collect();
    let without: Vec<_> =
        lines.iter().filter(|line| !webhook().contains(&format!("# # {line}"))).copied().collect();
    let route = "[[route]]\nmatch = \"POST /x\"\nforward_key = \"derived\"\n";
    let text = format!("{route}[[webhook]]\n{}", without.join("\n"));
    let config = crate::parse_with(&[("PROVIDER_SECRET", SECRET), ("PROVIDER_SECRET_NEXT", SECRET)], &text)
        .expect(&text);
    assert_eq!(config.webhooks[0].secrets.len(), 2);
    let default = "[[webhook]]\nname = \"x\"\nscheme = \"standard\"\nsecrets = [\"env:PROVIDER_SECRET\"]\nrecord = { reference = \"/id\" }\n\
        did_not_happen = [{ pointer = \"/x\", exists = true }]";
    let default = crate::parse_with(&[("PROVIDER_SECRET", SECRET)], default).unwrap();
    assert_eq!(config.webhooks[0].tolerance, default.webhooks[0].tolerance);
    assert_eq!(config.webhooks[0].body_bytes_max, default.webhooks[0].body_bytes_max);
    assert_eq!(config.webhooks[0].final_fence, None);
}

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// The keys that a section has.
fn keys_of(section: &str) -> BTreeSet<String> {
    let error = parse(&format!("{section}no_such_key = 1\n")).unwrap_err().to_string();
    let line = error.lines().next().unwrap();
    let (_, expected) = line.split_once("unknown field `no_such_key`, expected ").expect(line);
    let keys: BTreeSet<String> = expected.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    assert!(!keys.is_empty(), "{line}");
    keys
}

fn part(section: &str) -> String {
    let (_, rest) = REFERENCE.split_once(&format!("\n[{section}]\n")).expect(section);
    rest.split("\n[").next().unwrap().to_owned()
}

/// A line of its own, `key = value`, or the same in a comment.
fn check(section: &str, keys: &BTreeSet<String>, text: &str) {
    let documented: BTreeSet<String> = text
        .lines()
        .map(|line| line.trim_start_matches(['#', ' ']))
        .filter_map(|line| Some(line.split_once(" = ")?.0.to_owned()))
        .collect();
    let missing: Vec<_> = keys.difference(&documented).collect();
    assert!(missing.is_empty(), "[{section}]: not in reference.toml: {missing:?}");
}
