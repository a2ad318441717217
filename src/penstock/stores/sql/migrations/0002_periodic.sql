-- Periodic entries. `spec` is the NewEntry as msgpack; `schedule` is equal for entries with the same instants.
-- All instants up to `watermark` have been processed.
CREATE TABLE penstock_periodic (
    queue     INTEGER NOT NULL,
    name      TEXT NOT NULL,
    schedule  TEXT NOT NULL,
    spec      BLOB NOT NULL,
    revision  INTEGER NOT NULL,
    watermark INTEGER NOT NULL,
    paused    INTEGER NOT NULL DEFAULT 0,
    last      TEXT,                         -- the id of its newest job
    enqueued  INTEGER NOT NULL DEFAULT 0,
    skipped   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, name)
) STRICT, WITHOUT ROWID;
