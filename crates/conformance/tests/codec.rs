//! A record's bytes: what stores that keep it as one value rely on.

use oncegate_conformance::samples::every_shape;
use oncegate_core::record::Record;

/// The shapes, without the one that has a large body: every byte of it is looked at.
fn small_shapes() -> impl Iterator<Item = Record> {
    every_shape().into_iter().filter(|record| record.encode().len() < 10_000)
}

#[test]
fn every_shape_survives_its_bytes() {
    for record in every_shape() {
        assert_eq!(Record::decode(&record.encode()), Ok(record));
    }
}

#[test]
fn bytes_that_were_cut_or_lengthened_or_are_of_another_schema_are_refused() {
    for record in small_shapes() {
        let whole = record.encode();
        for end in 0..whole.len() {
            assert!(Record::decode(&whole[..end]).is_err(), "cut at {end}");
        }
        let longer = [&whole[..], &[0]].concat();
        assert!(Record::decode(&longer).is_err());
        let mut next_schema = whole;
        next_schema[0] = 9;
        assert!(Record::decode(&next_schema).is_err());
    }
}

/// Damaged bytes give an error or another record, and never a panic. That no two records share their bytes follows from
/// what can be read back.
#[test]
fn damaged_bytes_never_panic() {
    for record in small_shapes() {
        let whole = record.encode();
        for place in 0..whole.len() {
            for damage in [0x01, 0x80, 0xFF] {
                let mut damaged = whole.clone();
                damaged[place] ^= damage;
                if let Ok(read) = Record::decode(&damaged) {
                    assert_eq!(Record::decode(&read.encode()).unwrap(), read);
                }
            }
        }
    }
}
