-- One row a key. Rows are appended in order of arrival; `id` (a hash of scope and key) is the one compact unique index,
-- so that uniqueness is enforced in the file and a new key dirties one small index page besides the table's last page.
-- See docs/decisions/0018-stores.md for what was measured.
--
-- Moments are microseconds by the store's clock, spans microseconds. Three columns say "the same" in no space, as most
-- rows are settled by their first attempt: `life` NULL is the lease token, `fence` and `last_run_at` are differences to
-- `created_at`.
CREATE TABLE record (
    seq                 INTEGER PRIMARY KEY,
    id                  BLOB    NOT NULL,
    scope               TEXT    NOT NULL,
    key                 TEXT    NOT NULL,
    state               INTEGER NOT NULL, -- 0 pending, 1 in_progress, 2 completed, 3 failed_retryable, 4 unknown, 5 expired
    version             INTEGER NOT NULL,
    -- Of the life.
    life                BLOB,
    operation           TEXT    NOT NULL,
    fingerprint_version INTEGER NOT NULL,
    fingerprint         BLOB    NOT NULL,
    crash               INTEGER NOT NULL, -- 0 reconcile, 1 resume, 2 restart
    retention           INTEGER NOT NULL,
    retention_from      INTEGER NOT NULL, -- 0 settlement, 1 creation
    after_retention     INTEGER NOT NULL, -- 0 fresh, 410, 404
    tombstone           INTEGER,
    horizon             INTEGER,
    created_at          INTEGER NOT NULL,
    -- Of the attempt.
    execution           INTEGER NOT NULL, -- 0 inline, 1 deferred
    fence               INTEGER NOT NULL,
    token               BLOB,
    lease_until         INTEGER,
    attempt_deadline    INTEGER,
    attempts            INTEGER NOT NULL,
    unaccounted         INTEGER NOT NULL, -- 1: an earlier attempt lapsed, and nobody has accounted for it
    last_run_at         INTEGER,
    last_error          TEXT,
    settled_at          INTEGER,
    expires_at          INTEGER,
    -- When a worker should look at it next; see Record::due_at.
    due_at              INTEGER,
    -- pending: run_after; unknown: reconcile_after.
    moment              INTEGER,
    doubt_since         INTEGER,
    tries               INTEGER,
    parked              INTEGER,
    -- Rare, or large: last, so that a row which is only looked at need not read them.
    provider_reference  TEXT,
    evidence            BLOB,
    recovery            BLOB,
    request             BLOB
) STRICT;

-- The answers, apart: a row of `record` then keeps its length when it is settled, so that its page is not split.
CREATE TABLE answer (
    seq   INTEGER PRIMARY KEY, -- of the record
    bytes BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX record_by_id ON record (id);

-- What is due, state by state; what is settled enters it in order of time, so its pages are appended to as well.
CREATE INDEX record_by_due ON record (state, due_at);
