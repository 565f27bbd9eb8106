//! A batch is one transaction, sent in one go, and its outcomes leave after the commit.
//!
//! **Invariant:** "nothing was written" is said only where no server was reached, or the server itself refused a statement
//! before the commit. Whatever else goes wrong once the batch is on its way (a lost connection, a time limit, an error or a
//! warning of the commit itself) leaves it in doubt.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use oncegate_core::identity::RecordId;
use oncegate_store::{Effect, Outcome, Result, StoreError, Write};
use tokio::sync::{Mutex, MutexGuard};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

use super::batch::{Wave, waves};
use super::error::Failure;
use super::link::Link;
use super::row::decode;
use super::session::{Pooling, Session};
use super::settings::Settings;
use super::statements::{BATCH_MAX, Query, SETUP_WRITE, SETUP_WRITE_LOCAL, Statements};

/// A batch that others were in the way of is tried so often.
const TRIES: u32 = 8;
/// After the server's own limit on statements.
const WRITE_TIMEOUT: Duration = Duration::from_secs(6);

/// The sessions that write; each has one batch at a time.
#[derive(Debug)]
pub(super) struct Writers {
    links: Vec<Mutex<Link>>,
    /// Wakes whoever waits for a free one.
    free: tokio::sync::Semaphore,
}

impl Writers {
    pub(super) fn new(settings: &Arc<Settings>, count: usize) -> Self {
        let count = count.max(1);
        let links = (0..count).map(|_| Mutex::new(Link::new(Arc::clone(settings), SETUP_WRITE))).collect();
        Self { links, free: tokio::sync::Semaphore::new(count) }
    }

    pub(super) const fn count(&self) -> usize {
        self.links.len()
    }

    /// Applies `batch`; what others were in the way of, again.
    pub(super) async fn apply(&self, statements: &Statements, batch: &[Write]) -> Result<Vec<Outcome>> {
        if batch.len() > BATCH_MAX {
            let words = format!("a batch has at most {BATCH_MAX} writes, not {}", batch.len());
            return Err(Failure::Words(words).during("apply", Effect::None));
        }
        let waves = waves(batch);
        let _permit = self.free.acquire().await;
        let link = self.one().await;
        let mut answers = Answers::New;
        for tried in 1.. {
            match attempt(&link, statements, &waves, batch, answers).await {
                Ok(outcomes) => return Ok(outcomes),
                // A completed record was completed anew.
                Err(broken) if broken.is_of_answers() && answers == Answers::New => answers = Answers::Any,
                Err(broken) if broken.is_worth_another_try() && tried < TRIES => {
                    tracing::debug!(failure = %broken.failure, tried, "a batch was in another's way; trying again");
                    tokio::time::sleep(Duration::from_millis(1 << tried)).await;
                }
                Err(broken) => return Err(broken.into_error()),
            }
        }
        Ok(Vec::new())
    }

    /// There is a permit for each, so one is free.
    async fn one(&self) -> MutexGuard<'_, Link> {
        for link in &self.links {
            if let Ok(link) = link.try_lock() {
                return link;
            }
        }
        self.links[0].lock().await
    }
}

/// What is taken for granted of the answers in a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answers {
    /// Nobody had one before: nearly always so, and quicker.
    New,
    /// Nothing.
    Any,
}

/// Why a batch has no outcomes.
struct Broken {
    failure: Failure,
    effect: Effect,
}

impl Broken {
    const fn none(failure: Failure) -> Self {
        Self { failure, effect: Effect::None }
    }

    const fn unknown(failure: Failure) -> Self {
        Self { failure, effect: Effect::Unknown }
    }

    /// The server has undone it, and the same again, or much the same, may well work.
    fn is_worth_another_try(&self) -> bool {
        self.effect == Effect::None && (self.failure.is_worth_another_try() || self.is_of_answers())
    }

    /// There was an answer already.
    fn is_of_answers(&self) -> bool {
        self.effect == Effect::None && self.failure.code() == Some(&SqlState::UNIQUE_VIOLATION)
    }

    fn into_error(self) -> StoreError {
        self.failure.during("apply", self.effect)
    }
}

async fn attempt(
    link: &Link,
    statements: &Statements,
    waves: &[Wave<'_>],
    batch: &[Write],
    answers: Answers,
) -> std::result::Result<Vec<Outcome>, Broken> {
    // Given up half-way, or failed: the session goes, and with it whatever transaction is still open in it.
    let session = link.take().await.map_err(Broken::none)?;
    let prepared = tokio::time::timeout(WRITE_TIMEOUT, prepare(&session, statements, waves, answers)).await;
    prepared.unwrap_or(Err(Failure::TimedOut)).map_err(Broken::none)?;
    let transaction = transact(&session, statements, waves, batch, answers);
    let ended = tokio::time::timeout(WRITE_TIMEOUT, transaction).await;
    let ended = ended.unwrap_or_else(|_| Err(Broken::unknown(Failure::TimedOut)));
    if ended.is_ok() || ended.as_ref().is_err_and(Broken::is_worth_another_try) {
        // A refused transaction of several waves is still open.
        if ended.is_ok()
            || matches!(tokio::time::timeout(WRITE_TIMEOUT, session.run("ROLLBACK")).await, Ok(Ok(())))
        {
            link.put_back(session).await;
        }
    }
    ended
}

async fn prepare(
    session: &Session,
    statements: &Statements,
    waves: &[Wave<'_>],
    answers: Answers,
) -> std::result::Result<(), Failure> {
    for wave in waves {
        for (query, is_used) in [
            (insert_of(statements, wave), !wave.insert.is_empty()),
            (settle_of(statements, answers), !wave.settle.is_empty()),
            (&statements.settle_over, !wave.settle_over.is_empty()),
            (&statements.move_on, !wave.move_on.is_empty()),
            (&statements.remove, !wave.remove.is_empty()),
        ] {
            if is_used {
                session.prepare(query).await?;
            }
        }
    }
    session.prepare(&statements.read).await
}

fn insert_of<'s>(statements: &'s Statements, wave: &Wave<'_>) -> &'s Query {
    if wave.insert.are_reserves() { &statements.reserve } else { &statements.insert }
}

const fn settle_of(statements: &Statements, answers: Answers) -> &Query {
    match answers {
        Answers::New => &statements.settle,
        Answers::Any => &statements.settle_over,
    }
}

async fn transact(
    session: &Session,
    statements: &Statements,
    waves: &[Wave<'_>],
    batch: &[Write],
    answers: Answers,
) -> std::result::Result<Vec<Outcome>, Broken> {
    let mut outcomes = Outcomes::new(batch);
    let warned = session.warnings();
    if let [wave] = waves {
        // All of it is sent before the first answer is awaited.
        let (begun, written, committed) = futures_util::join!(
            begin(session),
            write(session, statements, wave, answers),
            session.run("COMMIT")
        );
        let is_refused = written.as_ref().err().is_some_and(Failure::is_refusal);
        match (begun, written, committed) {
            (Ok(()), Ok(applied), Ok(())) => outcomes.note(applied),
            // After a refusal the server makes a rollback of the commit.
            (Ok(()), Err(failure), _) if is_refused => return Err(Broken::none(failure)),
            (Err(failure), ..) | (_, Err(failure), _) | (.., Err(failure)) => {
                return Err(Broken::unknown(failure));
            }
        }
        if session.warnings() != warned {
            return Err(Broken::unknown(warning()));
        }
        // What refused them is read in a statement of its own: that of the batch cannot see who won.
        outcomes.read_refused(session, statements, wave).await.map_err(Broken::unknown)?;
        return Ok(outcomes.done());
    }
    begin(session).await.map_err(Broken::none)?;
    for wave in waves {
        let applied = write(session, statements, wave, answers).await.map_err(Broken::none)?;
        outcomes.note(applied);
        outcomes.read_refused(session, statements, wave).await.map_err(Broken::none)?;
    }
    session.run("COMMIT").await.map_err(Broken::unknown)?;
    if session.warnings() != warned {
        return Err(Broken::unknown(warning()));
    }
    Ok(outcomes.done())
}

/// A commit that is cut short while it waits for a synchronous standby succeeds, with a warning that it may not be there.
fn warning() -> Failure {
    Failure::Words("the commit came with a warning: a standby may not have it".to_owned())
}

async fn begin(session: &Session) -> std::result::Result<(), Failure> {
    const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";
    match session.pooling() {
        Pooling::Direct => session.run(BEGIN).await,
        Pooling::Pooled => session.run(&format!("{BEGIN}; {SETUP_WRITE_LOCAL}")).await,
    }
}

/// Places in the batch whose writes were applied.
type Applied = Vec<usize>;

/// Inserts first, then updates, then removals.
async fn write(
    session: &Session,
    statements: &Statements,
    wave: &Wave<'_>,
    answers: Answers,
) -> std::result::Result<Applied, Failure> {
    let insert_due = wave.insert.first_due_at();
    let (reserved, inserted) = (wave.insert.reserved(), wave.insert.inserted());
    let inserted = if wave.insert.are_reserves() { &reserved[..] } else { &inserted[..] };
    let inserted = [inserted, &[&insert_due]].concat();
    let (settled, settled_over) = (wave.settle.settled(), wave.settle.settled_over());
    let settled = if answers == Answers::New { &settled[..] } else { &settled_over[..] };
    let settled_over = wave.settle_over.settled_over();
    let moved = wave.move_on.moved();
    let removed = wave.remove.bound();
    let ask =
        |query, bound, is_empty: bool| OptionFuture::from((!is_empty).then(|| session.query(query, bound)));
    // Each is sent when it is first polled, in this order.
    let (first, second, third, fourth, fifth) = futures_util::join!(
        ask(insert_of(statements, wave), &inserted[..], wave.insert.is_empty()),
        ask(settle_of(statements, answers), settled, wave.settle.is_empty()),
        ask(&statements.settle_over, &settled_over[..], wave.settle_over.is_empty()),
        ask(&statements.move_on, &moved[..], wave.move_on.is_empty()),
        ask(&statements.remove, &removed[..], wave.remove.is_empty()),
    );
    let parts = [
        (first, &wave.insert.places),
        (second, &wave.settle.places),
        (third, &wave.settle_over.places),
        (fourth, &wave.move_on.places),
        (fifth, &wave.remove.places),
    ];
    let mut applied = Applied::new();
    let mut failed: Option<Failure> = None;
    for (result, places) in parts {
        match result {
            Some(Ok(rows)) => add(&mut applied, &rows, places)?,
            // The first refusal is the reason; the later ones only say that the transaction is over.
            Some(Err(failure)) if failed.as_ref().is_none_or(|earlier| !earlier.is_refusal()) => {
                failed = Some(failure);
            }
            None | Some(Err(_)) => {}
        }
    }
    failed.map_or(Ok(applied), Err)
}

/// How many were applied, and which, if not all of them.
fn add(
    applied: &mut Applied,
    rows: &[Row],
    places: &[(usize, RecordId)],
) -> std::result::Result<(), Failure> {
    let row = rows.first().ok_or_else(|| Failure::Words("no account of what was written".to_owned()))?;
    let count: i64 = row.try_get(0)?;
    if usize::try_from(count) == Ok(places.len()) {
        applied.extend(places.iter().map(|(place, _)| *place));
        return Ok(());
    }
    let ids: Option<Vec<&[u8]>> = row.try_get(1)?;
    let ids: HashSet<&[u8]> = ids.unwrap_or_default().into_iter().collect();
    applied.extend(places.iter().filter(|(_, id)| ids.contains(&id.as_bytes()[..])).map(|(place, _)| *place));
    Ok(())
}

/// The outcomes of a batch, as they become known.
struct Outcomes {
    places: Vec<Option<Outcome>>,
}

impl Outcomes {
    fn new(batch: &[Write]) -> Self {
        Self { places: batch.iter().map(|_| None).collect() }
    }

    fn note(&mut self, applied: Applied) {
        for place in applied {
            self.places[place] = Some(Outcome::Applied);
        }
    }

    async fn read_refused(
        &mut self,
        session: &Session,
        statements: &Statements,
        wave: &Wave<'_>,
    ) -> std::result::Result<(), Failure> {
        let refused: Vec<_> =
            places(wave).filter(|(place, _)| self.places[*place].is_none()).copied().collect();
        if refused.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = refused.iter().map(|(_, id)| &id.as_bytes()[..]).collect();
        let rows = session.query(&statements.read, &[&ids]).await?;
        let mut found = std::collections::HashMap::with_capacity(rows.len());
        for row in &rows {
            let (id, record) = decode(row)?;
            found.insert(id, record);
        }
        for (place, id) in refused {
            self.places[place] = Some(match found.remove(&id) {
                None => Outcome::Refused { current: None },
                Some(Ok(record)) => Outcome::Refused { current: Some(Arc::new(record)) },
                Some(Err(malformed)) => Outcome::Unreadable { problem: malformed.to_string() },
            });
        }
        Ok(())
    }

    fn done(self) -> Vec<Outcome> {
        self.places.into_iter().map(|outcome| outcome.unwrap_or(Outcome::Refused { current: None })).collect()
    }
}

/// Where the wave's writes are in the batch, and which keys they are about.
fn places<'w>(wave: &'w Wave<'_>) -> impl Iterator<Item = &'w (usize, RecordId)> {
    let rows = [&wave.insert, &wave.settle, &wave.settle_over, &wave.move_on];
    rows.into_iter().flat_map(|rows| &rows.places).chain(&wave.remove.places)
}
