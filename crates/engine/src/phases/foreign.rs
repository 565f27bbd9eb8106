//! Somebody else's effect: the key that it carries, and what is done about a call that nobody heard of again.

use std::fmt;

use oncegate_core::identity::Token;

/// The key of one foreign call: the same in every attempt of a life, and another in every other phase. Send it as the idempotency key.
///
/// It is handed out once a call, and cannot be cloned: one phase makes one effect.
#[derive(Debug, PartialEq, Eq)]
pub struct DownstreamKey(String);

impl DownstreamKey {
    pub(super) fn of(life: Token, phase: &str) -> Self {
        Self(life.phase_key(phase))
    }

    /// The key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DownstreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is done about a foreign phase that was begun, and of which nobody knows what came of it.
pub trait Recovery<R> {
    /// Says what to do about the call that carried this key.
    fn recover(&self, key: DownstreamKey) -> impl Future<Output = Recovered<R>> + Send;
}

/// What to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovered<R> {
    /// Call again, under the same key.
    CallAgain,
    /// Somebody was asked.
    Found(Found<R>),
    /// Put it before an operator.
    Park,
}

/// What a question gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found<R> {
    /// The effect is there, and this is the phase's output.
    Happened(R),
    /// There is no such effect. Believed only once the horizon of the route has passed since this attempt began: before that, what was
    /// sent last may still be on its way, and it is asked again. A route without a horizon parks it.
    DidNotHappen,
    /// Nobody could say, and why: a later attempt asks again.
    NotKnown(Box<str>),
}

/// Call again, under the same key: whoever is called dedupes by it.
#[derive(Clone, Copy, Debug)]
pub struct Retry;

impl<R> Recovery<R> for Retry {
    async fn recover(&self, _: DownstreamKey) -> Recovered<R> {
        Recovered::CallAgain
    }
}

/// Ask what came of it: a closure from the [`DownstreamKey`] to a future of what was [`Found`]. It may be asked more than once.
#[derive(Clone, Copy, Debug)]
pub struct Probe<F>(pub F);

// Not an async closure: the future of one that borrows cannot be shown to be `Send` here, and handlers' futures must be.
impl<R, F, Fut> Recovery<R> for Probe<F>
where
    F: Fn(DownstreamKey) -> Fut + Sync,
    Fut: Future<Output = Found<R>> + Send,
{
    async fn recover(&self, key: DownstreamKey) -> Recovered<R> {
        Recovered::Found((self.0)(key).await)
    }
}

/// Put it before an operator: nobody can be asked, and a second call could be a second effect.
#[derive(Clone, Copy, Debug)]
pub struct Park;

impl<R> Recovery<R> for Park {
    async fn recover(&self, _: DownstreamKey) -> Recovered<R> {
        Recovered::Park
    }
}
