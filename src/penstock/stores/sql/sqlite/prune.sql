-- Find and remove old data; each statement is for one queue.

-- name: over
-- Ended jobs past their retention, the earliest end of retention first.  ?1 qid  ?2 now  ?3 limit
SELECT keep_until, seq, queue, state FROM penstock_job INDEXED BY penstock_over
WHERE queue = ?1 AND keep_until <= ?2 ORDER BY keep_until, seq LIMIT ?3

-- name: oldest
-- Ended jobs in one state, the oldest end first.  ?1 qid  ?2 state  ?3 limit
SELECT seq FROM penstock_job INDEXED BY penstock_ended
WHERE queue = ?1 AND state = ?2 AND ended_at IS NOT NULL ORDER BY ended_at, seq LIMIT ?3

-- name: expired
-- Queued jobs past their expiry, the earliest first.  ?1 qid  ?2 now  ?3 limit
SELECT expires_at, seq, queue, state, spec FROM penstock_job INDEXED BY penstock_expiring
WHERE queue = ?1 AND expires_at <= ?2 AND expires_at IS NOT NULL AND {is_queued} ORDER BY expires_at, seq LIMIT ?3

-- name: silent
-- Workers that have not announced themselves recently.  ?1 namespace  ?2 seen before  ?3 limit
SELECT id FROM penstock_worker WHERE namespace = ?1 AND seen_at < ?2 ORDER BY seen_at, id LIMIT ?3

-- name: worker
-- ?1 namespace  ?2 id
DELETE FROM penstock_worker WHERE namespace = ?1 AND id = ?2

-- name: days
-- Delete old daily counts.  ?1 qid  ?2 the newest day to delete
DELETE FROM penstock_day WHERE queue = ?1 AND day <= ?2

-- name: old_days
-- Whether there are old daily counts.  ?1 qid  ?2 the newest day to delete
SELECT 1 FROM penstock_day WHERE queue = ?1 AND day <= ?2 LIMIT 1
