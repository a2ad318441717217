-- Read jobs.

-- name: one
-- ?1 namespace  ?2 queue  ?3 id
SELECT {job_columns}
FROM penstock_job
WHERE queue = (SELECT qid FROM penstock_queue WHERE namespace = ?1 AND name = ?2) AND id = ?3

-- name: open
-- Whether a job exists and has not ended.  ?1 namespace  ?2 queue  ?3 id
SELECT 1 FROM penstock_job
WHERE queue = (SELECT qid FROM penstock_queue WHERE namespace = ?1 AND name = ?2) AND id = ?3 AND {has_not_ended}
