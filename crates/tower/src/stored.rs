//! A request, as it is kept so that somebody other than its client can run it, or go on with it: only the headers that the route names, and
//! so no credentials unless it names them.

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Uri};
use oncegate_core::policy::Policy;
use oncegate_core::record::{CrashPolicy, Execution, StoredRequest};

/// Headers that are kept with a request that is run later, whatever its route names; in its extensions. For whoever puts the layer in
/// front of something else, and must know more of the client than its request says.
#[derive(Clone, Debug, Default)]
pub struct AlsoKept(pub HeaderMap);

/// The key goes on with a request that is run later: it is no credential, and whoever is behind may dedupe by it.
const KEY: &str = "idempotency-key";

/// What is kept of a request, where anything is.
pub(crate) fn of(policy: &Policy, execution: Execution, head: &Parts, body: &Bytes) -> Option<StoredRequest> {
    let is_deferred = execution == Execution::Deferred;
    if policy.crash != CrashPolicy::Resume && !is_deferred {
        return None;
    }
    let is_kept = |name: &HeaderName| {
        policy
            .request_headers
            .iter()
            .chain(&policy.fingerprint_headers)
            .any(|kept| kept.eq_ignore_ascii_case(name.as_str()))
            || (is_deferred && name.as_str() == KEY)
    };
    let also = head.extensions.get::<AlsoKept>().filter(|_| is_deferred);
    let also = also.into_iter().flat_map(|AlsoKept(also)| also.iter());
    let headers = head.headers.iter().filter(|(name, _)| is_kept(name)).chain(also);
    // As the inner service sees it: an outer router may have stripped a prefix.
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    Some(StoredRequest {
        method: head.method.as_str().into(),
        target: target.into(),
        headers: headers.map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())).collect(),
        body: body.to_vec(),
    })
}

/// The request again; `None`: it is none, which no request that came in by HTTP is.
pub(crate) fn again(stored: StoredRequest) -> Option<(Parts, Bytes)> {
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(stored.method.as_bytes()).ok()?;
    *request.uri_mut() = stored.target.parse::<Uri>().ok()?;
    for (name, value) in stored.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        request.headers_mut().append(name, HeaderValue::from_bytes(&value).ok()?);
    }
    Some((request.into_parts().0, stored.body.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_core::policy::Profile;

    #[test]
    fn only_named_headers_are_kept_and_the_request_comes_back() {
        let request = Request::post("/rides?now=1")
            .header("idempotency-key", "k")
            .header("authorization", "Bearer secret")
            .header("content-type", "application/json")
            .header("x-trace", "1")
            .header("x-trace", "2");
        let (head, ()) = request.body(()).unwrap().into_parts();
        let body = Bytes::from_static(b"{}");
        let names = |policy: &Policy| -> Vec<String> {
            let kept = of(policy, policy.execution, &head, &body).unwrap();
            kept.headers.into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names(&Profile::Resume.policy()), ["content-type"]);
        // A header that makes another request of it.
        let told_apart = Policy { fingerprint_headers: vec!["x-trace".into()], ..Profile::Accepted.policy() };
        assert_eq!(names(&told_apart), ["idempotency-key", "content-type", "x-trace", "x-trace"]);
        let traced = Policy { request_headers: vec!["X-Trace".into()], ..Profile::Resume.policy() };
        assert_eq!(names(&traced), ["x-trace", "x-trace"]);
        let payments = Profile::Payments.policy();
        assert!(of(&payments, Execution::Inline, &head, &body).is_none());
        // Accepted: with its key, and with credentials only where they are named.
        assert_eq!(names(&Profile::Accepted.policy()), ["idempotency-key", "content-type"]);
        let trusted = Policy { request_headers: vec!["authorization".into()], ..Profile::Accepted.policy() };
        assert_eq!(names(&trusted), ["idempotency-key", "authorization"]);

        let resume = Profile::Resume.policy();
        let (again, body) = again(of(&resume, Execution::Inline, &head, &body).unwrap()).unwrap();
        assert_eq!((again.method, again.uri.to_string()), (Method::POST, "/rides?now=1".to_owned()));
        assert_eq!((again.headers.len(), &body[..]), (1, &b"{}"[..]));
    }
}
