-- Unique keys in a table of their own: a key may be held without its job, and be free before its job has ended.

-- Who holds a key, and until when (NULL: as long as the job's state says). `seq` is the job's generation.
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

-- What ties a job to others; NULL for nothing. 1, 2, 4: the phases in which it holds its key.
ALTER TABLE penstock_job ADD COLUMN tied INTEGER;
UPDATE penstock_job SET tied = 3 WHERE ukey IS NOT NULL;

DROP INDEX penstock_unique;
ALTER TABLE penstock_job DROP COLUMN ukey;
ALTER TABLE penstock_job DROP COLUMN ukey_until;
