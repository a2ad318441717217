-- End attempts. Each statement that changes a running job checks its token atomically.

-- name: remove
-- Remove completed jobs of one token and queue that are not kept, and have no dependents and no steps.
-- ?1 JSON list of seq  ?2 qid  ?3 token  ?4 unique_phases: NULL, or 0 for jobs of nodes of flows
-- One statement for all takes half the time of one statement each, and releases Python's GIL only once.
DELETE FROM penstock_job NOT INDEXED
WHERE seq IN (SELECT value FROM json_each(?1)) AND queue = ?2 AND token = ?3 AND state = {running}
  AND unique_phases IS ?4 AND members IS NULL AND has_steps IS NULL

-- name: left
-- Those of the list whose lease is held, in one row: each with 0 if it concerns nobody else, with its node if it concerns
-- its flow alone, with NULL if it has other dependents or steps.  ?1 … ?3 as above
SELECT json_group_array(json_array(seq, CASE
    WHEN members IS NULL AND has_steps IS NULL THEN
        CASE WHEN unique_phases IS NULL THEN 0 WHEN unique_phases = 0 THEN flow END
    END))
FROM penstock_job NOT INDEXED
WHERE seq IN (SELECT value FROM json_each(?1)) AND queue = ?2 AND token = ?3 AND state = {running}

-- name: keep
-- Complete one job that is kept and has no dependents.
-- ?1 seq  ?2 qid  ?3 id  ?4 token  ?5 now  ?6 kept until  ?7 result  ?8 reason  ?9 unique_phases, as above
UPDATE penstock_job
SET state = {completed}, ended_at = ?5, keep_until = ?6, result = ?7, reason = ?8, token = NULL, worker = NULL,
    lease_until = NULL, started = 0
WHERE seq = ?1 AND queue = ?2 AND id = ?3 AND token = ?4 AND state = {running} AND unique_phases IS ?9 AND members IS NULL

-- name: look
-- ?1 qid  ?2 id
SELECT seq, state, token, attempt, charged, lost, place, due, errors, unique_phases, members IS NOT NULL,
       cancel_asked, cancel_reason, flow, has_steps
FROM penstock_job WHERE queue = ?1 AND id = ?2

-- name: move
-- Move one job to any other state.
-- ?1 seq  ?2 state  ?3 attempt  ?4 lost  ?5 place  ?6 due  ?7 ended at  ?8 kept until  ?9 errors
-- ?10 result  ?11 reason  ?12 token (NULL: any)
UPDATE penstock_job
SET state = ?2, attempt = ?3, lost = ?4, place = ?5, due = ?6, ended_at = ?7, keep_until = ?8, errors = ?9,
    result = ?10, reason = ?11, token = NULL, worker = NULL, lease_until = NULL, started = 0
WHERE seq = ?1 AND state = {running} AND (?12 IS NULL OR token = ?12)

-- name: drop
-- Remove one job.  ?1 seq  ?2 token (NULL: any)
DELETE FROM penstock_job WHERE seq = ?1 AND state = {running} AND (?2 IS NULL OR token = ?2)
