-- Ids of removed rows, remembered for a few days: a key that is used again after its row is gone is counted and told. Nothing is decided
-- by it. One tree, in the order of days, so that old days are dropped from one end of it.
CREATE TABLE removed_id (
    day    INTEGER NOT NULL, -- of the removal, in days since 1970
    digest INTEGER NOT NULL, -- the first 64 bits of the id
    PRIMARY KEY (day, digest)
) STRICT, WITHOUT ROWID;
