-- Lease lost jobs to the worker that decides their outcome.

-- name: run_out
-- Jobs whose lease has run out.  ?1 now, by the clock of leases  ?2 JSON list of qid  ?3 limit
SELECT seq FROM penstock_job INDEXED BY penstock_running
WHERE state = {running} AND lease_until <= ?1 AND queue IN (SELECT value FROM json_each(?2))
ORDER BY lease_until, seq LIMIT ?3

-- name: held_by
-- Jobs leased to some workers, in the queues of one namespace.  ?1 JSON list of workers  ?2 namespace  ?3 limit
SELECT seq FROM penstock_job INDEXED BY penstock_running
WHERE state = {running} AND worker IN (SELECT value FROM json_each(?1))
  AND queue IN (SELECT qid FROM penstock_queue WHERE namespace = ?2)
ORDER BY seq LIMIT ?3

-- name: lease
-- ?1 JSON list of seq  ?2 worker  ?3 token  ?4 lease until  ?5 start of the reason, before the old worker's id
UPDATE penstock_job SET reason = ?5 || worker, worker = ?2, token = ?3, lease_until = ?4
WHERE seq IN (SELECT value FROM json_each(?1)) AND state = {running}
RETURNING {job_columns}
