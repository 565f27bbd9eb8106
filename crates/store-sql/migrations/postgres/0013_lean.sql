-- A row of few columns, and few indexes that know of it: see schema.sql, which has all tables as they are, and docs/decisions/0012-atomic.md for what was measured. This rewrites the
-- table once. Nodes of an earlier release must be stopped first: what they would write is refused.

-- Nobody writes meanwhile: what is copied below is all there is.
LOCK TABLE {schema}.record, {schema}.note IN ACCESS EXCLUSIVE MODE;
-- A node of an earlier release would tidy notes away whose leases it does not know for such.
ALTER TABLE {schema}.note RENAME COLUMN kind TO about;

-- What only few records are found by is apart.
CREATE TABLE {schema}.mark (
    seq          bigint PRIMARY KEY,
    line         bigint,
    waits_since  bigint,
    operation    text,
    doubt_since  bigint,
    parked_since bigint,
    reference    bytea
);
INSERT INTO {schema}.mark
SELECT seq, line, waits_since, CASE WHEN line IS NOT NULL THEN operation END, CASE WHEN state = 4 THEN doubt_since END,
       CASE WHEN state = 4 AND due_at IS NULL THEN doubt_since END, reference
FROM {schema}.record
WHERE num_nonnulls(line, CASE WHEN state = 4 THEN doubt_since END, reference) > 0;
-- Whoever may use the records may use these.
DO $$
DECLARE
    may record;
BEGIN
    FOR may IN SELECT privilege_type AS privilege, CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END AS who
               FROM pg_class, aclexplode(relacl) WHERE oid = '{schema}.record'::regclass AND grantee <> relowner
    LOOP
        EXECUTE format('GRANT %s ON {schema}.mark TO %s', may.privilege, may.who);
    END LOOP;
END
$$;
CREATE INDEX mark_waiting ON {schema}.mark (line, waits_since, seq) WHERE line IS NOT NULL;
CREATE INDEX mark_doubt_since ON {schema}.mark (doubt_since) WHERE doubt_since IS NOT NULL;
CREATE INDEX mark_parked_since ON {schema}.mark (parked_since) WHERE parked_since IS NOT NULL;
CREATE INDEX mark_reference ON {schema}.mark USING hash (reference) WHERE reference IS NOT NULL;

-- Names and the beginning of a life are in the value. One column says when to look at a row of which no note says anything: in three ranges, for what is unknown, for what else is neither in
-- progress nor completed, and for what was written settled.
ALTER TABLE {schema}.record DROP CONSTRAINT record_in_line;
DROP INDEX {schema}.record_kept;
ALTER TABLE {schema}.record
    ALTER COLUMN state TYPE smallint USING CASE WHEN state = 1 AND resumable THEN 17 ELSE state END,
    ALTER COLUMN kept_until TYPE bigint USING
        CASE WHEN kept_until IS NOT NULL THEN least(kept_until, 1152921504606846975) + 2305843009213693952
             WHEN state = 4 THEN least(attention_at, 1152921504606846975)
             WHEN attention_at IS NOT NULL THEN least(attention_at, 1152921504606846975) + 1152921504606846976 END,
    ALTER COLUMN rest TYPE bytea USING
        '\x10'::bytea || int8send(created_at)
        || int4send(octet_length(convert_to(scope, 'UTF8'))) || convert_to(scope, 'UTF8')
        || int4send(octet_length(convert_to(key, 'UTF8'))) || convert_to(key, 'UTF8')
        || int4send(octet_length(convert_to(operation, 'UTF8'))) || convert_to(operation, 'UTF8')
        || rest;
ALTER TABLE {schema}.record RENAME COLUMN kept_until TO look_at;
ALTER TABLE {schema}.record
    DROP COLUMN attention_at,
    DROP COLUMN expires_at,
    DROP COLUMN created_at,
    DROP COLUMN resumable,
    DROP COLUMN scope,
    DROP COLUMN key,
    DROP COLUMN operation,
    DROP COLUMN reference,
    DROP COLUMN line,
    DROP COLUMN waits_since,
    DROP COLUMN doubt_since,
    DROP COLUMN parked_since;
CREATE INDEX record_look ON {schema}.record (look_at) WHERE look_at IS NOT NULL;

-- Never a small table: 64 pages, which stay.
ALTER TABLE {schema}.record SET (vacuum_truncate = off);
INSERT INTO {schema}.record (seq, id, version, state, rest) SELECT -n, int4send(n), 0, 5, decode(repeat('00', 1900), 'hex') FROM generate_series(1, 64) n;
DELETE FROM {schema}.record WHERE seq < 0;

-- Of other values: the one of these is in routines.sql. (Where tables alone were restored there is none.)
DROP FUNCTION IF EXISTS {schema}.oncegate_close_{name}(bytea, text, text, text, bigint, bigint, bigint, bytea, bytea);
