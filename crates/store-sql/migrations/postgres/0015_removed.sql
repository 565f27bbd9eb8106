-- Ids of removed rows, remembered for a few days: a key that is used again after its row is gone is counted and told. Nothing is decided
-- by it.
CREATE TABLE {schema}.removed_id (
    digest bigint  NOT NULL, -- the first 64 bits of the id
    day    integer NOT NULL, -- of the removal, in days since 1970
    PRIMARY KEY (digest, day)
);
-- Old days are dropped. Nearly all entries are equal, so they are packed.
CREATE INDEX removed_id_day ON {schema}.removed_id (day);

-- Roles that may use the records may use it.
DO $$
DECLARE
    may record;
BEGIN
    FOR may IN SELECT privilege_type AS privilege, CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END AS who
               FROM pg_class, aclexplode(relacl) WHERE oid = '{schema}.record'::regclass AND grantee <> relowner
    LOOP
        EXECUTE format('GRANT %s ON {schema}.removed_id TO %s', may.privilege, may.who);
    END LOOP;
END
$$;
