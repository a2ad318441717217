-- The number of parked jobs by task.

-- name: queues
-- Queues that have parked jobs.  ?1 namespace
SELECT qid, name FROM penstock_queue WHERE namespace = ?1 AND qid <> 0 AND parked > 0 ORDER BY name

-- name: of_tasks
-- Counted here, in the index alone, and not at every step of a job, because only operators ask for it.  ?1 qid
SELECT task, count(*) FROM penstock_job INDEXED BY penstock_parked
WHERE queue = ?1 AND state = {parked} GROUP BY task ORDER BY task

-- name: tasks
-- The tasks with parked jobs: one index lookup per task, for any number of jobs.  ?1 qid
WITH RECURSIVE each_one(task) AS (
    SELECT min(task) FROM penstock_job INDEXED BY penstock_parked WHERE queue = ?1 AND state = {parked}
    UNION ALL
    SELECT (SELECT min(task) FROM penstock_job INDEXED BY penstock_parked
            WHERE queue = ?1 AND state = {parked} AND task > each_one.task)
    FROM each_one WHERE each_one.task IS NOT NULL
)
SELECT task FROM each_one WHERE task IS NOT NULL
