-- The audit trail. Entries come with their write, in its very statement, or by themselves; they outlive their record. `seq` is the order
-- of arrival: a story is told in it, also within one moment. Of writes of one record it is right, because a number is taken only
-- after the record's row is locked.
--
-- Names that come from outside are bytes, because `text` cannot hold every one of them.
CREATE TABLE {schema}.entry (
    seq   bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id    bytea    NOT NULL, -- of the record
    at    bigint   NOT NULL, -- when it was decided
    act   smallint NOT NULL, -- what happened: its place in oncegate_core::audit::Act::ALL
    node  bytea    NOT NULL, -- who did it, in UTF-8
    bytes bytea    NOT NULL  -- all of it, as oncegate_core::audit::Entry::encode lays it out
);
-- Told again is told once. (Of the node's hash: an index has no room for a name of any length.)
CREATE UNIQUE INDEX entry_once ON {schema}.entry (id, at, act, sha256(node));
CREATE INDEX entry_record ON {schema}.entry (id, seq);
CREATE INDEX entry_age ON {schema}.entry (at, seq);

-- Messages about records that are not there yet. Few, and each has an end.
CREATE TABLE {schema}.apart (
    name  bytea  NOT NULL, -- in UTF-8
    at    bigint NOT NULL,
    until bigint NOT NULL,
    bytes bytea  NOT NULL
);
CREATE UNIQUE INDEX apart_name ON {schema}.apart (sha256(name));
CREATE INDEX apart_age ON {schema}.apart (at);
