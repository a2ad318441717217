-- Jobs that cannot be read are set aside; see verbs/aside.py.

-- name: look
-- What the columns say of a job, whatever its spec says.  ?1 seq
SELECT q.name, j.id, j.state, j.spec, j.task, j.lane, j.gkey, j.batch, j.members IS NOT NULL
FROM penstock_job AS j JOIN penstock_queue AS q ON q.qid = j.queue WHERE j.seq = ?1

-- name: end
-- It is dead, and tied to nothing.  ?1 seq  ?2 now  ?3 kept until  ?4 reason  ?5 its stand-in  ?6 the stand-in's task
UPDATE penstock_job
SET state = {dead}, ended_at = ?2, keep_until = ?3, reason = ?4, spec = ?5, task = ?6, token = NULL, worker = NULL,
    lease_until = NULL, started = 0, expires_at = NULL, tied = NULL, lane = NULL, rank = NULL, admitted = NULL,
    gkey = NULL, batch = NULL, members = NULL
WHERE seq = ?1

-- name: unlink
-- Who was a member of a batch that is set aside is none any more.  ?1 qid  ?2 batch
UPDATE penstock_job SET batch = NULL WHERE queue = ?1 AND batch = ?2 AND batch IS NOT NULL
