-- Rows that were written in a caller's transaction, settled already: one write, so no later one has to stay off their indexes, and they
-- need no note. They are found here when they expire. NULL for all others, and as soon as the row is written otherwise.
ALTER TABLE {schema}.record ADD COLUMN kept_until bigint;
CREATE INDEX record_kept ON {schema}.record (kept_until) WHERE kept_until IS NOT NULL;
