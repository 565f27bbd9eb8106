-- What a row of a handler's own transaction costs, see docs/decisions/0012-atomic.md. Nothing here rewrites the table.
--
-- The server reads the expression of a generated column anew in each statement that writes a row, whatever its values: a third of what an insert took.
-- Whoever writes a row says what these columns are, now. `doubted` goes: `doubt_since` is NULL for the same rows.
ALTER TABLE {schema}.record
    ALTER COLUMN line DROP EXPRESSION,
    ALTER COLUMN waits_since DROP EXPRESSION,
    ALTER COLUMN parked_since DROP EXPRESSION,
    DROP COLUMN doubted;

-- A node of an earlier release does not know that: what it accepted would be in no line, where nobody finds it, and what it took from a line would stay there. So it may do neither, and all that it would
-- write together with such work is refused, too. Where work is deferred, stop nodes of an earlier release first. (What they park meanwhile is not counted as parked until it is written again.)
ALTER TABLE {schema}.record ADD CONSTRAINT record_in_line CHECK ((state = 0) = (line IS NOT NULL)) NOT VALID;

-- The answer of a row that was written settled, in a caller's transaction: no later write has to stay small, so it needs no table of its own. NULL for all
-- others, and as soon as the row is written otherwise. A node of an earlier release cannot read such a row, and answers 503.
ALTER TABLE {schema}.record ADD COLUMN answer bytea;
ALTER TABLE {schema}.record ALTER COLUMN answer SET STORAGE EXTERNAL;

-- How a handler's transaction begins, and how it ends: each in one message with its BEGIN, or its COMMIT. Such a message cannot be prepared, but a session keeps the plans of a function's
-- statements. They write to the schema whose name they have in them, so they carry it in their own: if the schema is renamed, nobody calls them any more, rather than write into another that has its name now.
--
-- Where tables alone were restored the older one is not there.
DROP FUNCTION IF EXISTS {schema}.oncegate_take(bytea, bigint);

-- Looks for the key's row, and takes its lock, or fails.
--
-- The row is looked for first: the lock of a statement that has failed is let go a moment after the error was sent, and whoever then goes the long way
-- would take itself for a twin. By the index, whatever the table looked like when the session made its plan.
CREATE FUNCTION {schema}.oncegate_open_{name}(wanted bytea, lock bigint) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
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

-- Writes the row of a key that had none, settled; or fails, if another's is there.
CREATE FUNCTION {schema}.oncegate_close_{name}(
    id bytea, scope text, key text, operation text, version bigint, created_at bigint, expires_at bigint, rest bytea, answer bytea
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.record
        (seq, id, scope, key, operation, version, state, due_at, expires_at, kept_until, created_at, resumable, rest, answer)
    VALUES
        (nextval('{schema}.batch') * 65536, id, scope, key, operation, version, 2, expires_at, expires_at, expires_at, created_at, false, rest,
         answer);
END
$$;

-- They do what their caller may do, and nothing else; who may use the tables may call them, also where functions are nobody's by default.
GRANT EXECUTE ON FUNCTION {schema}.oncegate_open_{name}(bytea, bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION {schema}.oncegate_close_{name}(bytea, text, text, text, bigint, bigint, bigint, bytea, bytea) TO PUBLIC;
