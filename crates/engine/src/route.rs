//! A route: a policy, the name of the operation, and its meters.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, OnceLock};

use oncegate_core::decide::{Admission, Arrival, Misuse};
use oncegate_core::fingerprint::{Comparison, Fingerprint};
use oncegate_core::identity::Token;
use oncegate_core::key::Key;
use oncegate_core::policy::{Mismatch, Policy, Profile, ScopeWidth};
use oncegate_core::record::{Record, StoredRequest};
use oncegate_core::scope::{Address, Operation, Scope, ScopeError};

use crate::meters::RouteMeters;

/// What is decided for one kind of request, once. Clones share everything.
#[derive(Clone)]
pub struct Route(Arc<Inner>);

struct Inner {
    name: Box<str>,
    policy: Policy,
    operation: Operation,
    requests: RequestIdentity,
    meters: OnceLock<RouteMeters>,
}

/// What tells the keys of HTTP requests apart where a route's scope is the tenant *and* the
/// operation.
#[derive(Clone, Debug, Default)]
pub struct RequestIdentity {
    /// A name that the operator has declared for the operation. Without one, it is the method and
    /// the path of the request.
    pub name: Option<Operation>,
    /// Texts that stood in this route's scopes before: route patterns, which earlier releases
    /// used, and former names.
    pub former: Vec<Operation>,
    /// What the defaults were called in the scopes of earlier releases. The route may have been
    /// added for what they served; their keys may also be of other requests.
    pub defaults: Option<Operation>,
}

/// An address that may hold the record of a request, besides its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerAddress {
    /// The address.
    pub address: Address,
    /// Which record at it counts.
    pub holds: FormerRecords,
}

/// Which records at a former address are those of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormerRecords {
    /// Whichever is there: the scope was this route's own.
    OfTheRoute,
    /// Only one with the same fingerprint: the scope is shared with other routes.
    OfTheSameRequest,
    /// The same, where the key is what another route makes of the client's: only one that was made
    /// by such a route. One of a route that reads keys as this one does is of another key.
    OfTheSameRequestBy(ReadBy),
}

/// Which routes may have read a key otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadBy {
    /// These, by their operations.
    Only(Arc<HashSet<Operation>>),
    /// All but these.
    AllBut(Arc<HashSet<Operation>>),
}

impl FormerRecords {
    /// Whether a record counts that was found for this request.
    pub(crate) fn contain(&self, record: &Record, arrival: &Arrival) -> bool {
        let is_same = || arrival.compare(record.fingerprint) == Comparison::Same;
        match self {
            Self::OfTheRoute => true,
            Self::OfTheSameRequest => is_same(),
            Self::OfTheSameRequestBy(ReadBy::Only(routes)) => is_same() && routes.contains(&record.operation),
            Self::OfTheSameRequestBy(ReadBy::AllBut(routes)) => {
                is_same() && !routes.contains(&record.operation)
            }
        }
    }
}

impl Route {
    /// A route under a profile as it is.
    #[must_use]
    pub fn of_profile(profile: Profile, operation: Operation) -> Self {
        Self::new(profile.name(), profile.policy(), operation)
    }

    /// A route under a policy; `profile` names it in metrics.
    #[must_use]
    pub fn new(profile: &str, policy: Policy, operation: Operation) -> Self {
        Self::of_requests(profile, policy, operation, RequestIdentity::default())
    }

    /// A route of HTTP requests. `operation` is its pattern: a label in metrics and records, and
    /// no part of any key's identity.
    #[must_use]
    pub fn of_requests(
        profile: &str,
        policy: Policy,
        operation: Operation,
        requests: RequestIdentity,
    ) -> Self {
        let name = profile.into();
        Self(Arc::new(Inner { name, policy, operation, requests, meters: OnceLock::new() }))
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// The operation: a route's pattern, or a job's name.
    #[must_use]
    pub fn operation(&self) -> &Operation {
        &self.0.operation
    }

    /// Counts a request without a key that passes because keys are optional here.
    pub fn count_keyless(&self) {
        self.meters().keyless.increment(1);
    }

    /// The profile's name.
    #[must_use]
    pub fn profile(&self) -> &str {
        &self.0.name
    }

    /// The scope of a job's key: the tenant, and by policy the job's name.
    pub fn scope(&self, tenant: &str) -> Result<Scope, ScopeError> {
        match self.0.policy.scope {
            ScopeWidth::Tenant => Scope::tenant(tenant),
            ScopeWidth::TenantAndOperation => Scope::tenant_and_operation(tenant, &self.0.operation),
        }
    }

    /// The scope of an HTTP request's key. It depends on the request, or on the declared name of
    /// the operation; never on the spelling of a pattern, nor on which of several routes serves
    /// the request. So a retry finds its record after the routes were changed, and while nodes
    /// with old and new routes run side by side.
    pub fn scope_of_request(&self, tenant: &str, method: &str, path: &str) -> Result<Scope, ScopeError> {
        match (self.0.policy.scope, &self.0.requests.name) {
            (ScopeWidth::Tenant, _) => Scope::tenant(tenant),
            (ScopeWidth::TenantAndOperation, Some(name)) => Scope::tenant_and_operation(tenant, name),
            (ScopeWidth::TenantAndOperation, None) => Scope::tenant_and_request(tenant, method, path),
        }
    }

    /// Other addresses that may hold the record of a request at `own`: under a pattern of the
    /// route, as earlier releases stored it, under a former name, or under method and path from
    /// before it got its name.
    #[must_use]
    pub fn former_addresses(&self, own: &Address, method: &str, path: &str) -> Vec<FormerAddress> {
        let (tenant, requests) = (own.scope.tenant_str(), &self.0.requests);
        let of_text = |text: &Operation| Scope::tenant_and_operation(tenant, text);
        let at = |scope: Result<Scope, ScopeError>, holds: FormerRecords| {
            let address = Address { scope: scope.ok()?, key: own.key.clone() };
            (address.scope != own.scope).then_some(FormerAddress { address, holds })
        };
        if self.0.policy.scope == ScopeWidth::Tenant {
            let declared = self.declared_former();
            return declared.filter_map(|text| at(of_text(text), FormerRecords::OfTheSameRequest)).collect();
        }
        let unnamed = requests.name.iter().map(|_| Scope::tenant_and_request(tenant, method, path));
        let own_texts = unnamed.chain(requests.former.iter().map(of_text));
        let defaults = requests.defaults.iter().filter(|text| !requests.former.contains(text)).map(of_text);
        own_texts
            .filter_map(|scope| at(scope, FormerRecords::OfTheRoute))
            .chain(defaults.filter_map(|scope| at(scope, FormerRecords::OfTheSameRequest)))
            .collect()
    }

    /// The scope of the same request under the other width.
    pub fn scope_of_other_width(&self, own: &Scope, method: &str, path: &str) -> Result<Scope, ScopeError> {
        match self.0.policy.scope {
            ScopeWidth::Tenant => Scope::tenant_and_request(own.tenant_str(), method, path),
            ScopeWidth::TenantAndOperation => Scope::tenant(own.tenant_str()),
        }
    }

    /// Whether it is declared that the route, or one in whose place it is, was called otherwise.
    #[must_use]
    pub fn has_former_names(&self) -> bool {
        self.declared_former().next().is_some()
    }

    fn declared_former(&self) -> impl Iterator<Item = &Operation> {
        self.0.requests.former.iter().filter(|text| **text != self.0.operation)
    }

    /// A request on this route. It has no token yet: the engine draws one when it reserves, each
    /// time anew.
    #[must_use]
    pub fn arrival(
        &self,
        scope: Scope,
        key: Key,
        fingerprint: Fingerprint,
        request: Option<StoredRequest>,
    ) -> Arrival {
        let policy = &self.0.policy;
        Arrival {
            address: Address { scope, key },
            operation: self.0.operation.clone(),
            fingerprint,
            former_fingerprint: None,
            token: Token::NOT_DRAWN,
            terms: policy.terms(),
            execution: policy.execution,
            lease: policy.lease,
            attempt_deadline: policy.attempt_deadline,
            misuse: match policy.mismatch {
                Mismatch::Refuse(_) => Misuse::Refuse,
                Mismatch::Replay => Misuse::Count,
            },
            request,
            sent_at: None,
            admission: Admission::Open,
        }
    }

    pub(crate) fn meters(&self) -> &RouteMeters {
        let inner = &self.0;
        inner.meters.get_or_init(|| {
            RouteMeters::new(&inner.name, inner.operation.as_str(), inner.policy.attempt_deadline)
        })
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Route({} under {})", self.0.operation, self.0.name)
    }
}
