//! Damaged rows of `record_reserved`.
//!
//! One damaged blob made every write fail, of every key, until an operator repaired the file. Only
//! the keys that it may have named are refused now.

use oncegate_store::join::Join;

use super::*;

/// Three reservations in one blob, and a key that was completed before.
struct Damaged {
    place: Place,
    rows: Vec<Record>,
    done: Record,
}

/// Where the entries of the blob are, and how long it is.
fn entries(blob: &[u8]) -> Vec<usize> {
    let mut at = 5;
    let mut starts = Vec::new();
    while at < blob.len() {
        starts.push(at);
        let length = u32::from_le_bytes(blob[at + 28..at + 32].try_into().unwrap());
        at += 32 + usize::try_from(length).unwrap();
    }
    starts
}

impl Damaged {
    fn by(damage: impl FnOnce(&mut Vec<u8>, &[usize])) -> Self {
        let place = Place::new();
        let store = place.open();
        let before = reserved("before", 9, LONG_AGO);
        let done = completed(&before);
        applied(&store, &[insert(&before)]);
        applied(&store, &[swap(&before, &done)]);
        let rows: Vec<_> = (0..3).map(|n| reserved(&format!("key-{n}"), n, LONG_AGO)).collect();
        applied(&store, &rows.iter().map(insert).collect::<Vec<_>>());
        drop(store);
        let raw = place.raw();
        let read = "SELECT bytes FROM record_reserved WHERE seq > 0";
        let mut blob: Vec<u8> = raw.query_row(read, [], |row| row.get(0)).unwrap();
        let starts = entries(&blob);
        assert_eq!(starts.len(), 3);
        damage(&mut blob, &starts);
        raw.execute("UPDATE record_reserved SET bytes = ?1 WHERE seq > 0", [blob]).unwrap();
        Self { place, rows, done }
    }

    /// Only these keys are refused, and all others work.
    fn refuses_only(&self, refused: &[&str]) {
        let store = self.place.open();
        for row in &self.rows {
            let key = row.address.key.as_str();
            if refused.contains(&key) {
                is_refused(&store, key);
            } else {
                applied(&store, &[swap(row, &completed(row))]);
            }
        }
        applied(&store, &[insert(&reserved("new", 4, LONG_AGO))]);
        // Also by a process that starts later.
        for key in refused {
            is_refused(&self.place.open(), key);
        }
    }
}

fn is_refused(store: &SqliteStore, key: &str) {
    let rival = reserved(key, 77, FAR_AHEAD);
    let [Outcome::Unreadable { problem }] = &outcomes(store, &[insert(&rival)])[..] else {
        panic!("{key} is granted anew");
    };
    assert!(problem.contains("reserv") || problem.contains("packed row"), "{problem}");
    let error = block_on(read_one(store, id(key))).unwrap_err();
    assert_eq!(error.kind(), Kind::Unreadable, "{error}");
    assert!(store.first(id(key)).is_none(), "nor in a caller's transaction");
}

#[test]
fn a_damaged_form_is_read_over() {
    Damaged::by(|blob, _| blob[0] = 9).refuses_only(&[]);
}

#[test]
fn a_damaged_entry_affects_its_own_key_only() {
    // Its content.
    Damaged::by(|blob, at| blob[at[1] + 32] ^= 0xFF).refuses_only(&["key-1"]);
    // The length of its content: too long, too short, and so long that it swallows the next one.
    Damaged::by(|blob, at| blob[at[1] + 31] = 0xFF).refuses_only(&["key-1"]);
    Damaged::by(|blob, at| blob[at[1] + 28] = 1).refuses_only(&["key-1"]);
    Damaged::by(|blob, at| {
        let length = u32::try_from(blob.len() - at[1] - 32).unwrap();
        blob[at[1] + 28..at[1] + 32].copy_from_slice(&length.to_le_bytes());
    })
    .refuses_only(&["key-1"]);
    Damaged::by(|blob, _| blob.truncate(blob.len() - 3)).refuses_only(&["key-2"]);
}

/// An id that cannot be recovered may be any key that is found nowhere else. The rest goes on.
#[test]
fn a_key_that_cannot_be_told_may_be_any_that_is_found_nowhere() {
    type Damage = fn(&mut Vec<u8>, &[usize]);
    let unknown: [Damage; 3] =
        [|blob, at| blob[at[1]..at[1] + 24].fill(0), |blob, at| blob.truncate(at[2]), |blob, _| blob.clear()];
    for (n, damage) in unknown.into_iter().enumerate() {
        let damaged = Damaged::by(damage);
        let store = damaged.place.open();
        refused_by(&store, insert(&reserved("before", 5, FAR_AHEAD)), &damaged.done);
        assert_eq!(read(&store, "before").as_ref(), Some(&damaged.done));
        if n < 2 {
            let known = &damaged.rows[0];
            applied(&store, &[swap(known, &completed(known))]);
        }
        is_refused(&store, "new");
        // One of the batch is refused, and the others are written.
        let doubted = moved_to(&damaged.done, StateKind::Unknown, FAR_AHEAD);
        let batch = [insert(&reserved("new", 6, FAR_AHEAD)), swap(&damaged.done, &doubted)];
        let both = outcomes(&store, &batch);
        assert!(matches!(&both[..], [Outcome::Unreadable { .. }, Outcome::Applied]), "{both:?}");
        assert_eq!(damaged.place.count("record_reserved WHERE seq > 0"), 1, "kept as it is");
        // The operator has looked into it.
        drop(store);
        damaged.place.raw().execute("DELETE FROM record_reserved WHERE seq > 0", []).unwrap();
        applied(&damaged.place.open(), &[insert(&reserved("new", 7, FAR_AHEAD))]);
    }
}

/// A flipped bit in an id filed the reservation under another key, and its own key was free while its attempt ran.
#[test]
fn a_damaged_id_does_not_free_its_key() {
    let damaged = Damaged::by(|blob, starts| blob[starts[1] + 4] ^= 1);
    let store = damaged.place.open();
    is_refused(&store, "key-1");
    is_refused(&store, "never-seen");
    applied(&store, &[swap(&damaged.rows[0], &completed(&damaged.rows[0]))]);
}
