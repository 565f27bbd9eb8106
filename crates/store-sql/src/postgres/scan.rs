//! What is due, for workers: first which rows, then the rows.
//!
//! Leases and answers are found by notes (see the migration), a page of them at a time; each page is tidied on the way, by whichever
//! node comes first. Everything else has an index.
//!
//! **Invariant:** notes only move on: to a later moment, or from leases to answers. A scan goes the same way, so what another
//! node tidies meanwhile is still before it. And no statement looks at more than a page: a scan of a backlog finds what it comes to
//! in its time, and the next one goes on, because notes that need no looking at have moved.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use oncegate_core::record::codec::body_name;
use oncegate_core::record::{Record, StateKind};
use oncegate_core::scope::Operation;
use oncegate_core::time::{Timestamp, micros};
use oncegate_store::query::answer_bytes;
use oncegate_store::row::{RESUMABLE, number_of};
use oncegate_store::{Due, Moments, SCAN_BYTES_MAX, Scan};
use tokio_postgres::types::ToSql;

use super::error::Failure;
use super::row::{Look, SEQ, decode};
use super::session::Session;
use super::statements::{NOTES_AT_ONCE, Statements};

/// A scan begins no further page of notes after this: less than the limit on reads.
pub(super) const SCAN_TIME: Duration = Duration::from_secs(5);
/// When to look again at rows under a note that an index finds: they may come back, see `statements::tidy`.
const LOOK_AGAIN: Duration = Duration::from_hours(1);
/// Notes of the first page of answers: a reaper that is behind finds a batch under a few, and every row under a page is read twice.
const ANSWER_NOTES: i64 = 8;

/// A row that is due.
struct Found {
    seq: i64,
    moment: i64,
    answer_bytes: i64,
}

/// A scan passes over no more rows than this that cannot be read, or have gone before they were read.
const PASSED_OVER_MAX: usize = 10_000;

/// Within this time; one page of each kind of notes is looked at in any case.
pub(super) async fn due(
    session: &Session,
    statements: &Statements,
    what: Due,
    except: &[Operation],
    moments: Moments,
    limit: usize,
    time: Duration,
) -> Result<Scan, Failure> {
    // As they stand in a row.
    let except: Vec<Vec<u8>> =
        except.iter().map(|operation| body_name(operation.as_str()).collect()).collect();
    let started = Instant::now();
    let (scan, records, met) = (Scan::default(), Vec::new(), HashSet::new());
    let mut reading = Reading { session, statements, what, moments, limit, scan, records, bytes: 0, met };
    let mut asked = limit;
    while !reading.is_full() {
        let left = time.saturating_sub(started.elapsed());
        let (found, is_late) = find(session, statements, what, &except, moments, asked, left).await?;
        let is_all = found.len() < asked;
        reading.scan.is_cut = is_late || !is_all;
        reading.read(found).await?;
        // What cannot be read, or is gone by now, must not stand in the way of others: as many again are looked for.
        if is_all || asked >= limit.saturating_add(PASSED_OVER_MAX) || started.elapsed() >= time {
            break;
        }
        asked = asked.saturating_mul(2).min(limit.saturating_add(PASSED_OVER_MAX));
    }
    Ok(reading.ended())
}

/// The longest due, at most `limit`; and whether the time was over before all was looked at.
async fn find(
    session: &Session,
    statements: &Statements,
    what: Due,
    except: &[Vec<u8>],
    moments: Moments,
    limit: usize,
    time: Duration,
) -> Result<(Vec<Found>, bool), Failure> {
    let Moments { from, by } = moments;
    let moments = [from.as_micros(), by.as_micros()];
    let limit_rows = i64::try_from(limit).unwrap_or(i64::MAX);
    let notes = |kind, first_page| Notes { session, statements, kind: number_of(kind), first_page };
    // Under a note of leases there is hardly anything to be found; under one of answers that have expired, nearly everything.
    let leases = notes(StateKind::InProgress, NOTES_AT_ONCE);
    let answers = notes(StateKind::Completed, ANSWER_NOTES);
    let wanted = |state| Wanted { state, moments, limit };
    let looked = |look| looked(session, statements, look, moments, limit_rows);
    let (mut found, mut is_late) = (Vec::new(), false);
    match what {
        Due::Pending => found = pending(session, statements, moments, limit_rows).await?,
        Due::Doubted if except.is_empty() => found = looked(Look::Doubted).await?,
        Due::Doubted => found = doubted_except(session, statements, except, moments, limit_rows).await?,
        Due::Lapsed => is_late = noted(&leases, &wanted(leases.kind), time, &mut found).await?,
        Due::Resumable => {
            is_late = noted(&leases, &wanted(leases.kind | RESUMABLE), time, &mut found).await?;
        }
        Due::Expired => {
            let expired = wanted(answers.kind);
            // In this order: notes of leases become notes of answers, and never the other way round.
            is_late = noted(&leases, &expired, time / 2, &mut found).await?;
            is_late |= noted(&answers, &expired, time / 2, &mut found).await?;
            found.extend(looked(Look::Expiring).await?);
            found.extend(looked(Look::Kept).await?);
        }
    }
    keep_first(&mut found, limit);
    Ok((found, is_late))
}

/// Looks at all that waits: workers ask for it line by line.
async fn pending(
    session: &Session,
    statements: &Statements,
    [from, by]: [i64; 2],
    limit: i64,
) -> Result<Vec<Found>, Failure> {
    let rows = session.query(&statements.pending, &[&by, &limit, &from]).await?;
    let found =
        rows.iter().map(|row| Ok(Found { seq: row.try_get(0)?, moment: row.try_get(1)?, answer_bytes: 0 }));
    found.collect()
}

/// What no note says anything of.
async fn looked(
    session: &Session,
    statements: &Statements,
    look: Look,
    moments: [i64; 2],
    limit: i64,
) -> Result<Vec<Found>, Failure> {
    let [from, by] = moments.map(|moment| look.at(Timestamp::from_micros(moment)));
    let rows = session.query(&statements.looked, &[&from, &by, &limit]).await?;
    let found = rows.iter().map(|row| {
        let (moment, answer_bytes): (i64, i32) = (row.try_get(1)?, row.try_get(2)?);
        Ok(Found {
            seq: row.try_get(0)?,
            moment: Look::moment(moment),
            answer_bytes: i64::from(answer_bytes),
        })
    });
    found.collect()
}

/// Doubts, but for those of some operations.
async fn doubted_except(
    session: &Session,
    statements: &Statements,
    except: &[Vec<u8>],
    moments: [i64; 2],
    limit: i64,
) -> Result<Vec<Found>, Failure> {
    let [from, by] = moments.map(|moment| Look::Doubted.at(Timestamp::from_micros(moment)));
    let rows = session.query(&statements.doubted_except, &[&from, &by, &limit, &except]).await?;
    let found = rows.iter().map(|row| {
        Ok(Found { seq: row.try_get(0)?, moment: Look::moment(row.try_get(1)?), answer_bytes: 0 })
    });
    found.collect()
}

/// What is looked for under notes.
struct Wanted {
    /// As in its column.
    state: i16,
    /// From when until when.
    moments: [i64; 2],
    limit: usize,
}

/// Adds to `found` what is under due notes of one kind, until none further on can be due earlier, or the time is over: whether it is.
async fn noted(
    notes: &Notes<'_>,
    wanted: &Wanted,
    time: Duration,
    found: &mut Vec<Found>,
) -> Result<bool, Failure> {
    let started = Instant::now();
    let [_, now] = wanted.moments;
    let mut from = (i64::MIN, i64::MIN);
    let mut look_again_at = None;
    let mut at_once = notes.first_page;
    while let Some(page) = notes.page(now, from, at_once).await? {
        // The same for all pages: else a scan by a clock that is ahead would come to what it has put off again and again.
        let look_again_at =
            *look_again_at.get_or_insert_with(|| page.read_at.min(now).saturating_add(micros(LOOK_AGAIN)));
        notes.tidy(&page, look_again_at).await?;
        let last_moment = |found: &[Found]| found.get(wanted.limit - 1).map(|row| row.moment);
        let until = last_moment(found).unwrap_or(now);
        found.extend(notes.rows(&page, wanted, until).await?);
        keep_first(found, wanted.limit);
        let is_enough = last_moment(found).is_some_and(|moment| moment <= page.to.0);
        if is_enough || page.is_last {
            break;
        }
        if started.elapsed() >= time {
            return Ok(true);
        }
        from = page.to;
        at_once = NOTES_AT_ONCE.min(2 * at_once);
    }
    Ok(false)
}

/// The longest due of them, each once.
fn keep_first(found: &mut Vec<Found>, limit: usize) {
    found.sort_by_key(|row| (row.moment, row.seq));
    let mut seen = HashSet::with_capacity(found.len());
    found.retain(|row| seen.insert(row.seq));
    found.truncate(limit);
}

/// The notes of one kind.
struct Notes<'s> {
    session: &'s Session,
    statements: &'s Statements,
    kind: i16,
    /// The first page has so many, each further one twice as many as the one before.
    first_page: i64,
}

/// Where a note is: when it is due, and its number.
type Place = (i64, i64);

/// Some notes in a row: after `from`, up to `to`.
struct Page {
    from: Place,
    to: Place,
    is_last: bool,
    /// By the server's clock.
    read_at: i64,
}

impl Notes<'_> {
    /// The next notes that are due; none of them is locked.
    async fn page(&self, now: i64, from: Place, at_once: i64) -> Result<Option<Page>, Failure> {
        let bound: [&(dyn ToSql + Sync); 5] = [&self.kind, &now, &from.0, &from.1, &at_once];
        let rows = self.session.query(&self.statements.page, &bound).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let count: i64 = row.try_get(0)?;
        if count == 0 {
            return Ok(None);
        }
        let is_last = count < at_once;
        // The last page has room for those of its notes that are put off, and still due.
        let to = if is_last { (now, i64::MAX) } else { (row.try_get(1)?, row.try_get(2)?) };
        Ok(Some(Page { from, to, is_last, read_at: row.try_get(3)? }))
    }

    async fn tidy(&self, Page { from, to, .. }: &Page, look_again_at: i64) -> Result<(), Failure> {
        let bound: [&(dyn ToSql + Sync); 6] = [&self.kind, &from.0, &from.1, &to.0, &to.1, &look_again_at];
        self.session.query(&self.statements.tidy, &bound).await?;
        Ok(())
    }

    /// What is due under them. A note that was put off beyond the page is met again further on, if it is still due.
    async fn rows(
        &self,
        Page { from, to, .. }: &Page,
        wanted: &Wanted,
        until: i64,
    ) -> Result<Vec<Found>, Failure> {
        let limit = i64::try_from(wanted.limit).unwrap_or(i64::MAX);
        let Wanted { state, moments: [earliest, _], .. } = wanted;
        let bound: [&(dyn ToSql + Sync); 9] =
            [&self.kind, &from.0, &from.1, &to.0, &to.1, state, &until, &limit, earliest];
        let rows = self.session.query(&self.statements.noted, &bound).await?;
        let found = rows.iter().map(|row| {
            let answer_bytes: i32 = row.try_get(2)?;
            Ok(Found { seq: row.try_get(0)?, moment: row.try_get(1)?, answer_bytes: i64::from(answer_bytes) })
        });
        found.collect()
    }
}

/// The rows themselves, as far as they can be read.
struct Reading<'s> {
    session: &'s Session,
    statements: &'s Statements,
    what: Due,
    moments: Moments,
    limit: usize,
    scan: Scan,
    records: Vec<(Timestamp, i64, Record)>,
    /// Of the answers among them.
    bytes: usize,
    /// What was read, or tried.
    met: HashSet<i64>,
}

impl Reading<'_> {
    fn is_full(&self) -> bool {
        self.records.len() >= self.limit || self.bytes >= SCAN_BYTES_MAX
    }

    /// Reads those of them that were not met before, until it is full. What cannot be read takes no room.
    async fn read(&mut self, found: Vec<Found>) -> Result<(), Failure> {
        let mut found = found.into_iter().filter(|row| !self.met.contains(&row.seq)).collect::<Vec<_>>();
        while !found.is_empty() && !self.is_full() {
            let rows = self.at_once(&found);
            let seqs: Vec<i64> = found.drain(..rows).map(|row| row.seq).collect();
            self.read_at(&seqs).await?;
        }
        self.scan.is_cut |= !found.is_empty();
        Ok(())
    }

    /// So many of the first of them there is room for, whatever can be read of them; one at least.
    fn at_once(&self, found: &[Found]) -> usize {
        let mut bytes = self.bytes;
        let within = found.iter().take(self.limit - self.records.len()).take_while(|row| {
            let is_room = bytes < SCAN_BYTES_MAX;
            bytes += usize::try_from(row.answer_bytes).unwrap_or(0);
            is_room
        });
        within.count()
    }

    /// One that has changed meanwhile is left out.
    async fn read_at(&mut self, seqs: &[i64]) -> Result<(), Failure> {
        self.met.extend(seqs);
        for row in &self.session.query(&self.statements.read_by_seq, &[&seqs]).await? {
            let Ok(record) = decode(row)?.1 else {
                self.scan.unreadable += 1;
                continue;
            };
            let moment = self.what.moment(&record).filter(|moment| self.moments.contain(*moment));
            if let Some(moment) = moment {
                self.bytes += answer_bytes(&record);
                self.records.push((moment, row.try_get(SEQ)?, record));
            }
        }
        Ok(())
    }

    /// The longest due first.
    fn ended(mut self) -> Scan {
        self.records.sort_by_key(|(moment, seq, _)| (*moment, *seq));
        Scan { records: self.records.into_iter().map(|(.., record)| record).collect(), ..self.scan }
    }
}
