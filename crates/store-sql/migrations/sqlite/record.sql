-- What was measured: docs/decisions/0018-stores.md. Moments are microseconds by the store's clock.

-- One row per key. The unique index over `id` decides who gets a key, for every process and for every transaction of a caller.
-- What SQL decides or searches by is a column. All else is in `body` and `response`, in the encoding that all stores share
-- (oncegate_core::record::codec).
CREATE TABLE record (
    seq          INTEGER PRIMARY KEY,     -- the order of arrival, by which pages are read
    id           BLOB    NOT NULL UNIQUE, -- a hash of scope and key: this index admits a key
    version      INTEGER NOT NULL,
    state        INTEGER NOT NULL,        -- see oncegate_store::row
    due_at       INTEGER,                 -- when a worker should look at it next
    line         TEXT,                    -- pending: the queue line it waits in
    give_up_at   INTEGER,                 -- pending: when it is given up
    doubt_since  INTEGER,                 -- unknown: since when
    parked_since INTEGER,                 -- unknown and parked: since when it has been unknown
    reference    TEXT,                    -- the provider's name for the effect
    body         BLOB    NOT NULL,        -- all but the response
    response     BLOB                     -- completed: what is replayed
) STRICT;
