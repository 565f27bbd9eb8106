-- The outbox: promises of an external call, written in the transaction that made them. A job that is over stays, with what the provider
-- calls it, until it is dropped by age; the indexes that workers go by know nothing of it then.
--
-- Names and words that come from outside are bytes, in UTF-8 (see 0002). Moments are microseconds by this server's clock.
CREATE TABLE {schema}.job (
    seq        bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- the order of the promises
    id         bytea    NOT NULL, -- derived from the life and the place among its promises
    effect     text     NOT NULL,
    payload    bytea    NOT NULL,
    line       bytea,             -- jobs of one line go one after the other
    record     bytea    NOT NULL, -- whose request promised it
    life       bytea    NOT NULL,
    holder     bytea,             -- the token and the fence of the attempt that ends with this job's answer
    fence      bigint,
    created_at bigint   NOT NULL,
    due_at     bigint   NOT NULL, -- not before; while it is claimed, the end of the claim
    token      bytea,             -- of whoever has claimed it
    tries      bigint   NOT NULL,
    stage      smallint NOT NULL, -- 0 waiting, 1 delivered, 2 parked, 3 over
    last_error bytea,
    reference  bytea,             -- the provider's name for what it did
    answer     bytea,
    over_at    bigint
);

CREATE UNIQUE INDEX job_id ON {schema}.job (id);
CREATE INDEX job_due ON {schema}.job (effect, due_at, seq) WHERE stage < 2;
CREATE INDEX job_line ON {schema}.job (line, seq) WHERE line IS NOT NULL AND stage < 3;
CREATE INDEX job_parked ON {schema}.job (seq) WHERE stage = 2;
CREATE INDEX job_record ON {schema}.job (record, seq);
CREATE INDEX job_over ON {schema}.job (over_at, seq) WHERE stage = 3;
