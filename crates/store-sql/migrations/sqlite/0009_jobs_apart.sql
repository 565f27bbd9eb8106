-- What was never claimed is found apart from what was: retries, however many, are not read on the way to it.
DROP INDEX job_by_due;
CREATE INDEX job_fresh ON job (effect, due_at) WHERE stage < 2 AND tries = 0;
CREATE INDEX job_again ON job (effect, due_at) WHERE stage < 2 AND tries > 0;
