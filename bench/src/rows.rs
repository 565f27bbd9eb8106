//! The data every contender stores: one row per idempotency key, as a payment API would fill it.
//!
//! Deterministic: the same seed gives the same rows, so two contenders never differ by luck.
//! Not here: where the rows go (`layouts`, `drivers`) and in which order they are written (`traffic`).

/// Tenants that send keys. Many keys per tenant is what makes (scope, key) order random.
const TENANTS: u64 = 1000;
/// 2026-01-01 in µs: an epoch of today's size, because SQLite stores small integers in fewer bytes.
const EPOCH_US: i64 = 1_767_225_600_000_000;
const LEASE_US: i64 = 30_000_000;
const DEADLINE_US: i64 = 120_000_000;
const RETENTION_US: i64 = 86_400_000_000;
/// One new key every 20 µs: 50,000 requests per second.
const ARRIVAL_US: i64 = 20;
/// A 200-byte body and about 100 bytes of stored headers.
const ANSWER_BYTES: usize = 300;

/// The state column's value while a lease is held.
pub(crate) const IN_PROGRESS: i64 = 1;
/// The state column's value once the answer is stored.
pub(crate) const COMPLETED: i64 = 2;

/// One request: what its reserve inserts and what its settle changes.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// Stands for the first 16 bytes of SHA-256(scope, key).
    pub(crate) id: [u8; 16],
    pub(crate) scope: String,
    pub(crate) key: String,
    pub(crate) life: [u8; 16],
    pub(crate) fingerprint: [u8; 32],
    pub(crate) token: [u8; 16],
    pub(crate) created_at: i64,
    /// Version and fence at the insert; the settle compares against it.
    pub(crate) version: i64,
    pub(crate) lease_until: i64,
    pub(crate) attempt_deadline: i64,
    pub(crate) settled_at: i64,
    pub(crate) expires_at: i64,
    pub(crate) answer: Vec<u8>,
    /// Where the store put the row, if it tells. Filled by the reserve.
    pub(crate) seq: i64,
}

impl Row {
    /// The id's first eight bytes as an integer, for the layout that indexes only those.
    pub(crate) fn hash64(&self) -> i64 {
        let mut head = [0; 8];
        head.copy_from_slice(&self.id[..8]);
        i64::from_be_bytes(head)
    }
}

/// Makes rows from a seed.
#[derive(Debug)]
pub(crate) struct RowMaker {
    random: SplitMix,
    now_us: i64,
}

impl RowMaker {
    /// Rows of different seeds have different keys.
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: SplitMix(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)), now_us: EPOCH_US }
    }

    /// A maker whose clock starts at `now_us`, so that its rows are younger than those already stored.
    pub(crate) fn starting_at(seed: u64, now_us: i64) -> Self {
        Self { now_us: now_us.max(EPOCH_US), ..Self::new(seed) }
    }

    /// The next `count` requests, in order of arrival.
    pub(crate) fn batch(&mut self, count: usize) -> Vec<Row> {
        (0..count).map(|_| self.row()).collect()
    }

    fn row(&mut self) -> Row {
        self.now_us += ARRIVAL_US;
        let now_us = self.now_us;
        // Hashing is not what is measured here: random bytes are distributed just like a digest.
        let id = self.random.bytes();
        let uuid = u128::from_be_bytes(self.random.bytes());
        Row {
            id,
            scope: format!("tenant:{:036x}", self.random.next() % TENANTS),
            key: uuid_text(uuid),
            life: self.random.bytes(),
            fingerprint: self.random.bytes(),
            token: self.random.bytes(),
            created_at: now_us,
            version: now_us,
            lease_until: now_us + LEASE_US,
            attempt_deadline: now_us + DEADLINE_US,
            settled_at: now_us + 5_000,
            expires_at: now_us + 5_000 + RETENTION_US,
            answer: self.random.bytes::<ANSWER_BYTES>().to_vec(),
            seq: 0,
        }
    }
}

fn uuid_text(value: u128) -> String {
    let hex = format!("{value:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// SplitMix64: eight good random bytes for a handful of instructions, and no dependency.
#[derive(Debug)]
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::RowMaker;

    #[test]
    fn rows_have_the_promised_sizes() {
        let row = RowMaker::new(1).batch(1).remove(0);
        assert_eq!((row.scope.len(), row.key.len(), row.answer.len()), (43, 36, 300));
    }
}
