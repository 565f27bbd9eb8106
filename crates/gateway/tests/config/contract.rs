//! What is published is what happens.

use oncegate_core::classify::{Class, Ending, classify};
use oncegate_core::problem::Code;
use oncegate_gateway::{Rule, contract};

use crate::parse;

/// The part of a contract that is about the only route.
fn of(settings: &str) -> (String, Rule) {
    let config =
        parse(&format!("[defaults]\nprofile = \"off\"\n[[route]]\nmatch = \"POST /x\"\n{settings}")).unwrap();
    let page = contract(&config);
    let (_, part) = page.split_once("\n## `POST /x`\n").unwrap();
    let (part, rest) = part.split_once("\n## Everything else\n").unwrap();
    assert!(rest.contains("Not protected"));
    (part.to_owned(), config.routes[0].clone())
}

/// The rows of the table of the boundary's own answers: status and code.
fn rows(part: &str) -> Vec<(u16, String)> {
    let (_, table) = part.split_once("| status | code |").unwrap();
    let cells = |line: &str| -> Option<(u16, String)> {
        let mut cells = line.split(" | ");
        let status = cells.next()?.strip_prefix("| ")?.parse().ok()?;
        let code = cells.next()?.strip_prefix("[`")?.split('`').next()?.to_owned();
        Some((status, code))
    };
    table.lines().filter_map(cells).collect()
}

#[test]
fn statuses_by_policy() {
    // Of every route whose client waits.
    let inline = [
        (400, "key_invalid"),
        (400, "request_invalid"),
        (400, "request_malformed"),
        (401, "scope_missing"),
        (408, "body_too_slow"),
        (409, "in_progress"),
        (409, "outcome_unknown"),
        (409, "answer_not_kept"),
        (413, "too_large"),
        (502, "upstream_unreachable"),
        (503, "store_unavailable"),
        (503, "overloaded"),
        (504, "outcome_unknown"),
    ];
    let deferred = [
        (400, "key_invalid"),
        (400, "request_invalid"),
        (400, "request_malformed"),
        (401, "scope_missing"),
        (408, "body_too_slow"),
        (408, "not_started"),
        (409, "answer_not_kept"),
        (410, "cancelled"),
        (413, "too_large"),
        (503, "store_unavailable"),
        (503, "overloaded"),
        (504, "outcome_unknown"),
    ];
    let table: [(&str, &[(u16, &str)]); 9] = [
        ("profile = \"ietf\"", &[(400, "key_missing"), (422, "key_reused")]),
        ("profile = \"stripe\"", &[(400, "key_reused"), (502, "upstream_failed"), (504, "upstream_failed")]),
        ("profile = \"payments\"", &[(400, "key_missing"), (410, "key_expired"), (422, "key_reused")]),
        ("profile = \"lenient\"", &[(502, "upstream_failed"), (504, "upstream_failed")]),
        ("profile = \"ietf\"\nfingerprint = \"none\"", &[(400, "key_missing"), (422, "key_reused")]),
        (
            "profile = \"ietf\"\nmismatch = 409\nafter_retention = 404",
            &[(400, "key_missing"), (404, "key_expired"), (409, "key_reused")],
        ),
        ("profile = \"ietf\"\nmismatch = \"replay\"", &[(400, "key_missing")]),
        ("profile = \"accepted\"", &[(400, "key_missing"), (410, "key_expired"), (422, "key_reused")]),
        (
            "profile = \"ietf\"\nrespond_async = true",
            &[(400, "key_missing"), (408, "not_started"), (410, "cancelled"), (422, "key_reused")],
        ),
    ];
    for (settings, more) in table {
        let always = if settings.contains("accepted") { &deferred[..] } else { &inline };
        let mut expected: Vec<_> =
            always.iter().chain(more).map(|(status, code)| (*status, (*code).to_owned())).collect();
        let mut got = rows(&of(settings).0);
        expected.sort();
        got.sort();
        assert_eq!(got, expected, "{settings}");
    }
}

/// Each status that is named in a row of the table of answers is judged so by `classify`, and each status is in one row.
#[test]
fn answers_are_those_of_classify() {
    for settings in [
        "profile = \"ietf\"",
        "profile = \"stripe\"",
        "profile = \"payments\"",
        "profile = \"lenient\"",
        "profile = \"ietf\"\nserver_error = \"doubt\"\nunavailable = \"doubt\"\nstored = \"all\"",
    ] {
        let (part, rule) = of(settings);
        let row = |marker: &str| {
            part.lines()
                .find(|line| line.contains(marker))
                .map_or("", |line| line.split(" | ").next().unwrap())
        };
        let [kept, released, unknown] =
            ["The answer is kept", "is executed again", "The answer is passed on"].map(row);
        for status in 200..=599 {
            let expected = match classify(&rule.policy, &Ending::Answered { status, outcome: None }) {
                Class::Complete => kept,
                Class::Release(_) => released,
                Class::Doubt(_) => unknown,
            };
            let holding: Vec<_> =
                [kept, released, unknown].into_iter().filter(|row| holds(row, status)).collect();
            assert_eq!(holding, [expected], "{status} under {settings}");
        }
    }
}

/// Reads `2xx, 4xx except 401, 413–415, 5xx` as a person would: what follows `except` belongs to its hundred.
fn holds(row: &str, status: u16) -> bool {
    let mut held = false;
    let mut except = false;
    for word in row.trim_start_matches("| ").split(", ") {
        let (whole, word) = match word.split_once(" except ") {
            Some((whole, first)) => (Some(whole), first),
            None if word.ends_with("xx") => (Some(word), ""),
            None => (None, word),
        };
        if let Some(whole) = whole {
            except = whole.starts_with(&(status / 100).to_string());
            held |= except;
        }
        let (first, last) = word.split_once('–').unwrap_or((word, word));
        if let (Ok(first), Ok(last)) = (first.parse::<u16>(), last.parse::<u16>())
            && (first..=last).contains(&status)
        {
            held = !except;
        }
    }
    held
}

#[test]
fn words_follow_the_policy() {
    let table = [
        ("profile = \"ietf\"", "Idempotency-Key: \"8e03978e-40d5-43dd-bc93-6894a57f9324\""),
        ("profile = \"stripe\"", "Idempotency-Key: 8e03978e-40d5-43dd-bc93-6894a57f9324"),
        ("profile = \"ietf\"\nkey_chars_max = 8", "Idempotency-Key: \"8\""),
        ("profile = \"ietf\"\nkey_form = \"order-[0-9]+\"", "Idempotency-Key: \"order-4711\""),
        ("profile = \"ietf\"\nkey_form = \"a`b\"", "must match `` a`b ``"),
        ("profile = \"ietf\"", "`Idempotency-Replayed: true`"),
        ("profile = \"stripe\"", "`Idempotent-Replayed: true`"),
        (
            "profile = \"stripe\"",
            "**Key**: optional. A request without one passes unprotected; an empty one is refused.",
        ),
        ("profile = \"lenient\"", "with an empty one, passes unprotected"),
        ("profile = \"lenient\"", "was not over after waiting for 10 s"),
        ("profile = \"lenient\"", "Another request with the same key gets the first one's answer"),
        ("profile = \"lenient\"", "one space of keys for each caller, method and path"),
        ("profile = \"ietf\"", "answers are kept for 1 day from the end of the operation"),
        (
            "profile = \"ietf\"\nretention = \"90m\"\nretention_from = \"creation\"",
            "answers are kept for 90 min from its first request",
        ),
        ("profile = \"ietf\"", "After that the key is new"),
        ("profile = \"payments\"", "refused with 410 `key_expired` for 30 days"),
        ("profile = \"payments\"", "16 to 255 characters"),
        ("profile = \"ietf\"", "(no `Set-Cookie`, no `Date`) and up to 1 MiB of body"),
        (
            "profile = \"ietf\"\nkeep_cookies = true\nanswer_bytes_max = \"64 KiB\"",
            "`Set-Cookie` too, and up to 64 KiB of body",
        ),
        (
            "profile = \"ietf\"\nfingerprint = { only = [\"/amount\"] }",
            "of a JSON body, `/amount`; nothing else of it counts",
        ),
        ("profile = \"ietf\"\nfingerprint = \"none\"", "query and body are not compared"),
        ("profile = \"ietf\"\ncrash = \"restart\"", "is executed again under the same key"),
        ("profile = \"ietf\"\nretry_unknown = \"7s\"", "`Retry-After` (7 s)"),
        ("profile = \"ietf\"\nbody_bytes_max = \"2 MiB\"", "larger than 2 MiB"),
    ];
    for (settings, words) in table {
        let (part, _) = of(settings);
        assert!(part.contains(words), "{settings}: {words}\n{part}");
    }
}

/// Every link is a page that is published.
#[test]
fn every_link_leads_to_a_page() {
    let (part, _) = of("profile = \"payments\"");
    let links: Vec<_> = part.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()).collect();
    assert!(links.len() > 10);
    for link in links {
        let name = link.strip_prefix(oncegate_core::problem::TYPE_BASE).unwrap();
        assert!(Code::ALL.iter().any(|code| code.name() == name), "{link}");
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/problems/").to_owned() + name + ".md";
        assert!(std::path::Path::new(&page).exists(), "{page}");
    }
}

/// Keys end up in logs and tools, and a replay is taken for the current state by those who are
/// not told.
#[test]
fn clients_are_told_what_a_key_may_contain_and_what_a_replay_reports() {
    let page = contract(&parse("[defaults]\nprofile = \"ietf\"").unwrap());
    for words in [
        "no personal data into a key",
        "not the current state",
        "1 to 255 characters of printable ASCII",
        "One `Idempotency-Key` header per request",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
}

/// Where a service is asked about callers first, clients are told what that may come to; elsewhere
/// not.
#[test]
fn a_check_of_callers_is_in_the_contract_of_its_routes() {
    let routes =
        "[[route]]\nmatch = \"POST /open\"\npreauthorize = \"off\"\n[[route]]\nmatch = \"POST /own\"";
    let text = format!("[defaults]\npreauthorize = {{ url = \"/auth\" }}\n{routes}");
    let page = contract(&parse(&text).unwrap());
    let section = |title: &str| page.split("\n## ").find(|section| section.starts_with(title)).unwrap();
    for (title, is_asked) in [("`POST /open`", false), ("`POST /own`", true), ("Everything else", true)] {
        for code in ["not_authorized", "authorization_unavailable"] {
            assert_eq!(section(title).contains(code), is_asked, "{code} in {title}:\n{page}");
        }
    }
}
