//! The thread on which everything that talks to Redis runs.
//!
//! **Invariant:** a call that was begun goes on when its caller stops waiting, and no caller needs a runtime with I/O: a store
//! that is polled from any runtime, or from a plain thread, works the same.

use std::future::Future;
use std::time::Duration;

use oncegate_store::{Effect, Kind, Result, StoreError};
use tokio::runtime::{Builder, Handle, Runtime};

/// One thread, ended when this is dropped; what still runs on it is dropped with it.
#[derive(Debug)]
pub(crate) struct Io {
    runtime: Option<Runtime>,
    handle: Handle,
}

impl Io {
    pub(crate) fn start(name: &'static str) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build();
        let runtime = runtime
            .map_err(|error| StoreError::new(Kind::Unavailable, Effect::None, "open").because(error))?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    /// Tasks hold this, and never the thread itself: it must not be kept alive by what runs on it.
    pub(crate) const fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Does not wait, so it may be called from any runtime's thread.
            runtime.shutdown_background();
        }
    }
}

/// A span that can be added to a moment, whatever the caller asked for.
pub(crate) fn bounded(span: Duration) -> Duration {
    span.min(Duration::from_hours(24))
}

/// Runs `job` on the thread; `None` if the thread is ending.
pub(crate) async fn run<T: Send + 'static>(
    on: &Handle,
    job: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    on.spawn(job).await.ok()
}
