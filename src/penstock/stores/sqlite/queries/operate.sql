-- Change single jobs: retry, reschedule, delete, move.

-- name: look
-- ?1 qid  ?2 id
SELECT seq, state, spec, expires_at, batch, members IS NOT NULL FROM penstock_job WHERE queue = ?1 AND id = ?2

-- name: retry
-- Make an ended job available now, as if it were new.  ?1 seq  ?2 place  ?3 now  ?4 expires at  ?5 attempt
-- ?6 unique_phases
UPDATE penstock_job
SET state = {available}, place = ?2, due = ?3, expires_at = ?4, unique_phases = ?6, attempt = ?5, lost = 0,
    ended_at = NULL, keep_until = NULL, cancel_asked = 0, result = NULL, reason = NULL
WHERE seq = ?1

-- name: retry_queued
-- As retry, for a queued job.  ?1 … ?5 as above
UPDATE penstock_job
SET state = {available}, place = ?2, due = ?3, expires_at = ?4, attempt = ?5, lost = 0, cancel_asked = 0,
    result = NULL, reason = NULL
WHERE seq = ?1

-- name: reschedule
-- ?1 seq  ?2 state  ?3 due  ?4 place (NULL: keep)
UPDATE penstock_job SET state = ?2, due = ?3, place = coalesce(?4, place) WHERE seq = ?1

-- name: carry
-- Give a job that was moved the history that it had.  ?1 qid  ?2 id  ?3 attempt  ?4 lost  ?5 errors  ?6 checkpoint
UPDATE penstock_job SET attempt = ?3, lost = ?4, errors = ?5, checkpoint = ?6 WHERE queue = ?1 AND id = ?2

-- name: delete
-- Remove jobs in any state.  ?1 JSON list of seq
DELETE FROM penstock_job WHERE seq IN (SELECT value FROM json_each(?1))
RETURNING state, id, task, batch_key, batch, members IS NOT NULL, seq, unique_phases, flow, has_steps
