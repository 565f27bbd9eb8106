-- Accepted work, line by line: what waits of one operation in one scope, the longest due first. See oncegate_store::turns.
CREATE INDEX record_waiting ON record (operation, scope, due_at) WHERE state = 0;
-- And by when it is given up, for the reaper: it must not look at all that waits to find what has waited too long.
CREATE INDEX record_overdue ON record (expires_at) WHERE state = 0;
