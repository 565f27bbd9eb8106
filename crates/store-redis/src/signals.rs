//! Signals between nodes, over Redis's PUBLISH and SUBSCRIBE.
//!
//! A connection of its own listens: one that has subscribed can do little else. Every time it has subscribed, also the first
//! time, a [`Heard::Gap`] is told: what was published before is not to be had. A listener that falls behind is told a gap too.
//! Not here: what a signal means (the engine).

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use oncegate_core::identity::RecordId;
use oncegate_store::Result;
use oncegate_store::signals::{Heard, Pending, Signal, Signals};
use redis::RedisError;
use redis::aio::{PubSub, PubSubSink, PubSubStream};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{sleep, timeout};

use crate::address::Address;
use crate::error::Nature;
use crate::io::Io;
use crate::link::{self, Link};
use crate::settings::Settings;

/// Told and not yet heard: more than that is a gap.
const WAITING_MAX: usize = 1024;
/// A connection on which nothing comes is asked whether it lives this often.
const PROBE_EVERY: Duration = Duration::from_secs(5);
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// See the module.
pub(crate) struct RedisSignals {
    io: Arc<Io>,
    link: Arc<Link<Settings>>,
    address: Address,
    channel: String,
    limit: Duration,
    heard: Mutex<Option<mpsc::Receiver<Heard>>>,
}

impl RedisSignals {
    pub(crate) fn new(
        io: Arc<Io>,
        link: Arc<Link<Settings>>,
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
            let (channel, message) = (self.channel.clone(), encode(signals));
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
                Ok(Some(message)) => match decode(message.get_payload_bytes()) {
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

const LAYOUT: u8 = 1;
const SETTLED: u8 = 1;
const FORGOTTEN: u8 = 2;
const SIGNAL: usize = 17;

/// A byte for the layout, then seventeen a signal: what, and of which record.
fn encode(signals: &[Signal]) -> Vec<u8> {
    let mut message = Vec::with_capacity(1 + SIGNAL * signals.len());
    message.push(LAYOUT);
    for signal in signals {
        let (what, id) = match signal {
            Signal::Settled(id) => (SETTLED, id),
            Signal::Forgotten(id) => (FORGOTTEN, id),
        };
        message.push(what);
        message.extend(id.as_bytes());
    }
    message
}

fn decode(message: &[u8]) -> Option<Vec<Signal>> {
    let (&LAYOUT, signals) = message.split_first()? else { return None };
    let signals = signals.chunks(SIGNAL).map(|signal| {
        let (&what, id) = signal.split_first()?;
        let id = RecordId::from_bytes(id.try_into().ok()?);
        match what {
            SETTLED => Some(Signal::Settled(id)),
            FORGOTTEN => Some(Signal::Forgotten(id)),
            _ => None,
        }
    });
    signals.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_and_others_are_not_understood() {
        let (one, two) = (RecordId::from_bytes([1; 16]), RecordId::from_bytes([2; 16]));
        let signals = vec![Signal::Settled(one), Signal::Forgotten(two)];
        let message = encode(&signals);
        assert_eq!(decode(&message), Some(signals));
        assert_eq!(decode(&[]), None);
        assert_eq!(decode(&message[..message.len() - 1]), None);
        assert_eq!(decode(&[&[2], &message[1..]].concat()), None, "another layout");
        assert_eq!(decode(&[&[LAYOUT, 9], &message[2..]].concat()), None, "another signal");
    }
}
