-- Since when an outcome has been unknown, so that the oldest is found at once, and the oldest that waits for an operator. Both columns are
-- NULL for all other rows, before and after an attempt that goes as it should, so settling stays a HOT update.
--
-- Of outcomes that are unknown already it stands in no column since when: not before their life began, which is taken for it.
--
-- The second column is filled for the rows that are there, so this rewrites the table once.
ALTER TABLE {schema}.record ADD COLUMN doubt_since bigint;
UPDATE {schema}.record SET doubt_since = created_at WHERE doubted BETWEEN 0 AND 9223372036854775807;
ALTER TABLE {schema}.record
    ADD COLUMN parked_since bigint GENERATED ALWAYS AS (CASE WHEN due_at IS NULL THEN doubt_since END) STORED;
CREATE INDEX record_doubt_since ON {schema}.record (doubt_since) WHERE doubt_since IS NOT NULL;
CREATE INDEX record_parked_since ON {schema}.record (parked_since) WHERE parked_since IS NOT NULL;
