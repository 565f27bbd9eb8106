-- How a transaction begins that a handler will run in: looks for the key's row, and takes its lock, or fails. A session keeps the plans of a function's
-- statements, and a query that begins a transaction cannot be prepared otherwise.
--
-- The row is looked for first: the lock of a statement that has failed is let go a moment after the error was sent, and whoever then goes the long way
-- would take itself for a twin. By the index, whatever the table looked like when the session made its plan.
CREATE FUNCTION {schema}.oncegate_take(wanted bytea, lock bigint) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    IF EXISTS (SELECT FROM {schema}.record WHERE id = wanted) THEN
        RAISE 'no fault: this idempotency key was used before' USING ERRCODE = 'OG001';
    END IF;
    IF NOT pg_try_advisory_xact_lock(lock) THEN
        RAISE 'no fault: another transaction has this idempotency key' USING ERRCODE = 'OG001';
    END IF;
END
$$;
-- It does what its caller may do, and nothing else; who may use the tables may call it, also where functions are nobody's by default.
GRANT EXECUTE ON FUNCTION {schema}.oncegate_take(bytea, bigint) TO PUBLIC;
