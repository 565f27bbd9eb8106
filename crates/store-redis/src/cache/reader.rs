//! Gets, many in one trip: whatever has been asked for when an answer comes goes into the next question.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oncegate_core::identity::RecordId;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::Current;
use super::breaker::Breaker;
use crate::keys::Keys;

/// In one trip: a few hundred small entries, and never more than Redis sends within a get's limit.
const QUESTIONS_MAX: usize = 128;

/// Somebody wants to know.
pub(super) struct Question {
    pub(super) id: RecordId,
    pub(super) answer: oneshot::Sender<Vec<u8>>,
}

/// See the module.
pub(super) struct Reader {
    pub(super) waiting: mpsc::Receiver<Question>,
    pub(super) current: Arc<Current>,
    pub(super) keys: Keys,
    pub(super) limit: Duration,
    pub(super) breaker: Arc<Breaker>,
}

impl Reader {
    /// Until the cache is dropped. A question without an answer is answered by being dropped.
    pub(super) async fn run(mut self) {
        let mut questions = Vec::new();
        while self.waiting.recv_many(&mut questions, QUESTIONS_MAX).await > 0 {
            questions.retain(|question: &Question| !question.answer.is_closed());
            let Some(mut connection) = self.current.get() else {
                questions.clear();
                continue;
            };
            if questions.is_empty() || !self.breaker.lets_through(Instant::now()) {
                questions.clear();
                continue;
            }
            let mut command = redis::cmd("MGET");
            for question in &questions {
                command.arg(self.keys.cached(question.id));
            }
            let asked = command.query_async::<Vec<Option<Vec<u8>>>>(&mut connection);
            match timeout(self.limit, asked).await {
                Ok(Ok(entries)) if entries.len() == questions.len() => {
                    self.breaker.succeeded();
                    for (question, entry) in questions.drain(..).zip(entries) {
                        if let Some(entry) = entry {
                            let _ = question.answer.send(entry);
                        }
                    }
                }
                _ => {
                    self.breaker.failed(Instant::now());
                    questions.clear();
                }
            }
        }
    }
}
