-- The outbox: promises of an external call, written in the transaction that made them. A job that is over stays, with what the provider
-- calls it, until it is dropped by age; the indexes that workers go by know nothing of it then.
--
-- Moments are microseconds by the store's clock.
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
    token      BLOB,             -- of whoever has claimed it
    tries      INTEGER NOT NULL,
    stage      INTEGER NOT NULL, -- 0 waiting, 1 delivered, 2 parked, 3 over
    last_error BLOB,             -- in UTF-8
    reference  BLOB,             -- the provider's name for what it did, in UTF-8
    over_at    INTEGER,
    payload    BLOB    NOT NULL,
    answer     BLOB
) STRICT;

CREATE UNIQUE INDEX job_by_id ON job (id);
CREATE INDEX job_by_due ON job (effect, due_at) WHERE stage < 2;
CREATE INDEX job_by_line ON job (line) WHERE line IS NOT NULL AND stage < 3;
CREATE INDEX job_parked ON job (stage) WHERE stage = 2;
CREATE INDEX job_by_record ON job (record);
CREATE INDEX job_by_end ON job (over_at) WHERE stage = 3;
