//! The server's clock, which never runs backwards here: `TIME` follows the machine's clock, and that may be set back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use oncegate_core::time::Timestamp;

use crate::address::Address;

/// The latest that this process has heard of one server, through any handle.
#[derive(Clone, Debug)]
pub(crate) struct Latest(Arc<AtomicI64>);

impl Latest {
    pub(crate) fn of(address: &Address) -> Self {
        static SERVERS: LazyLock<Mutex<HashMap<String, Latest>>> = LazyLock::new(Mutex::default);
        let mut servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
        servers
            .entry(format!("{address:?}"))
            .or_insert_with(|| Self(Arc::new(AtomicI64::new(i64::MIN))))
            .clone()
    }

    /// What to say when the server says this.
    pub(crate) fn hear(&self, (seconds, micros): (i64, i64)) -> Timestamp {
        let told = seconds.saturating_mul(1_000_000).saturating_add(micros);
        Timestamp::from_micros(self.0.fetch_max(told, Ordering::Relaxed).max(told))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_back_stands_still() {
        let address = Address::parse("redis://clock.example").unwrap();
        let (one, two) = (Latest::of(&address), Latest::of(&address));
        assert_eq!(one.hear((5, 7)), Timestamp::from_micros(5_000_007));
        assert_eq!(two.hear((4, 0)), Timestamp::from_micros(5_000_007));
        assert_eq!(two.hear((6, 0)), Timestamp::from_micros(6_000_000));
        let other = Latest::of(&Address::parse("redis://other.example").unwrap());
        assert_eq!(other.hear((4, 0)), Timestamp::from_micros(4_000_000));
    }
}
