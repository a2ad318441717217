-- Unique keys in a table of their own: a key may outlive its job, and may be freed before its job ends.

-- The holder of a key, and the end of its period (NULL: the job's state alone decides). `seq`: the job's generation.
CREATE TABLE penstock_key (
    queue INTEGER NOT NULL,
    key   TEXT NOT NULL,
    seq   INTEGER NOT NULL,
    id    TEXT NOT NULL,
    until INTEGER,
    PRIMARY KEY (queue, key)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX penstock_key_of ON penstock_key (seq);
CREATE INDEX penstock_key_over ON penstock_key (queue, until) WHERE until IS NOT NULL;

INSERT INTO penstock_key (queue, key, seq, id, until)
SELECT queue, ukey, seq, id, ukey_until FROM penstock_job WHERE ukey IS NOT NULL;

-- The phases in which the job holds its unique key, as bits: 1 queued, 2 running, 4 finished. NULL: no dependents.
ALTER TABLE penstock_job ADD COLUMN tied INTEGER;
UPDATE penstock_job SET tied = 3 WHERE ukey IS NOT NULL;

DROP INDEX penstock_unique;
ALTER TABLE penstock_job DROP COLUMN ukey;
ALTER TABLE penstock_job DROP COLUMN ukey_until;
