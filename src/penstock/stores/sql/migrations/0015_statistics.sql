-- Statistics that workers report, and errors by task, class and message.

-- resolution: 0 minute, 1 hour, 2 day. period: its start, divided by its length. stats: an array of MessagePack, see TaskStats.
CREATE TABLE penstock_task_stats (
    queue      INTEGER NOT NULL,
    resolution INTEGER NOT NULL,
    period     INTEGER NOT NULL,
    task       TEXT NOT NULL,
    stats      BLOB NOT NULL,
    PRIMARY KEY (queue, resolution, period, task)
) STRICT, WITHOUT ROWID;

-- The last report of each source, and when it came.
CREATE TABLE penstock_stats_report (
    queue  INTEGER NOT NULL,
    source TEXT NOT NULL,
    number INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    PRIMARY KEY (queue, source)
) STRICT, WITHOUT ROWID;

-- name: '' for the errors of groups that were removed. job: an example.
CREATE TABLE penstock_error (
    queue    INTEGER NOT NULL,
    name     TEXT NOT NULL,
    task     TEXT NOT NULL,
    kind     TEXT NOT NULL,
    message  TEXT NOT NULL,
    count    INTEGER NOT NULL,
    first_at INTEGER NOT NULL,
    last_at  INTEGER NOT NULL,
    job      TEXT NOT NULL,
    PRIMARY KEY (queue, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX penstock_error_last ON penstock_error (queue, last_at);
