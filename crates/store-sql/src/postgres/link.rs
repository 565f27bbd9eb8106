//! A place for a session: opened when it is first needed, and again when it was lost.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use super::error::Failure;
use super::history;
use super::session::Session;
use super::settings::Settings;

/// The longest wait for the answer to a question.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// One session at a time. Reads share it: they are sent one after the other and nobody waits for another's answer.
#[derive(Debug)]
pub(super) struct Link {
    settings: Arc<Settings>,
    setup: &'static str,
    session: Mutex<Option<Arc<Session>>>,
}

impl Link {
    pub(super) fn new(settings: Arc<Settings>, setup: &'static str) -> Self {
        Self { settings, setup, session: Mutex::new(None) }
    }

    /// The session, opened if there is none that works.
    pub(super) async fn session(&self) -> Result<Arc<Session>, Failure> {
        let mut place = self.session.lock().await;
        if let Some(session) = place.as_ref().filter(|session| !session.is_closed()) {
            return Ok(Arc::clone(session));
        }
        *place = None;
        let session = Session::open(&self.settings, self.setup).await?;
        history::look_over(&self.settings, &session).await?;
        let session = Arc::new(session);
        *place = Some(Arc::clone(&session));
        Ok(session)
    }

    /// The session, for one use. Whoever does not put it back has ended it, and whatever transaction is open in it.
    pub(super) async fn take(&self) -> Result<Arc<Session>, Failure> {
        let session = self.session().await?;
        *self.session.lock().await = None;
        Ok(session)
    }

    /// Puts back what was taken.
    pub(super) async fn put_back(&self, session: Arc<Session>) {
        *self.session.lock().await = Some(session);
    }

    /// Lets go of a session that is not to be trusted any more.
    pub(super) async fn drop_session(&self, session: &Arc<Session>) {
        let mut place = self.session.lock().await;
        if place.as_ref().is_some_and(|current| Arc::ptr_eq(current, session)) {
            *place = None;
        }
    }

    /// Asks; and asks once more on a new connection if the old one turns out to be gone.
    pub(super) async fn read<T, F>(&self, ask: impl Fn(Arc<Session>) -> F + Send) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>> + Send,
    {
        let mut is_first = true;
        loop {
            let session = self.session().await?;
            let answer = tokio::time::timeout(READ_TIMEOUT, ask(Arc::clone(&session))).await;
            let failure = match answer {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(failure)) => failure,
                Err(_) => Failure::TimedOut,
            };
            if !is_lost(&failure, &session) {
                return Err(failure);
            }
            self.drop_session(&session).await;
            if !is_first || matches!(failure, Failure::TimedOut) {
                return Err(failure);
            }
            is_first = false;
        }
    }
}

/// The session is gone, or is one that nothing more is to be asked of.
pub(super) fn is_lost(failure: &Failure, session: &Session) -> bool {
    match failure {
        Failure::TimedOut => true,
        Failure::Postgres(error) => {
            session.is_closed()
                || error.as_db_error().is_none()
                // A statement or a setting that was there is not there any more: something is between us and the server.
                || failure.code().is_some_and(|code| {
                    matches!(code.code(), "26000" | "42P05" | "25006" | "57P01" | "57P02" | "57P03")
                })
        }
        Failure::Connect(_)
        | Failure::ReadOnly
        | Failure::Malformed(_)
        | Failure::Words(_)
        | Failure::Restored => false,
    }
}
