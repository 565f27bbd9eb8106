-- Accepted work, line by line: what waits of one operation in one scope, the longest due first. See oncegate_store::turns.
CREATE INDEX record_waiting ON record (operation, scope, due_at) WHERE state = 0;
