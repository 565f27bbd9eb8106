//! The layer itself.

use std::sync::Arc;

use oncegate_engine::Engine;
use oncegate_store::Store;
use tower_layer::Layer;

use crate::route::Routes;
use crate::scope::Tenant;
use crate::service::{Idempotent, Shared};

/// Makes protected requests take effect once.
pub struct Idempotency<S>(Arc<Shared<S>>);

impl<S: Store> Idempotency<S> {
    /// Protects what `routes` say. `tenant` says whose request it is; see [`crate::scope`] for ready ones.
    pub fn new(engine: Engine<S>, tenant: impl Tenant, routes: Routes) -> Self {
        Self(Arc::new(Shared { engine, routes, tenant: Box::new(tenant), operations: None }))
    }

    /// Where a caller can look at its own operations: a path to which an operation's id is added. Problems that a client may
    /// have to come back for then carry it.
    #[must_use]
    pub fn operations_at(mut self, path: impl Into<Box<str>>) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.operations = Some(path.into());
        }
        self
    }
}

impl<S> Clone for Idempotency<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S, V> Layer<V> for Idempotency<S> {
    type Service = Idempotent<S, V>;

    fn layer(&self, inner: V) -> Self::Service {
        Idempotent { shared: Arc::clone(&self.0), inner }
    }
}
