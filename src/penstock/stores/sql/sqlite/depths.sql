-- Samples of the unfinished jobs of queues.

-- name: unsampled
-- ?1 namespace  ?2 minute
SELECT 1 FROM penstock_queue AS q WHERE namespace = ?1 AND qid <> 0
AND NOT EXISTS (SELECT 1 FROM penstock_depth WHERE resolution = 0 AND period = ?2 AND queue = q.qid) LIMIT 1

-- name: new
-- Queues that were never sampled. CASE: the list of those that were is read only if one has no sample in the current day.
-- ?1 namespace  ?2 day
SELECT qid FROM penstock_queue AS q WHERE namespace = ?1 AND qid <> 0
AND CASE WHEN EXISTS (SELECT 1 FROM penstock_depth WHERE resolution = 2 AND period = ?2 AND queue = q.qid) THEN 0
    ELSE qid NOT IN (SELECT queue FROM penstock_depth WHERE resolution = 2) END

-- name: sample
-- Add the counts of all queues without a sample in this minute.
-- ?1 namespace  ?2 minute  ?3 resolution  ?4 period  ?5 queues that were never sampled (JSON)
INSERT INTO penstock_depth (resolution, period, queue, samples, available, running, later, peak, total)
SELECT ?3, ?4, qid, 1, available, running, scheduled + retryable + parked + waiting + collecting + suspended, available,
    CASE WHEN qid IN (SELECT value FROM json_each(?5)) THEN 0 ELSE enqueued END
FROM penstock_queue AS q WHERE namespace = ?1 AND qid <> 0
AND NOT EXISTS (SELECT 1 FROM penstock_depth WHERE resolution = 0 AND period = ?2 AND queue = q.qid)
ON CONFLICT (resolution, period, queue) DO UPDATE SET
    samples = samples + 1, available = available + excluded.available, running = running + excluded.running,
    later = later + excluded.later, peak = max(peak, excluded.peak), total = coalesce(total, excluded.total)

-- name: forget
-- Periods that are too old, and those of a clock that was set back.  ?1 resolution  ?2 the oldest to keep  ?3 the latest
DELETE FROM penstock_depth WHERE resolution = ?1 AND (period < ?2 OR period > ?3)

-- name: rows
-- ?1 namespace  ?2 resolution  ?3 the first period  ?4 the last period  ?5 queue, or NULL for all
SELECT q.name, q.enqueued, d.period, d.total, d.samples, d.available, d.running, d.later, d.peak
FROM penstock_depth AS d JOIN penstock_queue AS q ON q.qid = d.queue
WHERE q.namespace = ?1 AND d.resolution = ?2 AND d.period BETWEEN ?3 AND ?4 AND (?5 IS NULL OR q.name = ?5)

-- name: drop
-- ?1 qid
DELETE FROM penstock_depth WHERE queue = ?1
