-- A restore of a backup under running processes is noticed, lost keys can be quarantined, and a process of the release before is refused.

-- Of the ledger: random, and drawn anew by every commit that raises the generation. A restore takes the generation back and later commits
-- reach it again; they never reach the same mark.
ALTER TABLE record_reserved ADD COLUMN mark INTEGER;
UPDATE record_reserved SET mark = random() WHERE seq = 0;

-- One row per running process, which it rewrites every few seconds. If it finds another mark than it wrote last, the file was restored.
CREATE TABLE watermark (
    node INTEGER PRIMARY KEY, -- random, drawn by each process
    mark INTEGER NOT NULL,
    at   INTEGER NOT NULL     -- by this machine's clock; old ones are removed by a process that starts
) STRICT;

-- Windows of time whose keys may have been lost by a restore: a key without a record whose time lies in one does not run.
CREATE TABLE quarantine (
    id          TEXT    PRIMARY KEY,
    since       INTEGER NOT NULL,
    until       INTEGER NOT NULL,
    declared_at INTEGER NOT NULL,
    released_at INTEGER, -- NULL while it is active
    reason      TEXT    NOT NULL
) STRICT;

-- A process of the release before that still has this file open neither sees marks nor windows, and names some keys otherwise. What it
-- tries to admit is refused, and nothing of it is written.
CREATE TRIGGER reserved_by_older_release BEFORE UPDATE OF generation ON record_reserved
WHEN NEW.generation > OLD.generation AND NEW.mark IS OLD.mark
BEGIN
    SELECT RAISE(ABORT, 'a newer release has taken over this file: restart this process with it');
END;

DROP TRIGGER record_of_older_release;
CREATE TRIGGER record_of_older_release BEFORE INSERT ON record WHEN NEW.layout < 3
BEGIN
    SELECT RAISE(ABORT, 'a newer release has taken over this file: restart this process with it');
END;

-- It may settle what it has begun, and begin nothing: 1 is `in_progress`.
CREATE TRIGGER record_granted_by_older_release BEFORE UPDATE OF state ON record
WHEN NEW.layout < 3 AND NEW.state = 1 AND OLD.state <> 1
BEGIN
    SELECT RAISE(ABORT, 'a newer release has taken over this file: restart this process with it');
END;

-- A line is what waits of one operation and one tenant: `Record::line_scope`, in SQL. char(31) stands between the tenant and what follows it.
ALTER TABLE record ADD COLUMN line TEXT GENERATED ALWAYS AS (
    CASE WHEN instr(scope, char(31)) = 0 OR substr(scope, instr(scope, char(31)) + 1) = operation
    THEN scope ELSE substr(scope, 1, instr(scope, char(31)) - 1) END
) VIRTUAL;
DROP INDEX record_waiting;
CREATE INDEX record_waiting ON record (operation, line, due_at) WHERE state = 0;
