-- Functions and a view: made after the tables, of a new schema and of one that a script has brought up to date, so that there is one text of them. `{schema}` and `{name}` as in schema.sql. A
-- change here needs a numbered script beside it, if an empty one: a schema that has had all of them is left alone.

-- How a handler's transaction begins, and how it ends: each in one message with its BEGIN, or its COMMIT. Such a message cannot be prepared, but a session keeps the plans of a function's
-- statements. They write to the schema whose name they have in them, so they carry it in their own: if the schema is renamed, nobody calls them any more, rather than write into another that has its name now.
--
-- Looks for the key's row, and takes its lock, or fails.
--
-- The row is looked for first: the lock of a statement that has failed is let go a moment after the error was sent, and whoever then goes the long way
-- would take itself for a twin. By the index, whatever the table looked like when the session made its plan.
CREATE OR REPLACE FUNCTION {schema}.oncegate_open_{name}(wanted bytea, lock bigint) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    PERFORM FROM {schema}.record WHERE id = wanted;
    IF FOUND THEN
        RAISE 'no fault: this idempotency key was used before' USING ERRCODE = 'OG001';
    END IF;
    IF NOT pg_try_advisory_xact_lock(lock) THEN
        RAISE 'no fault: another transaction has this idempotency key' USING ERRCODE = 'OG001';
    END IF;
END
$$;

-- The same for a library that can read what it is told: an occupied key is no error. What fails is in the server's log, with all
-- that was in the same message; and that may be the end of another's transaction, with its key and its answer.
CREATE OR REPLACE FUNCTION {schema}.oncegate_take_{name}(wanted bytea, lock bigint) RETURNS boolean LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    PERFORM FROM {schema}.record WHERE id = wanted;
    RETURN NOT FOUND AND pg_try_advisory_xact_lock(lock);
END
$$;

-- Writes the row of a key that had none, settled; or fails, if another's is there.
CREATE OR REPLACE FUNCTION {schema}.oncegate_finish_{name}(id bytea, version bigint, expires_at bigint, rest bytea, answer bytea) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.record (seq, id, version, state, due_at, rest, look_at, answer)
    VALUES (nextval('{schema}.arrival') * 65536, id, version, 2, expires_at, rest, expires_at + 2305843009213693952, answer);
END
$$;

-- The same for a node of the release before: what it would admit is refused.
CREATE OR REPLACE FUNCTION {schema}.oncegate_close_{name}(id bytea, version bigint, expires_at bigint, rest bytea, answer bytea) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE 'this node is older than the schema: upgrade it' USING ERRCODE = 'check_violation', CONSTRAINT = 'this_node_is_older_than_the_schema_upgrade_it';
END
$$;

-- They do what their caller may do, and nothing else; who may use the tables may call them, also where functions are nobody's by default.
GRANT EXECUTE ON FUNCTION {schema}.oncegate_open_{name}(bytea, bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION {schema}.oncegate_take_{name}(bytea, bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION {schema}.oncegate_finish_{name}(bytea, bigint, bigint, bytea, bytea) TO PUBLIC;
GRANT EXECUTE ON FUNCTION {schema}.oncegate_close_{name}(bytea, bigint, bigint, bytea, bytea) TO PUBLIC;

-- Records as people would look at them: names and moments. What is laid out otherwise is left out.
CREATE OR REPLACE VIEW {schema}.keys AS
SELECT convert_from(substring(rest FROM 14 FOR s.bytes), 'UTF8') AS scope,
       convert_from(substring(rest FROM 18 + s.bytes FOR k.bytes), 'UTF8') AS key,
       convert_from(substring(rest FROM 22 + s.bytes + k.bytes FOR o.bytes), 'UTF8') AS operation,
       (ARRAY['pending', 'in_progress', 'completed', 'failed_retryable', 'unknown', 'expired'])[1 + (state & 15)] AS state,
       to_timestamp(('x' || encode(substring(rest FROM 2 FOR 8), 'hex'))::bit(64)::bigint / 1000000.0) AS created_at,
       to_timestamp(due_at / 1000000.0) AS due_at,
       version,
       id
FROM {schema}.record,
     LATERAL (SELECT ('x' || encode(substring(rest FROM 10 FOR 4), 'hex'))::bit(32)::integer AS bytes) s,
     LATERAL (SELECT ('x' || encode(substring(rest FROM 14 + s.bytes FOR 4), 'hex'))::bit(32)::integer AS bytes) k,
     LATERAL (SELECT ('x' || encode(substring(rest FROM 18 + s.bytes + k.bytes FOR 4), 'hex'))::bit(32)::integer AS bytes) o
WHERE substring(rest FROM 1 FOR 1) = '\x10';
