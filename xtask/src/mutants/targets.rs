//! The mutants of the gateway's public side: requests that have a second reading.

use super::list::Mutant;

/// A mutant of the gateway.
const fn gateway(
    name: &'static str,
    file: &'static str,
    rule: &'static str,
    without: &'static str,
) -> Mutant {
    Mutant { name, package: "oncegate-gateway", test: "gateway", file, rule, without }
}

/// A mutant of the gateway that a hostile request of the corpus finds.
const fn corpus(name: &'static str, file: &'static str, rule: &'static str, without: &'static str) -> Mutant {
    Mutant { name, package: "oncegate-gateway", test: "corpus", file, rule, without }
}

const GUARD: &str = "crates/gateway/src/public/guard.rs";
const PATH: &str = "crates/gateway/src/public/path.rs";
const PUBLIC: &str = "crates/gateway/src/public.rs";
const FORWARD: &str = "crates/gateway/src/proxy/forward.rs";
const BODY: &str = "crates/gateway/src/public/client_body.rs";
const NAMES: &str = "crates/gateway/src/public/names.rs";
const SCOPE: &str = "crates/gateway/src/config/scope.rs";
const STREAM: &str = "crates/gateway/src/listener/client_stream.rs";
const SERVICE: &str = "crates/tower/src/service.rs";
const PREAUTHORIZE: &str = "crates/gateway/src/preauthorize.rs";
const OPERATIONS: &str = "crates/tower/src/operations.rs";
const PROXY: &str = "crates/gateway/src/proxy.rs";
const SIGNATURE: &str = "crates/gateway/src/reconcile/signature.rs";
const REUSE: &str = "crates/engine/src/reuse.rs";
const DIFFERENCE: &str = "crates/core/src/fingerprint/difference.rs";
const PATTERN: &str = "crates/tower/src/route/pattern.rs";

/// A mutant of what a configuration is refused for.
const fn config(name: &'static str, file: &'static str, rule: &'static str, without: &'static str) -> Mutant {
    Mutant { name, package: "oncegate-gateway", test: "config", file, rule, without }
}

/// Every one of them.
pub(super) const MUTANTS: &[Mutant] = &[
    gateway(
        "one host's answer is replayed to another",
        PUBLIC,
        "if self.upstream.host == HostHeader::Client || current.compares_host(&request) {",
        "if current.compares_host(&request) {",
    ),
    gateway(
        "one host's answer is replayed to another where the route names the host",
        PUBLIC,
        "self.may_compare_host && route()",
        "self.may_compare_host && false && route()",
    ),
    gateway(
        "a deferred request is run for the host of a header that does not count",
        "crates/tower/src/stored.rs",
        "for name in also.keys() {\n            headers.remove(name);",
        "for name in also.keys() {\n            let _ = name;",
    ),
    gateway(
        "records of earlier releases, which have no host, are not found",
        "crates/core/src/decide/event.rs",
        "if former == Some(Comparison::Same) {",
        "if former.is_none() && former == Some(Comparison::Same) {",
    ),
    gateway(
        "a client may guess the members of a request one by one",
        REUSE,
        "if *times <= ANSWERS_PER_RECORD_MAX { Verdict::Answer } else { Verdict::Silent }",
        "if *times <= u8::MAX { Verdict::Answer } else { Verdict::Silent }",
    ),
    gateway(
        "strangers who share a scope are told how their requests differ",
        "crates/tower/src/reuse.rs",
        "if may_name && !tenant.is_shared(request.head) {",
        "if may_name {",
    ),
    gateway(
        "one tenant silences the audit of all others",
        REUSE,
        "self.records.len() >= RECORDS_MAX || of_tenant >= RECORDS_PER_TENANT_MAX",
        "self.records.len() >= RECORDS_MAX",
    ),
    gateway(
        "a member's name forges a list in the audit trail",
        DIFFERENCE,
        "{name:?}\", if at == 0",
        "{name}\", if at == 0",
    ),
    gateway("members of text that is not JSON are named", DIFFERENCE, "if !is_json {", "if false {"),
    gateway(
        "a member's name reorders text",
        "crates/core/src/fingerprint/members.rs",
        "name.chars().filter(|char| !is_invisible(*char))",
        "name.chars()",
    ),
    gateway(
        "a refusal counts for no route because of how its path is spelled",
        PUBLIC,
        "let normal = normal.as_deref().unwrap_or(path);",
        "let normal = normal.as_deref().map_or(path, |_| path);",
    ),
    config(
        "a pattern with doubled braces protects nothing",
        PATTERN,
        "if path.contains(\"{{\") || path.contains(\"}}\") {",
        "if false {",
    ),
    config(
        "a pattern with a space at its end protects nothing",
        PATTERN,
        "char.is_whitespace() || char.is_control()) {",
        "char.is_control()) {",
    ),
    gateway(
        "a target without a leading slash is forwarded",
        GUARD,
        "let is_path = target.is_some_and(",
        "let is_path = true || target.is_some_and(",
    ),
    gateway(
        "encoded separators reach protected routes",
        GUARD,
        "&& path::is_ambiguous(path)",
        "&& false && path::is_ambiguous(path)",
    ),
    corpus(
        "a broken escape is forwarded",
        GUARD,
        "if path::has_broken_escape(request.uri().path()) {",
        "if false && path::has_broken_escape(request.uri().path()) {",
    ),
    corpus(
        "dots that only a lenient server finds are forwarded",
        GUARD,
        "if path::hides_dot_segments(path) {",
        "if false && path::hides_dot_segments(path) {",
    ),
    corpus(
        "a header replaces the method of a safe request",
        NAMES,
        "(THAT_REPLACE_METHODS.contains(&name) ||",
        "((!is_safe && THAT_REPLACE_METHODS.contains(&name)) ||",
    ),
    corpus(
        "a header replaces the target of an open path",
        NAMES,
        "(!is_safe && THAT_REPLACE_TARGETS.contains(&name))",
        "false",
    ),
    corpus(
        "a `:path` without a path is forwarded",
        GUARD,
        "request.version() != Version::HTTP_2 && request.uri()",
        "request.uri()",
    ),
    corpus(
        "leading zeros of a length are forwarded",
        GUARD,
        "length.len() > 1 && length.as_bytes()",
        "false && length.as_bytes()",
    ),
    corpus(
        "a name with a dot does not collide",
        NAMES,
        "if byte.is_ascii_alphanumeric() { byte } else { b'-' }",
        "if byte == b'_' { b'-' } else { byte }",
    ),
    gateway(
        "trailers of a request reach the upstream",
        BODY,
        "Poll::Ready(Some(Ok(frame))) if frame.is_trailers())",
        "Poll::Ready(Some(Ok(frame))) if false && frame.is_trailers())",
    ),
    gateway("bytes of a tunnel are taken for a refusal", STREAM, " || self.requests.is_tunnel()", ""),
    corpus(
        "a head that does not come is not answered",
        STREAM,
        "            self.refusal = self.refusal_of_head(StatusCode::REQUEST_TIMEOUT);\n",
        "",
    ),
    gateway("the path is forwarded as it came", PATH, "(normal != path).then_some(normal)", "None"),
    gateway(
        "identity headers of untrusted peers are forwarded",
        PUBLIC,
        "        current.scope.strip_untrusted(&mut request);\n",
        "",
    ),
    corpus(
        "X-Forwarded-* of a client is kept",
        NAMES,
        "name == \"forwarded\" || name.starts_with(\"x-forwarded-\") ||",
        "name == \"forwarded\" ||",
    ),
    gateway(
        "a secret header is part of the tenant's name",
        SCOPE,
        "format!(\"{name}={}\", digest(value))",
        "format!(\"{name}={value:?}\")",
    ),
    corpus(
        "X-Real-IP of a client is kept",
        NAMES,
        "name.starts_with(\"x-forwarded-\") || OF_ADDRESSES.contains(&name)",
        "name.starts_with(\"x-forwarded-\")",
    ),
    gateway(
        "the key is forwarded as it was spelled",
        SERVICE,
        "key::respell(&mut head.headers, &key, policy.key.syntax);",
        "{ let _ = &mut head; head.headers.get(key::IDEMPOTENCY_KEY).cloned() };",
    ),
    gateway(
        "a revoked credential gets the stored response",
        SERVICE,
        "authorize.and_then(|authorize| authorize.check(route, &head))",
        "authorize.filter(|_| false).and_then(|authorize| authorize.check(route, &head))",
    ),
    gateway(
        "a revoked credential is shown an operation",
        OPERATIONS,
        "match authorize.check(route, head) {",
        "match authorize.check(route, head).filter(|_| false) {",
    ),
    gateway(
        "preauthorize: an operation whose route is gone is shown to everyone",
        OPERATIONS,
        "return Err(Denied { problem: without_route(), challenges: Vec::new() });",
        "return Ok(());",
    ),
    Mutant {
        name: "refusals about operations are not counted",
        package: "oncegate-tower",
        test: "layer",
        file: SERVICE,
        rule: "let response = shared.operation(&head).await;\n    count_refusal(&response, None);",
        without: "let response = shared.operation(&head).await;",
    },
    gateway(
        "an authorization service that fails allows the request",
        PREAUTHORIZE,
        "if status.is_success() =>",
        "if status.is_success() || status.is_server_error() =>",
    ),
    gateway(
        "a client says what the original request was",
        FORWARD,
        "    ORIGINAL_URI,\n",
        "    header::EXPECT,\n",
    ),
    gateway(
        "a client's broken chunk is the upstream's failure",
        PROXY,
        "is_some_and(|progress| progress.fault().is_some())",
        "is_some_and(|progress| progress.fault().is_some() && false)",
    ),
    gateway(
        "anybody's Ed25519 signature is believed",
        SIGNATURE,
        ".verify(&message, signature).is_ok()",
        ".verify(&message, signature) != Err(ring::error::Unspecified) || !signature.is_empty()",
    ),
];
