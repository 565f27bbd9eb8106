-- The audit trail. Entries come with their write or by themselves, and outlive their record. `seq` is the order of arrival: a story
-- is told in it, also within one moment.
CREATE TABLE entry (
    seq   INTEGER PRIMARY KEY,
    id    BLOB    NOT NULL, -- of the record
    at    INTEGER NOT NULL, -- when it was decided, in microseconds by the store's clock
    act   INTEGER NOT NULL, -- what happened: its place in oncegate_core::audit::Act::ALL
    node  TEXT    NOT NULL, -- who did it
    bytes BLOB    NOT NULL  -- all of it, as oncegate_core::audit::Entry::encode lays it out
) STRICT;

-- Told again is told once.
CREATE UNIQUE INDEX entry_once ON entry (id, at, act, node);
-- One record's story, in order (an index ends with `seq`).
CREATE INDEX entry_by_record ON entry (id);
-- The oldest, which are dropped first.
CREATE INDEX entry_by_age ON entry (at);

-- Messages about records that are not there yet. Few, and each has an end.
CREATE TABLE apart (
    name  TEXT    NOT NULL,
    at    INTEGER NOT NULL,
    until INTEGER NOT NULL,
    bytes BLOB    NOT NULL
) STRICT;

CREATE UNIQUE INDEX apart_by_name ON apart (name);
CREATE INDEX apart_by_age ON apart (at, name);
