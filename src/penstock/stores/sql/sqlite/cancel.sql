-- Cancel queued jobs, and ask running jobs to stop. fetch, promote and prune cancel expired jobs with `end`, discard makes
-- jobs dead with it, and complete completes them.

-- name: look
-- ?1 qid  ?2 id
SELECT seq, state, spec, cancel_asked, batch,
       has_steps IS NOT NULL AND EXISTS (SELECT 1 FROM penstock_step WHERE job = seq AND name = 'undo!')
FROM penstock_job WHERE queue = ?1 AND id = ?2

-- name: end
-- End a job that is not running.  ?1 seq  ?2 now  ?3 kept until  ?4 reason  ?5 state  ?6 result
UPDATE penstock_job
SET state = ?5, ended_at = ?2, keep_until = ?3, reason = ?4, result = ?6
WHERE seq = ?1

-- name: ask
-- ?1 seq  ?2 reason (NULL: none given)
UPDATE penstock_job SET cancel_asked = 1, cancel_reason = ?2 WHERE seq = ?1

-- name: ask_queued
-- Ask a job that is not running to stop.  ?1 seq  ?2 reason (NULL: none given)
UPDATE penstock_job SET cancel_asked = 1, cancel_reason = ?2, reason = ?2 WHERE seq = ?1
