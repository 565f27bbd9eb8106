//! A statement that sqlx does not log.
//!
//! sqlx logs the text of each statement (at `debug`; at `warn` if it took a second), which is harmless while values are bound to it. A closing has a key and an answer in
//! its text, and what clients are told is not for logs.
//!
//! Not here: applications that log by the crate `log` alone, without a subscriber of tracing's. To silence those for a moment would silence them for ever: see
//! `docs/atomic.md` for what they can set.

use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};

use tracing::dispatcher::{Dispatch, has_been_set, with_default};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, Subscriber};
use tracing::{Event, Metadata};

/// Work of which nothing is told while it is polled, nor when it is dropped: that is when sqlx logs.
pub(super) struct Unlogged<F>(Option<Pin<Box<F>>>);

impl<F> Unlogged<F> {
    pub(super) fn new(work: F) -> Self {
        Self(Some(Box::pin(work)))
    }
}

impl<F: Future> Future for Unlogged<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        quietly(|| {
            // Nobody polls a future that has ended.
            let Some(work) = &mut self.0 else { return Poll::Pending };
            let polled = work.as_mut().poll(cx);
            if polled.is_ready() {
                self.0 = None;
            }
            polled
        })
    }
}

impl<F> Drop for Unlogged<F> {
    fn drop(&mut self) {
        let work = self.0.take();
        if work.is_some() {
            quietly(|| drop(work));
        }
    }
}

fn quietly<R>(work: impl FnOnce() -> R) -> R {
    if has_been_set() { with_default(&QUIET, work) } else { work() }
}

/// One that is registered. With none at all, a place in the code that is first reached here would be taken for one that nobody ever wants to hear of.
static QUIET: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Quiet));

/// Hears nothing.
struct Quiet;

impl Subscriber for Quiet {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::never()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::OFF)
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        false
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
