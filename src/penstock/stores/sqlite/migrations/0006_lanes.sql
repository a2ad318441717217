-- Lanes: of a key's jobs few are admitted (available or running), the others wait. Turns: a place among tenants.

-- laned: 1 once a job with a lane has come. fair: the place behind
-- which those of turns lie, once a job with a turn has come.
ALTER TABLE penstock_queue ADD COLUMN laned INTEGER NOT NULL DEFAULT 0;
ALTER TABLE penstock_queue ADD COLUMN fair INTEGER;

-- lane: its key. rank: its order among those that wait there, before the place. admitted: 1; 2 as long as it has
-- not started, if its lane has a rate.
ALTER TABLE penstock_job ADD COLUMN lane TEXT;
ALTER TABLE penstock_job ADD COLUMN rank INTEGER;
ALTER TABLE penstock_job ADD COLUMN admitted INTEGER;
CREATE INDEX penstock_waiting ON penstock_job (queue, lane, rank, place) WHERE state = 8;
CREATE INDEX penstock_admitted ON penstock_job (queue, lane, admitted) WHERE admitted IS NOT NULL;

-- Keys with more to them than jobs: until when starts count against the rate, until when it is held, when the
-- first that waits is admitted if it waits for that alone; and when the first two end.
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

-- Of a fair queue's priority: the greatest place that was fetched, and where a key that comes anew stands.
CREATE TABLE penstock_turns (
    queue    INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    now      INTEGER NOT NULL,
    tail     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, priority)
) STRICT, WITHOUT ROWID;

-- And the place that a key gets next, while that is a later one.
CREATE TABLE penstock_turn (
    queue    INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    key      TEXT NOT NULL,
    next     INTEGER NOT NULL,
    PRIMARY KEY (queue, priority, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX penstock_turn_next ON penstock_turn (queue, priority, next);
