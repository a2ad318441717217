-- Change single jobs: the acts of change_jobs, delete.

-- name: look
-- ?1 qid  ?2 id
SELECT seq, state, spec, expires_at, batch, members IS NOT NULL FROM penstock_job WHERE queue = ?1 AND id = ?2

-- name: retry
-- Make a job available as if it were new.  ?1 seq  ?2 place  ?3 due  ?4 expires at  ?5 attempt
UPDATE penstock_job
SET state = {available}, place = ?2, due = ?3, expires_at = ?4, attempt = ?5, lost = 0, ended_at = NULL,
    keep_until = NULL, cancel_asked = 0, result = NULL, reason = NULL
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
