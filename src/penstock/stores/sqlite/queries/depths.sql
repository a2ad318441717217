-- Samples of the unfinished jobs of queues.

-- name: unsampled
-- ?1 namespace  ?2 minute
SELECT 1 FROM penstock_queue AS q WHERE namespace = ?1 AND qid <> 0
AND NOT EXISTS (SELECT 1 FROM penstock_depth WHERE resolution = 0 AND period = ?2 AND queue = q.qid) LIMIT 1

-- name: sample
-- Add the counts of all queues without a sample in this minute.  ?1 namespace  ?2 minute  ?3 resolution  ?4 period
INSERT INTO penstock_depth (resolution, period, queue, samples, available, running, later, peak)
SELECT ?3, ?4, qid, 1, available, running, scheduled + retryable + parked + waiting + collecting + suspended, available
FROM penstock_queue AS q WHERE namespace = ?1 AND qid <> 0
AND NOT EXISTS (SELECT 1 FROM penstock_depth WHERE resolution = 0 AND period = ?2 AND queue = q.qid)
ON CONFLICT (resolution, period, queue) DO UPDATE SET
    samples = samples + 1, available = available + excluded.available, running = running + excluded.running,
    later = later + excluded.later, peak = max(peak, excluded.peak)

-- name: forget
-- Periods that are too old, and those of a clock that was set back.  ?1 resolution  ?2 the oldest to keep  ?3 the latest
DELETE FROM penstock_depth WHERE resolution = ?1 AND (period < ?2 OR period > ?3)

-- name: rows
-- ?1 namespace  ?2 resolution  ?3 the first period  ?4 the last period  ?5 queue, or NULL for all
SELECT q.name, d.period, d.samples, d.available, d.running, d.later, d.peak
FROM penstock_depth AS d JOIN penstock_queue AS q ON q.qid = d.queue
WHERE q.namespace = ?1 AND d.resolution = ?2 AND d.period BETWEEN ?3 AND ?4 AND (?5 IS NULL OR q.name = ?5)

-- name: drop
-- ?1 qid
DELETE FROM penstock_depth WHERE queue = ?1
