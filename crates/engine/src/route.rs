//! A route: a policy, the name of the operation, and its meters.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, OnceLock};

use oncegate_core::decide::{Admission, Arrival, Misuse};
use oncegate_core::fingerprint::Fingerprint;
use oncegate_core::identity::Token;
use oncegate_core::key::Key;
use oncegate_core::policy::{Mismatch, Policy, Profile, ScopeWidth};
use oncegate_core::record::StoredRequest;
use oncegate_core::scope::{Address, Operation, Scope, ScopeError};

use crate::arrive::Unavailable;
use crate::meters::RouteMeters;

/// What is decided for one kind of request, once. Clones share everything.
#[derive(Clone)]
pub struct Route(Arc<Inner>);

struct Inner {
    name: Box<str>,
    policy: Policy,
    operation: Operation,
    meters: OnceLock<RouteMeters>,
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
        Self(Arc::new(Inner { name: profile.into(), policy, operation, meters: OnceLock::new() }))
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// The route's pattern.
    #[must_use]
    pub fn operation(&self) -> &Operation {
        &self.0.operation
    }

    /// The profile's name.
    #[must_use]
    pub fn profile(&self) -> &str {
        &self.0.name
    }

    /// The scope of a tenant's keys on this route.
    pub fn scope(&self, tenant: &str) -> Result<Scope, ScopeError> {
        match self.0.policy.scope {
            ScopeWidth::Tenant => Scope::tenant(tenant),
            ScopeWidth::TenantAndOperation => Scope::tenant_and_operation(tenant, &self.0.operation),
        }
    }

    /// A request on this route. Fails only if the system has no randomness to give.
    ///
    /// The engine gives it a fresh token each time it arrives, so it may be asked about again.
    pub fn arrival(
        &self,
        scope: Scope,
        key: Key,
        fingerprint: Fingerprint,
        request: Option<StoredRequest>,
    ) -> Result<Arrival, Unavailable> {
        let policy = &self.0.policy;
        Ok(Arrival {
            address: Address { scope, key },
            operation: self.0.operation.clone(),
            fingerprint,
            token: new_token()?,
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
        })
    }

    pub(crate) fn meters(&self) -> &RouteMeters {
        let inner = &self.0;
        inner.meters.get_or_init(|| {
            RouteMeters::new(&inner.name, inner.operation.as_str(), inner.policy.attempt_deadline)
        })
    }
}

/// Tokens asked for at once: a call into the system costs more than the rest of a replay.
const TOKENS: usize = 32;

pub(crate) fn new_token() -> Result<Token, Unavailable> {
    thread_local! {
        static POOL: RefCell<Vec<[u8; 16]>> = const { RefCell::new(Vec::new()) };
    }
    POOL.with_borrow_mut(|pool| {
        if pool.is_empty() {
            let mut bytes = [0; 16 * TOKENS];
            getrandom::fill(&mut bytes).map_err(|_| Unavailable::NoRandomness)?;
            pool.extend(bytes.as_chunks::<16>().0);
        }
        // Taken out, so that it is never handed out again.
        pool.pop().map(Token::from_bytes).ok_or(Unavailable::NoRandomness)
    })
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Route({} under {})", self.0.operation, self.0.name)
    }
}
