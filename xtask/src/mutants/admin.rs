//! The mutants of the admin listener and of certificates.

use super::list::Mutant;

const fn gateway(
    name: &'static str,
    file: &'static str,
    rule: &'static str,
    without: &'static str,
) -> Mutant {
    Mutant { name, package: "oncegate-gateway", test: "gateway", file, rule, without }
}

const ACCESS: &str = "crates/gateway/src/admin/access.rs";
const HEALTH: &str = "crates/gateway/src/admin/health.rs";
const SOCKET: &str = "crates/gateway/src/listener/socket.rs";
const TLS: &str = "crates/gateway/src/listener/tls.rs";

/// Every one of them.
pub(super) const MUTANTS: &[Mutant] = &[
    gateway(
        "admin: without a token any Host is answered",
        ACCESS,
        "if !is_for_loopback(uri, headers) {",
        "if false {",
    ),
    gateway(
        "admin: the audit API is open to everyone",
        "crates/gateway/src/admin.rs",
        "            .route(\"/api/v1/audit\", get(audit::list))\n            \
         .route(\"/api/v1/comparisons\", post(audit::record_comparison))\n            \
         .route(\"/api/v1/counts\", get(api::counts))\n            \
         .route(\"/api/v1/openapi.json\", get(openapi::document))\n            \
         .layer(middleware::from_fn_with_state(self.clone(), access::check));",
        "            .route(\"/api/v1/counts\", get(api::counts))\n            \
         .route(\"/api/v1/openapi.json\", get(openapi::document))\n            \
         .layer(middleware::from_fn_with_state(self.clone(), access::check))\n            \
         .route(\"/api/v1/audit\", get(audit::list))\n            \
         .route(\"/api/v1/comparisons\", post(audit::record_comparison));",
    ),
    gateway(
        "admin: only one of several hosts must be a loopback name",
        ACCESS,
        "all.all(|is_loopback| is_loopback)",
        "all.any(|is_loopback| is_loopback)",
    ),
    gateway(
        "admin: without a token a page of another origin is answered",
        ACCESS,
        "if headers.get_all(header::ORIGIN).iter().any(",
        "if false && headers.get_all(header::ORIGIN).iter().any(",
    ),
    gateway(
        "admin: readiness tells the store's error to every caller",
        HEALTH,
        "        && access::refusal(&admin, &uri, &headers).is_none()\n",
        "",
    ),
    gateway(
        "admin: a Unix socket in use is replaced",
        SOCKET,
        "    refuse_what_is_in_use(path).await?;\n",
        "",
    ),
    gateway(
        "tls: an expired certificate replaces one that works",
        TLS,
        "        if has_expired(expires) {\n            let words",
        "        if false {\n            let words",
    ),
    gateway(
        "tls: a certificate is taken whatever its key",
        TLS,
        "CertifiedKey::from_der(chain, secret, provider);",
        "provider.key_provider.load_private_key(secret).map(|key| CertifiedKey::new(chain, key));",
    ),
];
