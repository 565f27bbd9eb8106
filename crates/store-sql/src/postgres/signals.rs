//! Signals by LISTEN and NOTIFY, on a session of their own: never inside a transaction that writes, where a notification
//! would take a lock that all commits share.

use std::sync::Arc;

use oncegate_store::signals::{Heard, Pending, Signal, Signals, of_message, to_message};
use oncegate_store::{Effect, Result};
use tokio::sync::{Mutex, mpsc};
use tokio_postgres::Notification;
use tokio_postgres::types::{ToSql, Type};

use super::error::Failure;
use super::session::{Pooling, Session};
use super::settings::Settings;

/// A payload is under 8,000 bytes; a signal takes 30, and a space.
const SIGNALS_A_PAYLOAD: usize = 250;
/// So many notifications may wait to be heard; past that, some are missed, and that is said.
const WAITING_MAX: usize = 4_096;
const BACKOFF_FIRST: std::time::Duration = std::time::Duration::from_millis(100);
const BACKOFF_MAX: std::time::Duration = std::time::Duration::from_secs(5);
/// The longest wait until something is told, or until the server has taken it that we listen; connecting has its own.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(6);

/// The channel of one schema.
#[derive(Debug)]
pub(super) struct PgSignals {
    settings: Arc<Settings>,
    channel: String,
    ears: Mutex<Option<Ears>>,
    /// Who tells has a session of its own: it must not wait for whoever hears.
    voice: Mutex<Option<Session>>,
}

#[derive(Debug)]
struct Ears {
    /// Ends the listening when dropped.
    _session: Session,
    heard: mpsc::Receiver<Notification>,
}

impl PgSignals {
    pub(super) fn new(settings: Arc<Settings>) -> Self {
        let channel = format!("oncegate_{}", settings.schema.as_str());
        Self { settings, channel, ears: Mutex::new(None), voice: Mutex::new(None) }
    }

    async fn listen(&self) -> std::result::Result<Ears, Failure> {
        let (sender, heard) = mpsc::channel(WAITING_MAX);
        let session = Session::open_hearing(&self.settings, "", Some(sender)).await?;
        if session.pooling() == Pooling::Pooled {
            return Err(Failure::Words("a pooler is in between: nothing can be heard through it".to_owned()));
        }
        let listen = format!("LISTEN {}", self.channel);
        tokio::time::timeout(TIMEOUT, session.run(&listen)).await.unwrap_or(Err(Failure::TimedOut))?;
        Ok(Ears { _session: session, heard })
    }

    async fn notify(&self, signals: &[Signal]) -> std::result::Result<(), Failure> {
        let payloads: Vec<String> = signals.chunks(SIGNALS_A_PAYLOAD).map(to_message).collect();
        let mut voice = self.voice.lock().await;
        let session = match voice.take().filter(|session| !session.is_closed()) {
            Some(session) => session,
            None => Session::open(&self.settings, "SET statement_timeout = '5s'").await?,
        };
        let text = "SELECT count(pg_notify($1, payload)) FROM unnest($2) AS payload";
        let bound = [(&self.channel as &(dyn ToSql + Sync), Type::TEXT), (&payloads, Type::TEXT_ARRAY)];
        let told = tokio::time::timeout(TIMEOUT, session.query_once(text, &bound)).await;
        told.unwrap_or(Err(Failure::TimedOut))?;
        // Only one that works is kept.
        *voice = Some(session);
        Ok(())
    }
}

impl Signals for PgSignals {
    fn tell<'a>(&'a self, signals: &'a [Signal]) -> Pending<'a, Result<()>> {
        Box::pin(async move {
            self.notify(signals).await.map_err(|failure| failure.during("tell", Effect::Unknown))
        })
    }

    fn hear(&self) -> Pending<'_, Heard> {
        Box::pin(async move {
            let mut place = self.ears.lock().await;
            if let Some(ears) = place.as_mut()
                && let Some(notification) = ears.heard.recv().await
            {
                let mut signals = Vec::new();
                read(notification.payload(), &mut signals);
                while let Ok(more) = ears.heard.try_recv() {
                    read(more.payload(), &mut signals);
                }
                return Heard::Signals(signals);
            }
            *place = None;
            let mut pause = BACKOFF_FIRST;
            loop {
                match self.listen().await {
                    Ok(ears) => {
                        *place = Some(ears);
                        // Whatever was told before is not heard.
                        return Heard::Gap;
                    }
                    Err(failure) => {
                        tracing::debug!(%failure, "other nodes cannot be heard; trying again in {pause:?}");
                    }
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(BACKOFF_MAX);
            }
        })
    }
}

/// What is not understood was told by another release, and is passed over.
fn read(payload: &str, into: &mut Vec<Signal>) {
    into.extend(of_message(payload).flatten());
}

#[cfg(test)]
mod tests {
    use oncegate_core::identity::RecordId;

    use super::*;

    #[test]
    fn a_payload_is_read_as_it_was_told_and_is_short_enough() {
        let told: Vec<_> = (0..250_u8)
            .map(|n| RecordId::from_bytes([n; 16]))
            .map(|id| if id.as_bytes()[0] % 2 == 0 { Signal::Settled(id) } else { Signal::Forgotten(id) })
            .collect();
        let payload = to_message(&told);
        assert!(payload.len() < 8_000, "{}", payload.len());
        let mut heard = Vec::new();
        read(&payload, &mut heard);
        assert_eq!(heard, told);
        read("x sop_zzz é s", &mut heard);
        assert_eq!(heard, told, "what is not understood is passed over");
    }
}
