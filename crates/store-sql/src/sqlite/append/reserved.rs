//! Reservations in flight: one blob a commit in the file, one entry a key in memory.
//!
//! A blob is written once and goes when nothing in it is in flight any more; meanwhile it goes on naming rows that were settled or moved.
//! **Invariant:** an id that a blob names is in flight exactly if it is neither in `record_settled` nor in `record`. So no row may be removed from
//! there while a blob names it: the blob is written anew first, without it, in the same transaction.
//!
//! **Damage.** Of a blob whose frame is damaged, all entries count that can be told: an id whose length is intact is trusted, and an entry behind
//! the damage is recognized by its content, whose address gives its id. If these are as many as the blob says, only the damaged entry's key
//! is refused. If not, some key is unknown: any key that is found nowhere else is refused, because it may be that one. Such a blob is
//! kept as it is, and no row that it names is removed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use oncegate_core::codec::{Decoder, Encoder, Malformed};
use oncegate_core::identity::RecordId;
use oncegate_core::record::Record;
use rusqlite::Connection;

use super::super::error::{Failure, PerhapsReserved};
use super::packed::{pack, unpack};

pub(super) const ADD: &str = "INSERT INTO record_reserved (seq, bytes) VALUES (?1, ?2)";
pub(super) const REPLACE: &str = "UPDATE record_reserved SET bytes = ?2 WHERE seq = ?1";
pub(super) const DROP: &str = "DELETE FROM record_reserved WHERE seq = ?1";
const ALL: &str = "SELECT seq, bytes FROM record_reserved WHERE seq > 0 ORDER BY seq";

const FORM: u8 = 1;
const WHAT: &str = "batch of reservations";
/// What most reservations take.
const ROW_BYTES: usize = 256;

/// A reservation in flight.
#[derive(Clone, Debug)]
pub(in super::super) struct Held {
    /// Its place in the order of arrival.
    pub(in super::super) arrival: i64,
    pub(in super::super) row: Row,
}

/// The row, if it can be read.
#[derive(Clone, Debug)]
pub(in super::super) enum Row {
    Readable(Arc<Record>),
    /// Damaged. Its bytes are kept as they are.
    Unreadable {
        bytes: Arc<[u8]>,
        problem: Malformed,
    },
}

/// What is in flight.
#[derive(Debug, Default)]
pub(in super::super) struct Reserved {
    /// All that the blobs name; those that are over have nothing.
    named: HashMap<RecordId, Named>,
    batches: BTreeMap<i64, Batch>,
    /// Blobs with keys that cannot be recovered.
    damaged: BTreeSet<i64>,
}

#[derive(Debug)]
struct Named {
    batch: i64,
    held: Option<Held>,
}

#[derive(Debug)]
struct Batch {
    ids: Vec<RecordId>,
    live: usize,
    /// When this process first saw it.
    since: Instant,
}

impl Reserved {
    pub(in super::super) fn get(&self, id: RecordId) -> Option<&Held> {
        self.named.get(&id)?.held.as_ref()
    }

    /// A blob that may name any key, because some of its keys cannot be recovered.
    pub(in super::super) fn damaged(&self) -> Option<PerhapsReserved> {
        self.damaged.first().map(|seq| PerhapsReserved { seq: *seq })
    }

    /// Whether this blob is to be kept as it is.
    pub(super) fn is_damaged(&self, batch: i64) -> bool {
        self.damaged.contains(&batch)
    }

    /// Which blob names it, whether it is in flight or not.
    pub(super) fn batch_of(&self, id: RecordId) -> Option<i64> {
        self.named.get(&id).map(|named| named.batch)
    }

    pub(in super::super) fn all(&self) -> impl Iterator<Item = (RecordId, &Held)> {
        self.named.iter().filter_map(|(id, named)| named.held.as_ref().map(|held| (*id, held)))
    }

    /// What a blob has in flight.
    pub(super) fn of_batch(&self, batch: i64) -> impl Iterator<Item = (RecordId, &Held)> {
        let ids = self.batches.get(&batch).into_iter().flat_map(|batch| &batch.ids);
        ids.filter_map(|id| self.get(*id).map(|held| (*id, held)))
    }

    /// How many of a blob are in flight.
    pub(super) fn live(&self, batch: i64) -> usize {
        self.batches.get(&batch).map_or(0, |batch| batch.live)
    }

    /// What has been in flight for longer than that, the oldest first.
    pub(super) fn older_than(&self, age: Duration, most: usize) -> Vec<(RecordId, Held)> {
        let now = Instant::now();
        let old =
            self.batches.iter().take_while(|(_, batch)| now.saturating_duration_since(batch.since) > age);
        let rows = old.flat_map(|(number, _)| self.of_batch(*number));
        let readable = rows.filter(|(_, held)| matches!(held.row, Row::Readable(_)));
        readable.take(most).map(|(id, held)| (id, held.clone())).collect()
    }

    // ---- What a commit has changed ----

    pub(super) fn add(&mut self, batch: i64, rows: Vec<(RecordId, Held)>) {
        let ids: Vec<_> = rows.iter().map(|(id, _)| *id).collect();
        for (id, held) in rows {
            self.named.insert(id, Named { batch, held: Some(held) });
        }
        let live = ids.len();
        self.batches.insert(batch, Batch { ids, live, since: Instant::now() });
    }

    /// It is settled, or moved.
    pub(super) fn end(&mut self, id: RecordId) {
        if let Some(named) = self.named.get_mut(&id)
            && named.held.take().is_some()
            && let Some(batch) = self.batches.get_mut(&named.batch)
        {
            batch.live -= 1;
        }
    }

    /// A blob names only what is in flight any more; or it is gone, if that is nothing.
    pub(super) fn purge(&mut self, batch: i64) {
        let Some(there) = self.batches.get_mut(&batch) else { return };
        let named = &mut self.named;
        there.ids.retain(|id| {
            let is_over = named.get(id).is_none_or(|named| named.batch != batch || named.held.is_none());
            if is_over && named.get(id).is_some_and(|named| named.batch == batch) {
                named.remove(id);
            }
            !is_over
        });
        if there.ids.is_empty() {
            self.batches.remove(&batch);
        }
    }

    // ---- The file ----

    /// Reads all that the file has; `is_over` says whether a row has left.
    pub(super) fn reload(
        &mut self,
        connection: &Connection,
        mut is_over: impl FnMut(RecordId) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let before = std::mem::take(self);
        let mut statement = connection.prepare_cached(ALL)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let number: i64 = row.get(0)?;
            let since = before.batches.get(&number).map_or_else(Instant::now, |batch| batch.since);
            let mut batch = Batch { ids: Vec::new(), live: 0, since };
            let Blob { rows: entries, is_whole } = read(row.get_ref(1)?.as_blob()?);
            if !is_whole {
                if !before.is_damaged(number) {
                    log_damage(number);
                }
                self.damaged.insert(number);
            }
            for (id, arrival, bytes) in entries {
                let known = || before.get(id).filter(|_| before.batch_of(id) == Some(number)).cloned();
                let held = if is_over(id)? {
                    None
                } else {
                    Some(known().unwrap_or_else(|| Held { arrival, row: Row::read(number, id, bytes) }))
                };
                // The id itself is damaged: which key the reservation is of is not known for sure.
                if held.as_ref().is_some_and(|held| held.row.is_of_another(id)) {
                    log_damage(number);
                    self.damaged.insert(number);
                }
                batch.live += usize::from(held.is_some());
                batch.ids.push(id);
                self.named.insert(id, Named { batch: number, held });
            }
            self.batches.insert(number, batch);
        }
        Ok(())
    }
}

impl Row {
    /// Whether its content disproves its id.
    fn is_of_another(&self, id: RecordId) -> bool {
        matches!(self, Self::Readable(record) if RecordId::of(&record.address) != id)
    }

    fn read(number: i64, id: RecordId, bytes: &[u8]) -> Self {
        match unpack(id, bytes) {
            Ok(record) => Self::Readable(Arc::new(record)),
            Err(problem) => {
                tracing::error!(
                    table = "record_reserved", seq = number, record = %id, %problem,
                    "a reservation is damaged; its key is refused"
                );
                Self::Unreadable { bytes: bytes.into(), problem }
            }
        }
    }
}

/// A blob that names these.
pub(super) fn write<'a>(rows: impl ExactSizeIterator<Item = (RecordId, &'a Held)>) -> Vec<u8> {
    let mut out = Encoder::with_capacity(rows.len() * ROW_BYTES + 8);
    out.u8(FORM);
    out.u32(u32::try_from(rows.len()).unwrap_or(u32::MAX));
    let mut packed = Vec::with_capacity(ROW_BYTES);
    for (id, held) in rows {
        out.bytes(id.as_bytes());
        out.i64(held.arrival);
        match &held.row {
            Row::Readable(record) => {
                packed.clear();
                pack(record, &mut packed);
                out.bytes(&packed);
            }
            Row::Unreadable { bytes, .. } => out.bytes(bytes),
        }
    }
    out.finish()
}

type Read<'a> = (RecordId, i64, &'a [u8]);

/// What a blob names, as far as that can be told.
struct Blob<'a> {
    rows: Vec<Read<'a>>,
    /// These are all.
    is_whole: bool,
}

fn read(bytes: &[u8]) -> Blob<'_> {
    read_whole(bytes).map_or_else(|_| salvage(bytes), |rows| Blob { rows, is_whole: true })
}

/// The form, and the count.
const HEAD_BYTES: usize = 1 + 4;
/// An id, behind its length.
const ID_BYTES: usize = 4 + 16;
const ID_LENGTH: [u8; 4] = 16_u32.to_le_bytes();

/// The entries of a blob whose frame is damaged.
fn salvage(bytes: &[u8]) -> Blob<'_> {
    let mut rows = Vec::new();
    let mut at = HEAD_BYTES;
    while at < bytes.len() {
        if let Some((row, length)) = sound_entry(&bytes[at..]) {
            rows.push(row);
            at += length;
            continue;
        }
        let next = (at + 1..bytes.len()).find(|next| sound_entry(&bytes[*next..]).is_some());
        let next = next.unwrap_or(bytes.len());
        rows.extend(named_entry(&bytes[at..next]));
        at = next;
    }
    let count = bytes.get(1..HEAD_BYTES).and_then(|count| count.try_into().ok()).map(u32::from_le_bytes);
    let is_whole = count.and_then(|count| usize::try_from(count).ok()) == Some(rows.len());
    Blob { rows, is_whole }
}

/// An entry whose content proves its id, and how long it is.
fn sound_entry(bytes: &[u8]) -> Option<(Read<'_>, usize)> {
    if !bytes.starts_with(&ID_LENGTH) {
        return None;
    }
    let mut input = Decoder::new(bytes, WHAT);
    let id = RecordId::from_bytes(input.bytes().ok()?.try_into().ok()?);
    let row = (id, input.i64().ok()?, input.bytes().ok()?);
    let is_sound = unpack(id, row.2).is_ok_and(|record| RecordId::of(&record.address) == id);
    is_sound.then_some((row, ID_BYTES + 8 + 4 + row.2.len()))
}

/// A damaged entry, if the length of its id is intact.
fn named_entry(bytes: &[u8]) -> Option<Read<'_>> {
    let (head, rest) = bytes.split_at_checked(ID_BYTES)?;
    let id = head.strip_prefix(&ID_LENGTH)?.try_into().ok()?;
    let arrival = rest.first_chunk().map_or(0, |arrival| i64::from_le_bytes(*arrival));
    Some((RecordId::from_bytes(id), arrival, rest))
}

fn log_damage(seq: i64) {
    tracing::error!(
        table = "record_reserved",
        seq,
        "a row of reservations is damaged and some of its keys cannot be recovered; every key without a \
         record elsewhere is refused. Restore a backup; or, once no operation from that time can still be \
         retried, delete this row of this table and restart"
    );
}

fn read_whole(bytes: &[u8]) -> Result<Vec<Read<'_>>, Malformed> {
    let mut input = Decoder::new(bytes, WHAT);
    if input.u8()? != FORM {
        return Err(input.malformed());
    }
    let mut rows = Vec::new();
    for _ in 0..input.u32()? {
        let id = input.bytes()?.try_into().map_err(|_| input.malformed())?;
        rows.push((RecordId::from_bytes(id), input.i64()?, input.bytes()?));
    }
    input.finish()?;
    Ok(rows)
}
