//! A request that is stored, so that a worker can run it: with the headers that the route names,
//! and if it is deferred, with what identifies its caller.
//!
//! **Invariant:** a deferred request runs with the identity of its caller, or its route says
//! `credentials = "dropped"`. Not here: requests of earlier releases, which `decide` parks.

use bytes::Bytes;
use http::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Uri};
use oncegate_core::policy::{Credentials, Policy};
use oncegate_core::problem::{Code, Problem};
use oncegate_core::record::{CrashPolicy, Execution, StoredRequest};

use crate::scope::Tenant;

/// Headers that are stored with a deferred request, whatever its route names; in its extensions.
/// They take the place of what the request says under the same names; those that identify the
/// caller are left out where credentials are dropped. For a service that puts the layer in front
/// of another one, and must know more of the client than its request says.
#[derive(Clone, Debug, Default)]
pub struct AlsoKept(pub HeaderMap);

/// The key goes with a deferred request: it is no credential, and the handler may dedupe by it.
const KEY: &str = "idempotency-key";

/// What is stored of a request, where anything is; a problem if it would run as no caller, or as
/// another.
pub(crate) fn store(
    tenant: &dyn Tenant,
    policy: &Policy,
    execution: Execution,
    head: &Parts,
    body: &Bytes,
) -> Result<Option<StoredRequest>, Problem> {
    let is_deferred = execution == Execution::Deferred;
    if policy.crash != CrashPolicy::Resume && !is_deferred {
        return Ok(None);
    }
    // A handler in phases has seen its caller, and goes on with what it has begun.
    let credentials = if is_deferred { policy.credentials } else { Credentials::Dropped };
    let identity = identity_headers(tenant);
    let is_stored = |name: &HeaderName| {
        let is_in = |names: &[Box<str>]| names.iter().any(|one| one.eq_ignore_ascii_case(name.as_str()));
        if name.as_str().starts_with(StoredRequest::RESERVED_PREFIX) {
            return false;
        }
        if is_in(&policy.request_headers) || (is_deferred && name.as_str() == KEY) {
            return true;
        }
        match credentials {
            Credentials::Kept => identity.contains(name) || is_in(&policy.fingerprint_headers),
            Credentials::Dropped => !identity.contains(name) && is_in(&policy.fingerprint_headers),
        }
    };
    let mut headers: HeaderMap = head.headers.iter().filter(|(name, _)| is_stored(name)).map(owned).collect();
    if is_deferred && credentials == Credentials::Kept {
        headers = check_caller(tenant, head, headers)?;
    }
    if let Some(AlsoKept(also)) = head.extensions.get().filter(|_| is_deferred) {
        let is_dropped = |name: &HeaderName| credentials == Credentials::Dropped && identity.contains(name);
        let mut also = also.clone();
        while let Some(name) = also.keys().find(|name| is_dropped(name)).cloned() {
            also.remove(name);
        }
        // The host that was compared may be in the address, and another one in the header.
        for name in also.keys() {
            headers.remove(name);
        }
        headers.extend(also.iter().map(owned));
    }
    // As the inner service sees it: an outer router may have stripped a prefix.
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    Ok(Some(StoredRequest {
        method: head.method.as_str().into(),
        target: target.into(),
        headers: headers
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
            .collect(),
        body: body.to_vec(),
        credentials: Some(credentials),
    }))
}

fn owned((name, value): (&HeaderName, &HeaderValue)) -> (HeaderName, HeaderValue) {
    (name.clone(), value.clone())
}

/// What identifies a caller.
fn identity_headers(tenant: &dyn Tenant) -> Vec<HeaderName> {
    let mut names = tenant.headers();
    names.extend([AUTHORIZATION, COOKIE]);
    names
}

/// Asks the tenant again, of what would be stored: it must be the same. A tenant that reads a
/// header
/// without naming it is found out here, before anything is recorded.
fn check_caller(tenant: &dyn Tenant, head: &Parts, headers: HeaderMap) -> Result<HeaderMap, Problem> {
    let mut as_stored = head.clone();
    as_stored.headers = headers;
    if tenant.of(&as_stored) == tenant.of(head) {
        return Ok(as_stored.headers);
    }
    Err(Problem::new(
        Code::ScopeMissing,
        "This request would be executed later, without the header that says whose it is. It was not accepted, and \
         nothing was executed. Operators: name that header in `request_headers` of the route, or in \
         `Tenant::headers`; or say `credentials = \"dropped\"` if the service behind needs no caller.",
    ))
}

/// The request again, its credentials marked as sensitive; `None`: it is none, which no request
/// that
/// came in by HTTP is.
pub(crate) fn restore(tenant: &dyn Tenant, stored: StoredRequest) -> Option<(Parts, Bytes)> {
    let identity = identity_headers(tenant);
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(stored.method.as_bytes()).ok()?;
    *request.uri_mut() = stored.target.parse::<Uri>().ok()?;
    for (name, value) in stored.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        let mut value = HeaderValue::from_bytes(&value).ok()?;
        value.set_sensitive(identity.contains(&name));
        request.headers_mut().append(name, value);
    }
    Some((request.into_parts().0, stored.body.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope;
    use oncegate_core::policy::Profile;

    fn request() -> (Parts, Bytes) {
        let request = Request::post("/rides?now=1")
            .header("idempotency-key", "k")
            .header("authorization", "Bearer secret")
            .header("proxy-authorization", "Basic secret")
            .header("cookie", "a=1")
            .header("cookie", "b=2")
            .header("x-tenant", "acme")
            .header("content-type", "application/json")
            .header("oncegate-peer", "192.0.2.1:1")
            .header("x-trace", "1")
            .header("x-trace", "2");
        (request.body(()).unwrap().into_parts().0, Bytes::from_static(b"{}"))
    }

    fn names(policy: &Policy) -> Vec<String> {
        let (head, body) = request();
        let tenant = scope::header("x-tenant");
        let stored = store(&tenant, policy, policy.execution, &head, &body).unwrap().unwrap();
        let mut names: Vec<_> = stored.headers.into_iter().map(|(name, _)| name).collect();
        names.sort();
        names
    }

    #[test]
    fn a_deferred_request_is_stored_with_named_headers_and_its_caller() {
        let caller = ["authorization", "cookie", "cookie", "x-tenant"];
        let accepted = Profile::Accepted.policy();
        let expected = |more: &[&str]| {
            let all = [&caller[..], &["idempotency-key"], more].concat();
            let mut names: Vec<_> = all.into_iter().map(str::to_owned).collect();
            names.sort();
            names
        };
        assert_eq!(names(&accepted), expected(&["content-type"]));
        let reserved = vec!["X-Trace".into(), "oncegate-peer".into()];
        let traced = Policy { request_headers: reserved, ..accepted.clone() };
        assert_eq!(names(&traced), expected(&["x-trace", "x-trace"]));
        // A header that makes another request of it.
        let told_apart = Policy { fingerprint_headers: vec!["x-trace".into()], ..accepted.clone() };
        assert_eq!(names(&told_apart), expected(&["content-type", "x-trace", "x-trace"]));
        let dropped = Policy { credentials: Credentials::Dropped, ..accepted };
        assert_eq!(names(&dropped), ["content-type", "idempotency-key"]);
        // Also where they are part of the fingerprint; but not what the route names.
        let compared = Policy { fingerprint_headers: vec!["x-tenant".into()], ..dropped.clone() };
        assert_eq!(names(&compared), ["content-type", "idempotency-key"]);
        let named = Policy { request_headers: vec!["x-tenant".into()], ..dropped };
        assert_eq!(names(&named), ["idempotency-key", "x-tenant"]);
    }

    #[test]
    fn a_handler_in_phases_goes_on_without_credentials_and_an_inline_one_stores_nothing() {
        assert_eq!(names(&Profile::Resume.policy()), ["content-type"]);
        let (head, body) = request();
        let payments = Profile::Payments.policy();
        let stored = store(&scope::one("acme"), &payments, Execution::Inline, &head, &body);
        assert_eq!(stored, Ok(None));
    }

    #[test]
    fn attack_33_a_caller_that_would_be_lost_is_refused() {
        let (head, body) = request();
        let tenant = |head: &Parts| Some(head.headers.get("x-tenant")?.to_str().ok()?.to_owned());
        let stored = |policy: &Policy, execution| store(&tenant, policy, execution, &head, &body);
        let accepted = Profile::Accepted.policy();
        let problem = stored(&accepted, Execution::Deferred).unwrap_err();
        assert_eq!(problem.code(), Code::ScopeMissing);
        let named = Policy { request_headers: vec!["x-tenant".into()], ..accepted.clone() };
        assert!(stored(&named, Execution::Deferred).is_ok());
        let dropped = Policy { credentials: Credentials::Dropped, ..accepted };
        assert!(stored(&dropped, Execution::Deferred).is_ok());
        assert!(stored(&Profile::Resume.policy(), Execution::Inline).is_ok());
    }

    #[test]
    fn a_stored_request_comes_back_with_sensitive_credentials() {
        let (head, body) = request();
        let tenant = scope::header("x-tenant");
        let accepted = Profile::Accepted.policy();
        let stored = store(&tenant, &accepted, Execution::Deferred, &head, &body).unwrap().unwrap();
        let (again, body) = restore(&tenant, stored).unwrap();
        assert_eq!((again.method, again.uri.to_string()), (Method::POST, "/rides?now=1".to_owned()));
        assert_eq!(&body[..], b"{}");
        let shown = format!("{:?}", again.headers);
        assert!(!shown.contains("secret") && !shown.contains("acme"), "{shown}");
        assert!(shown.contains("application/json"), "{shown}");
        assert_eq!(again.headers.get_all("cookie").iter().count(), 2);
    }
}
