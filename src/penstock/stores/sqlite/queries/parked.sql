-- How many jobs are parked, by task.

-- name: queues
-- Those that have any.  ?1 namespace
SELECT qid, name FROM penstock_queue WHERE namespace = ?1 AND qid <> 0 AND parked > 0 ORDER BY name

-- name: of_tasks
-- Only an operator asks, so that they are counted then and not at every step of a job; in the index alone.
-- ?1 qid
SELECT task, count(*) FROM penstock_job INDEXED BY penstock_parked
WHERE queue = ?1 AND state = {parked} GROUP BY task ORDER BY task

-- name: tasks
-- Which there are: from each to the next one, however many jobs each has.  ?1 qid
WITH RECURSIVE each_one(task) AS (
    SELECT min(task) FROM penstock_job INDEXED BY penstock_parked WHERE queue = ?1 AND state = {parked}
    UNION ALL
    SELECT (SELECT min(task) FROM penstock_job INDEXED BY penstock_parked
            WHERE queue = ?1 AND state = {parked} AND task > each_one.task)
    FROM each_one WHERE each_one.task IS NOT NULL
)
SELECT task FROM each_one WHERE task IS NOT NULL
