//! A record's bytes: what stores that keep it as one value rely on.

use oncegate_conformance::samples::{LONG_AGO, every_shape, reserved};
use oncegate_core::codec::Encoder;
use oncegate_core::record::codec::Texts;
use oncegate_core::record::{Record, Terms};

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

#[test]
fn a_body_and_a_response_come_back_and_the_body_says_its_operation() {
    for record in every_shape() {
        let (body, response) = (record.encode_body(), record.encode_answer());
        assert_eq!(Record::decode_body(&body, response.as_deref()).as_ref(), Ok(&record));
        assert_eq!(Record::operation_of_body(&body), Ok(record.operation.as_str()));
        // What SQL reads in front and the row must agree.
        let mut other_moment = body.clone();
        other_moment[8] ^= 1;
        assert!(Record::decode_body(&other_moment, response.as_deref()).is_err());
    }
}

/// A whole record as Redis and shared caches have it from earlier releases: names, row and
/// response in one frame.
#[test]
fn a_record_of_the_first_schema_is_read() {
    for record in every_shape() {
        let mut out = Encoder::new();
        out.u8(1);
        out.text(record.address.scope.as_str());
        out.text(record.address.key.as_str());
        out.text(record.operation.as_str());
        out.bytes(&record.encode_row());
        out.optional(record.encode_answer().as_deref());
        assert_eq!(Record::decode(&out.finish()), Ok(record));
    }
}

/// A row as it was written before it said which key the upstream is sent.
#[test]
fn a_row_of_the_first_schema_is_read() {
    let row = reserved("plain", 1, LONG_AGO);
    let texts = Texts {
        scope: row.address.scope.as_str(),
        key: row.address.key.as_str(),
        operation: row.operation.as_str(),
    };
    let bytes: Vec<u8> = (0..FIRST_SCHEMA.len() / 2)
        .map(|n| u8::from_str_radix(&FIRST_SCHEMA[2 * n..2 * n + 2], 16).unwrap())
        .collect();
    let read = Record::decode_row(texts, &bytes, None).unwrap();
    let terms = Terms { forward_key: None, ..row.terms };
    assert_eq!(read, Record { terms, ..row.clone() });
    // Written again, it still does not say: nobody knows.
    assert_eq!(Record::decode_row(texts, &read.encode_row(), None), Ok(read));
}

const FIRST_SCHEMA: &str = "\
    01010000a40731af05000000a40731af05000100000000000000a5a5a5a5a5a5a5a50107070707070707070707070707\
    07070707070707070707070707070707070707000060d71d14000000000000000001000000000000a40731af05000100\
    00a40731af05000000010100000000000000a5a5a5a5a5a5a5a50087370b31af050000e9483d31af05000000000000";
