-- A restore under running nodes is noticed, lost keys can be quarantined, and a node of the release before begins nothing any more.

-- No other session takes a place in the order of arrival meanwhile.
LOCK TABLE {schema}.record IN ACCESS EXCLUSIVE MODE;

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

-- The order of arrival goes on under another name. A node of the release before, which names some keys otherwise and knows of no quarantine, goes on with the old one: that gives
-- it places that no row may have, so whatever it would admit is refused, by the name of the constraint. It may settle what it has begun.
CREATE SEQUENCE {schema}.arrival;
SELECT setval('{schema}.arrival', GREATEST((SELECT last_value FROM {schema}.batch) + 1, (SELECT max(seq) / 65536 FROM {schema}.record) + 1));
ALTER SEQUENCE {schema}.batch START WITH 70368744177664 RESTART;
ALTER TABLE {schema}.record ADD CONSTRAINT this_node_is_older_than_the_schema_upgrade_it CHECK (seq < 4611686018427387904);

-- Roles that may use the records may use these.
DO $$
DECLARE
    may record;
BEGIN
    FOR may IN SELECT privilege_type AS privilege, CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END AS who
               FROM pg_class, aclexplode(relacl) WHERE oid = '{schema}.record'::regclass AND grantee <> relowner
    LOOP
        EXECUTE format('GRANT %s ON {schema}.watermark, {schema}.quarantine TO %s', may.privilege, may.who);
    END LOOP;
    FOR may IN SELECT privilege_type AS privilege, CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END AS who
               FROM pg_class, aclexplode(relacl) WHERE oid = '{schema}.batch'::regclass AND grantee <> relowner
    LOOP
        EXECUTE format('GRANT %s ON SEQUENCE {schema}.arrival TO %s', may.privilege, may.who);
    END LOOP;
END
$$;
