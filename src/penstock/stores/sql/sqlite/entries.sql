-- Periodic entries: list, store, pause and delete them.

-- name: of_queue
-- ?1 qid
SELECT name, spec, revision, watermark, paused, last, enqueued, skipped
FROM penstock_periodic WHERE queue = ?1 ORDER BY name

-- name: one
-- ?1 qid  ?2 name
SELECT spec, revision, watermark, paused, last, enqueued, skipped
FROM penstock_periodic WHERE queue = ?1 AND name = ?2

-- name: insert
-- ?1 qid  ?2 name  ?3 schedule  ?4 spec  ?5 now
INSERT INTO penstock_periodic (queue, name, schedule, spec, revision, watermark) VALUES (?1, ?2, ?3, ?4, ?5, ?5)

-- name: change
-- The watermark stays if the schedule stays.  ?1 qid  ?2 name  ?3 schedule  ?4 spec  ?5 now
UPDATE penstock_periodic
SET watermark = CASE WHEN schedule = ?3 THEN watermark ELSE max(watermark, ?5) END,
    schedule = ?3, spec = ?4, revision = max(revision + 1, ?5)
WHERE queue = ?1 AND name = ?2

-- name: pause
-- Runs missed during a pause are not enqueued.  ?1 qid  ?2 name  ?3 paused  ?4 now
UPDATE penstock_periodic
SET paused = ?3, revision = max(revision + 1, ?4),
    watermark = CASE WHEN ?3 = 1 THEN watermark ELSE max(watermark, ?4) END
WHERE queue = ?1 AND name = ?2 AND paused <> ?3

-- name: delete
-- ?1 qid  ?2 name
DELETE FROM penstock_periodic WHERE queue = ?1 AND name = ?2

-- name: drop
-- Delete all entries of a queue.  ?1 qid
DELETE FROM penstock_periodic WHERE queue = ?1
