-- Batches. A member has its batch key from its enqueue on, and the id of the batch job once that is made.
-- A batch job has the ids of its members (msgpack).
ALTER TABLE penstock_job ADD COLUMN gkey TEXT;
ALTER TABLE penstock_job ADD COLUMN batch TEXT;
ALTER TABLE penstock_job ADD COLUMN members BLOB;

-- Collecting batches. size, wait, grace: the rules of the member that joined last. n: the number of members. first,
-- last: when the first and the last member joined. due: when the batch is due (NULL: only when it is full).
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
-- Partial indexes: jobs without a batch key have no entry.
CREATE INDEX penstock_gathered ON penstock_job (queue, task, gkey, place) WHERE state = 9 AND batch IS NULL;
CREATE INDEX penstock_batched ON penstock_job (queue, batch) WHERE batch IS NOT NULL;
