-- Set aside jobs that cannot be read; see verbs/aside.py.

-- name: look
-- Read a job without its spec.  ?1 seq
SELECT q.name, j.id, j.state, j.spec, j.task, j.partition_key, j.batch_key, j.batch, j.members IS NOT NULL, j.flow
FROM penstock_job AS j JOIN penstock_queue AS q ON q.qid = j.queue WHERE j.seq = ?1

-- name: end
-- Make a job dead, without dependents.  ?1 seq  ?2 now  ?3 kept until  ?4 reason  ?5 stand-in  ?6 the stand-in's task
UPDATE penstock_job
SET state = {dead}, ended_at = ?2, keep_until = ?3, reason = ?4, spec = ?5, task = ?6, token = NULL, worker = NULL,
    lease_until = NULL, started = 0, expires_at = NULL, unique_phases = NULL, partition_key = NULL, rank = NULL, admitted = NULL,
    batch_key = NULL, batch = NULL, members = NULL
WHERE seq = ?1

-- name: unlink
-- Detach the members of a batch that is set aside.  ?1 qid  ?2 batch
UPDATE penstock_job SET batch = NULL WHERE queue = ?1 AND batch = ?2 AND batch IS NOT NULL
