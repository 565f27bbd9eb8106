//! A wrong file gets line, column and what was expected; and shows no secret.

use std::path::Path;

use oncegate_gateway::{Config, Given, Secret};

use crate::parse;

/// The file, and the first line of its error without the file's name.
const WRONG: &[(&str, &str)] = &[
    (
        "[listen]\naddress = \"nowhere\"",
        "2:11: \"nowhere\" is not an address to listen on; expected the like of 127.0.0.1:8080 or [::]:8080",
    ),
    ("[listen]\ntls_key = \"key.pem\"", "2:11: `tls_certificate` and `tls_key` go together"),
    ("[listen]\ntls_certificate = \"chain.pem\"", "2:19: `tls_certificate` and `tls_key` go together"),
    ("[listen]\nheader_bytes_max = \"1 KiB\"", "2:20: expected 8 KiB to 16 MiB"),
    (
        "[listen]\nheader_bytes_max = \"1 MB\"",
        "2:20: invalid value: string \"1 MB\", expected a number of bytes, such as 4096, \"64 KiB\" or \"1 MiB\"",
    ),
    (
        "[listen]\nheader_bytes_max = -1",
        "2:20: invalid value: integer `-1`, expected a number of bytes, such as 4096, \"64 KiB\" or \"1 MiB\"",
    ),
    ("[listen]\nconnections_max = 0", "2:19: expected a number from 1 to 16777216"),
    ("[listen]\nbody_timeout = \"0s\"", "2:16: must be greater than zero"),
    ("[listen]\nbody_deadline = \"0s\"", "2:17: must be greater than zero"),
    ("[limits]\nper_peer_connections_max = 0", "2:28: expected a number from 1 to 16777216"),
    ("[limits]\nper_peer_requests_max = 0", "2:25: expected a number from 1 to 16777216"),
    (
        "[listen]\nheader_timeout = 30",
        "2:18: invalid type: integer `30`, expected a span of time with its unit, such as \"90s\", \"5m\", \"1h 30m\" or \"2d\"",
    ),
    (
        "[admin]\naddress = \"0.0.0.0:9090\"",
        "2:11: the admin listener would show every record to every client that reaches 0.0.0.0:9090; set `admin.token_file`, or bind it to 127.0.0.1 or unix:PATH",
    ),
    (
        "[admin]\naddress = \"0.0.0.0:9090\"\ntoken = \"0123456789abcdef\"",
        "2:11: the admin token and all records would cross the network to 0.0.0.0:9090 in clear text; set `admin.tls_certificate` and `admin.tls_key`, bind it to 127.0.0.1 or unix:PATH, or say `plaintext = true` under [admin] if the network is trusted",
    ),
    (
        "[admin]\naddress = \"unix:\"",
        "2:11: expected the path of a Unix socket, such as unix:/run/oncegate/admin.sock",
    ),
    (
        "[admin]\naddress = \"unix:a.sock\"\ntls_certificate = \"a.pem\"\ntls_key = \"b.pem\"",
        "3:19: a Unix socket is not encrypted; drop the certificate",
    ),
    ("[admin]\ntls_key = \"b.pem\"", "2:11: `tls_certificate` and `tls_key` go together"),
    (
        "[admin]\ntoken = \"short\"",
        "2:9: the admin token has fewer than 16 characters, which can be guessed; `openssl rand -hex 32` makes a good one",
    ),
    (
        "[admin]\ntoken = \"0123456789abcdef\"\ntoken_file = \"token\"",
        "3:14: `token` and `token_file` are two answers to one question; keep one",
    ),
    (
        "[admin]\ntoken_file = \"/no/such/file\"",
        "2:14: /no/such/file could not be read: No such file or directory (os error 2)",
    ),
    ("[admin]\ntoken = 1234567890123456", "2:9: invalid type: a number, expected a text in quotes"),
    ("[listen]\ntunnel_idle_timeout = \"0s\"", "2:23: must be greater than zero"),
    (
        "[defaults]\npreauthorize = \"on\"",
        "2:16: expected { url = \"/auth/check\", timeout = \"2s\", headers = [\"x-api-key\"] } or \"off\"",
    ),
    (
        "[defaults]\npreauthorize = { timeout = \"1s\" }",
        "2:16: missing field `url`; expected { url = \"/auth/check\", timeout = \"2s\", headers = [\"x-api-key\"] } or \"off\"",
    ),
    (
        "[defaults]\npreauthorize = { url = \"/a\", timeout = \"0s\" }",
        "2:16: preauthorize.timeout must be greater than zero",
    ),
    (
        "[defaults]\npreauthorize = { url = \"/a\", headers = [\"Oncegate-Original-URI\"] }",
        "2:16: \"Oncegate-Original-URI\" is of one connection, or said by the gateway itself; leave it out",
    ),
    (
        "[[route]]\nmatch = \"POST /x\"\nprofile = \"off\"\npreauthorize = { url = \"/a\" }",
        "2:9: the profile \"off\" lets requests pass untouched, so no other setting has an effect; drop them, or choose another profile",
    ),
    ("[upstream]\nconnect_timeout = \"0s\"", "2:19: must be greater than zero"),
    ("[upstream]\n  timeout = \"0s\"", "2:13: must be greater than zero"),
    ("[upstream]\nhttp = \"3\"", "2:8: invalid value: string \"3\", expected one of \"auto\", \"1\", \"2\""),
    (
        "[upstream]\nhost = \"mine\"",
        "2:8: invalid value: string \"mine\", expected one of \"upstream\", \"client\"",
    ),
    (
        "[upstream]\ntimeout = \"soon\"",
        "2:11: invalid value: string \"soon\", expected a span of time with its unit, such as \"90s\", \"5m\", \"1h 30m\" or \"2d\"",
    ),
    ("[upstream]\ntimeout = \"200years\"", "2:11: 200years is too long; must be at most 100 years"),
    (
        "[store]\nurl = \"mysql://root:secret@localhost/x\"",
        "2:7: is not the URL of a store; expected memory:, sqlite://FILE, postgres://… or redis://…",
    ),
    (
        "[store]\nurl = \"sqlite://\"",
        "2:7: is not the URL of a store; expected memory:, sqlite://FILE, postgres://… or redis://…",
    ),
    (
        "[store]\nshared_cache = \"memcached://127.0.0.1\"",
        "2:16: is not the URL of a Redis; expected redis://HOST/",
    ),
    (
        "[scope]\nfrom = \"cookie\"",
        "2:8: invalid value: string \"cookie\", expected one of \"authorization\", \"header\"",
    ),
    ("[scope]\nfrom = \"header\"", "2:8: which header? Say header = \"x-tenant\" beside it"),
    (
        "[scope]\nfrom = \"header\"\nheader = \"x tenant\"\ntrusted_peers = [\"10.0.0.0/8\"]",
        "3:10: is not the name of a header",
    ),
    (
        "[scope]\nfrom = \"header\"\nheader = \"x-tenant\"",
        "2:8: a header that anybody may set is no identity: say from whom it is believed, trusted_peers = [\"10.0.0.0/8\"]",
    ),
    (
        "[scope]\nfrom = \"header\"\nheader = \"x-tenant\"\ntrusted_peers = []",
        "2:8: a header that anybody may set is no identity: say from whom it is believed, trusted_peers = [\"10.0.0.0/8\"]",
    ),
    ("[scope]\nheader = \"x-tenant\"", "2:10: has an effect only with scope.from = \"header\""),
    (
        "[scope]\nfrom = \"header\"\nheader = \"x-tenant\"\ntrusted_peers = [\"10.0.0.0/33\"]",
        "4:17: \"10.0.0.0/33\" is not an address or a network; expected the like of \"10.0.0.7\" or \"10.0.0.0/8\"",
    ),
    (
        "[scope]\nanonymous = true",
        "2:13: invalid type: boolean `true`, expected one of \"refuse\", \"share\"",
    ),
    ("[limits]\nexecutions_max = 0", "2:18: expected a number from 1 to 16777216"),
    ("[limits]\nexecutions_max = 16777217", "2:18: expected a number from 1 to 16777216"),
    ("[limits]\nqueue_max = -1", "2:13: invalid value: integer `-1`, expected a whole number from 0"),
    (
        "[shutdown]\ndrain = \"30\"",
        "2:9: invalid value: string \"30\", expected a span of time with its unit, such as \"90s\", \"5m\", \"1h 30m\" or \"2d\"",
    ),
    ("[shutdown]\ndrain_s = 30", "2:1: unknown field `drain_s`, expected `drain`"),
    (
        "[defaults]\nname = \"all\"",
        "2:8: `name` is only for a [[route]]: in [defaults] it would make all paths one operation",
    ),
    (
        "[[route]]\nmatch = \"POST /x\"\nname = \"x\"",
        "3:8: has an effect only with scope = \"tenant+operation\"",
    ),
    (
        "[[route]]\nmatch = \"POST /x\"\nprofile = \"lenient\"\nname = \"create x\"",
        "4:8: POST /x: \"create x\" is not a valid name: expected 1 to 64 letters, digits, '-', '_' or '.'",
    ),
    (
        "[[route]]\nmatch = \"POST /x\"\nformerly = [\"\"]",
        "3:12: expected patterns or names that the route had, such as \"POST /orders/{id}\"",
    ),
    (
        "[defaults]\nmatch = \"POST /x\"",
        "2:9: `match` belongs to a [[route]]; [defaults] holds wherever none matches",
    ),
    (
        "[defaults]\nprofile = \"strict\"",
        "2:11: there is no profile \"strict\"; the profiles are ietf, ietf-strict, stripe, payments, resume, accepted, lenient, off",
    ),
    ("[defaults]\nrespond_async = 1", "2:17: invalid type: integer `1`, expected a boolean"),
    (
        "[defaults]\nexecution = \"later\"",
        "2:13: invalid value: string \"later\", expected one of \"inline\", \"deferred\"",
    ),
    (
        "[[route]]\nmatch = \"POST /x\"\ncredentials = \"dropped\"",
        "3:15: has an effect only on deferred requests: execution = \"deferred\" or respond_async = true",
    ),
    (
        "[[route]]\nmatch = \"POST /x\"\nprofile = \"accepted\"\nrequest_headers = [\"Cookie\"]\ncredentials = \"dropped\"",
        "5:15: \"POST /x\": `request_headers` names \"cookie\", and `credentials` is \"dropped\"; drop one of them",
    ),
    (
        "[defaults]\nrequest_headers = [\"oncegate-credentials\"]",
        "2:19: \"oncegate-credentials\" is of one connection, or said by the gateway itself; leave it out",
    ),
    ("[defaults]\nrequest_headers = [\"a b\"]", "2:19: \"a b\" is not the name of a header"),
    (
        "[defaults]\nrequest_headers = [\"Host\"]",
        "2:19: \"host\" needs no setting here: it is stored with deferred requests, and told as X-Forwarded-Host, in any case; leave it out, or compare it by fingerprint_headers",
    ),
    (
        "[defaults]\nrequest_headers = [\"TE\"]",
        "2:19: \"TE\" is of one connection, or said by the gateway itself; leave it out",
    ),
    (
        "[defaults]\nprofile = \"resume\"",
        "2:11: \"*\": under `resume` a handler without recovery points would be run again from its beginning; choose `payments`, or, inside a Rust service, declare its phases (`Routes::phased`)",
    ),
    (
        "[defaults]\nprofile = \"off\"\nmethods = [\"POST\"]",
        "3:11: the profile \"off\" protects no method; choose another profile, or drop `methods`",
    ),
    (
        "[defaults]\nprofile = \"off\"\nlease = \"2m\"",
        "2:11: the profile \"off\" lets requests pass untouched, so no other setting has an effect; drop them, or choose another profile",
    ),
    (
        "[defaults]\nmethods = [\"GET\"]",
        "2:11: \"GET\" cannot be protected; expected some of POST, PATCH, PUT, DELETE",
    ),
    (
        "[defaults]\nmethods = []",
        "2:11: an empty list protects nothing; if that is meant, use profile = \"off\"",
    ),
    (
        "[defaults]\nin_progress = \"accept\"",
        "2:15: \"*\": 202 is a promise that somebody will run it, and on this route only its client does; choose to reject or to wait, deferred execution, or to allow `respond-async`",
    ),
    (
        "[defaults]\ncrash = \"resume\"",
        "2:9: \"*\": under `resume` a handler without recovery points would be run again from its beginning; choose `payments`, or, inside a Rust service, declare its phases (`Routes::phased`)",
    ),
    ("[defaults]\nlease = \"0s\"", "2:9: must be greater than zero"),
    ("[defaults]\nretention = \"0s\"", "2:13: must be greater than zero"),
    (
        "[defaults]\nattempt_deadline = \"30s\"",
        "2:20: an attempt's deadline cannot be shorter than its lease",
    ),
    ("[defaults]\nkey_chars_min = 0", "2:17: expected a number from 1 to 255"),
    ("[defaults]\nkey_chars_max = 256", "2:17: expected a number from 1 to 255"),
    (
        "[defaults]\nkey_chars_min = 40\nkey_chars_max = 20",
        "2:17: the shortest key (40) is longer than the longest (20)",
    ),
    (
        "[defaults]\nkey_form = \"[\"",
        "2:12: expected \"any\", \"uuid\" or a regular expression over whole keys: non-empty character class has no closing bracket",
    ),
    ("[defaults]\nkey_form = \"uuid\"\nkey_chars_max = 35", "3:17: no UUID is so long: it has 36 characters"),
    (
        "[defaults]\ntombstone = \"1d\"",
        "2:13: under after_retention = \"fresh\" there are no tombstones; use after_retention = 410, or drop `tombstone`",
    ),
    ("[defaults]\nafter_retention = 410\ntombstone = \"0s\"", "3:13: must be greater than zero"),
    (
        "[defaults]\nafter_retention = 418",
        "2:19: invalid value: integer `418`, expected one of \"fresh\", \"410\", \"404\"",
    ),
    (
        "[defaults]\nmismatch = \"ignore\"",
        "2:12: invalid value: string \"ignore\", expected one of \"422\", \"400\", \"409\", \"replay\"",
    ),
    (
        "[defaults]\nfingerprint = \"yaml\"",
        "2:15: \"yaml\" is no fingerprint; expected \"json\", \"raw\", \"none\", { only = [\"/amount\", …] } or { without = [\"/sent_at\", …] }",
    ),
    (
        "[defaults]\nfingerprint = { only = [\"amount\"] }",
        "2:15: a JSON Pointer begins with \"/\", as in \"/amount\"; expected \"json\", \"raw\", \"none\", { only = [\"/amount\", …] } or { without = [\"/sent_at\", …] }",
    ),
    (
        "[defaults]\nfingerprint = { only = [\"/a\"], without = [\"/b\"] }",
        "2:15: expected \"json\", \"raw\", \"none\", { only = [\"/amount\", …] } or { without = [\"/sent_at\", …] }",
    ),
    (
        "[defaults]\nfingerprint = { except = [\"/a\"] }",
        "2:15: unknown field `except`, expected `only` or `without`; expected \"json\", \"raw\", \"none\", { only = [\"/amount\", …] } or { without = [\"/sent_at\", …] }",
    ),
    (
        "[[route]]\nmatch = \"POST /x\"\n\n[[route]]\nlease = \"2m\"",
        "4:1: a [[route]] needs `match`, such as match = \"POST /payments/{id}/refunds\"",
    ),
    (
        "[[route]]\nprofile = \"off\"",
        "1:1: a [[route]] needs `match`, such as match = \"POST /payments/{id}/refunds\"",
    ),
    (
        "[[route]]\nmatch = \"POST /x\"\nmethods = [\"PUT\"]",
        "3:11: a route's method is in its `match`; `methods` belongs to [defaults]",
    ),
    (
        "[[route]]\nmatch = \"POST /x\"\nprofile = \"off\"\nlease = \"2m\"",
        "2:9: the profile \"off\" lets requests pass untouched, so no other setting has an effect; drop them, or choose another profile",
    ),
    ("[[route]]\nmatch = \"/payments\"", "2:9: \"/payments\" is not a method, a space and a path"),
    (
        "[[route]]\nmatch = \"POST /a/*\"",
        "2:9: \"POST /a/*\": `*` would match only a literal star; write \"/a/{*rest}\" for every path below, or `{name}` for one segment (`{name}` matches one segment, `{*name}` at the end matches the rest of the path, everything else matches itself)",
    ),
    (
        "[[route]]\nmatch = \"POST /a/{{*rest}}\"",
        "2:9: \"POST /a/{{*rest}}\": doubled braces would match only literal braces; write \"/a/{*rest}\" (`{name}` matches one segment, `{*name}` at the end matches the rest of the path, everything else matches itself)",
    ),
    (
        "[[route]]\nmatch = \"POST /b \"",
        "2:9: \"POST /b \": a path has no white space and no control characters, and this one has ' '; write \"/b\" (`{name}` matches one segment, `{*name}` at the end matches the rest of the path, everything else matches itself)",
    ),
    (
        "[[route]]\nmatch = \"POST /payments/\"",
        "2:9: \"POST /payments/\" matches no request: paths are compared without a slash at the end, without empty, `.` and `..` segments, with unreserved characters decoded, and as [request] says; write \"POST /payments\"",
    ),
    (
        "[request]\npath_case = \"fold\"\n[[route]]\nmatch = \"POST /Pay/{Id}\"",
        "4:9: \"POST /Pay/{Id}\" matches no request: paths are compared without a slash at the end, without empty, `.` and `..` segments, with unreserved characters decoded, and as [request] says",
    ),
    (
        "[[route]]\nmatch = \"* /x\"",
        "2:9: \"*\" is not a method; write one in capitals, such as POST, and a route for each",
    ),
    (
        "[[route]]\nmatch = \"POST|PATCH /x\"",
        "2:9: \"POST|PATCH\" is not a method; write one in capitals, such as POST, and a route for each",
    ),
    (
        "[[route]]\nmatch = \"QUERY /x\"",
        "2:9: a QUERY changes nothing, so there is nothing to protect; drop the route",
    ),
    (
        "[scope]\nalso = [\"authorization\"]",
        "2:8: \"authorization\" is where the tenant comes from already; leave it out",
    ),
    (
        "[scope]\nalso = [\"cookie\"]",
        "2:8: \"cookie\" cannot be part of a tenant; expected a header such as \"stripe-account\"",
    ),
    (
        "[scope]\nfrom = \"header\"\nheader = \"x-tenant\"\ntrusted_peers = [\"10.0.0.1\"]\nalso_public = [\"Authorization\"]",
        "5:15: \"authorization\" is a secret, which would be shown in lists and metrics; name it in scope.also",
    ),
    (
        "[scope]\nalso = [\"stripe-account\"]\nalso_public = [\"x-shop\", \"Stripe-Account\"]",
        "3:15: \"Stripe-Account\" is in both scope.also and scope.also_public; keep one",
    ),
    (
        "[[route]]\nmatch = \"post /payments\"",
        "2:9: \"post\" is not a method; write one in capitals, such as POST, and a route for each",
    ),
    (
        "[[route]]\nmatch = \"GET /payments\"",
        "2:9: a GET changes nothing, so there is nothing to protect; drop the route",
    ),
    (
        "[[route]]\nmatch = \"POST /a/{b}{c}\"",
        "2:9: \"POST /a/{b}{c}\": a segment may have one parameter, at its end (`{name}` matches one segment, `{*name}` at the end matches the rest of the path, everything else matches itself)",
    ),
    (
        "[[route]]\nmatch = \"POST /x\"\nprofile = \"accepted\"\nexecution = \"inline\"",
        "3:11: \"POST /x\": 202 is a promise that somebody will run it, and on this route only its client does; choose to reject or to wait, deferred execution, or to allow `respond-async`",
    ),
    (
        "[[route]]\nmatch = \"POST /a/{b}\"\n[[route]]\nmatch = \"POST /a/{c}\"",
        "4:9: \"POST /a/{c}\": conflicts with the route \"POST /a/{b}\": a request could match both, and neither is narrower; drop one of them, or use the same parameter in both places",
    ),
    (
        "[[route]]\nmatch = \"POST /x\"\nkey_chars_max = 8\nprofile = \"payments\"",
        "3:17: the shortest key (16) is longer than the longest (8)",
    ),
    (
        "[[route]]\nmatch = \"POST /x\"\nlease = \"20m\"\nattempt_deadline = \"10m\"",
        "4:20: an attempt's deadline cannot be shorter than its lease",
    ),
    (
        "[[route]]\nmatch = \"POST /x\"\nä = 1",
        "3:1: invalid unquoted key, expected letters, numbers, `-`, `_`",
    ),
    (
        "# Grüße\n[liste]\n",
        "2:2: unknown field `liste`, expected one of `listen`, `admin`, `upstream`, `store`, `scope`, `request`, `limits`, `workers`, `shutdown`, `defaults`, `route`, `webhook`, `effect`",
    ),
    ("[listen\naddress = 1", "1:8: unclosed table, expected `]`"),
    ("[listen]\naddress = \"a\"\naddress = \"b\"", "3:1: duplicate key"),
    (
        "[[route]]\nmatch = \"POST /x\"\nprofile = \"payments\"\nin_progress = \"accept\"",
        "4:15: \"POST /x\": 202 is a promise that somebody will run it, and on this route only its client does; choose to reject or to wait, deferred execution, or to allow `respond-async`",
    ),
    (
        "[[route]]\nmatch = \"POST /x\"\nafter_doubt = \"accept\"",
        "3:15: \"POST /x\": 202 is a promise that somebody will run it, and on this route only its client does; choose to reject or to wait, deferred execution, or to allow `respond-async`",
    ),
    (
        "[upstream]\ntls_ca = \"/nowhere.pem\"",
        "2:10: /nowhere.pem: I/O error: No such file or directory (os error 2)",
    ),
    (
        "[defaults.probe]\nurl = \"/x?{life}\"\nhappened = [200]\nanswer = { status = 201 }\ntls_ca = \"/dev/null\"",
        "5:10: /dev/null: contains no certificate; expected PEM",
    ),
    (
        "[[effect]]\nname = \"a\"\nurl = \"https://a.test/\"\ntls_ca = \"/dev/null\"",
        "4:10: /dev/null: contains no certificate; expected PEM",
    ),
    (
        "[listen]\nconnections_max = \"many\"",
        "2:19: invalid type: string \"many\", expected a whole number from 0",
    ),
];

#[test]
fn a_wrong_file_gets_line_column_and_what_was_expected() {
    for (text, expected) in WRONG {
        let error = parse(text).expect_err(text);
        let shown = error.to_string();
        let first = shown.lines().next().unwrap_or_default();
        assert_eq!(first.strip_prefix("the configuration:").unwrap_or(first), *expected, "{text}");
        let (line, column) = error.line_and_column().unwrap();
        assert!(expected.starts_with(&format!("{line}:{column}: ")), "{expected}");
    }
}

/// A header that holds a credential was kept and shown as the tenant's name; and one that says something else is nobody's name.
#[test]
fn headers_that_cannot_be_a_tenant() {
    let names = [
        "Authorization",
        "proxy-authorization",
        "cookie",
        "idempotency-key",
        "Host",
        "connection",
        "content-type",
        "content-length",
        "te",
        "Upgrade",
        "oncegate-peer",
        "idempotency-attempt",
    ];
    for name in names {
        let text =
            format!("[scope]\nfrom = \"header\"\nheader = \"{name}\"\ntrusted_peers = [\"10.0.0.0/8\"]");
        let error = parse(&text).expect_err(name).to_string();
        let expected = format!(
            "the configuration:3:10: {} cannot be the tenant's name; expected a header that a proxy in front sets, such as \"x-tenant\"",
            name.to_ascii_lowercase()
        );
        assert_eq!(error.lines().next(), Some(expected.as_str()));
    }
}

/// What does not come from the file names the flag and the variable.
#[test]
fn a_wrong_flag_is_named() {
    let upstream = || Given { upstream: Some("http://127.0.0.1:3000".to_owned()), ..Given::default() };
    let text = |text: &str| Some(text.to_owned());
    let table = [
        (
            Given::default(),
            "upstream: there is nothing to put the gateway in front of; say --upstream http://127.0.0.1:3000, or url = \"…\" under [upstream]",
        ),
        (
            Given { upstream: text("127.0.0.1:3000"), ..upstream() },
            "--upstream (ONCEGATE_UPSTREAM): \"127.0.0.1:3000\" is neither http:// nor https://; expected the like of http://127.0.0.1:3000 or https://api.internal/v1",
        ),
        (
            Given { upstream: text("http://a b"), ..upstream() },
            "--upstream (ONCEGATE_UPSTREAM): \"http://a b\" is not a URL (invalid uri character); expected the like of http://127.0.0.1:3000 or https://api.internal/v1",
        ),
        (
            Given { upstream: text("http://user:secret@127.0.0.1"), ..upstream() },
            "--upstream (ONCEGATE_UPSTREAM): a user in the upstream's URL is not sent anywhere; drop it",
        ),
        (
            Given { upstream: text("http://127.0.0.1/?key=secret"), ..upstream() },
            "--upstream (ONCEGATE_UPSTREAM): a query in the upstream's URL would be put into every request; drop it",
        ),
        (
            Given { listen: text("8080"), ..upstream() },
            "--listen (ONCEGATE_LISTEN): \"8080\" is not an address to listen on; expected the like of 127.0.0.1:8080 or [::]:8080",
        ),
        (
            Given { admin: text("0.0.0.0:9090"), ..upstream() },
            "--admin (ONCEGATE_ADMIN): the admin listener would show every record to every client that reaches 0.0.0.0:9090; set `admin.token_file`, or bind it to 127.0.0.1 or unix:PATH",
        ),
        (
            Given { admin_token: Some(Secret::new("secret")), ..upstream() },
            "ONCEGATE_ADMIN_TOKEN: the admin token has fewer than 16 characters, which can be guessed; `openssl rand -hex 32` makes a good one",
        ),
        (
            Given { store: Some(Secret::new("mysql://u:secret@h/d")), ..upstream() },
            "--store (ONCEGATE_STORE): is not the URL of a store; expected memory:, sqlite://FILE, postgres://… or redis://…",
        ),
        (
            Given { profile: text("strict"), ..upstream() },
            "--profile (ONCEGATE_PROFILE): there is no profile \"strict\"; the profiles are ietf, ietf-strict, stripe, payments, resume, accepted, lenient, off",
        ),
    ];
    for (given, expected) in table {
        assert_eq!(Config::parse(None, "", &given).unwrap_err().to_string(), expected);
    }
}

/// The line is shown with the place marked, also behind letters of more than one byte, and in files with Windows' line ends.
#[test]
fn the_place_is_marked() {
    let error = Config::parse(
        Some(Path::new("a/gateway.toml")),
        "# ü\r\n[[route]]\r\nmatch = \"ö\"\r\n",
        &Given::default(),
    );
    assert_eq!(
        error.unwrap_err().to_string(),
        "a/gateway.toml:3:9: \"ö\" is not a method, a space and a path\n  3 | match = \"ö\"\n    |         ^^^"
    );
}

/// The line that is at fault is shown, and a CI log is read by many: no secret of the file may be in an error, whatever is wrong.
#[test]
fn no_secret_is_shown() {
    let files = [
        "[admin]\ntoken = \"hunter2\"",
        "[admin]\ntoken = \"hunter2",
        "[admin]\ntoken = hunter2hunter2hunter2",
        "[admin]\ntoken = 7777777\n# hunter",
        "[admin]\n\"token\" = [\"hunter2\"]",
        "[admin]\ntoken = { is = \"hunter2\" }",
        "[admin]\ntoken = \"\"\"\nhunter2",
        "[admin]\ntoken = \"\"\"\nhunter2\"\"\"",
        "admin.token = \"hunter2\"",
        "admin = { token = \"hunter2\", token_file = \"x\" }",
        "admin = { address = \"0.0.0.0:1\", address = \"0\", token = \"hunter2\" }",
        "[admin]\ntoken = \"hunter2hunter2hunter2\"\ntoken = \"hunter2hunter2hunter2\"",
        "[store]\nurl = \"mysql://u:hunter2@h/d\"",
        "[store]\nurl = 'postgres://u:hunter2@h/d",
        "[store]\nurl = \"postgres://u:hunter2@h/d\" # the password",
        "[store]\nurl = \"postgres://u:hunter2@h/d\" x",
        "[store]\nshared_cache = \"redis://:hunter2@h/\" x",
        "[store]\nshared_cache = \"memcached://:hunter2@h/\"",
        "[upstream]\nurl = \"http://u:hunter2@h\"",
        "[upstream]\nurl = \"ftp://u:hunter2@h\"",
        "[upstream]\nurl = \"http://u:hunter2@h:x\"",
        "[upstream]\nurl = \"http://h/?hunter2\"",
    ];
    let mut wrong = 0;
    for text in files {
        let Err(error) = Config::parse(None, text, &Given::default()) else { continue };
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("hunter2") && !shown.contains("7777777"), "{text}\n{shown}");
        wrong += 1;
    }
    assert!(wrong >= files.len() - 1);
    let error = parse("[admin]\ntoken = \"hunter2\"").unwrap_err().to_string();
    assert!(error.ends_with("  2 | token = …\n    |         ^"), "{error}");
}

/// A key that does not exist, or a value in the wrong place, was quoted with its line: `store = "postgres://u:password@…"` at the top of
/// the file is an easy mistake, and its error is read in CI logs.
#[test]
fn no_password_of_a_url_is_shown_wherever_it_stands() {
    let urls = [
        "postgres://u:S3CRET@h/db",
        "postgres://u:S3CRET/x@h/db",
        "postgres://u:x@S3CRET@h/db",
        "postgres://u:x S3CRET@h/db",
        "postgres://u:x`S3CRET@h/db",
        "postgres://u:x?S3CRET#@h/db",
        "postgres://h/db?user=u&password=S3CRET",
        "redis://:S3CRET@h/",
        "http://S3CRET@h",
    ];
    let sections = [
        "",
        "[listen]\n",
        "[admin]\n",
        "[upstream]\n",
        "[store]\n",
        "[scope]\n",
        "[limits]\n",
        "[shutdown]\n",
        "[defaults]\n",
        "[[route]]\n",
        "[[route]]\nmatch = \"POST /x\"\n",
        "[nothing]\n",
    ];
    let lines = [
        "store = \"URL\"",
        "stor = \"URL\"",
        "store = 'URL'",
        "store = URL",
        "store = \"URL",
        "store = [\"URL\"]",
        "store = { ur = \"URL\" }",
        "\"URL\" = 1",
        "[\"URL\"]",
        "nothing = 1 # URL",
        "nothing = \"http://h\" # URL",
        "address = \"URL\"",
        "url = \"URL\"",
        "shared_cache = \"URL\" x",
        "header = \"URL\"",
        "from = \"URL\"",
        "trusted_peers = [\"URL\"]",
        "match = \"URL\"",
        "match = \"POST /URL\"",
        "profile = \"URL\"",
        "timeout = \"URL\"",
        "drain = \"URL\"",
        "queue_max = \"URL\"",
        "retention = \"URL\"",
        "fingerprint = \"URL\"",
        "fingerprint = { only = [\"URL\"] }",
        "token_file = \"URL\"",
    ];
    let mut wrong = 0;
    for url in urls {
        for section in sections {
            for line in lines {
                let text = format!("{section}{}", line.replace("URL", url));
                let Err(error) = parse(&text) else { continue };
                let shown = format!("{error} {error:?}");
                assert!(!shown.contains("S3CRET"), "{text}\n{shown}");
                wrong += 1;
            }
        }
    }
    assert!(wrong > urls.len() * sections.len() * lines.len() / 2, "{wrong}");
    for url in urls {
        let url = || Some(url.to_owned());
        let upstream = Some("http://127.0.0.1:3000".to_owned());
        for given in [
            Given { upstream: url(), ..Given::default() },
            Given { upstream: upstream.clone(), listen: url(), ..Given::default() },
            Given { upstream: upstream.clone(), admin: url(), ..Given::default() },
            Given { upstream: upstream.clone(), profile: url(), ..Given::default() },
        ] {
            let Err(error) = Config::parse(None, "", &given) else { continue };
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("S3CRET"), "{shown}");
        }
    }
}

#[test]
fn a_store_is_shown_without_its_secrets() {
    let table = [
        ("postgres://u:hunter2@h:5432/d?schema=x", "postgres://…@h:5432/d?…"),
        ("postgres://u:hun@ter2@h/d", "postgres://…@h/d"),
        ("postgres://u:hun/ter2@h/d", "postgres://…@h/d"),
        ("postgres://u:hun?ter2@h/d", "postgres://…"),
        ("postgres://h/d?password=hun@ter2", "postgres://…"),
        ("redis://:hunter2@h/", "redis://…@h/"),
        ("sqlite:///var/lib/oncegate.db", "sqlite:///var/lib/oncegate.db"),
        ("memory:", "memory:"),
    ];
    for (url, shown) in table {
        let config = parse(&format!("[store]\nurl = \"{url}\"")).unwrap();
        assert_eq!(config.store.shown(), shown);
        assert!(!format!("{config:?}").contains("hun"), "{url}");
    }
}
