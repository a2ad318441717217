-- The jobs in a state, by an index. The verb chooses the cheapest statement by the counts.

-- name: all_jobs
-- The number of jobs in the whole file.
SELECT sum(scheduled + retryable + parked + available + running + completed + cancelled + dead + waiting + collecting + suspended)
FROM penstock_queue

-- name: these
-- Jobs by their generations.  ?1 JSON list of seq
SELECT {job_columns}
FROM penstock_job WHERE seq IN (SELECT value FROM json_each(?1)) ORDER BY seq DESC

-- name: held
-- Jobs leased to a worker, in the queues of a namespace.  ?1 worker  ?2 namespace
SELECT seq FROM penstock_job INDEXED BY penstock_running
WHERE state = {running} AND worker = ?1 AND queue IN (SELECT qid FROM penstock_queue WHERE namespace = ?2)

-- name: queue
-- All jobs of a queue.  ?1 qid
SELECT seq FROM penstock_job INDEXED BY penstock_id WHERE queue = ?1

-- name: due
-- ?1 qid  ?2 state
SELECT seq FROM penstock_job INDEXED BY penstock_due WHERE queue = ?1 AND {is_due_later} AND state = ?2

-- name: parked
-- ?1 qid  ?2 state
SELECT seq FROM penstock_job INDEXED BY penstock_parked WHERE queue = ?1 AND state = {parked} AND state = ?2

-- name: available
-- ?1 qid  ?2 state
SELECT seq FROM penstock_job INDEXED BY penstock_ready WHERE queue = ?1 AND state = {available} AND state = ?2

-- name: running
-- ?1 qid  ?2 state
SELECT seq FROM penstock_job INDEXED BY penstock_running WHERE queue = ?1 AND state = {running} AND state = ?2

-- name: waiting
-- ?1 qid  ?2 state
SELECT seq FROM penstock_job INDEXED BY penstock_waiting WHERE queue = ?1 AND state = {waiting} AND state = ?2

-- name: other
-- Jobs in a state that has no index of its own.  ?1 qid  ?2 state
SELECT seq FROM penstock_job INDEXED BY penstock_id WHERE queue = ?1 AND state = ?2

-- name: ended
-- ?1 qid  ?2 state
SELECT seq FROM penstock_job INDEXED BY penstock_ended WHERE queue = ?1 AND state = ?2 AND ended_at IS NOT NULL

-- name: oldest
-- Jobs of a queue from the oldest on: for a purge that removes most of them.
-- ?1 qid  ?2 JSON list of states  ?3 limit
SELECT seq FROM penstock_job NOT INDEXED
WHERE queue = ?1 AND state IN (SELECT value FROM json_each(?2)) AND (state <> {collecting} OR batch IS NULL)
ORDER BY seq LIMIT ?3

-- name: with_id
-- Jobs with one id in all queues of a namespace.  ?1 namespace  ?2 id
SELECT seq FROM penstock_queue AS q CROSS JOIN penstock_job AS j
WHERE q.namespace = ?1 AND q.qid <> 0 AND j.queue = q.qid AND j.id = ?2
