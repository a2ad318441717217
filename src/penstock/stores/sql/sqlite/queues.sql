-- Queues and workers, for operators.

-- name: all
-- ?1 namespace
SELECT {queue_columns}
FROM penstock_queue WHERE namespace = ?1 AND qid <> 0 ORDER BY name

-- name: some
-- ?1 namespace  ?2 behind this name  ?3 limit
SELECT {queue_columns}
FROM penstock_queue WHERE namespace = ?1 AND name > ?2 AND qid <> 0 ORDER BY name LIMIT ?3

-- name: one
-- ?1 namespace  ?2 name
SELECT {queue_columns}
FROM penstock_queue WHERE namespace = ?1 AND name = ?2

-- name: oldest
-- The earliest due time of the first available jobs, in the index alone.  ?1 qid  ?2 number of jobs to check
SELECT min(due) FROM (
    SELECT due FROM penstock_job INDEXED BY penstock_ready
    WHERE queue = ?1 AND state = {available} ORDER BY priority DESC, place LIMIT ?2
)

-- name: days
-- Daily counts, newest first.  ?1 qid  ?2 after this day
SELECT day, processed, failed FROM penstock_day WHERE queue = ?1 AND day > ?2 ORDER BY day DESC

-- name: switch
-- ?1 qid  ?2 paused  ?3 closed
UPDATE penstock_queue SET paused = ?2, closed = ?3 WHERE qid = ?1

-- name: any_job
-- ?1 qid
SELECT 1 FROM penstock_job WHERE queue = ?1 LIMIT 1

-- name: drop
-- ?1 qid
DELETE FROM penstock_queue WHERE qid = ?1

-- name: drop_days
-- ?1 qid
DELETE FROM penstock_day WHERE queue = ?1

-- name: announce
-- ?1 namespace  ?2 id  ?3 now  ?4 info
INSERT INTO penstock_worker (namespace, id, seen_at, info) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (namespace, id) DO UPDATE SET seen_at = ?3, info = ?4

-- name: workers
-- Workers that announced themselves since an instant.  ?1 namespace  ?2 seen at or after
SELECT id, seen_at, info FROM penstock_worker WHERE namespace = ?1 AND seen_at >= ?2
