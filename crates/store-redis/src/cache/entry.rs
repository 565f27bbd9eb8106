//! A cached record as bytes, and the distrust with which they are read back.
//!
//! ```text
//! 1 byte    layout, now 1
//! 16 bytes  which rows it is of
//! 8 bytes   when the store showed it, microseconds, big-endian
//! …         `Record::encode`
//! 16 bytes  the first half of SHA-256 over all of the above
//! ```

use oncegate_core::identity::RecordId;
use oncegate_core::record::{Record, StateKind};
use oncegate_core::time::Timestamp;
use oncegate_store::shared_cache::{Kept, Realm};
use sha2::{Digest, Sha256};

const LAYOUT: u8 = 1;
const HEAD: usize = 25;
const SUM: usize = 16;

pub(super) fn encode(kept: &Kept) -> Vec<u8> {
    let mut bytes = vec![LAYOUT];
    bytes.extend(kept.realm.as_bytes());
    bytes.extend(kept.shown_at.as_micros().to_be_bytes());
    bytes.extend(kept.record.encode());
    bytes.extend(sum(&bytes));
    bytes
}

/// The entry, if it is whole, of this record, and completed.
pub(super) fn decode(bytes: &[u8], id: RecordId) -> Option<Kept> {
    let (bytes, told) = bytes.split_at_checked(bytes.len().checked_sub(SUM)?)?;
    if sum(bytes) != told {
        return None;
    }
    let (head, record) = bytes.split_at_checked(HEAD)?;
    let (&LAYOUT, head) = head.split_first()? else { return None };
    let (realm, shown_at) = head.split_first_chunk()?;
    let realm = Realm::from_bytes(*realm);
    let shown_at = Timestamp::from_micros(i64::from_be_bytes(shown_at.try_into().ok()?));
    let record = Record::decode(record).ok()?;
    (record.id == id && record.state.kind() == StateKind::Completed).then_some(Kept {
        realm,
        record: record.into(),
        shown_at,
    })
}

fn sum(bytes: &[u8]) -> [u8; SUM] {
    let mut sum = [0; SUM];
    sum.copy_from_slice(&Sha256::digest(bytes)[..SUM]);
    sum
}

#[cfg(test)]
mod tests {
    use oncegate_conformance::samples::{FAR_AHEAD, LONG_AGO, every_shape, id, moved_to, reserved};

    use super::*;

    const REALM: Realm = Realm::from_bytes([3; 16]);

    #[test]
    fn only_whole_completed_entries_of_the_right_record_come_back() {
        let record = moved_to(&reserved("a", 1, LONG_AGO), StateKind::Completed, FAR_AHEAD);
        let kept = Kept { realm: REALM, record: record.into(), shown_at: LONG_AGO };
        let bytes = encode(&kept);
        assert_eq!(decode(&bytes, id("a")), Some(kept));
        assert_eq!(decode(&bytes, id("b")), None, "another's");
        for length in 0..bytes.len() {
            assert_eq!(decode(&bytes[..length], id("a")), None, "cut to {length} bytes");
        }
        for place in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[place] ^= 1;
            assert_eq!(decode(&damaged, id("a")), None, "byte {place} changed");
        }
        assert_eq!(decode(&[&bytes[..], &[0]].concat(), id("a")), None, "longer");
    }

    #[test]
    fn another_layout_is_not_read_though_its_sum_is_right() {
        let record = moved_to(&reserved("a", 1, LONG_AGO), StateKind::Completed, FAR_AHEAD);
        let mut bytes = encode(&Kept { realm: REALM, record: record.into(), shown_at: LONG_AGO });
        bytes.truncate(bytes.len() - SUM);
        bytes[0] = 2;
        bytes.extend(sum(&bytes));
        assert_eq!(decode(&bytes, id("a")), None);
    }

    #[test]
    fn what_is_not_completed_is_no_entry() {
        for record in every_shape() {
            let is_completed = record.state.kind() == StateKind::Completed;
            let kept = Kept { realm: REALM, record: record.into(), shown_at: FAR_AHEAD };
            assert_eq!(decode(&encode(&kept), kept.record.id), is_completed.then_some(kept));
        }
    }
}
