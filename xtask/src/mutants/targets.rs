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

const GUARD: &str = "crates/gateway/src/public/guard.rs";
const PATH: &str = "crates/gateway/src/public/path.rs";
const PUBLIC: &str = "crates/gateway/src/public.rs";
const FORWARD: &str = "crates/gateway/src/proxy/forward.rs";
const SERVICE: &str = "crates/tower/src/service.rs";
const PREAUTHORIZE: &str = "crates/gateway/src/preauthorize.rs";
const OPERATIONS: &str = "crates/tower/src/operations.rs";
const PROXY: &str = "crates/gateway/src/proxy.rs";
const SIGNATURE: &str = "crates/gateway/src/reconcile/signature.rs";

/// Every one of them.
pub(super) const MUTANTS: &[Mutant] = &[
    gateway(
        "a target without a leading slash is forwarded",
        GUARD,
        "let is_target = path.starts_with('/')",
        "let is_target = true || path.starts_with('/')",
    ),
    gateway(
        "encoded separators reach protected routes",
        GUARD,
        "&& path::is_ambiguous(path)",
        "&& false && path::is_ambiguous(path)",
    ),
    gateway("the path is forwarded as it came", PATH, "(normal != path).then_some(normal)", "None"),
    gateway(
        "identity headers of untrusted peers are forwarded",
        PUBLIC,
        "        current.scope.strip_untrusted(&mut request);\n",
        "",
    ),
    gateway("a client's X-Forwarded-Host is kept", FORWARD, "        headers.remove(FORWARDED_HOST);\n", ""),
    gateway(
        "the key is forwarded as it was spelled",
        SERVICE,
        "    key::respell(&mut head.headers, &key, policy.key.syntax);\n",
        "    let _ = &mut head;\n",
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
        "route.and_then(|route| authorize.check(route, head))",
        "route.filter(|_| false).and_then(|route| authorize.check(route, head))",
    ),
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
