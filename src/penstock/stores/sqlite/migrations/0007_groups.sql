-- Groups. A member has the key of its group from its enqueue on, and the id of its batch once it is part of one;
-- a batch has the ids of its members (msgpack).
ALTER TABLE penstock_job ADD COLUMN gkey TEXT;
ALTER TABLE penstock_job ADD COLUMN batch TEXT;
ALTER TABLE penstock_job ADD COLUMN members BLOB;

-- The groups that wait to be batches: the terms of whoever has joined last, how many there are, when the first and
-- the last have joined, and when they are due (NULL: not before there are so many).
CREATE TABLE penstock_group (
    queue INTEGER NOT NULL,
    task  TEXT NOT NULL,
    key   TEXT NOT NULL,
    size  INTEGER NOT NULL,
    wait  INTEGER,
    grace INTEGER,
    n     INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last  INTEGER NOT NULL,
    due   INTEGER,
    PRIMARY KEY (queue, task, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX penstock_ripe ON penstock_group (queue, due) WHERE due IS NOT NULL;
-- Partial: plain jobs stand in neither.
CREATE INDEX penstock_gathered ON penstock_job (queue, task, gkey, place) WHERE state = 9 AND batch IS NULL;
CREATE INDEX penstock_batched ON penstock_job (queue, batch) WHERE batch IS NOT NULL;
