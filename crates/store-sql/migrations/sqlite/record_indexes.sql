CREATE INDEX record_by_due ON record (state, due_at);
-- Few rows are in these: SQLite compares a condition and writes nothing for the others.
CREATE INDEX record_waiting ON record (line, due_at) WHERE state = 0;
CREATE INDEX record_overdue ON record (give_up_at) WHERE state = 0;
CREATE INDEX record_doubts ON record (doubt_since) WHERE doubt_since IS NOT NULL;
CREATE INDEX record_parked ON record (parked_since) WHERE parked_since IS NOT NULL;
CREATE INDEX record_by_reference ON record (reference) WHERE reference IS NOT NULL;
