//! How many requests at once: asked after the cache, and before anything is recorded.

use tokio::sync::OwnedSemaphorePermit;

/// Says whether another request may be recorded and executed now.
///
/// It is asked once the body is whole and the cache has no answer, so neither slow bodies nor
/// replays hold a permit of this limit.
pub trait RequestLimit: Send + Sync + 'static {
    /// A place, held until the request is answered; `None`: the request is refused as
    /// `overloaded`, and nothing is recorded of it.
    fn admit(&self) -> Option<OwnedSemaphorePermit>;
}
