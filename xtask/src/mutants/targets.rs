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
];
