-- Cancel queued jobs, and ask running jobs to stop. fetch, promote and prune cancel expired jobs with `end`, and discard
-- makes jobs dead with it.

-- name: look
-- ?1 qid  ?2 id
SELECT seq, state, spec, cancel_asked, batch FROM penstock_job WHERE queue = ?1 AND id = ?2

-- name: end
-- End a queued job.  ?1 seq  ?2 now  ?3 kept until  ?4 reason  ?5 state
UPDATE penstock_job
SET state = ?5, ended_at = ?2, keep_until = ?3, reason = ?4
WHERE seq = ?1

-- name: ask
-- ?1 seq  ?2 reason (NULL: none given)
UPDATE penstock_job SET cancel_asked = 1, cancel_reason = ?2 WHERE seq = ?1
