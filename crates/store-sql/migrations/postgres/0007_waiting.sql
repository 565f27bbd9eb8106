-- Accepted work, line by line: what waits of one operation in one scope, the longest due first. See oncegate_store::turns. Both columns are
-- NULL for all that does not wait, before and after an attempt that goes as it should, so settling stays a HOT update.
--
-- A line is a hash: names may be longer than an index has room for. Two lines with one hash share their turns, which harms nobody.
--
-- The columns are filled for the rows that are there, so this rewrites the table once.
ALTER TABLE {schema}.record
    ADD COLUMN line bigint GENERATED ALWAYS AS
        (CASE WHEN state = 0 THEN hashtextextended(operation || ' ' || scope COLLATE "C", 0) END) STORED,
    ADD COLUMN waits_since bigint GENERATED ALWAYS AS (CASE WHEN state = 0 THEN due_at END) STORED;
CREATE INDEX record_waiting ON {schema}.record (line, waits_since, seq) WHERE line IS NOT NULL;
