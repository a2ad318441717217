-- Batches: members join and leave a collecting batch, a batch job is made of them, and they end with it.

-- name: key
-- Store the batch key of a member.  ?1 seq  ?2 batch key
UPDATE penstock_job SET batch_key = ?2 WHERE seq = ?1

-- name: enter
-- An existing member joins its collecting batch.  ?1 seq  ?2 place  ?3 now
UPDATE penstock_job SET state = {collecting}, place = ?2, due = ?3 WHERE seq = ?1

-- name: join
-- Count one more member; the rules of the last member apply.
-- ?1 qid  ?2 task  ?3 key  ?4 size  ?5 wait  ?6 grace  ?7 now  ?8 due, if it is the first member
INSERT INTO penstock_batch (queue, task, key, size, wait, grace, n, first, last, due)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, 1, ?7, ?7, ?8)
ON CONFLICT (queue, task, key) DO UPDATE SET size = ?4, wait = ?5, grace = ?6, n = n + 1, last = ?7
RETURNING n, first

-- name: set_due
-- ?1 qid  ?2 task  ?3 key  ?4 due
UPDATE penstock_batch SET due = ?4 WHERE queue = ?1 AND task = ?2 AND key = ?3 AND due IS NOT ?4

-- name: one
-- ?1 qid  ?2 task  ?3 key
SELECT size, wait, grace, n, last, due FROM penstock_batch WHERE queue = ?1 AND task = ?2 AND key = ?3

-- name: first
-- When the first remaining member joined.  ?1 qid  ?2 task  ?3 key
SELECT due FROM penstock_job INDEXED BY penstock_collecting
WHERE queue = ?1 AND task = ?2 AND batch_key = ?3 AND state = {collecting} AND batch IS NULL ORDER BY place LIMIT 1

-- name: shrink
-- ?1 qid  ?2 task  ?3 key  ?4 number of remaining members  ?5 first  ?6 due
UPDATE penstock_batch SET n = ?4, first = ?5, due = ?6 WHERE queue = ?1 AND task = ?2 AND key = ?3

-- name: empty
-- ?1 qid  ?2 task  ?3 key
DELETE FROM penstock_batch WHERE queue = ?1 AND task = ?2 AND key = ?3

-- name: due
-- Collecting batches that are due, by due time.  ?1 qid  ?2 now  ?3 limit
SELECT due, task, key FROM penstock_batch INDEXED BY penstock_batch_due
WHERE queue = ?1 AND due <= ?2 AND due IS NOT NULL ORDER BY due, task, key LIMIT ?3

-- name: next
-- When the first collecting batch is due.  ?1 qid
SELECT min(due) FROM penstock_batch INDEXED BY penstock_batch_due WHERE queue = ?1 AND due IS NOT NULL

-- name: members
-- The first members of a collecting batch.  ?1 qid  ?2 task  ?3 key  ?4 limit
SELECT seq, expires_at, spec FROM penstock_job INDEXED BY penstock_collecting
WHERE queue = ?1 AND task = ?2 AND batch_key = ?3 AND state = {collecting} AND batch IS NULL ORDER BY place LIMIT ?4

-- name: insert_batch
-- ?1 seq  ?2 qid  ?3 id  ?4 priority  ?5 place  ?6 now  ?7 task  ?8 spec  ?9 members
INSERT INTO penstock_job (seq, queue, id, state, priority, place, due, task, enqueued_at, spec, members)
VALUES (?1, ?2, ?3, {available}, ?4, ?5, ?6, ?7, ?6, ?8, ?9)
ON CONFLICT (queue, id) DO NOTHING

-- name: assign
-- Assign members to a batch job; members do not expire.  ?1 JSON list of seq  ?2 batch
UPDATE penstock_job SET state = {collecting}, batch = ?2, expires_at = NULL WHERE seq IN (SELECT value FROM json_each(?1))

-- name: end
-- End the members with their batch.  ?1 qid  ?2 batch  ?3 state  ?4 now  ?5 kept until  ?6 reason
UPDATE penstock_job
SET state = ?3, ended_at = ?4, keep_until = ?5, reason = ?6
WHERE queue = ?1 AND batch = ?2 AND batch IS NOT NULL AND state = {collecting} RETURNING seq, unique_phases

-- name: remove
-- Remove the members of a batch, in any state.  ?1 qid  ?2 batch
DELETE FROM penstock_job WHERE queue = ?1 AND batch = ?2 AND batch IS NOT NULL RETURNING state, seq, unique_phases

-- name: ended
-- The members of a batch that have ended.  ?1 qid  ?2 batch
SELECT seq, state, spec FROM penstock_job INDEXED BY penstock_batched
WHERE queue = ?1 AND batch = ?2 AND batch IS NOT NULL AND state <> {collecting}

-- name: revive
-- Make a member of a retried batch collecting again.  ?1 seq
UPDATE penstock_job
SET state = {collecting}, ended_at = NULL, keep_until = NULL, reason = NULL
WHERE seq = ?1

-- name: show
-- ?1 namespace  ?2 queue (NULL: all)  ?3 limit
SELECT q.name, g.task, g.key, g.n, g.first, g.due FROM penstock_queue AS q CROSS JOIN penstock_batch AS g
WHERE q.namespace = ?1 AND q.qid <> 0 AND (?2 IS NULL OR q.name = ?2) AND g.queue = q.qid
ORDER BY g.due IS NULL, g.due, g.task, g.key, q.name LIMIT ?3

-- name: alone
-- Members of collecting batches.  ?1 qid
SELECT seq FROM penstock_job INDEXED BY penstock_collecting WHERE queue = ?1 AND state = {collecting} AND batch IS NULL

-- name: collecting
-- All collecting jobs: members of collecting batches and of batch jobs.  ?1 qid  ?2 state
SELECT seq FROM penstock_job INDEXED BY penstock_collecting
WHERE queue = ?1 AND state = {collecting} AND batch IS NULL AND state = ?2
UNION ALL
SELECT seq FROM penstock_job INDEXED BY penstock_batched
WHERE queue = ?1 AND batch IS NOT NULL AND state = {collecting} AND state = ?2
