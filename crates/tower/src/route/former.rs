//! Where the record of a request is if an earlier configuration served it by another route.
//!
//! Routes tell keys apart by tenant, or by tenant and operation, and read a key in quotes
//! literally or as a structured string. A route that is added for what a wider one served, or
//! removed, may do both otherwise than the one that serves the request next: then the record is at
//! another address.
//!
//! **Invariant:** a record at such an address counts only for the same request: method, path and
//! content are equal, and the client's key was the same. What one route takes for one key can be
//! two to another, so that a key is read otherwise only where the record's route did.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderValue, Method};
use oncegate_core::key::Key;
use oncegate_core::policy::ScopeWidth;
use oncegate_core::scope::{Address, Operation};
use oncegate_engine::{FormerAddress, FormerRecords, ReadBy, Route};

use super::{Routes, address};

/// What the routes of a layer tell keys apart by.
#[derive(Clone, Debug, Default)]
pub(super) struct Identities {
    /// Of routes that serve more than one path, method by method.
    patterns: HashMap<Method, Vec<(Identity, Paths)>>,
    /// Operations whose routes read a key in quotes as a structured string.
    structured: Arc<HashSet<Operation>>,
}

/// Which paths a route would serve, if there were no narrower one.
#[derive(Clone, Debug)]
enum Paths {
    All,
    Of(Box<matchit::Router<()>>),
}

/// What a route tells keys apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    width: ScopeWidth,
    /// Quotes are part of a key.
    is_literal: bool,
}

impl Identity {
    fn of(route: &Route) -> Self {
        let policy = route.policy();
        Self { width: policy.scope, is_literal: policy.key.syntax.is_literal() }
    }
}

impl Identities {
    /// Counts one more route, with its path pattern; `None`: what holds where no other matches.
    pub(super) fn add(&mut self, method: Method, pattern: Option<&str>, route: &Route) {
        let identity = Identity::of(route);
        if !identity.is_literal {
            Arc::make_mut(&mut self.structured).insert(route.operation().clone());
        }
        let mut paths = matchit::Router::new();
        let paths = match pattern {
            None => Paths::All,
            // The layer's own router refuses what this one does.
            Some(pattern) if !route.operation().is_pattern() || paths.insert(pattern, ()).is_err() => return,
            Some(_) => Paths::Of(Box::new(paths)),
        };
        self.patterns.entry(method).or_default().push((identity, paths));
    }

    /// Forgets what holds where no other route matches.
    pub(super) fn remove_defaults<'r>(&mut self, routes: impl Iterator<Item = &'r Route>) {
        for patterns in self.patterns.values_mut() {
            patterns.retain(|(_, paths)| matches!(paths, Paths::Of(_)));
        }
        for route in routes {
            Arc::make_mut(&mut self.structured).remove(route.operation());
        }
    }

    /// Whether a wider route than the one that serves this path is of such a kind.
    fn any_wider(&self, method: &Method, path: &str, is_wanted: impl Fn(&Identity) -> bool) -> bool {
        let serves = |paths: &Paths| match paths {
            Paths::All => true,
            Paths::Of(paths) => paths.at(path).is_ok(),
        };
        let mut patterns = self.patterns.get(method).into_iter().flatten();
        patterns.any(|(identity, paths)| is_wanted(identity) && serves(paths))
    }
}

impl Routes {
    /// Where else the record of a request at `own` may be: see [`Route::former_addresses`], and
    /// this module. Empty for most routes, for it costs a read.
    ///
    /// A route whose scope has the operation in it looks in any case, in the same read. Another
    /// looks where a wider route of the layer tells keys apart otherwise, because it may have been
    /// added for what that one served; and where it declares former names, because a route may
    /// have been removed, of which nothing else is known.
    pub(crate) fn former_addresses(
        &self,
        route: &Route,
        own: &Address,
        key_line: Option<&HeaderValue>,
        head: &Parts,
    ) -> Vec<FormerAddress> {
        let (method, path) = (&head.method, address(&head.uri, &head.extensions).path());
        let mut former = route.former_addresses(own, method.as_str(), path);
        let identity = Identity::of(route);
        let looks_anyway = identity.width == ScopeWidth::TenantAndOperation || route.has_former_names();
        let is_added = |is_wanted: &dyn Fn(&Identity) -> bool| {
            looks_anyway || self.identities.any_wider(method, path, is_wanted)
        };
        let other_scope = is_added(&|other| other.width != identity.width)
            .then(|| route.scope_of_other_width(&own.scope, method.as_str(), path).ok())
            .flatten();
        let other_key = key_line
            .filter(|_| is_added(&|other| other.is_literal != identity.is_literal))
            .and_then(|line| Key::other_reading(line.as_bytes(), route.policy().key.syntax));
        if let Some(scope) = &other_scope {
            let address = Address { scope: scope.clone(), key: own.key.clone() };
            former.push(FormerAddress { address, holds: FormerRecords::OfTheSameRequest });
        }
        if let Some(key) = other_key {
            let structured = Arc::clone(&self.identities.structured);
            let read_by =
                if identity.is_literal { ReadBy::Only(structured) } else { ReadBy::AllBut(structured) };
            for scope in std::iter::once(own.scope.clone()).chain(other_scope) {
                let holds = FormerRecords::OfTheSameRequestBy(read_by.clone());
                former.push(FormerAddress { address: Address { scope, key: key.clone() }, holds });
            }
        }
        former
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use oncegate_core::policy::Profile;

    use super::super::Named;
    use super::*;

    /// Where `POST /orders/17` is looked for with this key, besides its own address.
    fn looked_for(routes: &Routes, key: &str) -> Vec<String> {
        let (head, ()) = Request::post("/orders/17").body(()).unwrap().into_parts();
        let route = routes.of(&Method::POST, "/orders/17").unwrap();
        let line = HeaderValue::from_str(key).unwrap();
        let key = Key::read(&[line.as_bytes()], &route.policy().key).unwrap().unwrap();
        let own = Address { scope: route.scope_of_request("t", "POST", "/orders/17").unwrap(), key };
        let former = routes.former_addresses(route, &own, Some(&line), &head);
        let shown = |one: FormerAddress| format!("{} {}", one.address.scope, one.address.key.as_str());
        former.into_iter().map(shown).collect()
    }

    fn with(defaults: Profile, route: Profile) -> Routes {
        Routes::all(defaults).unwrap().route("POST /orders/{id}", route).unwrap()
    }

    const KEY: &str = "key-of-sixteen-or-more";

    /// Each address costs a read of a new key.
    #[test]
    fn nothing_is_looked_for_where_all_routes_tell_keys_apart_alike() {
        for routes in [
            Routes::all(Profile::Ietf).unwrap(),
            with(Profile::Ietf, Profile::Payments),
            with(Profile::Ietf, Profile::IetfStrict),
            with(Profile::Stripe, Profile::Stripe),
            // A route of another method.
            Routes::all(Profile::Ietf).unwrap().route("PUT /orders/{id}", Profile::Lenient).unwrap(),
            // The defaults stand in no route's place, unless they say so.
            Routes::all(Profile::Ietf).unwrap().route("POST /other", Profile::Lenient).unwrap(),
            // Nor does a route in that of another that serves other paths.
            with(Profile::Ietf, Profile::Payments).route("POST /files/{id}", Profile::Lenient).unwrap(),
            // Defaults that were replaced.
            Routes::all(Profile::Lenient).unwrap().otherwise(Profile::Ietf).unwrap(),
        ] {
            assert_eq!(looked_for(&routes, &format!("\"{KEY}\"")), Vec::<String>::new(), "{routes:?}");
        }
        // Without quotes a key has one reading.
        assert_eq!(looked_for(&with(Profile::Ietf, Profile::Stripe), KEY), Vec::<String>::new());
    }

    #[test]
    fn a_record_of_another_route_is_looked_for_at_the_address_that_it_had() {
        let (bare, quoted) = (KEY.to_owned(), format!("\"{KEY}\""));
        let looked = looked_for(&with(Profile::Ietf, Profile::Stripe), &quoted);
        assert_eq!(looked, [format!("t {bare}")]);
        let looked = looked_for(&with(Profile::Stripe, Profile::Ietf), &quoted);
        assert_eq!(looked, [format!("t {quoted}")]);
        let narrow = "t (POST /orders/17)";
        let looked = looked_for(&with(Profile::Lenient, Profile::Ietf), &quoted);
        assert_eq!(looked, [format!("{narrow} {bare}"), format!("t {quoted}"), format!("{narrow} {quoted}")]);
        let wide = with(Profile::Stripe, Profile::Stripe).route("POST /{*rest}", Profile::Payments).unwrap();
        assert_eq!(looked_for(&wide, &quoted), [format!("t {bare}")]);
        // What the defaults are told of, they look for.
        let told = Named::from(Profile::Ietf).formerly(["create-order"]);
        let looked = looked_for(&Routes::none().otherwise(told).unwrap(), &quoted);
        let named = format!("t (create-order) {bare}");
        assert_eq!(
            looked,
            [named, format!("{narrow} {bare}"), format!("t {quoted}"), format!("{narrow} {quoted}")]
        );
        // Patterns of earlier releases come first.
        let looked = looked_for(&with(Profile::Ietf, Profile::Lenient), KEY);
        assert_eq!(
            looked,
            [format!("t (POST /orders/{{id}}) {bare}"), format!("t (POST *) {bare}"), format!("t {bare}")]
        );
    }
}
