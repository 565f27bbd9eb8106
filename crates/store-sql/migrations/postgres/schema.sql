-- The tables as they are: what a new schema is made of, and what the numbered scripts beside this one make of an older one (a test holds the two
-- against each other). `{schema}` is the schema of the user's choice, `{name}` the same without quotes. See docs/decisions/0007-postgres.md and 0012-atomic.md for
-- what was measured.
--
-- Moments are microseconds by this server's clock. Names and words that come from outside are bytes, in UTF-8, because `text` cannot hold every one of them.

-- One row a key, of few columns, and few indexes know of it: most of what it costs the server to write a row is what there is to open and to look at before.
--
-- Most keys are written twice: reserved and settled. The second write must be a HOT update: it stays on its page, touches no
-- index, and its dead predecessor goes when the page is next looked at. Hence
--   * more than half of each page is left for it (fillfactor): a settled row is a little longer than a reserved one;
--   * no index covers a column that changes between the two (`id`, `seq` never change; `look_at` is NULL in both);
--   * answers are in a table of their own, which is only inserted into.
-- So leases that lapse and answers that expire cannot be found by an index on `record`. They are found by notes: each batch of
-- new rows leaves one, which says when to look at them next, and lives as long as any of them. A lease that is granted anew, and
-- an answer that expires soon, has one of its own.
--
-- Rows of atomic handlers are written once, settled, in a caller's transaction: no later write has to stay small or off the indexes, so they have their answer in
-- them, and are found by `look_at`.
CREATE SEQUENCE {schema}.arrival;
-- A node of an earlier release takes its places in the order of arrival from here: none that a row may have, see the constraint of `record`.
CREATE SEQUENCE {schema}.batch START WITH 70368744177664;

CREATE TABLE {schema}.record (
    seq     bigint   NOT NULL, -- the order of arrival: the batch's number, then the place within it
    id      bytea    NOT NULL, -- a hash of scope and key: the one unique index that admits a key
    version bigint   NOT NULL,
    state   smallint NOT NULL, -- 0 pending, 1 in_progress (17: the completer's, if it lapses), 2 completed, 3 failed_retryable, 4 unknown, 5 expired
    due_at  bigint,            -- when a worker should look at it next
    rest    bytea    NOT NULL, -- all else but the answer, with scope, key and operation in front: see the view `keys`
    look_at bigint,            -- when a worker should look at it of which no note says anything; in three ranges, see store-sql's postgres/row.rs
    answer  bytea,             -- of a row that was written settled; NULL as soon as it is written otherwise
    -- What a node of an earlier release would admit is refused by this name.
    CONSTRAINT this_node_is_older_than_the_schema_upgrade_it CHECK (seq < 4611686018427387904)
) WITH (fillfactor = 45);
-- Bodies are often compressed already, and compressing costs more than it saves here.
ALTER TABLE {schema}.record ALTER COLUMN answer SET STORAGE EXTERNAL;

CREATE UNIQUE INDEX record_id ON {schema}.record (id);
CREATE UNIQUE INDEX record_seq ON {schema}.record (seq);
CREATE INDEX record_look ON {schema}.record (look_at) WHERE look_at IS NOT NULL;

-- Never a small table: 64 pages, which stay. A session keeps its plan for "is there a row of this key", and one that was made for a table of a few pages reads all of it: also when there
-- are a hundred thousand rows a minute later.
ALTER TABLE {schema}.record SET (vacuum_truncate = off);
INSERT INTO {schema}.record (seq, id, version, state, rest) SELECT -n, int4send(n), 0, 5, decode(repeat('00', 1900), 'hex') FROM generate_series(1, 64) n;
DELETE FROM {schema}.record WHERE seq < 0;

-- The answer of a completed record. Never updated on the usual path.
CREATE TABLE {schema}.answer (
    seq   bigint PRIMARY KEY,
    bytes bytea  NOT NULL
);
ALTER TABLE {schema}.answer ALTER COLUMN bytes SET STORAGE EXTERNAL;

-- What only few records are found by. Apart, because each index of a table costs every row that is written there, also those that it knows nothing of.
CREATE TABLE {schema}.mark (
    seq          bigint PRIMARY KEY, -- the record's
    -- Accepted work, line by line: what waits of one operation in one scope, the longest due first. See oncegate_store::turns. A line is a hash: names may be longer
    -- than an index has room for. Two lines with one hash share their turns, which harms nobody.
    line         bigint,
    waits_since  bigint,
    operation    text,
    -- Since when an outcome has been unknown, so that such are counted and listed, and the oldest is found, without a look at every row; and since when one that waits for an
    -- operator.
    doubt_since  bigint,
    parked_since bigint,
    -- What the provider calls it. The index is a hash, which has room for a name of any length.
    reference    bytea
);
CREATE INDEX mark_waiting ON {schema}.mark (line, waits_since, seq) WHERE line IS NOT NULL;
CREATE INDEX mark_doubt_since ON {schema}.mark (doubt_since) WHERE doubt_since IS NOT NULL;
CREATE INDEX mark_parked_since ON {schema}.mark (parked_since) WHERE parked_since IS NOT NULL;
CREATE INDEX mark_reference ON {schema}.mark USING hash (reference) WHERE reference IS NOT NULL;

-- "Look at these rows from then on": those with a `seq` from `first` to `last`. A hint; the row itself says whether its
-- moment has come. Scans go over due notes of one kind, a page at a time, and tidy each page on the way:
--   * the note of a batch is put off until the first of its rows is due, and goes with the last of them. It is of kind 1 until
--     none of the rows is in progress, and of kind 2 from then on: answers that nobody has removed do not stand between leases;
--   * the note of one row is never changed. It goes when the row is not of its kind any more, or is due at another moment. Hence
--     whoever writes a row in progress once more leaves a note with exactly its moment, whatever notes there are.
CREATE TABLE {schema}.note (
    no     bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    about  smallint NOT NULL, -- as a record's state: 1 leases (and answers beside them), 2 answers (and no leases)
    due_at bigint   NOT NULL, -- no lease of these rows lapses before, and hardly an answer expires
    first  bigint   NOT NULL,
    last   bigint   NOT NULL
);
CREATE INDEX note_due ON {schema}.note (about, due_at, no);

-- Which rows these are: nodes that share a cache must not take answers of another schema, or of this one before it was made
-- anew, for theirs.
CREATE TABLE {schema}.realm AS SELECT uuid_send(gen_random_uuid()) AS id;

-- One row per running process, which it rewrites every few seconds. If it finds another mark than it wrote last, this database has lost acknowledged writes: it was
-- restored, recovered to a point in time, or a replica that was behind took over.
CREATE TABLE {schema}.watermark (
    node bigint PRIMARY KEY, -- random, drawn by each process
    mark bigint NOT NULL,
    at   bigint NOT NULL     -- old ones are removed by a process that starts
);

-- Windows of time whose keys may have been lost that way: a key without a record whose time lies in one does not run.
CREATE TABLE {schema}.quarantine (
    id          text   PRIMARY KEY,
    since       bigint NOT NULL,
    until       bigint NOT NULL,
    declared_at bigint NOT NULL,
    released_at bigint, -- NULL while it is active
    reason      bytea  NOT NULL
);

-- The audit trail. Entries come with their write, in its very statement, or by themselves; they outlive their record. `seq` is the order
-- of arrival: a story is told in it, also within one moment. Of writes of one record it is right, because a number is taken only
-- after the record's row is locked.
CREATE TABLE {schema}.entry (
    seq   bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id    bytea    NOT NULL, -- of the record
    at    bigint   NOT NULL, -- when it was decided
    act   smallint NOT NULL, -- what happened: its place in oncegate_core::audit::Act::ALL
    node  bytea    NOT NULL, -- who did it
    bytes bytea    NOT NULL  -- all of it, as oncegate_core::audit::Entry::encode lays it out
);
-- Told again is told once. (Of the node's hash: an index has no room for a name of any length.)
CREATE UNIQUE INDEX entry_once ON {schema}.entry (id, at, act, sha256(node));
CREATE INDEX entry_record ON {schema}.entry (id, seq);
CREATE INDEX entry_age ON {schema}.entry (at, seq);

-- Ids of removed rows, remembered for a few days: a key that is used again after its row is gone is counted and told. Nothing is decided
-- by it.
CREATE TABLE {schema}.removed_id (
    digest bigint  NOT NULL, -- the first 64 bits of the id
    day    integer NOT NULL, -- of the removal, in days since 1970
    PRIMARY KEY (digest, day)
);
-- Old days are dropped. Nearly all entries are equal, so they are packed.
CREATE INDEX removed_id_day ON {schema}.removed_id (day);

-- Messages about records that are not there yet. Few, and each has an end.
CREATE TABLE {schema}.apart (
    name  bytea  NOT NULL,
    at    bigint NOT NULL,
    until bigint NOT NULL,
    bytes bytea  NOT NULL
);
CREATE UNIQUE INDEX apart_name ON {schema}.apart (sha256(name));
CREATE INDEX apart_age ON {schema}.apart (at);

-- The outbox: promises of an external call, written in the transaction that made them. A job that is over stays, with what the provider
-- calls it, until it is dropped by age; the indexes that workers go by know nothing of it then.
CREATE TABLE {schema}.job (
    seq        bigint   GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, -- the order of the promises; one that is withdrawn and made again goes to the end
    id         bytea    NOT NULL, -- derived from the life and the place among its promises
    effect     text     NOT NULL,
    payload    bytea    NOT NULL,
    line       bytea,             -- jobs of one line go one after the other
    record     bytea    NOT NULL, -- whose request promised it
    life       bytea    NOT NULL,
    holder     bytea,             -- the token and the fence of the attempt that ends with this job's answer
    fence      bigint,
    created_at bigint   NOT NULL,
    due_at     bigint   NOT NULL, -- not before; while it is claimed, the end of the claim
    token      bytea,             -- of whoever has claimed it
    tries      bigint   NOT NULL,
    stage      smallint NOT NULL, -- 0 waiting, 1 delivered, 2 parked, 3 over
    last_error bytea,
    reference  bytea,             -- the provider's name for what it did
    answer     bytea,
    over_at    bigint
);
CREATE UNIQUE INDEX job_id ON {schema}.job (id);
-- What was never claimed is found apart from what was: retries, however many, are not read on the way to it.
CREATE INDEX job_fresh ON {schema}.job (effect, due_at, seq) WHERE stage < 2 AND tries = 0;
CREATE INDEX job_again ON {schema}.job (effect, due_at, seq) WHERE stage < 2 AND tries > 0;
CREATE INDEX job_line ON {schema}.job (line, seq) WHERE line IS NOT NULL AND stage < 3;
CREATE INDEX job_parked ON {schema}.job (seq) WHERE stage = 2;
CREATE INDEX job_record ON {schema}.job (record, seq);
CREATE INDEX job_over ON {schema}.job (over_at, seq) WHERE stage = 3;
