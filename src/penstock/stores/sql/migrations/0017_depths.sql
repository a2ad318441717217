-- Samples of the unfinished jobs of queues.

-- resolution, period: as in penstock_task_stats. They come first, so that a sample of all queues writes few pages.
-- available, running, later: sums over the samples. peak: the most available jobs at one sample.
CREATE TABLE penstock_depth (
    resolution INTEGER NOT NULL,
    period     INTEGER NOT NULL,
    queue      INTEGER NOT NULL,
    samples    INTEGER NOT NULL,
    available  INTEGER NOT NULL,
    running    INTEGER NOT NULL,
    later      INTEGER NOT NULL,
    peak       INTEGER NOT NULL,
    PRIMARY KEY (resolution, period, queue)
) STRICT, WITHOUT ROWID;
