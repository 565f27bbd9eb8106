-- One row a key; `{schema}` is the schema of the user's choice. See docs/decisions/0007-postgres.md for what was measured.
--
-- A key is written twice: reserved and settled. The second write must be a HOT update: it stays on its page, touches no
-- index, and its dead predecessor goes when the page is next looked at. Hence
--   * more than half of each page is left for it (fillfactor): a settled row is a little longer than a reserved one;
--   * no index covers a column that changes between the two (`id`, `seq` never change; `attention_at` is NULL in both);
--   * answers are in a table of their own, which is only inserted into.
-- So leases that lapse and answers that expire cannot be found by an index on `record`. They are found by notes: each batch of
-- new rows leaves one, which says when to look at them next, and lives as long as any of them. A lease that is granted anew, and
-- an answer that expires soon, has one of its own.
--
-- What SQL decides by, and people search by, is a column. The rest of the record is one value, laid out by
-- `oncegate_core::record::codec`. Moments are microseconds by this server's clock.
CREATE SEQUENCE {schema}.batch;

CREATE TABLE {schema}.record (
    seq          bigint   NOT NULL, -- the order of arrival: the batch's number, then the place within it
    id           bytea    NOT NULL, -- a hash of scope and key: the one unique index that admits a key
    version      bigint   NOT NULL,
    state        smallint NOT NULL, -- 0 pending, 1 in_progress, 2 completed, 3 failed_retryable, 4 unknown, 5 expired
    due_at       bigint,            -- when a worker should look at it next
    attention_at bigint,            -- the same, off the usual path: neither in progress nor completed
    expires_at   bigint,
    created_at   bigint   NOT NULL,
    resumable    boolean  NOT NULL, -- a lapsed lease is the completer's, not the sweeper's
    scope        text     NOT NULL,
    key          text     NOT NULL,
    operation    text     NOT NULL,
    rest         bytea    NOT NULL
) WITH (fillfactor = 45);

CREATE UNIQUE INDEX record_id ON {schema}.record (id);
CREATE UNIQUE INDEX record_seq ON {schema}.record (seq);
CREATE INDEX record_attention ON {schema}.record (attention_at) WHERE attention_at IS NOT NULL;

-- The answer of a completed record. Never updated on the usual path.
CREATE TABLE {schema}.answer (
    seq   bigint PRIMARY KEY,
    bytes bytea  NOT NULL
);
-- Bodies are often compressed already, and compressing costs more than it saves here.
ALTER TABLE {schema}.answer ALTER COLUMN bytes SET STORAGE EXTERNAL;

-- "Look at these rows from then on": those with a `seq` from `first` to `last`. A hint; the row itself says whether its
-- moment has come. Scans go over due notes of one kind, a page at a time, and tidy each page on the way:
--   * the note of a batch is put off until the first of its rows is due, and goes with the last of them. It is of kind 1 until
--     none of the rows is in progress, and of kind 2 from then on: answers that nobody has removed do not stand between leases;
--   * the note of one row is never changed. It goes when the row is not of its kind any more, or is due at another moment. Hence
--     whoever writes a row in progress once more leaves a note with exactly its moment, whatever notes there are.
CREATE TABLE {schema}.note (
    no     bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind   smallint NOT NULL, -- as a record's state: 1 leases (and answers beside them), 2 answers (and no leases)
    due_at bigint   NOT NULL, -- no lease of these rows lapses before, and hardly an answer expires
    first  bigint   NOT NULL,
    last   bigint   NOT NULL
);
CREATE INDEX note_due ON {schema}.note (kind, due_at, no);

-- Which rows these are: nodes that share a cache must not take answers of another schema, or of this one before it was made
-- anew, for theirs.
CREATE TABLE {schema}.realm AS SELECT uuid_send(gen_random_uuid()) AS id;
