-- Partitions: a limited number of a key's jobs are admitted (available or running), the others wait.
-- Fair share: a place among tenants.

-- laned: 1 from the first job with a partition on. fair: not NULL from the first job with a tenant on; the places
-- of the fair share begin after it.
ALTER TABLE penstock_queue ADD COLUMN laned INTEGER NOT NULL DEFAULT 0;
ALTER TABLE penstock_queue ADD COLUMN fair INTEGER;

-- lane: the partition key. rank: the order among the waiting jobs of the partition, before the place. admitted: 1;
-- 2 if the partition has a rate and the job has not started yet.
ALTER TABLE penstock_job ADD COLUMN lane TEXT;
ALTER TABLE penstock_job ADD COLUMN rank INTEGER;
ALTER TABLE penstock_job ADD COLUMN admitted INTEGER;
CREATE INDEX penstock_waiting ON penstock_job (queue, lane, rank, place) WHERE state = 8;
CREATE INDEX penstock_admitted ON penstock_job (queue, lane, admitted) WHERE admitted IS NOT NULL;

-- Partition keys with state of their own. spent: until when recent starts count against the rate. held: the end of
-- the throttle. due: when the first waiting job is admitted, if that depends on time alone. over: when both spent
-- and held have passed.
CREATE TABLE penstock_lane (
    queue INTEGER NOT NULL,
    key   TEXT NOT NULL,
    spent REAL NOT NULL DEFAULT 0,
    held  INTEGER NOT NULL DEFAULT 0,
    due   INTEGER,
    over  INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX penstock_lane_due ON penstock_lane (queue, due, key) WHERE due IS NOT NULL;
CREATE INDEX penstock_lane_over ON penstock_lane (queue, over) WHERE due IS NULL;

-- Per priority of a queue with a fair share: now, the greatest fetched place; tail, the place of the next new tenant.
CREATE TABLE penstock_turns (
    queue    INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    now      INTEGER NOT NULL,
    tail     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, priority)
) STRICT, WITHOUT ROWID;

-- Per tenant: the place of its next job, if that is after `now`.
CREATE TABLE penstock_turn (
    queue    INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    key      TEXT NOT NULL,
    next     INTEGER NOT NULL,
    PRIMARY KEY (queue, priority, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX penstock_turn_next ON penstock_turn (queue, priority, next);
