//! What is remembered of removed rows: 64 bits of the id, and the day of the removal.
//!
//! It decides nothing. It tells that a key was used before, when its row is gone, for metrics and
//! the audit trail. Days, because the ids of one day are dropped together.

use oncegate_core::identity::RecordId;
use oncegate_core::time::Timestamp;

const DAY_MICROS: i64 = 24 * 60 * 60 * 1_000_000;

/// The days since 1970, in UTC.
#[must_use]
pub const fn day_of(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(DAY_MICROS)
}

/// The moment at which a day begins.
#[must_use]
pub const fn start_of(day: i64) -> Timestamp {
    Timestamp::from_micros(day.saturating_mul(DAY_MICROS))
}

/// The first 64 bits of an id, which is a hash. Of 100 million remembered ids another id is taken
/// for one of them once in 180 thousand million look-ups.
#[must_use]
pub fn digest_of(id: RecordId) -> i64 {
    let first = id.as_bytes().iter().take(8);
    first.fold(0_u64, |digest, byte| (digest << 8) | u64::from(*byte)).cast_signed()
}
