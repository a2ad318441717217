-- Lease available jobs, in the order of their queue.

-- name: under
-- The jobs already leased under a token.  ?1 token
SELECT {job_columns}
FROM penstock_job INDEXED BY penstock_running
WHERE state = {running} AND token = ?1

-- name: is_under
-- Whether a job is leased under a token.  ?1 token
SELECT 1 FROM penstock_job INDEXED BY penstock_running WHERE state = {running} AND token = ?1 LIMIT 1

-- name: lease
-- The first jobs of a queue.  ?1 qid  ?2 limit  ?3 charge  ?4 now  ?5 token  ?6 worker  ?7 lease until
-- Rows begin with their sort key: RETURNING guarantees no order.
UPDATE penstock_job
SET state = {running}, attempt = attempt + ?3, charged = ?3, fetched_at = ?4, token = ?5, worker = ?6,
    lease_until = ?7, started = 0, progress = NULL, reason = NULL
WHERE seq IN (
    SELECT seq FROM penstock_job INDEXED BY penstock_ready
    WHERE queue = ?1 AND state = {available} ORDER BY priority DESC, place LIMIT ?2
)
RETURNING {leased_columns}

-- name: ready_plain
-- The first jobs of a queue in one row: their seqs, their columns, their specs (hexadecimal, one after the
-- other), and whether one of them is not plain or large.  ?1 qid  ?2 limit
SELECT json_group_array(seq),
       json_group_array(
           json_array(
               -priority, place, seq, attempt, lost, enqueued_at, due, expires_at, cancel_asked, length(spec)
           )
       ),
       group_concat(CASE WHEN length(spec) <= 2000 THEN hex(spec) END, ''),
       max(
           length(spec) > 2000 OR errors IS NOT NULL OR checkpoint IS NOT NULL
           OR (unique_phases IS NOT NULL AND unique_phases != 0) OR members IS NOT NULL
       )
FROM (
    SELECT * FROM penstock_job INDEXED BY penstock_ready
    WHERE queue = ?1 AND state = {available} ORDER BY priority DESC, place LIMIT ?2
)

-- name: lease_plain
-- The jobs that `ready_plain` has found.  ?1 JSON list of seq  ?2 … ?6 as ?3 … ?7 of `lease`
UPDATE penstock_job
SET state = {running}, attempt = attempt + ?2, charged = ?2, fetched_at = ?3, token = ?4, worker = ?5,
    lease_until = ?6, started = 0, progress = NULL, reason = NULL
WHERE seq IN (SELECT value FROM json_each(?1))

-- name: lease_these
-- Jobs that were chosen one by one.  ?1 JSON list of seq  ?2 (unused)  ?3 … ?7 as above
UPDATE penstock_job
SET state = {running}, attempt = attempt + ?3, charged = ?3, fetched_at = ?4, token = ?5, worker = ?6,
    lease_until = ?7, started = 0, progress = NULL, reason = NULL
WHERE seq IN (SELECT value FROM json_each(?1)) AND ?2 IS NULL
RETURNING {leased_columns}

-- name: ready
-- The first jobs of a queue, to be checked one by one.  ?1 qid  ?2 limit
SELECT seq, state, expires_at, spec, unique_phases FROM penstock_job INDEXED BY penstock_ready
WHERE queue = ?1 AND state = {available} ORDER BY priority DESC, place LIMIT ?2

-- name: parked
-- Parked jobs of tasks that a worker knows.  ?1 qid  ?2 limit  ?3 JSON list of tasks
SELECT seq, state, expires_at, spec, unique_phases FROM penstock_job INDEXED BY penstock_parked
WHERE queue = ?1 AND state = {parked} AND task IN (SELECT value FROM json_each(?3))
ORDER BY priority DESC, place LIMIT ?2

-- name: is_parked
-- Whether there is a parked job of these tasks.  ?1 qid  ?2 JSON list of tasks
SELECT 1 FROM penstock_job INDEXED BY penstock_parked
WHERE queue = ?1 AND state = {parked} AND task IN (SELECT value FROM json_each(?2)) LIMIT 1

-- name: expired
-- Whether a queued job is past its expiry.  ?1 qid  ?2 now
SELECT 1 FROM penstock_job INDEXED BY penstock_expiring
WHERE queue = ?1 AND expires_at <= ?2 AND expires_at IS NOT NULL AND {is_queued} LIMIT 1

-- name: worker
-- The announcement of a worker.  ?1 namespace  ?2 worker
SELECT info FROM penstock_worker WHERE namespace = ?1 AND id = ?2
