-- A new key in a caller's transaction: its place in the order of arrival, its row and its answer, by one statement. A caller's library hands
-- over the end of every statement by itself, and each may wake a thread.
--
-- Where the key is taken nothing is inserted, and nothing is returned.
CREATE VIEW record_joined AS
SELECT
    id, scope, key, state, version, life, operation, fingerprint_version, fingerprint, crash, retention,
    retention_from, after_retention, forward_key, created_at, execution, fence, token, lease_until, attempt_deadline,
    attempts, unaccounted, last_run_at, due_at, layout, tombstone, horizon, last_error, settled_at, expires_at, moment,
    doubt_since, tries, parked, provider_reference, evidence, recovery, request, NULL AS bytes
FROM record WHERE false;

CREATE TRIGGER record_joined_insert INSTEAD OF INSERT ON record_joined
BEGIN
    SELECT RAISE(IGNORE) WHERE EXISTS (SELECT 1 FROM record WHERE id = NEW.id);
    UPDATE record_reserved SET arrived = 1 + max(arrived, coalesce((SELECT max(seq) FROM record), 0)) WHERE seq = 0;
    INSERT INTO record (
        id, scope, key, state, version, life, operation, fingerprint_version, fingerprint, crash, retention,
        retention_from, after_retention, forward_key, created_at, execution, fence, token, lease_until,
        attempt_deadline, attempts, unaccounted, last_run_at, due_at, layout, tombstone, horizon, last_error,
        settled_at, expires_at, moment, doubt_since, tries, parked, provider_reference, evidence, recovery, request, seq
    ) SELECT
        NEW.id, NEW.scope, NEW.key, NEW.state, NEW.version, NEW.life, NEW.operation, NEW.fingerprint_version,
        NEW.fingerprint, NEW.crash, NEW.retention, NEW.retention_from, NEW.after_retention, NEW.forward_key,
        NEW.created_at, NEW.execution, NEW.fence, NEW.token, NEW.lease_until, NEW.attempt_deadline, NEW.attempts,
        NEW.unaccounted, NEW.last_run_at, NEW.due_at, NEW.layout, NEW.tombstone, NEW.horizon, NEW.last_error,
        NEW.settled_at, NEW.expires_at, NEW.moment, NEW.doubt_since, NEW.tries, NEW.parked, NEW.provider_reference,
        NEW.evidence, NEW.recovery, NEW.request, arrived
    FROM record_reserved WHERE seq = 0;
    INSERT INTO answer (seq, bytes) SELECT arrived, NEW.bytes FROM record_reserved WHERE seq = 0 AND NEW.bytes IS NOT NULL;
END;
