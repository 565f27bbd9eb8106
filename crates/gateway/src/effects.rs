//! The effects of the configuration, over HTTP: the outbox's way to providers.
//!
//! **Invariant:** whatever goes wrong on the way may have been delivered all the same, and is tried again under the same key.
//! Not here: what an answer means (`reconcile`), when it is tried, and what follows (the engine's outbox).

use std::time::{Duration, SystemTime};

use oncegate::AnyStore;
use oncegate_engine::{Delivering, Delivery, Effect, Effects, Engine, Outbox, OutboxOptions, Patience, Sent};

use crate::ask;
use crate::config::{ConfigError, Upstream};
use crate::reconcile::{HttpEffect, ProbeAnswer};

/// Works off the outbox, if there is anything that it could deliver.
pub(crate) fn start(
    engine: &Engine<AnyStore>,
    upstream: &Upstream,
    effects: &[HttpEffect],
) -> Option<Outbox> {
    let effects = effects.iter().fold(Effects::new(), |effects, effect| {
        let over_http = OverHttp { upstream: upstream.clone(), effect: effect.clone() };
        effects.with(&effect.name, over_http)
    });
    (!effects.is_empty()).then(|| engine.start_outbox(&effects, &OutboxOptions::default()))
}

/// Whether this store can keep what these effects are to deliver.
pub(crate) fn check(store: &AnyStore, effects: &[HttpEffect]) -> Result<(), ConfigError> {
    if effects.is_empty() || store.keeps_outbox() {
        return Ok(());
    }
    let words =
        "this store keeps no outbox, so nothing would ever be delivered; a PostgreSQL or a SQLite file does";
    Err(ConfigError::of("effect", words.to_owned()))
}

struct OverHttp {
    upstream: Upstream,
    effect: HttpEffect,
}

impl OverHttp {
    async fn send(&self, delivery: &Delivery<'_>) -> Sent {
        let (question, body) = match self.effect.order(delivery.payload, delivery.downstream_key) {
            Ok(order) => order,
            // However often it is asked.
            Err(words) => return Sent::Refused(words.into()),
        };
        let server = match ask::server(&self.upstream, &question.target, self.effect.tls_ca.as_ref()) {
            Ok(server) => server,
            Err(words) => return Sent::Refused(words.into()),
        };
        match ask::send(&server, question, body, self.effect.body_bytes_max).await {
            Ok((status, headers, body)) => {
                let answer = ProbeAnswer { status, headers: &headers, body: &body };
                self.effect.sent(&answer, SystemTime::now())
            }
            Err(unanswered) if unanswered.is_unreached => {
                Sent::Unreachable { after: None, why: unanswered.words.into() }
            }
            Err(unanswered) => Sent::Later { after: None, why: unanswered.words.into() },
        }
    }
}

impl Effect for OverHttp {
    fn deliver<'a>(&'a self, delivery: &'a Delivery<'a>) -> Delivering<'a> {
        Box::pin(self.send(delivery))
    }

    fn patience(&self) -> Patience {
        self.effect.patience
    }

    fn outage(&self) -> Duration {
        self.effect.outage
    }
}
