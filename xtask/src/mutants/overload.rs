//! The mutants of the gateway's limits: what one client could take from all others.

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

const CLIENT_BODY: &str = "crates/gateway/src/public/client_body.rs";
const PACE: &str = "crates/gateway/src/public/client_body/pace.rs";
const PEERS: &str = "crates/gateway/src/public/peers.rs";

/// Every one of them.
pub(super) const MUTANTS: &[Mutant] = &[
    gateway(
        "replays are shed together with new requests",
        "crates/tower/src/service.rs",
        "(Err(_), Some(limit)) => match limit.admit() {",
        "(_, Some(limit)) => match limit.admit() {",
    ),
    gateway(
        "requests about operations are not admitted",
        "crates/gateway/src/public/operations.rs",
        "    let Some(_place) = public.limiter.admit() else { return refusal(&Problem::overloaded()) };\n",
        "    let _ = &public.limiter;\n",
    ),
    gateway(
        "a byte now and then buys a body all the time it wants",
        PACE,
        "let left = self.credit.saturating_sub(now - since);",
        "let left = self.credit;\n            let _ = since;",
    ),
    gateway(
        "a body may take as long as it likes",
        PACE,
        "let end = now.checked_add(rules.deadline).unwrap_or_else(|| now + FAR);",
        "let end = now + FAR;",
    ),
    gateway(
        "bodies that are waited for have no limit",
        CLIENT_BODY,
        "self.place = Some(limiter.wait_for_body().ok_or(BodyFault::NoPlace)?);",
        "self.place = limiter.wait_for_body();",
    ),
    gateway(
        "one address has all places for uploads",
        PEERS,
        "(before < max || self.is_exempt).then_some(upload)",
        "{ let _ = (before, max); Some(upload) }",
    ),
    gateway(
        "an attempt whose client hung up counts for no address",
        "crates/gateway/src/proxy.rs",
        "let _in_flight = request.extensions_mut().remove::<InFlight>();",
        "drop(request.extensions_mut().remove::<InFlight>());",
    ),
    gateway(
        "preauthorize is told of the proxy in place of the client",
        "crates/gateway/src/proxy/forward.rs",
        "            headers.append(name.clone(), value.clone());\n        }\n    }\n    let peer",
        "            let _ = value;\n        }\n    }\n    let peer",
    ),
    gateway(
        "one address has any number of connections",
        PEERS,
        "if entry.connections >= self.connections_max {",
        "if false {",
    ),
    gateway(
        "one address has any number of requests",
        PEERS,
        "self.counted.as_ref().is_none_or(|(peers, _)| requests <= peers.requests_max)",
        "{ let _ = requests; true }",
    ),
];
