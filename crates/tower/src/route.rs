//! Step 1: which route is it, and is it protected?

mod former;
mod pattern;

use std::collections::HashMap;
use std::error::Error;
use std::fmt;

use http::{Extensions, Method, Uri};
use oncegate_core::policy::{AfterDoubt, Credentials, Policy, Profile, WhileInProgress};
use oncegate_core::record::{CrashPolicy, Record};
use oncegate_core::scope::Operation;
use oncegate_engine::{RequestIdentity, Route};

use former::Identities;

/// Which requests are protected, and how.
///
/// ```
/// use oncegate_core::policy::Profile;
/// use oncegate_tower::Routes;
///
/// // Payments carefully, everything else that changes something by the draft.
/// let routes = Routes::all(Profile::Ietf)?
///     .route("POST /payments", Profile::Payments)?
///     .route("POST /payments/{id}/refunds", Profile::Payments)?
///     .route("POST /search", Profile::Off)?;
/// # Ok::<(), oncegate_tower::RouteError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Routes {
    by_method: HashMap<Method, matchit::Router<Option<Route>>>,
    otherwise: HashMap<Method, Route>,
    /// Those whose handlers have phases, by their operation.
    phased: HashMap<Operation, Route>,
    /// All others.
    whole: HashMap<Operation, Route>,
    /// What routes were called before, as far as it is declared; and what they are called now.
    former: HashMap<Box<str>, Operation>,
    /// Routes by their pattern without the names of its parameters.
    shapes: HashMap<String, Operation>,
    /// What they tell keys apart by.
    identities: Identities,
}

impl Routes {
    /// No route yet: everything passes untouched.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Every path, for the methods that the profile protects.
    pub fn all(profile: Profile) -> Result<Self, RouteError> {
        Self::none().otherwise(profile)
    }

    /// What holds where no other route matches.
    pub fn otherwise(mut self, policy: impl Into<Named>) -> Result<Self, RouteError> {
        let named = policy.into();
        if named.operation.is_some() {
            let words =
                "an operation name is only for a single route: here it would make all paths one operation";
            return Err(RouteError(format!("\"*\": {words}")));
        }
        let policy = &named.policy;
        check(policy, "*", Handler::Whole)?;
        for route in self.otherwise.values() {
            self.whole.remove(route.operation());
        }
        self.identities.remove_defaults(self.otherwise.values());
        self.otherwise.clear();
        for method in &policy.methods {
            let route = named.route(method, operation(method, "*")?)?;
            self.remember(&named, &route);
            self.whole.insert(route.operation().clone(), route.clone());
            self.identities.add(method_of(method)?, None, &route);
            self.otherwise.insert(method_of(method)?, route);
        }
        Ok(self)
    }

    /// A method and a path pattern (`POST /payments/{id}/refunds`), under a profile or a policy of one's own. A profile
    /// without methods (`off`) lets it pass.
    ///
    /// `{name}` matches one segment, `{*name}` at the end the rest of the path; everything else
    /// matches itself. `*` and `:name`, as other routers write them, are refused.
    pub fn route(self, pattern: &str, policy: impl Into<Named>) -> Result<Self, RouteError> {
        self.add(pattern, &policy.into(), Handler::Whole)
    }

    /// The same for a handler with recovery points (`oncegate_tower::phased`), under `resume` or a policy like it: a lapsed one goes on after its
    /// last phase, so its handler must have its effects in phases, and nowhere else.
    ///
    /// Its requests are kept until they are settled, with the headers that the policy names
    /// ([`request_headers`](Policy::request_headers)) and no others.
    pub fn phased(self, pattern: &str, policy: impl Into<Named>) -> Result<Self, RouteError> {
        self.add(pattern, &policy.into(), Handler::Phased)
    }

    fn add(mut self, pattern: &str, named: &Named, handler: Handler) -> Result<Self, RouteError> {
        check(&named.policy, pattern, handler)?;
        let (method, path) = pattern
            .split_once(' ')
            .filter(|(_, path)| path.starts_with('/'))
            .ok_or_else(|| RouteError(format!("{pattern:?} is not a method, a space and a path")))?;
        pattern::check(path).map_err(|words| RouteError(format!("{pattern:?}: {words}")))?;
        let route = if named.policy.methods.is_empty() {
            None
        } else {
            Some(named.route(method, operation(method, path)?)?)
        };
        if let Some(route) = &route {
            self.remember(named, route);
            self.identities.add(method_of(method)?, Some(path), route);
            self.shapes.insert(shape(pattern), route.operation().clone());
            let by_operation = match handler {
                Handler::Phased => &mut self.phased,
                Handler::Whole => &mut self.whole,
            };
            by_operation.insert(route.operation().clone(), route.clone());
        }
        self.by_method
            .entry(method_of(method)?)
            .or_default()
            .insert(path, route)
            .map_err(|error| RouteError(format!("{pattern:?}: {}", pattern::refused(method, &error))))?;
        Ok(self)
    }

    /// What a route was called before leads to what it is called now.
    fn remember(&mut self, named: &Named, route: &Route) {
        for text in &named.former {
            self.former.insert(text.clone(), route.operation().clone());
        }
    }

    /// The route of a request, by its method and its path as the client sent it; `None`: it passes untouched.
    #[must_use]
    pub fn of(&self, method: &Method, path: &str) -> Option<&Route> {
        if let Some(paths) = self.by_method.get(method)
            && let Ok(found) = paths.at(path)
        {
            return found.value.as_ref();
        }
        self.otherwise.get(method)
    }

    /// The route by which a record is run without its client: one with phases where they are its crash policy. A handler that has got phases since
    /// runs what was accepted before, unless an attempt of the old one may have acted: of that its phases know nothing. Never the other way
    /// round: under `resume` a handler without phases would be run again from its beginning.
    pub(crate) fn of_record(&self, record: &Record) -> Option<&Route> {
        let operation = match self.of_stored_exactly(record.operation.as_str()) {
            Some(_) => &record.operation,
            // Under another name by now: where several routes come from one, the request says
            // which of them it is.
            None => self.of_stored_request(record).or(self.of_stored(record.operation.as_str()))?.operation(),
        };
        let phased = self.phased.get(operation);
        match record.terms.crash {
            CrashPolicy::Resume => phased,
            CrashPolicy::Reconcile | CrashPolicy::Restart => {
                self.whole.get(operation).or(phased.filter(|_| !record.unaccounted))
            }
        }
    }

    /// The route that serves today what records of this operation asked for. Its pattern may have
    /// been spelled otherwise when they were made: then it is a route that declares the old text
    /// ([`Named::formerly`]), or one whose pattern differs in the names of its parameters only,
    /// as `POST /orders/{order}` from `POST /orders/{id}`. Never a wider one, nor what holds
    /// where no route matches: the record may be of another resource, or of another service.
    #[must_use]
    pub fn of_stored(&self, operation: &str) -> Option<&Route> {
        let declared = || self.of_stored_exactly(self.former.get(operation)?.as_str());
        let renamed = || self.of_stored_exactly(self.shapes.get(&shape(operation))?.as_str());
        self.of_stored_exactly(operation).or_else(declared).or_else(renamed)
    }

    fn of_stored_exactly(&self, operation: &str) -> Option<&Route> {
        let operation = Operation::new(operation).ok()?;
        self.whole.get(&operation).or_else(|| self.phased.get(&operation))
    }

    /// The route of a stored request, by a pattern that matches it. Only where its operation is
    /// known here at all.
    fn of_stored_request(&self, record: &Record) -> Option<&Route> {
        self.of_stored(record.operation.as_str())?;
        let request = record.request.as_ref()?;
        let method = Method::from_bytes(request.method.as_bytes()).ok()?;
        let path = request.target.split('?').next()?;
        self.by_method.get(&method)?.at(path).ok()?.value.as_ref()
    }

    /// Whether any route's handler has recovery points.
    pub(crate) fn has_phases(&self) -> bool {
        !self.phased.is_empty()
    }

    /// Whether any request may be accepted, and run later.
    pub(crate) fn may_defer(&self) -> bool {
        self.whole.values().any(|route| route.policy().may_defer())
    }
}

/// What a route's handler says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handler {
    /// Runs from its beginning to its end.
    Whole,
    /// Has recovery points.
    Phased,
}

/// Headers by which somebody says who it is. Where a handler goes on by itself they are not kept with a request.
const CREDENTIALS: [&str; 3] = ["authorization", "proxy-authorization", "cookie"];

/// The address as the client sent it, where something in front of the layer has changed it. Put it into the request's
/// extensions before a prefix is stripped: two services under two prefixes must not take each other's requests for the same. axum's
/// nested routers are seen through without it.
#[derive(Clone, Debug)]
pub struct OriginalAddress(pub Uri);

/// The address that counts.
pub(crate) fn address<'r>(uri: &'r Uri, extensions: &'r Extensions) -> &'r Uri {
    if let Some(OriginalAddress(original)) = extensions.get() {
        return original;
    }
    #[cfg(feature = "axum")]
    if let Some(axum::extract::OriginalUri(original)) = extensions.get() {
        return original;
    }
    uri
}

/// A policy, the name it has in metrics, and what is declared about the identity of a route's
/// keys.
#[derive(Clone, Debug)]
pub struct Named {
    name: Box<str>,
    policy: Policy,
    operation: Option<Box<str>>,
    former: Vec<Box<str>>,
}

/// The longest declared name of an operation.
const NAME_CHARS_MAX: usize = 64;

impl Named {
    /// A policy of one's own, under this name.
    pub fn new(name: impl Into<Box<str>>, policy: Policy) -> Self {
        Self { name: name.into(), policy, operation: None, former: Vec::new() }
    }

    /// Declares the operation's name, such as `create-order`. Under a scope of tenant and
    /// operation it tells the route's keys apart instead of method and path, so that they stay
    /// the same when the path changes. Another name later is another identity: then say what it
    /// was before ([`formerly`](Self::formerly)).
    #[must_use]
    pub fn operation(mut self, name: impl Into<Box<str>>) -> Self {
        self.operation = Some(name.into());
        self
    }

    /// Declares what the route was called before: patterns, such as `POST /orders/{id}`, and
    /// names of its operation. Records that were made then are found: answered, run if they wait,
    /// and looked into if their outcome is unknown.
    #[must_use]
    pub fn formerly<T: Into<Box<str>>>(mut self, texts: impl IntoIterator<Item = T>) -> Self {
        self.former.extend(texts.into_iter().map(Into::into));
        self
    }

    fn route(&self, method: &str, pattern: Operation) -> Result<Route, RouteError> {
        let wrong = |text: &str, why: &str| RouteError(format!("{pattern:?}: {text:?} {why}"));
        let read = |text: &str| Operation::new(text).map_err(|error| wrong(text, &error.to_string()));
        let is_name = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.');
        if let Some(name) = &self.operation
            && (name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(is_name))
        {
            let why = format!(
                "is not a valid name: expected 1 to {NAME_CHARS_MAX} letters, digits, '-', '_' or '.'"
            );
            return Err(wrong(name, &why));
        }
        // Earlier releases told keys apart by these texts: the route's own, or that of the
        // defaults, where the route was added since.
        let declared = self.former.iter().map(|text| read(text));
        let former: Result<Vec<_>, _> = std::iter::once(Ok(pattern.clone())).chain(declared).collect();
        let requests = RequestIdentity {
            name: self.operation.as_deref().map(read).transpose()?,
            former: former?,
            defaults: Some(operation(method, "*")?),
        };
        Ok(Route::of_requests(&self.name, self.policy.clone(), pattern, requests))
    }
}

impl From<Profile> for Named {
    fn from(profile: Profile) -> Self {
        Self::new(profile.name(), profile.policy())
    }
}

impl From<Policy> for Named {
    fn from(policy: Policy) -> Self {
        Self::new("custom", policy)
    }
}

fn check(policy: &Policy, pattern: &str, handler: Handler) -> Result<(), RouteError> {
    if policy.may_defer() && handler == Handler::Phased {
        let words = "a handler with recovery points is run while its client waits, and goes on without it";
        return Err(RouteError(format!("{pattern:?}: {words}; it is not deferred")));
    }
    if policy.crash == CrashPolicy::Resume && handler == Handler::Whole {
        let words = "under `resume` a handler without recovery points would be run again from its beginning";
        return Err(RouteError(format!(
            "{pattern:?}: {words}; choose `payments`, or, inside a Rust service, declare its phases (`Routes::phased`)"
        )));
    }
    if policy.crash != CrashPolicy::Resume && handler == Handler::Phased {
        let words = "a handler with recovery points goes on after them only under `resume`";
        return Err(RouteError(format!("{pattern:?}: {words}; choose that profile, or crash policy")));
    }
    let is_credential = |name: &str| CREDENTIALS.iter().any(|one| one.eq_ignore_ascii_case(name));
    let credential = policy.request_headers.iter().find(|name| is_credential(name));
    if let (Handler::Phased, Some(name)) = (handler, credential) {
        let words = "is a credential, and is not kept with a request";
        return Err(RouteError(format!(
            "{pattern:?}: {name:?} {words}; leave it out of the headers to keep"
        )));
    }
    if let (Credentials::Dropped, true, Some(name)) = (policy.credentials, policy.may_defer(), credential) {
        return Err(RouteError(format!(
            "{pattern:?}: `request_headers` names {name:?}, and `credentials` is \"dropped\"; drop one of them"
        )));
    }
    policy.check().map_err(|error| RouteError(format!("{pattern:?}: {error}")))?;
    let accepts = policy.in_progress == WhileInProgress::Accept || policy.after_doubt == AfterDoubt::Accept;
    if accepts && !policy.may_defer() {
        let words = "202 is a promise that somebody will run it, and on this route only its client does";
        return Err(RouteError(format!(
            "{pattern:?}: {words}; choose to reject or to wait, deferred execution, or to allow `respond-async`"
        )));
    }
    Ok(())
}

/// A pattern without the names of its parameters: `POST /orders/{}`.
fn shape(pattern: &str) -> String {
    let mut shape = String::with_capacity(pattern.len());
    let mut is_name = false;
    for char in pattern.chars() {
        is_name &= char != '}';
        if !is_name || char == '*' {
            shape.push(char);
        }
        is_name |= char == '{';
    }
    shape
}

fn operation(method: &str, path: &str) -> Result<Operation, RouteError> {
    let pattern = format!("{method} {path}");
    Operation::new(&pattern).map_err(|error| RouteError(format!("{pattern:?}: {error}")))
}

fn method_of(method: &str) -> Result<Method, RouteError> {
    // Methods are case-sensitive, and `*` and `POST|PUT` are valid names of one: such a route would
    // protect nothing.
    let is_of_method = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    match method.parse() {
        Ok(parsed) if method.bytes().all(is_of_method) => Ok(parsed),
        _ => Err(RouteError(format!(
            "{method:?} is not a method; write one in capitals, such as POST, and a route for each"
        ))),
    }
}

/// A route that cannot be used; says which and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteError(String);

impl fmt::Display for RouteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for RouteError {}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use oncegate_core::decide::{Event, Next, decide};
    use oncegate_core::duration::DURATION_MAX;
    use oncegate_core::fingerprint::Fingerprint;
    use oncegate_core::key::Key;
    use oncegate_core::time::{Now, Timestamp};

    use super::*;

    #[test]
    fn the_narrowest_route_wins_and_off_lets_pass() {
        let routes = Routes::all(Profile::Ietf).unwrap();
        let routes = routes.route("POST /payments/{id}/refunds", Profile::Payments).unwrap();
        let routes = routes.route("POST /search", Profile::Off).unwrap();
        let found = |method, path| {
            let route = routes.of(&method, path)?;
            Some(format!("{} {}", route.profile(), route.operation()))
        };
        let expected = Some("payments POST /payments/{id}/refunds".to_owned());
        assert_eq!(found(Method::POST, "/payments/7/refunds"), expected);
        assert_eq!(found(Method::POST, "/payments"), Some("ietf POST *".to_owned()));
        assert_eq!(found(Method::PATCH, "/payments/7"), Some("ietf PATCH *".to_owned()));
        assert_eq!(found(Method::POST, "/search"), None);
        assert_eq!(found(Method::GET, "/payments/7"), None);
        assert!(Routes::none().of(&Method::POST, "/payments").is_none());
    }

    /// A deploy renamed a parameter, and work that was accepted before waited for a route with
    /// the old text.
    #[test]
    fn what_was_stored_under_another_spelling_finds_its_route_and_no_wider_one() {
        let routes = Routes::all(Profile::Ietf).unwrap();
        let routes = routes.route("POST /orders/{order}", Profile::Ietf).unwrap();
        let routes = routes.route("POST /files/{*path}", Profile::Ietf).unwrap();
        let moved = Named::from(Profile::Ietf).formerly(["POST /charge"]);
        let routes = routes.route("POST /v2/charges", moved).unwrap();
        let found = |text| routes.of_stored(text).map(|route| route.operation().to_string());
        for (stored, today) in [
            ("POST /orders/{order}", Some("POST /orders/{order}")),
            ("POST /orders/{id}", Some("POST /orders/{order}")),
            ("POST /files/{*rest}", Some("POST /files/{*path}")),
            ("POST /charge", Some("POST /v2/charges")),
            ("POST *", Some("POST *")),
            // Another resource, for all that is known.
            ("POST /orders/new", None),
            ("POST /files/{name}", None),
            ("PUT /orders/{id}", None),
            ("job", None),
        ] {
            assert_eq!(found(stored).as_deref(), today, "{stored}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_its_reason() {
        let refusal = |pattern, profile| Routes::none().route(pattern, profile).unwrap_err().to_string();
        assert!(refusal("/payments", Profile::Ietf).contains("a method, a space and a path"));
        assert!(refusal("PO ST /x", Profile::Ietf).contains("PO ST /x"));
        assert!(refusal("POST /a/{b}{c}", Profile::Ietf).contains("/a/{b}{c}"));
        assert!(refusal("POST /jobs", Profile::Resume).contains("without recovery points"));
        assert!(refusal("post /pay", Profile::Ietf).contains("in capitals"));
    }

    #[test]
    fn what_is_promised_is_run_by_somebody() {
        let added = |policy: Policy| Routes::none().route("POST /jobs", policy);
        assert!(added(Profile::Accepted.policy()).unwrap().may_defer());
        assert!(!added(Profile::Ietf.policy()).unwrap().may_defer());
        assert!(added(Policy { respond_async: true, ..Profile::Ietf.policy() }).unwrap().may_defer());
        let only_says_so = Policy { in_progress: WhileInProgress::Accept, ..Profile::Ietf.policy() };
        let words = added(only_says_so).unwrap_err().to_string();
        assert!(words.contains("202 is a promise"), "{words}");
        let deferred = Policy { respond_async: true, ..Profile::Resume.policy() };
        let words = Routes::none().phased("POST /rides", deferred).unwrap_err().to_string();
        assert!(words.contains("it is not deferred"), "{words}");
        // On such a route a credential is kept where it is named; a handler that goes on by itself needs none.
        let named = Policy { request_headers: vec!["authorization".into()], ..Profile::Accepted.policy() };
        assert!(added(named.clone()).is_ok());
        let words = added(Policy { credentials: Credentials::Dropped, ..named }).unwrap_err().to_string();
        assert!(words.contains("\"authorization\"") && words.contains("drop one of them"), "{words}");
    }

    /// A deploy gave a handler phases. What was accepted before could be run by nobody, and stood before what came later.
    #[test]
    fn a_handler_that_has_got_phases_runs_what_was_accepted_before() {
        let (jobs, now) = (Operation::new("POST /jobs").unwrap(), Now::exact(Timestamp::from_micros(0)));
        let accepted = |profile: Profile| {
            let route = Route::of_profile(profile, jobs.clone());
            let (scope, key) = (route.scope("acme").unwrap(), Key::from_text("k").unwrap());
            let arrival = route.arrival(scope, key, Fingerprint::from_parts(1, [0; 32]), None);
            match decide(None, &Event::Arrive(arrival), now).next {
                Next::Put(record) => Arc::unwrap_or_clone(record),
                other => panic!("{other:?}"),
            }
        };
        let whole = Routes::none().route("POST /jobs", Profile::Accepted).unwrap();
        let phased = Routes::none().phased("POST /jobs", Profile::Resume).unwrap();
        let is_run = |routes: &Routes, record: &Record| routes.of_record(record).is_some();
        let before = accepted(Profile::Accepted);
        assert!(is_run(&whole, &before) && is_run(&phased, &before));
        // An attempt of the old handler may have acted, and the phases know nothing of it.
        let doubtful = Record { unaccounted: true, ..before };
        assert!(is_run(&whole, &doubtful) && !is_run(&phased, &doubtful));
        let resumed = accepted(Profile::Resume);
        assert!(!is_run(&whole, &resumed) && is_run(&phased, &resumed));
    }

    /// A retention beyond the year 9999 was accepted, and the first answer panicked while its date was written.
    #[test]
    fn a_duration_outside_its_range_is_refused_with_its_name_and_the_limit() {
        let added = |change: fn(&mut Policy)| {
            let mut policy = Profile::Payments.policy();
            change(&mut policy);
            Routes::none().route("POST /payments", policy).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(added(|policy| policy.retention = DURATION_MAX), Ok(()));
        for (change, words) in [
            (
                (|policy| policy.retention = Duration::from_hours(24 * 366 * 8_000)) as fn(&mut Policy),
                "\"POST /payments\": `retention` is 252979200000s; it must be at most 3155760000s (100 years)",
            ),
            (|policy| policy.horizon = Some(Duration::MAX), "`horizon`"),
            (|policy| policy.lease = Duration::ZERO, "`lease` is 0s; it must be greater than zero"),
            (|policy| policy.reconcile.backoff_max = Duration::MAX, "`backoff_max`"),
        ] {
            let refused = added(change).unwrap_err();
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn phases_are_for_resume_and_no_credential_is_kept() {
        let phased = |policy: Policy| Routes::none().phased("POST /rides", policy);
        let routes = phased(Profile::Resume.policy()).unwrap();
        let route = routes.of(&Method::POST, "/rides").unwrap();
        assert_eq!(routes.phased.get(route.operation()).map(Route::operation), Some(route.operation()));
        assert!(routes.has_phases() && routes.of_stored(route.operation().as_str()).is_some());
        let words = phased(Profile::Payments.policy()).unwrap_err().to_string();
        assert!(words.contains("only under `resume`"), "{words}");
        // As names of headers are: `stored` keeps them whatever their letters.
        for name in CREDENTIALS.into_iter().chain(["Authorization", "PROXY-AUTHORIZATION", "Cookie"]) {
            let policy = Policy { request_headers: vec![name.into()], ..Profile::Resume.policy() };
            let words = phased(policy).unwrap_err().to_string();
            assert!(words.contains(name) && words.contains("is a credential"), "{words}");
        }
    }
}
