//! A batch is one transaction, sent in one go, and its outcomes leave after the commit. So is whatever else is written.
//!
//! **Invariant:** "nothing was written" is said only where no server was reached, or the server itself refused a statement
//! before the commit, or rejected the commit by a deferred constraint. Whatever else goes wrong once the batch is on its way (a lost connection, a time limit, an error or a
//! warning of the commit itself) leaves it in doubt.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::identity::RecordId;
use oncegate_store::{Effect, Outcome, Result, StoreError, Write};
use tokio::sync::{Mutex, MutexGuard};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

use super::batch::{Entries, Wave, waves};
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
                Err(broken) => return Err(broken.into_error("apply")),
            }
        }
        Ok(Vec::new())
    }

    /// Runs one statement that may well be run twice, in a transaction of its own.
    pub(super) async fn run(
        &self,
        operation: &'static str,
        query: &Query,
        bound: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        let _permit = self.free.acquire().await;
        let link = self.one().await;
        for tried in 1.. {
            match attempt_one(&link, query, bound).await {
                Ok(rows) => return Ok(rows),
                Err(broken) if broken.is_worth_another_try() && tried < TRIES => {
                    tracing::debug!(failure = %broken.failure, tried, operation, "in another's way; trying again");
                    tokio::time::sleep(Duration::from_millis(1 << tried)).await;
                }
                Err(broken) => return Err(broken.into_error(operation)),
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

    /// The commit itself failed.
    fn of_commit(failure: Failure) -> Self {
        if failure.is_rejection() { Self::none(failure) } else { Self::unknown(failure) }
    }

    /// The server has undone it, and the same again, or much the same, may well work.
    fn is_worth_another_try(&self) -> bool {
        self.effect == Effect::None && (self.failure.is_worth_another_try() || self.is_of_answers())
    }

    /// There was an answer already.
    fn is_of_answers(&self) -> bool {
        self.effect == Effect::None && self.failure.code() == Some(&SqlState::UNIQUE_VIOLATION)
    }

    fn into_error(self, operation: &'static str) -> StoreError {
        self.failure.during(operation, self.effect)
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
    done(link, session, ended.unwrap_or_else(|_| Err(Broken::unknown(Failure::TimedOut)))).await
}

async fn attempt_one(
    link: &Link,
    query: &Query,
    bound: &[&(dyn ToSql + Sync)],
) -> std::result::Result<Vec<Row>, Broken> {
    let session = link.take().await.map_err(Broken::none)?;
    let prepared = tokio::time::timeout(WRITE_TIMEOUT, session.prepare(query)).await;
    prepared.unwrap_or(Err(Failure::TimedOut)).map_err(Broken::none)?;
    let transaction = in_one_trip(&session, session.query(query, bound));
    let ended = tokio::time::timeout(WRITE_TIMEOUT, transaction).await;
    done(link, session, ended.unwrap_or_else(|_| Err(Broken::unknown(Failure::TimedOut)))).await
}

/// Runs text that gives nothing, in a transaction of its own. An error, because of a warning too, says nothing about the effect.
pub(super) async fn attempt_text(link: &Link, text: &str) -> std::result::Result<(), Failure> {
    let session = link.take().await?;
    let ended = tokio::time::timeout(WRITE_TIMEOUT, in_one_trip(&session, session.run(text))).await;
    let ended = ended.unwrap_or_else(|_| Err(Broken::unknown(Failure::TimedOut)));
    done(link, session, ended).await.map_err(|broken| broken.failure)
}

/// Puts back the session, if it is fit for more.
async fn done<T>(
    link: &Link,
    session: Arc<Session>,
    ended: std::result::Result<T, Broken>,
) -> std::result::Result<T, Broken> {
    let is_fit = |broken: &Broken| broken.is_worth_another_try() || broken.failure.is_rejection();
    if ended.is_ok() || ended.as_ref().is_err_and(is_fit) {
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
        for part in parts(statements, wave, answers, &0).iter().filter(|part| !part.places.is_empty()) {
            session.prepare(part.query).await?;
        }
        if !wave.locked.is_empty() {
            session.prepare(&statements.lock).await?;
        }
    }
    session.prepare(&statements.read).await
}

/// One statement of a wave.
struct Part<'w> {
    query: &'w Query,
    bound: Vec<&'w (dyn ToSql + Sync)>,
    /// Where in the batch its writes are, and which keys they are about. Empty: there is nothing to ask.
    places: &'w [(usize, RecordId)],
}

impl Part<'_> {
    async fn ask(&self, session: &Session) -> Option<std::result::Result<Vec<Row>, Failure>> {
        if self.places.is_empty() {
            return None;
        }
        Some(session.query(self.query, &self.bound).await)
    }
}

/// Inserts first, then updates, then removals. If one write of a part tells something, all of the part go by the statement that
/// can: so the rows are locked in the same order, whoever tells what.
fn parts<'w>(
    statements: &'w Statements,
    wave: &'w Wave<'_>,
    answers: Answers,
    insert_due: &'w i64,
) -> [Part<'w>; 5] {
    let Wave { insert, settle, settle_over, move_on, remove, locked: _ } = wave;
    let told = |query, told: &'w Query, mut bound: Vec<_>, entries: &'w Entries<'_>, places| {
        if entries.is_empty() {
            return Part { query, bound, places };
        }
        bound.extend(entries.bound());
        Part { query: told, bound, places }
    };
    let due: [&'w (dyn ToSql + Sync); 1] = [insert_due];
    let inserts = if insert.are_reserves() && insert.entries.is_empty() {
        Part {
            query: &statements.reserve,
            bound: [&insert.reserved()[..], &due].concat(),
            places: &insert.places,
        }
    } else {
        let bound = [&insert.inserted()[..], &due].concat();
        told(&statements.insert, &statements.insert_told, bound, &insert.entries, &insert.places)
    };
    let settles = if answers == Answers::New && settle.entries.is_empty() {
        Part { query: &statements.settle, bound: settle.settled().into(), places: &settle.places }
    } else {
        let bound = settle.settled_over();
        told(&statements.settle_over, &statements.settle_told, bound, &settle.entries, &settle.places)
    };
    let over = settle_over.settled_over();
    let (moved, removed) = (move_on.moved(), remove.bound().into());
    [
        inserts,
        settles,
        told(
            &statements.settle_over,
            &statements.settle_told,
            over,
            &settle_over.entries,
            &settle_over.places,
        ),
        told(&statements.move_on, &statements.move_on_told, moved, &move_on.entries, &move_on.places),
        told(&statements.remove, &statements.remove_told, removed, &remove.entries, &remove.places),
    ]
}

async fn transact(
    session: &Session,
    statements: &Statements,
    waves: &[Wave<'_>],
    batch: &[Write],
    answers: Answers,
) -> std::result::Result<Vec<Outcome>, Broken> {
    let mut outcomes = Outcomes::new(batch);
    if let [wave] = waves {
        outcomes.note(in_one_trip(session, write(session, statements, wave, answers)).await?);
        // What refused them is read in a statement of its own: that of the batch cannot see who won.
        outcomes.read_refused(session, statements, wave).await.map_err(Broken::unknown)?;
        return Ok(outcomes.done());
    }
    let warned = session.warnings();
    begin(session).await.map_err(Broken::none)?;
    for wave in waves {
        let applied = write(session, statements, wave, answers).await.map_err(Broken::none)?;
        outcomes.note(applied);
        outcomes.read_refused(session, statements, wave).await.map_err(Broken::none)?;
    }
    session.run("COMMIT").await.map_err(Broken::of_commit)?;
    if session.warnings() != warned {
        return Err(Broken::unknown(warning()));
    }
    Ok(outcomes.done())
}

/// A transaction of which all is sent before the first answer is awaited.
async fn in_one_trip<T>(
    session: &Session,
    written: impl Future<Output = std::result::Result<T, Failure>>,
) -> std::result::Result<T, Broken> {
    let warned = session.warnings();
    let (begun, written, committed) = futures_util::join!(begin(session), written, session.run("COMMIT"));
    let is_refused = written.as_ref().err().is_some_and(Failure::is_refusal);
    let value = match (begun, written, committed) {
        (Ok(()), Ok(value), Ok(())) => value,
        // After a refusal the server makes a rollback of the commit.
        (Ok(()), Err(failure), _) if is_refused => return Err(Broken::none(failure)),
        (Ok(()), Ok(_), Err(failure)) => return Err(Broken::of_commit(failure)),
        (Err(failure), ..) | (_, Err(failure), _) => return Err(Broken::unknown(failure)),
    };
    if session.warnings() == warned { Ok(value) } else { Err(Broken::unknown(warning())) }
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

/// Asks all parts of a wave, one after the other.
async fn write(
    session: &Session,
    statements: &Statements,
    wave: &Wave<'_>,
    answers: Answers,
) -> std::result::Result<Applied, Failure> {
    let insert_due = wave.insert.first_due_at();
    let parts = parts(statements, wave, answers, &insert_due);
    let [inserts, settles, settles_over, moves, removals] = &parts;
    // Each is sent when it is first polled, in this order.
    let (inserted, locked, settled, settled_over, moved_on, removed) = futures_util::join!(
        inserts.ask(session),
        lock(session, statements, wave),
        settles.ask(session),
        settles_over.ask(session),
        moves.ask(session),
        removals.ask(session)
    );
    let answered = [
        (inserted, inserts.places),
        (locked.err().map(Err), &[]),
        (settled, settles.places),
        (settled_over, settles_over.places),
        (moved_on, moves.places),
        (removed, removals.places),
    ];
    let mut applied = Applied::new();
    let mut failed: Option<Failure> = None;
    for (answer, places) in answered {
        match answer {
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

/// Waits for the rows that several statements are going to change.
async fn lock(
    session: &Session,
    statements: &Statements,
    wave: &Wave<'_>,
) -> std::result::Result<(), Failure> {
    if !wave.locked.is_empty() {
        session.query(&statements.lock, &[&wave.locked]).await?;
    }
    Ok(())
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
