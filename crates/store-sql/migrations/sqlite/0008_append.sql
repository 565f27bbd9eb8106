-- The happy path, appended. A fresh reservation and its answer are most of all rows, and they live here; everything else lives in
-- `record`, and whatever leaves the happy path is moved there. No index over ids is kept of these tables: each process holds one in
-- memory, and brings it up to date inside the transaction that decides by it. See docs/decisions/0018-stores.md.

-- Reservations in flight, one row a commit. It goes when the last of them is settled or moved.
-- Row 0 is the ledger, in the same page as what is written with it.
CREATE TABLE record_reserved (
    seq        INTEGER PRIMARY KEY, -- 0, or the generation that wrote it
    generation INTEGER,             -- of the ledger: raised by every commit that changes this table or `record_settled`
    arrived    INTEGER,             -- of the ledger: how many places in the order of arrival were given away; `record.seq` is one
    settled    INTEGER,             -- of the ledger: the next place in `record_settled`
    bytes      BLOB                 -- the reservations
) STRICT;

INSERT INTO record_reserved (seq, generation, arrived, settled) SELECT 0, 0, coalesce(max(seq), 0), 0 FROM record;

-- What was completed, in the order of completion. A row is written once; it is removed, or moved to `record`, and never changed.
CREATE TABLE record_settled (
    seq        INTEGER PRIMARY KEY, -- given away by the ledger, never twice
    id         BLOB    NOT NULL,
    arrival    INTEGER NOT NULL,    -- its place in the order of arrival
    version    INTEGER NOT NULL,
    expires_at INTEGER,
    bytes      BLOB    NOT NULL     -- all of it, answer included
) STRICT;

-- Of every 4,096 places of `record_settled`, once they were all given away: what is still there.
CREATE TABLE record_run (
    run           INTEGER PRIMARY KEY, -- the places divided by 4,096
    kept          INTEGER NOT NULL,    -- rows that are still there
    first_end     INTEGER,             -- no row ends before it
    last_end      INTEGER,             -- nor after this one
    first_arrival INTEGER NOT NULL,    -- nor arrived before it
    last_arrival  INTEGER NOT NULL     -- nor after this one
) STRICT;

CREATE INDEX record_run_by_end ON record_run (first_end);

-- And whose they are, so that a process that starts need not read the answers: place within the run in two bytes, then the id.
CREATE TABLE record_run_ids (
    run INTEGER PRIMARY KEY,
    ids BLOB NOT NULL
) STRICT;

-- A process of an older release that still has this file open knows nothing of these tables, and would admit their keys once more. It
-- may go on settling what it began; what it tries to admit is refused, and nothing of it is written.
ALTER TABLE record ADD COLUMN layout INTEGER NOT NULL DEFAULT 1;

CREATE TRIGGER record_of_older_release BEFORE INSERT ON record WHEN NEW.layout < 2
BEGIN
    SELECT RAISE(ABORT, 'a newer release has taken over this file: restart this process with it');
END;
