-- Run after every record was moved into `record_new` (see src/sqlite/legacy.rs). The file has one table of records again, with a unique
-- index over every key.

-- A process of an earlier release that still has this file open begins each of its writes at row 0 of `record_reserved`, and takes keys that it
-- does not find in its memory for new. It finds these tables empty, and whatever it tries to write is refused with a clear message.
UPDATE record_reserved SET generation = generation + 1, mark = random() WHERE seq = 0;
DELETE FROM record_reserved WHERE seq > 0;
DELETE FROM record_settled;
DELETE FROM record_run;
DELETE FROM record_run_ids;
DROP TRIGGER reserved_by_older_release;
CREATE TRIGGER reserved_by_older_release BEFORE INSERT ON record_reserved
BEGIN
    SELECT RAISE(ABORT, 'a newer release has taken over this file: restart this process with it');
END;
CREATE TRIGGER ledger_of_older_release BEFORE UPDATE ON record_reserved
BEGIN
    SELECT RAISE(ABORT, 'a newer release has taken over this file: restart this process with it');
END;
CREATE TRIGGER settled_by_older_release BEFORE INSERT ON record_settled
BEGIN
    SELECT RAISE(ABORT, 'a newer release has taken over this file: restart this process with it');
END;

DROP TABLE answer;
DROP TABLE record;
ALTER TABLE record_new RENAME TO record;
