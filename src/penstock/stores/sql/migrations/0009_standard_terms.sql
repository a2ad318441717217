-- Standard terms for what earlier versions named otherwise; no row changes its meaning. An index cannot be
-- renamed: the five with old names are made again.

-- throttled_until: no job of the queue starts before this instant. next_start: when the rate (GCRA) would allow
-- the next start at an even pace. partitioned: 1 once a job with a concurrency key has come.
ALTER TABLE penstock_queue RENAME COLUMN held_until TO throttled_until;
ALTER TABLE penstock_queue RENAME COLUMN tat TO next_start;
ALTER TABLE penstock_queue RENAME COLUMN laned TO partitioned;
ALTER TABLE penstock_queue RENAME COLUMN grouped TO collecting;

-- unique_phases: the phases in which a job holds its unique key (1, 2, 4); NULL without one.
ALTER TABLE penstock_job RENAME COLUMN tied TO unique_phases;
ALTER TABLE penstock_job RENAME COLUMN lane TO partition_key;
ALTER TABLE penstock_job RENAME COLUMN gkey TO batch_key;

-- Partitions: the jobs of a concurrency key.
ALTER TABLE penstock_lane RENAME TO penstock_partition;
ALTER TABLE penstock_partition RENAME COLUMN held TO throttled_until;
DROP INDEX penstock_lane_due;
DROP INDEX penstock_lane_over;
CREATE INDEX penstock_partition_due ON penstock_partition (queue, due, key) WHERE due IS NOT NULL;
CREATE INDEX penstock_partition_over ON penstock_partition (queue, over) WHERE due IS NULL;

-- Fair share: per priority, and per tenant.
ALTER TABLE penstock_turns RENAME TO penstock_fair_share;
ALTER TABLE penstock_turn RENAME TO penstock_tenant;
DROP INDEX penstock_turn_next;
CREATE INDEX penstock_tenant_next ON penstock_tenant (queue, priority, next);

-- Collecting batches.
ALTER TABLE penstock_group RENAME TO penstock_batch;
DROP INDEX penstock_ripe;
DROP INDEX penstock_gathered;
CREATE INDEX penstock_batch_due ON penstock_batch (queue, due) WHERE due IS NOT NULL;
CREATE INDEX penstock_collecting ON penstock_job (queue, task, batch_key, place) WHERE state = 9 AND batch IS NULL;
