//! What is allowed and hardly meant.

use std::os::unix::fs::PermissionsExt as _;

use oncegate_gateway::{Config, Environment, Given, Secret};

use crate::{parse, parse_with};

/// Takes the tenant from a header, so that only what is asked about is warned of.
fn check(text: &str, expected: &[&str]) {
    let scope = "[scope]\nfrom = \"header\"\nheader = \"x-tenant\"\ntrusted_peers = [\"10.0.0.0/8\"]\n";
    assert_eq!(parse(&format!("{scope}{text}")).unwrap().warnings, expected, "{text}");
}

#[test]
fn retention_that_ends_too_soon() {
    check("", &[]);
    check(
        "[defaults]\nretention = \"60m\"\nclient_retry = \"0s\"",
        &[
            "line 6: *: retention 1h is shorter than clients retry (0s) and outcomes are asked about (1h 15m 15s): one that comes back later runs its request again; raise it above their sum",
        ],
    );
    check(
        "[defaults]\nretention = \"59m 59s\"",
        &[
            "line 6: *: retention 59m 59s is under an hour: a client that comes back later runs its request again; keep records longer than clients retry",
        ],
    );
    // An hour of retries and 75 minutes and 15 seconds of questions.
    check("[defaults]\nretention = \"2h 15m 15s\"", &[]);
    check(
        "[defaults]\nretention = \"2h 15m 14s\"",
        &[
            "line 6: *: retention 2h 15m 14s is shorter than clients retry (1h) and outcomes are asked about (1h 15m 15s): one that comes back later runs its request again; raise it above their sum",
        ],
    );
    check(
        "[defaults]\nclient_retry = \"23h\"\n[[route]]\nmatch = \"POST /x\"\nretention = \"3d\"\n[[route]]\nmatch = \"POST /y\"\nprofile = \"payments\"",
        &[
            "*: retention 1d is shorter than clients retry (23h) and outcomes are asked about (1h 15m 15s): one that comes back later runs its request again; raise it above their sum",
        ],
    );
    check(
        "[defaults]\nprofile = \"off\"\n[[route]]\nmatch = \"POST /x\"\nprofile = \"ietf\"\nretention = \"1m\"",
        &[
            "line 6: defaults.profile = \"off\": a path that no route matches passes unprotected, also one that the upstream reads as a route's; protect by default, and switch off single routes",
            "line 10: POST /x: retention 1m is under an hour: a client that comes back later runs its request again; keep records longer than clients retry",
        ],
    );
}

/// Under 410 it is not run again; but the client is left without its answer.
#[test]
fn retention_that_ends_in_a_refusal() {
    check(
        "[defaults]\nretention = \"30m\"\nafter_retention = 410",
        &[
            "line 6: *: retention 30m is under an hour: a client that comes back later is refused, and does not learn what became of its request; keep records longer than clients retry",
        ],
    );
}

#[test]
fn nothing_protected_and_deadlines_that_come_first() {
    check(
        "[defaults]\nprofile = \"off\"",
        &["line 6: nothing is protected: the profile is \"off\" and no route says otherwise"],
    );
    check(
        "[upstream]\ntimeout = \"20m\"\n[[route]]\nmatch = \"POST /x\"\nattempt_deadline = \"30m\"",
        &[
            "*: an attempt's deadline (15m) comes before the upstream's timeout (20m): the lease ends while the request runs; raise attempt_deadline, or lower upstream.timeout",
        ],
    );
}

/// Each equals `defaults.profile = "off"`: a spelling of a path that no route matches, and the
/// upstream reads as a route's, passes without a key.
#[test]
fn paths_that_pass_beside_protected_routes() {
    let beside = |path: &str| {
        format!("a path that the upstream reads as {path}, and the gateway does not, passes without")
    };
    // Methods that [defaults] does not protect: one warning for each.
    let puts = "[[route]]\nmatch = \"PUT /orders/{id}\"\nprofile = \"payments\"\n\
                [[route]]\nmatch = \"PUT /carts/{id}\"\n[[route]]\nmatch = \"DELETE /orders/{id}\"\n";
    check(
        puts,
        &[
            &format!(
                "line 6: PUT /orders/{{id}}: {} a record; add PUT to defaults.methods",
                beside("this route's")
            ),
            &format!(
                "line 11: DELETE /orders/{{id}}: {} a record; add DELETE to defaults.methods",
                beside("this route's")
            ),
        ],
    );
    check(&format!("[defaults]\nmethods = [\"POST\", \"PUT\", \"DELETE\"]\n{puts}"), &[]);
    check(&format!("[[route]]\nmatch = \"PUT /{{*rest}}\"\n{}", puts.replace("DELETE", "POST")), &[]);
    check(
        "[[route]]\nmatch = \"PURGE /x\"",
        &[&format!(
            "line 6: PURGE /x: {} a record; add a route with match = \"PURGE /{{*rest}}\"",
            beside("this route's")
        )],
    );
    // Routes without protection that match what others protect.
    let route = |pattern: &str, rule: &str| format!("[[route]]\nmatch = \"{pattern}\"\n{rule}\n");
    let pay = route("POST /a/pay", "profile = \"payments\"");
    for wide in ["POST /{*rest}", "POST /a/{*rest}", "POST /a/{x}", "POST /{x}/pay"] {
        check(
            &format!("{pay}{}", route(wide, "profile = \"off\"")),
            &[&format!(
                "line 10: {wide}: profile = \"off\": {} a record; protect it, or match only the paths that may pass",
                beside("POST /a/pay")
            )],
        );
    }
    for narrow in ["POST /b/{*rest}", "POST /a/pay/{x}", "PATCH /{*rest}"] {
        check(&format!("{pay}{}", route(narrow, "profile = \"off\"")), &[]);
    }
    check(
        &format!("{pay}{}", route("POST /a/{*rest}", "key_required = false")),
        &[&format!(
            "line 10: POST /a/{{*rest}}: key_required = false: {} a key; require keys, or match only the paths that may pass",
            beside("POST /a/pay")
        )],
    );
    // Keys that are optional wherever no route matches.
    let words =
        format!("{} a key; require keys, and make them optional on single routes", beside("POST /a/pay"));
    check(
        &format!("[defaults]\nkey_required = false\n{pay}"),
        &[&format!("line 6: defaults.key_required = false: {words}")],
    );
    check(
        &format!("[defaults]\nprofile = \"stripe\"\n{pay}"),
        &[&format!("line 6: defaults.profile = \"stripe\" has key_required = false: {words}")],
    );
    check("[defaults]\nprofile = \"stripe\"\n[[route]]\nmatch = \"POST /a\"", &[]);
    check(&format!("[defaults]\nprofile = \"stripe\"\nkey_required = true\n{pay}"), &[]);
}

#[test]
fn connections_and_trails_that_are_kept_too_long_or_too_short() {
    check("[listen]\nidle_timeout = \"1h\"", &[]);
    check(
        "[listen]\nidle_timeout = \"30d\"",
        &[
            "line 6: listen.idle_timeout = \"30d\": a client that asks for nothing more holds a connection for so long; set 1h or less",
        ],
    );
    let trail = |retention: &str| {
        format!(
            "workers.audit_retention = \"{retention}\": the audit trail of POST /x ends before its records"
        )
    };
    let route = "[[route]]\nmatch = \"POST /x\"\nretention = \"500d\"\n";
    check(
        &format!("{route}[workers]\naudit_retention = \"1d\""),
        &[&format!("line 9: {}; set 500d or more", trail("1d"))],
    );
    check(route, &[&format!("line 7: {}; set 500d or more", trail("400d"))]);
    check(&format!("{route}[workers]\naudit_retention = \"500d\""), &[]);
}

/// Invented credentials: the row of a caller that the upstream refuses stays for the whole
/// retention where an effect of it may still be found out.
#[test]
fn rows_of_refused_callers_that_are_kept() {
    let secrets = [("SECRET", "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz")];
    let expect = |text: &str, expected: &[(&str, &str)]| {
        let words = "the record of a caller that the upstream refuses is kept for all of its retention (2d), so that \
                     invented credentials fill the store; set preauthorize";
        let expected: Vec<_> =
            expected.iter().map(|(before, why)| format!("{before}: {why}: {words}")).collect();
        let mut warnings = parse_with(&secrets, text).unwrap().warnings;
        warnings.retain(|words| !words.contains("scope.") && !words.contains("preauthorize = \"off\""));
        assert_eq!(warnings, expected, "{text}");
    };
    let route = "[defaults]\nretention = \"2d\"\n[[route]]\nmatch = \"POST /x\"\nprofile = \"payments\"\n";
    let asks = "preauthorize = { url = \"/auth\" }\n";
    let asked = route.replace("[defaults]\n", &format!("[defaults]\n{asks}"));
    let probe = "[route.probe]\nurl = \"/x?{key}&{life}\"\nhappened = [200]\nanswer = { status = 200 }\n";
    expect(route, &[]);
    for (setting, why) in [
        ("horizon = \"1m\"\n", "horizon"),
        ("forward_key = \"derived\"\n", "forward_key = \"derived\""),
        (probe, "probe"),
    ] {
        expect(&format!("{route}{setting}"), &[("line 6: POST /x", why)]);
        expect(&format!("{route}{asks}{setting}"), &[]);
        expect(&format!("{asked}{setting}"), &[]);
        expect(&format!("{asked}preauthorize = \"off\"\n{setting}"), &[("line 8: POST /x", why)]);
    }
    // Said once where routes have it from [defaults], and where a webhook concerns all of them.
    let inherits = "[[route]]\nmatch = \"POST /y\"\n";
    let defaults = "[defaults]\nretention = \"2d\"\nhorizon = \"1m\"\n";
    expect(&format!("{defaults}{inherits}"), &[("line 3: *", "horizon")]);
    let webhook = "[[webhook]]\nname = \"w\"\nscheme = \"standard\"\nsecrets = [\"env:SECRET\"]\n\
                   record = { reference = \"/id\" }\nhappened = [{ pointer = \"/type\", equals = \"paid\" }]\n\
                   answer = { status = 201 }\n";
    expect(&format!("{route}{inherits}{webhook}"), &[("line 8: *", "[[webhook]]")]);
    let off = route.replace("retention = \"2d\"", "profile = \"off\"");
    let warnings = parse_with(&secrets, &format!("{off}{webhook}")).unwrap().warnings;
    assert!(warnings.iter().any(|words| words.starts_with("line 4: POST /x: [[webhook]]: ")), "{warnings:?}");
    // A proxy in front has verified who asks, unless some are anonymous.
    check(&format!("{route}horizon = \"1m\""), &[]);
    let scope = "[scope]\nfrom = \"header\"\nheader = \"x-tenant\"\ntrusted_peers = [\"10.0.0.0/8\"]\n";
    expect(
        &format!("{scope}anonymous = \"share\"\n{route}horizon = \"1m\""),
        &[("line 11: POST /x", "horizon")],
    );
}

#[test]
fn requests_with_two_readings_that_pass() {
    let warnings = |text: &str| {
        let scope = "[scope]\nfrom = \"header\"\nheader = \"x-tenant\"\ntrusted_peers = [\"10.0.0.0/8\"]\n";
        parse(&format!("{scope}{text}")).unwrap().warnings
    };
    let [separators, overrides] = &warnings(
        "[request]\nencoded_separators = \"pass\"\nmethod_override = \"pass\"\npath_case = \"fold\"",
    )[..] else {
        panic!("one warning for each");
    };
    assert!(separators.starts_with("line 6: request.encoded_separators = \"pass\""), "{separators}");
    assert!(overrides.starts_with("line 7: request.method_override = \"pass\""), "{overrides}");
    assert!([separators, overrides].iter().all(|words| words.contains("drop the setting")));
    let safe = "[request]\nencoded_separators = \"reject\"\nmethod_override = \"reject\"";
    assert_eq!(warnings(safe), Vec::<String>::new());
}

#[test]
fn removed_keys_that_are_not_remembered() {
    check("[workers]\nremoved_keys_for = \"31d\"", &[]);
    check(
        "[workers]\nremoved_keys_for = \"0s\"",
        &[
            "line 6: workers.removed_keys_for = \"0s\": a key that is used again after its record was removed is executed again, and neither metrics nor the audit trail show it; drop the setting",
        ],
    );
    let error = parse("[workers]\nremoved_keys_for = \"32d\"").unwrap_err().to_string();
    assert!(error.contains(":2:20: expected 31d or less"), "{error}");
}

#[test]
fn whose_key_it_is() {
    let warnings = parse("[scope]\nanonymous = \"share\"").unwrap().warnings;
    assert_eq!(warnings.len(), 2);
    assert!(warnings[0].starts_with("scope.from = \"authorization\""));
    assert!(warnings[1].starts_with("line 2: scope.anonymous = \"share\""));
}

#[test]
fn secrets_in_the_name_of_a_tenant() {
    check("also = [\"x-api-key\"]\nalso_public = [\"stripe-account\"]", &[]);
    check(
        "also_public = [\"stripe-account\", \"X-Api-Key\"]",
        &[
            "line 5: scope.also_public contains \"x-api-key\": its values are shown in lists of records, metrics and the audit trail; name it in scope.also, which digests them",
        ],
    );
}

#[test]
fn trusted_peers_that_are_everyone() {
    let warnings = |peers: &str| {
        let text = format!("[scope]\nfrom = \"header\"\nheader = \"x-tenant\"\ntrusted_peers = {peers}");
        parse(&text).unwrap().warnings
    };
    for (peers, wide) in [(r#"["10.0.0.0/8", "0.0.0.0/0"]"#, "0.0.0.0/0"), (r#"["::/0"]"#, "::/0")] {
        let [words] = &warnings(peers)[..] else { panic!("one warning") };
        assert!(words.starts_with(&format!("line 4: scope.trusted_peers contains {wide}: ")), "{words}");
        assert!(words.ends_with("name only the proxies in front"), "{words}");
    }
    assert_eq!(warnings(r#"["10.0.0.0/8", "fc00::/7", "192.0.2.7"]"#), Vec::<String>::new());
    let of_tokens = parse("[scope]\ntrusted_peers = [\"0.0.0.0/0\"]").unwrap().warnings;
    let is_named = |words: &String| words.starts_with("line 2: scope.trusted_peers contains 0.0.0.0/0: ");
    let words = of_tokens.iter().find(|words| is_named(words)).unwrap();
    assert!(words.contains("X-Forwarded-*"), "{words}");
}

/// A warning stands where the setting was typed, once, and not at every route that inherits it.
#[test]
fn requests_that_are_not_compared() {
    check(
        "[defaults]\nmismatch = \"replay\"\n[[route]]\nmatch = \"POST /x\"\nfingerprint = \"none\"",
        &[
            "line 6: *: mismatch = \"replay\": a key that is used for another request gets the first one's response, and the other request is not executed; drop the setting, so that it is refused",
            "line 9: POST /x: fingerprint = \"none\": a key that is used again with another body gets the first one's response; use \"raw\" for bodies that are not JSON",
        ],
    );
    // The profile says it, too.
    let lenient = "profile = \"lenient\" has mismatch = \"replay\": a key that is used for another request gets the first one's response, and the other request is not executed; set mismatch = 422, so that it is refused";
    check(
        "[defaults]\nprofile = \"lenient\"\n[[route]]\nmatch = \"POST /x\"",
        &[&format!("line 6: *: {lenient}")],
    );
    check("[[route]]\nmatch = \"POST /x\"\nprofile = \"lenient\"", &[&format!("line 7: POST /x: {lenient}")]);
    check("[[route]]\nmatch = \"POST /x\"\nprofile = \"lenient\"\nmismatch = 422", &[]);
    let given = Given {
        upstream: Some("http://127.0.0.1:3000".to_owned()),
        profile: Some("lenient".to_owned()),
        ..Given::default()
    };
    let warnings = Config::parse(None, "[defaults]\nprofile = \"ietf\"", &given).unwrap().warnings;
    assert!(warnings.contains(&format!("*: {lenient}")), "{warnings:?}");
}

/// The file of the store is looked at, and neither opened nor created.
#[test]
#[cfg(unix)]
fn a_store_that_others_can_read() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("records.db");
    let text = format!("[store]\nurl = \"sqlite://{}\"", file.display());
    check(&text, &[]);
    assert!(!file.exists());
    std::fs::write(&file, "").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let path = file.display();
    let warning = format!(
        "line 6: {path} has mode 0644: other users of this machine can read or change stored requests and responses; run `chmod 600 {path}`"
    );
    check(&text, &[&warning]);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    check(&text, &[]);
}

/// A route without a check lets a revoked credential have its replays; a check in the clear can be
/// answered by anyone on the way.
#[test]
fn preauthorization_that_is_left_out_or_can_be_forged() {
    check(
        "[defaults]\npreauthorize = { url = \"/auth\" }\n[[route]]\nmatch = \"POST /x\"\nprofile = \"payments\"",
        &[],
    );
    check("[[route]]\nmatch = \"POST /x\"\npreauthorize = \"off\"", &[]);
    check(
        "[defaults]\npreauthorize = { url = \"/auth\" }\n[[route]]\nmatch = \"POST /x\"\npreauthorize = \"off\"",
        &[
            "line 9: POST /x: preauthorize = \"off\": a caller whose credential was revoked still gets what is stored under it; drop the setting",
        ],
    );
    let open = "preauthorize.url is http:// and not of this machine: credentials cross the network unencrypted, and anyone on the way can allow a request; use https://";
    check(
        "[defaults]\npreauthorize = { url = \"http://auth.test/check\" }\n[[route]]\nmatch = \"POST /x\"",
        &[&format!("line 6: *: {open}")],
    );
    for here in
        ["http://127.0.0.1:8/check", "http://[::1]/check", "http://localhost:9/", "https://auth.test/check"]
    {
        check(&format!("[defaults]\npreauthorize = {{ url = \"{here}\" }}"), &[]);
    }
}

/// A signature proves who sent an event, and not who chose what is in its metadata.
#[test]
fn webhooks_that_end_users_could_forge() {
    let warnings = |record: &str| {
        let text = format!(
            "[defaults]\nforward_key = \"derived\"\n[scope]\nfrom = \"header\"\nheader = \"x-tenant\"\ntrusted_peers = [\"10.0.0.0/8\"]\n\
             [[webhook]]\nname = \"provider\"\nscheme = \"standard\"\nsecrets = [\"env:PROVIDER_SECRET\"]\nrecord = {record}\n\
             happened = [{{ pointer = \"/type\", equals = \"paid\" }}]\nanswer = {{ status = 201, body = \"paid\" }}\nkeys_are_never_reused = true"
        );
        parse_with(&[("PROVIDER_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")], &text).unwrap().warnings
    };
    for (record, by) in [
        ("{ id = \"/data/metadata/id\" }", "id"),
        ("{ key = \"/data/key\", scope = \"x-tenant:acme\" }", "key"),
    ] {
        let expected =
            format!("line 11: [[webhook]] \"provider\": record is found by {by}: an end user who can write");
        let found = warnings(record);
        assert!(matches!(&found[..], [one] if one.starts_with(&expected)), "{found:?}");
    }
}

/// Attack 33, by the operator's own word.
#[test]
fn attack_33_deferred_requests_without_credentials() {
    let words = "credentials = \"dropped\": a deferred request runs without its caller's credentials, and an upstream \
                 that trusts the gateway executes it for anybody; drop the setting, unless the upstream takes no \
                 request for authorized because the gateway sends it";
    check(
        "[[route]]\nmatch = \"POST /x\"\nprofile = \"accepted\"\ncredentials = \"dropped\"",
        &[&format!("line 8: POST /x: {words}")],
    );
    // A route that inherits it, where nothing else is deferred.
    check(
        "[defaults]\ncredentials = \"dropped\"\n[[route]]\nmatch = \"POST /x\"\nrespond_async = true",
        &[&format!("line 6: POST /x: {words}")],
    );
    check("[[route]]\nmatch = \"POST /x\"\nprofile = \"accepted\"\ncredentials = \"kept\"", &[]);
}

#[test]
fn stores_that_are_reached_without_verified_tls() {
    let remedy = "is reached over the network without TLS that proves who answers: records and passwords can be read on the way, \
                  and responses forged;";
    check(
        "[store]\nurl = \"postgres://u:hunter2@db.example/d?sslmode=require\"\nshared_cache = \"redis://10.0.0.7/\"",
        &[
            &format!("line 6: store.url: postgres://…@db.example/d?… {remedy} say sslmode=verify-full"),
            &format!("line 7: store.shared_cache: redis://10.0.0.7/ {remedy} use rediss://"),
        ],
    );
    for url in [
        "postgres://u@localhost/d",
        "postgres://u@db.example/d?sslmode=verify-full",
        "redis://127.0.0.1/",
        "rediss://cache.example/",
    ] {
        check(&format!("[store]\nurl = \"{url}\""), &[]);
    }
}

#[test]
fn secrets_that_other_users_may_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let set = |name: &str, mode: u32| {
        std::fs::set_permissions(path(name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    for (name, text) in [
        ("url", "postgres://u@localhost/d\n"),
        ("cache", "redis://localhost/"),
        ("token", "0123456789abcdef"),
    ] {
        std::fs::write(path(name), text).unwrap();
        set(name, 0o600);
    }
    std::fs::write(path("key.pem"), "").unwrap();
    set("key.pem", 0o400);
    let shown = |name: &str| path(name).display().to_string();
    let text = format!(
        "[store]\nurl_file = \"{}\"\nshared_cache = \"file:{}\"\n[admin]\ntoken_file = \"{}\"\ntls_key = \"{key}\"\n\
         tls_certificate = \"{key}\"\n[listen]\ntls_key = \"{key}\"\ntls_certificate = \"{key}\"",
        shown("url"),
        shown("cache"),
        shown("token"),
        key = shown("key.pem"),
    );
    check(&text, &[]);
    for (name, mode) in [("url", 0o640), ("cache", 0o604), ("token", 0o644), ("key.pem", 0o440)] {
        set(name, mode);
    }
    let warning = |line: u32, key: &str, name: &str, mode: &str| {
        let file = shown(name);
        format!(
            "line {line}: {key}: {file} has mode {mode}, so that other users may read the secret; chmod 600 {file}"
        )
    };
    let expected = [
        warning(13, "listen.tls_key", "key.pem", "0440"),
        warning(10, "admin.tls_key", "key.pem", "0440"),
        warning(9, "admin.token_file", "token", "0644"),
        warning(6, "store.url_file", "url", "0640"),
        warning(7, "store.shared_cache", "cache", "0604"),
    ];
    check(&text, &expected.each_ref().map(String::as_str));
}

#[test]
fn a_store_named_by_a_variable_or_a_file() {
    let config =
        parse_with(&[("DB", "postgres://u:hunter2@localhost/d")], "[store]\nurl = \"env:DB\"").unwrap();
    assert_eq!(config.store.url.expose(), "postgres://u:hunter2@localhost/d");
    assert_eq!(config.store.shown(), "postgres://…@localhost/d");
    for (text, expected) in [
        ("[store]\nurl = \"env:NONE\"", "the environment variable NONE is not set, or is empty"),
        ("[store]\nurl_file = \"/no/such/file\"", "/no/such/file could not be read"),
        ("[store]\nurl_file = \"/dev/null\"", "/dev/null is empty; expected the secret"),
        (
            "[store]\nurl = \"memory:\"\nurl_file = \"x\"",
            "`url` and `url_file` are two answers to one question",
        ),
        ("[store]\nshared_cache = \"env:NONE\"", "the environment variable NONE is not set, or is empty"),
    ] {
        let error = parse_with(&[], text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

/// Each of these lets one client block all others again.
#[test]
fn limits_that_are_none() {
    let of_listen = |line: &str| format!("[listen]\n{line}");
    let of_limits = |line: &str| format!("[limits]\n{line}");
    let risky = [
        (
            of_listen("header_timeout = \"6m\""),
            "listen.header_timeout = \"6m\": a client that sends no whole head holds a connection for so long; set 5m or less",
        ),
        (
            of_listen("tunnel_idle_timeout = \"2d\""),
            "listen.tunnel_idle_timeout = \"2d\": a WebSocket whose client is gone holds two connections for so long; set 1d or less",
        ),
        (
            of_listen("body_timeout = \"1h\""),
            "listen.body_timeout = \"1h\": a client may send nothing for so long and hold its place; say 5m or less",
        ),
        (
            of_listen("body_deadline = \"1d\""),
            "listen.body_deadline = \"1d\": a client may hold a place for so long with one slow body; say 2h or less",
        ),
        (
            of_listen("body_rate_min = 0"),
            "listen.body_rate_min = 0: a client that sends a byte before every body_timeout holds its place until body_deadline; drop the setting, or say 240",
        ),
        (
            of_listen("body_rate_min = \"1 MiB\""),
            "listen.body_rate_min = 1048576: clients on slow networks cannot send anything larger than what they send within body_timeout; say 65536 or less",
        ),
        (
            of_limits("per_peer_connections_max = 5001"),
            "limits.per_peer_connections_max = 5001: one address can take more than half of listen.connections_max (10000); say 5000 or less, and name proxies in front in limits.per_peer_exempt",
        ),
        (
            of_limits("per_peer_requests_max = 2049"),
            "limits.per_peer_requests_max = 2049: one address can take more than half of limits.executions_max (1024); say 512 or less, and name proxies in front in limits.per_peer_exempt",
        ),
        (
            of_limits("per_peer_exempt = [\"10.0.0.0/8\", \"0.0.0.0/0\"]"),
            "limits.per_peer_exempt contains 0.0.0.0/0: no limit holds for any of these addresses, so that one client can block all others; name only the proxies in front",
        ),
    ];
    for (text, words) in risky {
        check(&text, &[&format!("line 6: {words}")]);
    }
    check(&of_listen("body_timeout = \"5m\"\nbody_deadline = \"2h\"\nbody_rate_min = \"64 KiB\""), &[]);
    let limits =
        "per_peer_connections_max = 5000\nper_peer_requests_max = 512\nper_peer_exempt = [\"10.0.0.0/8\"]";
    check(&of_limits(limits), &[]);
}

#[test]
fn an_address_has_a_quarter_unless_the_file_says_more() {
    let limits = |text: &str| parse(text).unwrap().limits;
    let most = limits("");
    assert_eq!((most.per_peer_connections_max, most.per_peer_requests_max), (1024, 512));
    let quarter = limits("[listen]\nconnections_max = 100\n[limits]\nrequests_max = 40");
    assert_eq!((quarter.per_peer_connections_max, quarter.per_peer_requests_max), (25, 10));
    let least = limits("[listen]\nconnections_max = 1\n[limits]\nrequests_max = 2");
    assert_eq!((least.per_peer_connections_max, least.per_peer_requests_max), (1, 1));
}

/// Each line that is marked `risky` has one warning, with its number and a remedy; no other line
/// has one. A new risky setting belongs here.
#[test]
fn every_risky_setting_has_one_warning_with_its_line_and_a_remedy() {
    const TEXT: &str = r#"
[listen]
header_timeout = "1h" # risky
body_timeout = "1h" # risky
body_deadline = "1d" # risky
body_rate_min = 0 # risky
tunnel_idle_timeout = "30d" # risky
[admin]
address = "0.0.0.0:9090"
token = "0123456789abcdef" # risky
plaintext = true # risky
[store]
url = "postgres://u:p@db.example/d" # risky
shared_cache = "redis://cache.example/" # risky
[scope]
from = "authorization" # risky
trusted_peers = ["0.0.0.0/0"] # risky
anonymous = "share" # risky
also_public = ["x-api-key"] # risky
[request]
encoded_separators = "pass" # risky
method_override = "pass" # risky
[limits]
per_peer_connections_max = 9000 # risky
per_peer_requests_max = 4000 # risky
per_peer_exempt = ["::/0"] # risky
[workers]
removed_keys_for = "0s" # risky
[defaults]
profile = "off" # risky
preauthorize = { url = "http://auth.example/check" } # risky
[[route]]
match = "POST /a"
profile = "ietf"
retention = "10m" # risky
mismatch = "replay" # risky
fingerprint = "none" # risky
preauthorize = "off" # risky
horizon = "1m" # risky
[[route]]
match = "POST /b"
profile = "accepted"
retention = "2d"
credentials = "dropped" # risky
preauthorize = { url = "http://auth.example/check" } # risky
[[webhook]]
name = "w"
scheme = "standard"
secrets = ["env:SECRET"]
record = { id = "/id" } # risky
keys_are_never_reused = true
happened = [{ pointer = "/type", equals = "paid" }]
answer = { status = 201 }
"#;
    expect_warnings_of_risky_lines(TEXT);
    // The same where `[defaults]` protects.
    let protected = r#"
[listen]
idle_timeout = "30d" # risky
[scope]
from = "header"
header = "x-tenant"
trusted_peers = ["10.0.0.0/8"]
[workers]
audit_retention = "1d" # risky
[defaults]
key_required = false # risky
[[route]]
match = "POST /payments"
profile = "payments"
[[route]]
match = "PUT /payments/{id}" # risky
profile = "payments"
[[route]]
match = "POST /files/pay"
profile = "payments"
[[route]]
match = "POST /files/{*rest}"
profile = "off" # risky
[[route]]
match = "PATCH /files/pay"
profile = "payments"
[[route]]
match = "PATCH /files/{*rest}"
key_required = false # risky
[[route]]
match = "POST /quotes"
profile = "lenient" # risky
"#;
    expect_warnings_of_risky_lines(protected);
}

#[track_caller]
fn expect_warnings_of_risky_lines(text: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oncegate.toml");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let secrets = [("SECRET".to_owned(), Secret::new("whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"))];
    let environment = Environment::Only(secrets.into_iter().collect());
    let given = Given { upstream: Some("http://127.0.0.1:3000".to_owned()), environment, ..Given::default() };
    let warnings = Config::parse(Some(&path), text, &given).unwrap().warnings;
    let mut warned: Vec<usize> = Vec::new();
    for words in &warnings {
        let (line, words) = words.strip_prefix("line ").unwrap().split_once(": ").unwrap();
        warned.push(line.parse().unwrap());
        // What it reopens, and then what to do about it.
        assert!(words.split_once("; ").is_some_and(|(_, remedy)| remedy.len() > 10), "{words}");
    }
    warned.sort_unstable();
    let lines = text.lines().enumerate().filter(|(_, line)| line.ends_with("# risky"));
    let risky: Vec<_> = lines.map(|(number, _)| number + 1).collect();
    assert_eq!(warned, risky, "{warnings:#?}");
}
