-- The tables of a new file beside `record`. Older files are brought to the same by the numbered scripts and `src/sqlite/legacy.rs`; a test
-- compares the two. Moments are microseconds by the store's clock.

-- The audit trail. Entries come with their write or by themselves, and outlive their record. `seq` is the order of arrival, also within one
-- moment.
CREATE TABLE entry (
    seq   INTEGER PRIMARY KEY,
    id    BLOB    NOT NULL, -- of the record
    at    INTEGER NOT NULL, -- when it was decided
    act   INTEGER NOT NULL, -- what happened: its place in oncegate_core::audit::Act::ALL
    node  TEXT    NOT NULL, -- which process did it
    bytes BLOB    NOT NULL  -- all of it, as oncegate_core::audit::Entry::encode lays it out
) STRICT;

-- The same entry again is kept once.
CREATE UNIQUE INDEX entry_once ON entry (id, at, act, node);
CREATE INDEX entry_by_record ON entry (id);
CREATE INDEX entry_by_age ON entry (at);

-- Messages about records that do not exist yet.
CREATE TABLE apart (
    name  TEXT    NOT NULL,
    at    INTEGER NOT NULL,
    until INTEGER NOT NULL,
    bytes BLOB    NOT NULL
) STRICT;

CREATE UNIQUE INDEX apart_by_name ON apart (name);
CREATE INDEX apart_by_age ON apart (at, name);

-- The outbox: promises of an external call, written in the transaction that made them. A job that is over stays until it is dropped by age.
CREATE TABLE job (
    seq        INTEGER PRIMARY KEY, -- the order of the promises
    id         BLOB    NOT NULL, -- derived from the life and the place among its promises
    effect     TEXT    NOT NULL,
    line       BLOB,             -- in UTF-8; jobs of one line go one after the other
    record     BLOB    NOT NULL, -- whose request promised it
    life       BLOB    NOT NULL,
    holder     BLOB,             -- the token and the fence of the attempt that ends with this job's answer
    fence      INTEGER,
    created_at INTEGER NOT NULL,
    due_at     INTEGER NOT NULL, -- not before; while it is claimed, the end of the claim
    token      BLOB,             -- of the claim
    tries      INTEGER NOT NULL,
    stage      INTEGER NOT NULL, -- 0 waiting, 1 delivered, 2 parked, 3 over
    last_error BLOB,             -- in UTF-8
    reference  BLOB,             -- the provider's name for what it did, in UTF-8
    over_at    INTEGER,
    payload    BLOB    NOT NULL,
    answer     BLOB
) STRICT;

CREATE UNIQUE INDEX job_by_id ON job (id);
-- Jobs that were never claimed are found apart from those that were, so retries, however many, are not read on the way.
CREATE INDEX job_fresh ON job (effect, due_at) WHERE stage < 2 AND tries = 0;
CREATE INDEX job_again ON job (effect, due_at) WHERE stage < 2 AND tries > 0;
CREATE INDEX job_by_line ON job (line) WHERE line IS NOT NULL AND stage < 3;
CREATE INDEX job_parked ON job (stage) WHERE stage = 2;
CREATE INDEX job_by_record ON job (record);
CREATE INDEX job_by_end ON job (over_at) WHERE stage = 3;

-- One row per running process. The process rewrites it with each commit and every few seconds. If it finds another mark than it wrote last,
-- the file was restored.
CREATE TABLE watermark (
    node INTEGER PRIMARY KEY, -- random, drawn by each process
    mark INTEGER NOT NULL,    -- random, drawn by each rewrite
    at   INTEGER NOT NULL     -- old rows are removed by a process that starts
) STRICT;

-- Windows of time whose keys may have been lost by a restore: a key without a record whose time lies in one does not run.
CREATE TABLE quarantine (
    id          TEXT    PRIMARY KEY,
    since       INTEGER NOT NULL,
    until       INTEGER NOT NULL,
    declared_at INTEGER NOT NULL,
    released_at INTEGER, -- NULL while it is active
    reason      TEXT    NOT NULL
) STRICT;

-- Ids of removed rows, remembered for a few days: a key that is used again after its row is gone is counted and told. Nothing is decided by
-- it.
CREATE TABLE removed_id (
    day    INTEGER NOT NULL, -- of the removal, in days since 1970
    digest INTEGER NOT NULL, -- the first 64 bits of the id
    PRIMARY KEY (day, digest)
) STRICT, WITHOUT ROWID;
