-- Outcomes that nobody knows, so that they are counted and listed without a look at every row: the place of a row that is `unknown`, and
-- NULL for all others. It is NULL before and after an attempt that goes as it should, so settling stays a HOT update.
--
-- The column is filled for the rows that are there, so this rewrites the table once.
ALTER TABLE {schema}.record ADD COLUMN doubted bigint GENERATED ALWAYS AS (CASE WHEN state = 4 THEN seq END) STORED;
CREATE INDEX record_doubted ON {schema}.record (doubted) WHERE doubted IS NOT NULL;
