//! What a row takes on disk.

use super::*;

/// A 200-byte body, some headers, and names as long as they are in service: what users go by.
#[test]
fn a_completed_key_takes_less_than_700_bytes() {
    const KEYS: u64 = 20_000;
    let place = Place::new();
    let store = place.open();
    let rows: Vec<_> = (0..KEYS)
        .map(|n| reserved(&format!("{n:08x}-7d1b-4a52-9c3e-{n:012x}"), n, LONG_AGO))
        .map(|row| {
            let mut done = completed(&row);
            done.state = State::Completed(answer(201, &[b'x'; 200]));
            (row, done)
        })
        .collect();
    for rows in rows.chunks(256) {
        applied(&store, &rows.iter().map(|(row, _)| insert(row)).collect::<Vec<_>>());
        applied(&store, &rows.iter().map(|(row, done)| swap(row, done)).collect::<Vec<_>>());
    }
    drop(store);
    place.raw().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let bytes = std::fs::metadata(place.file()).unwrap().len() / KEYS;
    assert!(bytes <= 700, "{bytes} bytes a key");
    println!("{bytes} bytes a key");
}
