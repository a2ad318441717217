-- What is over goes; each statement looks at one queue.

-- name: over
-- Ended jobs past their retention, the longest over first.  ?1 qid  ?2 now  ?3 limit
SELECT keep_until, seq, queue, state FROM penstock_job INDEXED BY penstock_over
WHERE queue = ?1 AND keep_until <= ?2 ORDER BY keep_until, seq LIMIT ?3

-- name: oldest
-- Ended jobs of one state, the oldest end first.  ?1 qid  ?2 state  ?3 limit
SELECT seq FROM penstock_job INDEXED BY penstock_ended
WHERE queue = ?1 AND state = ?2 AND ended_at IS NOT NULL ORDER BY ended_at, seq LIMIT ?3

-- name: expired
-- Queued jobs past their expiry, the earliest first.  ?1 qid  ?2 now  ?3 limit
SELECT expires_at, seq, queue, state, spec FROM penstock_job INDEXED BY penstock_expiring
WHERE queue = ?1 AND expires_at <= ?2 AND expires_at IS NOT NULL AND {is_queued} ORDER BY expires_at, seq LIMIT ?3

-- name: silent
-- Workers that have not announced themselves.  ?1 namespace  ?2 seen before  ?3 limit
SELECT id FROM penstock_worker WHERE namespace = ?1 AND seen_at < ?2 ORDER BY seen_at, id LIMIT ?3

-- name: worker
-- ?1 namespace  ?2 id
DELETE FROM penstock_worker WHERE namespace = ?1 AND id = ?2

-- name: days
-- Old daily counts.  ?1 qid  ?2 the newest day that goes
DELETE FROM penstock_day WHERE queue = ?1 AND day <= ?2

-- name: old_days
-- Whether there are any.  ?1 qid  ?2 the newest day that goes
SELECT 1 FROM penstock_day WHERE queue = ?1 AND day <= ?2 LIMIT 1
