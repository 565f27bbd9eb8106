//! Signals between nodes, over Redis's PUBLISH and SUBSCRIBE.
//!
//! A connection of its own listens: one that has subscribed can do little else. Every time it has subscribed, also the first
//! time, a [`Heard::Gap`] is told: what was published before is not to be had. A listener that falls behind is told a gap too.
//! Not here: what a signal means (the engine).

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use oncegate_store::Result;
use oncegate_store::signals::{Heard, Pending, Signal, Signals, of_message, to_message};
use redis::RedisError;
use redis::aio::{PubSub, PubSubSink, PubSubStream};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{sleep, timeout};

use crate::address::Address;
use crate::error::Nature;
use crate::history::Checks;
use crate::io::Io;
use crate::link::{self, Link};

/// Told and not yet heard: more than that is a gap.
const WAITING_MAX: usize = 1024;
/// A connection on which nothing comes is asked whether it lives this often.
const PROBE_EVERY: Duration = Duration::from_secs(5);
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// See the module.
pub(crate) struct RedisSignals {
    io: Arc<Io>,
    link: Arc<Link<Checks>>,
    address: Address,
    channel: String,
    limit: Duration,
    heard: Mutex<Option<mpsc::Receiver<Heard>>>,
}

impl RedisSignals {
    pub(crate) fn new(
        io: Arc<Io>,
        link: Arc<Link<Checks>>,
        address: Address,
        channel: String,
        limit: Duration,
    ) -> Self {
        Self { io, link, address, channel, limit, heard: Mutex::new(None) }
    }

    fn listen(&self) -> mpsc::Receiver<Heard> {
        let (tell, heard) = mpsc::channel(WAITING_MAX);
        let listener = Listener {
            address: self.address.clone(),
            channel: self.channel.clone(),
            limit: self.limit,
            tell,
        };
        self.io.handle().spawn(listener.run());
        heard
    }
}

impl Signals for RedisSignals {
    fn tell<'a>(&'a self, signals: &'a [Signal]) -> Pending<'a, Result<()>> {
        Box::pin(async move {
            if signals.is_empty() {
                return Ok(());
            }
            let (channel, message) = (self.channel.clone(), to_message(signals));
            let publish = async move |mut connection| {
                redis::cmd("PUBLISH").arg(channel).arg(message).query_async::<()>(&mut connection).await
            };
            self.link.call("signal", Nature::Reads, publish).await
        })
    }

    fn hear(&self) -> Pending<'_, Heard> {
        Box::pin(async move {
            let mut heard = self.heard.lock().await;
            match heard.get_or_insert_with(|| self.listen()).recv().await {
                Some(told) => told,
                // The listener ends with the thread alone.
                None => std::future::pending().await,
            }
        })
    }
}

struct Listener {
    address: Address,
    channel: String,
    limit: Duration,
    tell: mpsc::Sender<Heard>,
}

impl Listener {
    /// Until nobody listens any more.
    async fn run(self) {
        let mut pause = RETRY_FIRST;
        while !self.tell.is_closed() {
            match timeout(self.limit, self.subscribe()).await {
                Ok(Ok((sink, stream))) => {
                    pause = RETRY_FIRST;
                    self.forward(sink, stream).await;
                }
                Ok(Err(error)) => tracing::debug!("cannot listen to {:?}: {error}", self.address),
                Err(_) => tracing::debug!("cannot listen to {:?}: it does not answer", self.address),
            }
            sleep(pause).await;
            pause = RETRY_MAX.min(pause * 2);
        }
    }

    async fn subscribe(&self) -> std::result::Result<(PubSubSink, PubSubStream), RedisError> {
        let stream = link::dial(&self.address).await?;
        let mut connection = PubSub::new(&self.address.handshake, stream).await?;
        connection.subscribe(&self.channel).await?;
        Ok(connection.split())
    }

    /// Until the connection ends, does not answer, or nobody listens any more.
    async fn forward(&self, mut sink: PubSubSink, mut stream: PubSubStream) {
        // While there is a gap to tell, signals are passed over: the gap comes after them.
        let mut has_missed = true;
        loop {
            let message = tokio::select! {
                room = self.tell.reserve(), if has_missed => match room {
                    Ok(room) => {
                        room.send(Heard::Gap);
                        has_missed = false;
                        continue;
                    }
                    Err(_) => return,
                },
                message = timeout(PROBE_EVERY, stream.next()) => message,
            };
            match message {
                Ok(Some(_)) if has_missed => {}
                // What is not understood, a newer release's, may be anything.
                Ok(Some(message)) => match read(message.get_payload_bytes()) {
                    Some(signals) => has_missed = self.tell.try_send(Heard::Signals(signals)).is_err(),
                    None => has_missed = true,
                },
                Ok(None) => return,
                Err(_) => match timeout(self.limit, sink.ping::<redis::Value>()).await {
                    Ok(Ok(_)) if !self.tell.is_closed() => {}
                    _ => return,
                },
            }
        }
    }
}

/// All of it, or nothing.
fn read(message: &[u8]) -> Option<Vec<Signal>> {
    of_message(std::str::from_utf8(message).ok()?).collect::<std::result::Result<_, _>>().ok()
}

#[cfg(test)]
mod tests {
    use oncegate_core::identity::RecordId;

    use super::*;

    #[test]
    fn messages_come_back_and_others_are_not_understood() {
        let (one, two) = (RecordId::from_bytes([1; 16]), RecordId::from_bytes([2; 16]));
        let signals = vec![Signal::Settled(one), Signal::Forgotten(two)];
        let message = to_message(&signals);
        assert_eq!(read(message.as_bytes()), Some(signals));
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[1; 18]), None, "another layout");
        assert_eq!(read(&message.as_bytes()[..message.len() - 1]), None);
        assert_eq!(read(&[b"\xff", &message.as_bytes()[1..]].concat()), None, "not even text");
        assert_eq!(read(format!("{message} x{two}").as_bytes()), None, "another signal among ours");
    }
}
