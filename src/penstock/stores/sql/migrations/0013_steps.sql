-- Durable steps. One more state: 10 suspended (a flow that waits). It is due later, and is not counted as queued:
--   due later: < 2 or 10    queued: < 4, or 8 and 9    ended: 5 to 7

ALTER TABLE penstock_queue ADD COLUMN suspended INTEGER NOT NULL DEFAULT 0;
-- has_steps: 1 once the job remembers a step or waits for a signal; NULL for all other jobs.
ALTER TABLE penstock_job ADD COLUMN has_steps INTEGER;

DROP INDEX penstock_due;
CREATE INDEX penstock_due ON penstock_job (queue, due) WHERE (state < 2 OR state = 10);

-- What a job remembers. bytes, steps: the size and number of its steps. woken: 1 if a signal has come since the job was
-- last suspended.
CREATE TABLE penstock_memory (
    job   INTEGER PRIMARY KEY,
    bytes INTEGER NOT NULL DEFAULT 0,
    steps INTEGER NOT NULL DEFAULT 0,
    woken INTEGER NOT NULL DEFAULT 0
) STRICT;

-- number: the order in which steps were stored. value: NULL while the job waits for the signal. namespace, signal, key:
-- of a wait.
CREATE TABLE penstock_step (
    number    INTEGER PRIMARY KEY,
    job       INTEGER NOT NULL,
    name      TEXT NOT NULL,
    at        INTEGER NOT NULL,
    namespace TEXT,
    signal    TEXT,
    key       TEXT,
    value     BLOB
) STRICT;
CREATE UNIQUE INDEX penstock_step_name ON penstock_step (job, name);
CREATE INDEX penstock_step_wait ON penstock_step (namespace, signal, key, number) WHERE value IS NULL;

-- Signals that no job waits for. flow: the id of the job that the signal is for; '': any.
CREATE TABLE penstock_stored_signal (
    namespace  TEXT NOT NULL,
    name       TEXT NOT NULL,
    key        TEXT NOT NULL,
    flow       TEXT NOT NULL,
    sent_at    INTEGER NOT NULL,
    keep_until INTEGER NOT NULL,
    data       BLOB NOT NULL,
    PRIMARY KEY (namespace, name, key, flow)
) STRICT;
CREATE INDEX penstock_stored_signal_over ON penstock_stored_signal (namespace, keep_until);
