//! Joining a transaction that somebody else has begun: the key, the business rows and the answer in one commit.
//!
//! Two sides meet here. A database library offers [`Transactions`]: how to begin one, how to ask in it, how to end it. A store that
//! can [`Join`] brings the statements. Neither knows the other, so that a caller's own pool, of whatever library, will do.
//!
//! **Invariant:** whoever is admitted twice is refused at the latest when its row is written: the store decides that by the database itself, inside the
//! caller's transaction (by a unique index, or by a condition that nobody else can change meanwhile), and what was done in it goes with it. Everything before that only saves work.

mod turn;

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::ops::DerefMut;
use std::pin::Pin;
use std::sync::Arc;

use oncegate_core::identity::RecordId;
use oncegate_core::record::Record;

use crate::write::Write;
use crate::{Result, Store};

pub use turn::{Turn, Turns};

/// Why a database library could not do what it was asked.
pub type Cause = Box<dyn Error + Send + Sync>;

/// What a statement was answered with.
pub type Asking<'a> = Pin<Box<dyn Future<Output = std::result::Result<Vec<Shown>, Cause>> + Send + 'a>>;

/// A connection inside a transaction: all that is asked of a database library.
///
/// Statements are prepared under the text that they are given with, if the library does such things: there are few, and they stay
/// the same. Parameters are `$1`, `$2`, … in PostgreSQL's, `?1`, `?2`, … in SQLite's.
pub trait Connection: Send {
    /// Runs one statement with these values, and gives the rows that it shows. On SQLite the text may be of several, which share the
    /// values: all are run, in their order.
    fn ask<'a>(&'a mut self, sql: &'a str, values: &'a [Value<'a>]) -> Asking<'a>;
}

/// What is bound to a parameter. Each says its type also where there is nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'v> {
    /// A whole number.
    Int(Option<i64>),
    /// Text.
    Text(Option<Cow<'v, str>>),
    /// Bytes.
    Bytes(Option<Cow<'v, [u8]>>),
}

/// One row: every statement shows columns of these names and types, or some of them, in any order. What it leaves out is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// `number`, a whole number: a count, or whether.
    pub number: Option<i64>,
    /// `rest`, bytes.
    pub rest: Option<Vec<u8>>,
    /// `answer`, bytes.
    pub answer: Option<Vec<u8>>,
}

/// Where transactions come from: a caller's own pool.
pub trait Transactions: Send + Sync + 'static {
    /// One of them.
    type Transaction: Transaction;

    /// Begins one that may write.
    fn begin(&self) -> impl Future<Output = Result<Self::Transaction>> + Send;

    /// Begins one whose first statement is the store's [`Join::opening`], in the same message: a trip less, for keys that nobody has
    /// used. A library that cannot send several statements as one message leaves it at that.
    ///
    /// Dropping the future must not leave a transaction behind that has begun: see [`Outlive`](crate::outlive::Outlive).
    fn begin_with(&self, opening: Opening) -> impl Future<Output = Result<Opened<Self::Transaction>>> + Send {
        let _ = opening;
        std::future::ready(Ok(Opened::Unable))
    }

    /// Whether [`Transactions::begin_first`] is worth a turn.
    const LOOKS_FIRST: bool = false;

    /// Waits for a turn at the store. A library that can begin the next transaction in the call that commits the one before may serve it so, see [`After::first`]: then it has begun already.
    ///
    /// Dropping the future must not leave a transaction behind that has begun.
    fn wait<J: Join>(
        &self,
        store: &J,
        id: RecordId,
    ) -> impl Future<Output = Waited<Self::Transaction>> + Send {
        let _ = id;
        async move { Waited::Turn(store.turn().await) }
    }

    /// Begins one that may write, and looks by the store's [`Join::first`] whether its key is new, in the same call: where it is not, nothing has begun. A library that cannot
    /// run several statements in one call leaves it at that. The turn is the transaction's until that has ended.
    ///
    /// Dropping the future must not leave a transaction behind that has begun.
    fn begin_first(
        &self,
        first: First,
        turn: Turn,
    ) -> impl Future<Output = Result<Opened<Self::Transaction>>> + Send {
        let _ = (first, turn);
        std::future::ready(Ok(Opened::Unable))
    }
}

/// How [`Transactions::wait`] ended.
#[derive(Debug)]
#[must_use]
pub enum Waited<T> {
    /// It is this one's turn.
    Turn(Turn),
    /// Another's commit has taken it along. This is what came of its beginning, as of [`Transactions::begin_first`].
    Along(Result<Opened<T>>),
}

/// A statement that takes a key of which nobody knows, for the transaction that it is part of: for a simple query of PostgreSQL's, where it may stand before `BEGIN`.
#[derive(Clone, Debug)]
pub struct Opening {
    /// Where the key is occupied it fails with [`OCCUPIED`].
    pub or_fail: String,
    /// It gives one row, of one boolean: whether the key is this transaction's. Where it is not, roll back. For a library that can read it: what fails is in the
    /// server's log, with all that was in the same message.
    pub or_tell: Call,
}

/// A statement that is always the same but for its values, which are in its text: for simple queries of PostgreSQL's, which have no parameters.
///
/// What is shown of it for debugging is not its values: they may be an answer.
#[derive(Clone)]
pub struct Call {
    /// What is called.
    pub routine: Arc<Routine>,
    /// Literals in brackets.
    values: String,
}

/// What a [`Call`] calls.
#[derive(Debug, PartialEq, Eq)]
pub struct Routine {
    /// A function that does it, as it is called: the server keeps the plans of what is in it, whoever calls.
    pub function: String,
    /// A name for the same among a session's prepared statements.
    pub name: String,
    /// What is prepared under that name, with the function's parameters: `$1`, `$2`, …
    pub statement: String,
}

impl Call {
    /// With these literals, in brackets.
    #[must_use]
    pub const fn new(routine: Arc<Routine>, values: String) -> Self {
        Self { routine, values }
    }

    /// The statement, for any session.
    #[must_use]
    pub fn in_full(&self) -> String {
        ["SELECT ", &self.routine.function, &self.values].concat()
    }

    /// The statement, for a session that has prepared its routine: the server has only the values to read.
    #[must_use]
    pub fn by_name(&self) -> String {
        ["EXECUTE ", &self.routine.name, &self.values].concat()
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("function", &self.routine.function).finish_non_exhaustive()
    }
}

/// A statement that tells whether a key is new, for SQLite: run after the beginning of a transaction, in the same call.
#[derive(Clone, Debug)]
pub struct First {
    /// It gives one row, whose `number` is 1 where the key is new.
    pub sql: &'static str,
    /// What is bound.
    pub values: Vec<Value<'static>>,
}

/// The statements that write a row, with what they share, for SQLite: run before the commit, in the same call.
///
/// What is shown of them for debugging is not their values: they may be an answer.
pub struct Last {
    /// One fails where the row is refused, and then nothing may follow.
    pub sql: Cow<'static, str>,
    /// What is bound.
    pub values: Vec<Value<'static>>,
    /// For whoever commits it.
    pub after: Box<dyn After>,
}

/// What a store has to do with a [`Last`] once it is committed.
pub trait After: Send + Sync {
    /// It is committed. To be said before the [`Turn`] is the next one's; a store that is not told finds out by itself, by and by.
    fn committed(&self);

    /// A statement that tells whether this other key is new, for a transaction that begins right after this commit, in the same call: its values stand behind those of the [`Last`]. Nothing where the row
    /// may well be there. Right while nobody else of this process writes.
    fn first(&self, id: RecordId) -> Option<First>;
}

impl fmt::Debug for Last {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Last").field("sql", &self.sql).finish_non_exhaustive()
    }
}

/// What came of an opening.
#[derive(Debug)]
#[must_use]
pub enum Opened<T> {
    /// The transaction has the key, and the key has no row.
    Begun(T),
    /// Another transaction has the key, or it has a row. Nothing has begun.
    Occupied,
    /// This library has no way to do it. Nothing was tried.
    Unable,
}

/// What came of a closing that nothing went wrong with.
#[derive(Debug)]
#[must_use]
pub enum Closed<T> {
    /// The row is written, and the transaction committed.
    Committed,
    /// There is no way to do it, or not for this row. Nothing was written, and the transaction goes on.
    Unable(T),
    /// The connection is in no transaction any more, so that each statement of the caller's since then was committed by itself. Nothing was written.
    Outside(T),
}

/// SQLSTATE of an [`Opening::or_fail`] that finds the key occupied: nobody else's.
pub const OCCUPIED: &str = "OG001";

/// A transaction. Dropped, it is rolled back.
pub trait Transaction: Connection + DerefMut<Target = Self::Inner> + 'static {
    /// What the caller's own statements are run on; what this dereferences to.
    type Inner: Send;

    /// Commits. The error says whether it may have been; then only reading again, once it has surely ended, can tell.
    fn commit(self) -> impl Future<Output = Result<()>> + Send;

    /// Commits with the store's [`Join::closing`] as the last statement, in the same message: a trip less. The error is as that of
    /// [`Transaction::commit`]; with [`Effect::None`](crate::Effect::None) it may be the row that was refused, because another's is there. A library that
    /// cannot send several statements as one message leaves it at that.
    ///
    /// The message has the answer in it: it must not get into a log.
    fn commit_with(self, closing: Call) -> impl Future<Output = Result<Closed<Self>>> + Send
    where
        Self: Sized,
    {
        let _ = closing;
        std::future::ready(Ok(Closed::Unable(self)))
    }

    /// Commits with the store's [`Join::last`] before it, in the same call: a wake-up less of whoever owns the connection. The error is as that of [`Transaction::commit`].
    /// Where one of the statements has failed, none of them has been, and the transaction is [`Closed::Unable`] to do it this way. [`Closed::Committed`] is said only of a commit that the database has acknowledged, not of
    /// one of which nothing was heard; the store is told so first ([`After::committed`]), and remembers the row by it. A library that cannot run several statements in one call leaves it at that.
    fn commit_after(self, last: Last) -> impl Future<Output = Result<Closed<Self>>> + Send
    where
        Self: Sized,
    {
        let _ = last;
        std::future::ready(Ok(Closed::Unable(self)))
    }

    /// Rolls back.
    fn roll_back(self) -> impl Future<Output = ()> + Send;

    /// Whether the caller's own statements have ended it, as far as the library knows: then what they did since was committed one by one, and
    /// [`Transaction::regain`] begins another, for what is still to be written. A library that cannot tell leaves it at that.
    fn is_lost(&self) -> bool {
        false
    }

    /// See [`Transaction::is_lost`].
    fn regain(&mut self) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }
}

/// A store whose writes can be part of a caller's transaction on the same database.
pub trait Join: Store {
    /// Waits until it is this caller's turn to begin a transaction that writes, where the database has one writer; holds the turn
    /// until it is dropped. Elsewhere it is always everybody's turn.
    fn turn(&self) -> impl Future<Output = Turn> + Send;

    /// Takes a key of which nobody knows. Nothing where the database has one writer: whoever has begun to
    /// write is the only one, and the row can be read before.
    fn opening(&self, id: RecordId) -> Option<Opening>;

    /// A statement that writes this row, for a simple query of PostgreSQL's that ends with the commit of a transaction that
    /// was begun by [`Join::opening`]. Where the row is refused it fails, and the transaction with it. Nothing where there is none, or not
    /// for such a write: then it is [`Join::join`] and a commit.
    fn closing(&self, write: &Write) -> Option<Call>;

    /// A statement that tells whether this key is new, for one call of SQLite's that begins a transaction. Nothing where there is none, or where the row may well be there: then it is read first. Right
    /// while nobody else of this process writes, so to be asked for by whoever has the [`Turn`].
    fn first(&self, id: RecordId) -> Option<First> {
        let _ = id;
        None
    }

    /// Statements that write this row, for one call of SQLite's that ends with the commit. Nothing where there are none, or not for such a write.
    fn last(&self, write: &Write) -> Option<Last> {
        let _ = write;
        None
    }

    /// Takes the key for this transaction, without waiting for another that has it.
    fn take(
        &self,
        connection: &mut dyn Connection,
        id: RecordId,
    ) -> impl Future<Output = Result<Taken>> + Send;

    /// Takes the key in the same way, and reads its row *after* that: for whoever must know what became of its own commit. Every
    /// transaction that had the key has ended then, so what is read is a proof. [`Taken::Twin`]: one has not; ask again.
    fn take_after(
        &self,
        connection: &mut dyn Connection,
        id: RecordId,
    ) -> impl Future<Output = Result<Taken>> + Send;

    /// Waits until every commit so far would survive a failover. Call it after a commit and before
    /// its outcome is told: a library may hide the warning that only the primary has it.
    fn confirm(&self) -> impl Future<Output = Result<()>> + Send;

    /// Makes a conditional write part of the transaction: one of each. It is durable when the caller has committed, and not before.
    fn join(
        &self,
        connection: &mut dyn Connection,
        write: &Write,
    ) -> impl Future<Output = Result<Joined>> + Send;
}

/// What came of taking a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Taken {
    /// It is this transaction's until it ends; and this is its row, if there is one.
    Mine(Option<Box<Record>>),
    /// Another transaction has it, and has not ended. What it is about cannot be seen yet.
    Twin,
}

/// What came of a write in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Joined {
    /// It is part of it.
    Written,
    /// Its condition did not hold: roll back.
    Refused,
}
