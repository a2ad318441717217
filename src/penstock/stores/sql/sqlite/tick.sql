-- Advance a periodic entry. The verb has compared the entry, and enqueues its jobs in the same transaction.

-- name: move
-- ?1 qid  ?2 name  ?3 watermark  ?4 last  ?5 number of new jobs  ?6 number of skipped jobs
UPDATE penstock_periodic
SET watermark = ?3, last = ?4, enqueued = enqueued + ?5, skipped = skipped + ?6
WHERE queue = ?1 AND name = ?2
