-- What the provider calls a record, in UTF-8 (a name that comes from outside, see 0002). NULL for nearly all of them, and then no index knows of
-- it: settling such a row stays a HOT update. The index is a hash, which has room for a name of any length.
--
-- What rows of before say of it is in `rest`, and comes into the column when they are next written.
ALTER TABLE {schema}.record ADD COLUMN reference bytea;
CREATE INDEX record_reference ON {schema}.record USING hash (reference) WHERE reference IS NOT NULL;
