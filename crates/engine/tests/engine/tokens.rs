//! Lease tokens: when they are drawn, and how many.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use oncegate_core::identity::Token;
use oncegate_engine::{Options, Randomness};

use crate::world::{complete, completed, done, held, id, ietf, replayed, shaky, start};

/// A source that counts what it gives, and gives each byte as `fill`.
#[derive(Clone, Default)]
struct Source {
    drawn: Arc<AtomicUsize>,
    fill: Arc<AtomicU8>,
    requests: Arc<Mutex<Vec<usize>>>,
}

impl Source {
    fn options(&self) -> Options {
        let source = self.clone();
        let randomness = Randomness::new(move |bytes| {
            bytes.fill(source.fill.load(Ordering::SeqCst));
            source.drawn.fetch_add(bytes.len(), Ordering::SeqCst);
            source.requests.lock().unwrap().push(bytes.len());
            Ok(())
        });
        Options { randomness, ..Options::default() }
    }

    fn drawn(&self) -> usize {
        self.drawn.load(Ordering::SeqCst)
    }
}

/// Attack 24. Tokens were drawn 32 at a time and kept per thread. Two clones of one VM snapshot
/// then held the same tokens, and each took the other's lease for its own. A token drawn before
/// the snapshot must not be used after it.
#[tokio::test]
async fn attack_24_no_token_is_drawn_before_its_reserve() {
    let (source, store, route) = (Source::default(), shaky(), ietf());
    let engine = start(store.clone(), source.options()).await;
    source.fill.store(1, Ordering::SeqCst);
    let before = held(&engine, &route, "before the snapshot").await;
    assert_eq!(source.drawn(), 16, "one reserve draws one token: {:?}", source.requests.lock().unwrap());
    // From here on the clone's system gives other bytes.
    source.fill.store(2, Ordering::SeqCst);
    let after = held(&engine, &route, "after the snapshot").await;
    let row = engine.read(id(&route, "after the snapshot")).await.unwrap().unwrap();
    assert_eq!(row.grant.unwrap().token, Token::from_bytes([2; 16]));
    assert_eq!(source.drawn(), 32);
    done(before, complete("one")).await;
    done(after, complete("two")).await;
}

/// A replay needs no token: nothing is reserved for it.
#[tokio::test]
async fn attack_24_a_replay_from_the_cache_draws_no_token() {
    let (source, store, route) = (Source::default(), shaky(), ietf());
    let engine = start(store.clone(), source.options()).await;
    completed(&engine, &route, "k", "paid").await;
    let drawn = source.drawn();
    for _ in 0..100 {
        replayed(&engine, &route, "k").await;
    }
    assert_eq!(source.drawn(), drawn);
}
