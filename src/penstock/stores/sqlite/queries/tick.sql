-- Moves a periodic entry on; the verb has compared, and enqueues its jobs in the same transaction.

-- name: move
-- ?1 qid  ?2 name  ?3 watermark  ?4 last  ?5 how many are new  ?6 how many were skipped
UPDATE penstock_periodic
SET watermark = ?3, last = ?4, enqueued = enqueued + ?5, skipped = skipped + ?6
WHERE queue = ?1 AND name = ?2
