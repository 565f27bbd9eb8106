-- How a handler's transaction begins where its library can read what it is told: as oncegate_open_{name} does, but an occupied key is no error. What fails is in the server's log, with all
-- that was in the same message; and that may be the end of another's transaction, with its key and its answer.
CREATE FUNCTION {schema}.oncegate_take_{name}(wanted bytea, lock bigint) RETURNS boolean LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    PERFORM FROM {schema}.record WHERE id = wanted;
    RETURN NOT FOUND AND pg_try_advisory_xact_lock(lock);
END
$$;

GRANT EXECUTE ON FUNCTION {schema}.oncegate_take_{name}(bytea, bigint) TO PUBLIC;
