-- The first tables. All names begin with penstock_, so that a file may also hold a user's own tables.
-- States are numbers, ordered so that one comparison selects a kind of states (names: states.py):
--   0 scheduled  1 retryable  2 parked  3 available  4 running  5 completed  6 cancelled  7 dead
--   due later: < 2    queued: < 4    ended: > 4
-- Instants are ms since the epoch. Exception: lease_until is on the clock of leases (ms since boot).

-- Facts of the whole file: schema (number of the last migration), boot (id of the boot that lease_until counts from).
CREATE TABLE penstock_meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- One row per queue: its switches and its exact counts, which each transaction updates once.
-- Row 0 is not a queue: its `enqueued` counts the jobs of the whole file, and is the newest job's generation.
-- AUTOINCREMENT: the number of a dropped queue is never used again.
CREATE TABLE penstock_queue (
    qid       INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    paused    INTEGER NOT NULL DEFAULT 0,
    closed    INTEGER NOT NULL DEFAULT 0,
    scheduled INTEGER NOT NULL DEFAULT 0,
    retryable INTEGER NOT NULL DEFAULT 0,
    parked    INTEGER NOT NULL DEFAULT 0,
    available INTEGER NOT NULL DEFAULT 0,
    running   INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    dead      INTEGER NOT NULL DEFAULT 0,
    enqueued  INTEGER NOT NULL DEFAULT 0,
    processed INTEGER NOT NULL DEFAULT 0,
    failed    INTEGER NOT NULL DEFAULT 0,
    tail      INTEGER NOT NULL DEFAULT 0,   -- the last place given at the tail; it rises
    head      INTEGER NOT NULL DEFAULT 0,   -- the last place given at the head; it falls
    UNIQUE (namespace, name)
) STRICT;

INSERT INTO penstock_queue (qid, namespace, name) VALUES (0, '', '');

-- One row per job. `seq` is its generation; `spec` is the NewJob as msgpack, never changed.
-- Columns that are usually NULL come last.
CREATE TABLE penstock_job (
    seq          INTEGER PRIMARY KEY,
    queue        INTEGER NOT NULL,
    id           TEXT NOT NULL,
    state        INTEGER NOT NULL,
    priority     INTEGER NOT NULL,
    place        INTEGER NOT NULL,          -- among available jobs of its priority, the least first
    due          INTEGER NOT NULL,          -- Job.run_at
    task         TEXT NOT NULL,
    enqueued_at  INTEGER NOT NULL,
    attempt      INTEGER NOT NULL DEFAULT 0,
    charged      INTEGER NOT NULL DEFAULT 0, -- whether the fetch of the current lease counted the attempt up
    lost         INTEGER NOT NULL DEFAULT 0,
    started      INTEGER NOT NULL DEFAULT 0,
    cancel_asked INTEGER NOT NULL DEFAULT 0,
    spec         BLOB NOT NULL,
    fetched_at   INTEGER,
    token        TEXT,
    worker       TEXT,
    lease_until  INTEGER,
    expires_at   INTEGER,
    ended_at     INTEGER,
    keep_until   INTEGER,
    ukey         TEXT,                      -- the unique key, while this job holds it
    ukey_until   INTEGER,
    errors       BLOB,                      -- msgpack
    result       BLOB,
    progress     BLOB,                      -- msgpack
    checkpoint   BLOB,
    reason       TEXT
) STRICT;

-- Partial indexes: a job has entries only in the indexes that its state needs.
CREATE UNIQUE INDEX penstock_id ON penstock_job (queue, id);
-- `state` is a column of the index because SQLite reads it although the WHERE clause fixes it. With `due`, the
-- oldest available job of a queue is found in the index alone.
CREATE INDEX penstock_ready ON penstock_job (queue, priority DESC, place, due, state) WHERE state = 3;
CREATE INDEX penstock_due ON penstock_job (queue, due) WHERE state < 2;
CREATE INDEX penstock_parked ON penstock_job (queue, task, priority DESC, place) WHERE state = 2;
-- all running jobs of the file: one entry per busy slot, so a scan of the whole index is cheap
CREATE INDEX penstock_running ON penstock_job (token, lease_until, queue, state) WHERE state = 4;
CREATE INDEX penstock_ended ON penstock_job (queue, state, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX penstock_over ON penstock_job (queue, keep_until) WHERE keep_until IS NOT NULL;
CREATE INDEX penstock_expiring ON penstock_job (queue, expires_at) WHERE expires_at IS NOT NULL AND state < 4;
CREATE UNIQUE INDEX penstock_unique ON penstock_job (queue, ukey) WHERE ukey IS NOT NULL;

-- The number of attempts settled on one UTC day (days since the epoch).
CREATE TABLE penstock_day (
    queue     INTEGER NOT NULL,
    day       INTEGER NOT NULL,
    processed INTEGER NOT NULL,
    failed    INTEGER NOT NULL,
    PRIMARY KEY (queue, day)
) STRICT, WITHOUT ROWID;

-- Announced workers; `info` is the WorkerInfo as msgpack.
CREATE TABLE penstock_worker (
    namespace TEXT NOT NULL,
    id        TEXT NOT NULL,
    seen_at   INTEGER NOT NULL,
    info      BLOB NOT NULL,
    PRIMARY KEY (namespace, id)
) STRICT, WITHOUT ROWID;

-- Counts of requests to stop a running job, and of changes of settings. A wait compares them with the last ones.
CREATE TABLE penstock_signal (
    namespace TEXT PRIMARY KEY,
    cancels   INTEGER NOT NULL DEFAULT 0,
    changes   INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
