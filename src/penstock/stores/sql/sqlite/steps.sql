-- Durable steps: what jobs remember, and the signals that they wait for.

-- name: holder
-- The queue's running job of a lease, and when it was enqueued (0: the job is a node of a flow).  ?1 seq  ?2 qid  ?3 id  ?4 token  ?5 lease until
UPDATE penstock_job SET lease_until = ?5, has_steps = 1
WHERE seq = ?1 AND queue = ?2 AND id = ?3 AND token = ?4 AND state = {running}
RETURNING CASE WHEN flow IS NULL THEN enqueued_at ELSE 0 END

-- name: memory
-- ?1 seq
SELECT bytes, steps FROM penstock_memory WHERE job = ?1

-- name: grow
-- Count a step.  ?1 seq  ?2 bytes  ?3 steps
INSERT INTO penstock_memory (job, bytes, steps) VALUES (?1, ?2, ?3)
ON CONFLICT (job) DO UPDATE SET bytes = bytes + ?2, steps = steps + ?3

-- name: one
-- ?1 seq  ?2 name
SELECT number, value, signal, key FROM penstock_step WHERE job = ?1 AND name = ?2

-- name: remove
-- ?1 number
DELETE FROM penstock_step WHERE number = ?1

-- name: insert
-- ?1 seq  ?2 name  ?3 now  ?4 value  ?5 namespace  ?6 signal  ?7 key (all three NULL unless it is a wait)
INSERT INTO penstock_step (job, name, at, value, namespace, signal, key) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)

-- name: state
-- ?1 qid  ?2 id
SELECT seq, state FROM penstock_job WHERE queue = ?1 AND id = ?2

-- name: fill
-- The signal of a wait has come.  ?1 number  ?2 now  ?3 value
UPDATE penstock_step SET at = ?2, value = ?3 WHERE number = ?1

-- name: change_wait
-- A wait is repeated with another signal.  ?1 number  ?2 signal  ?3 key
UPDATE penstock_step SET signal = ?2, key = ?3 WHERE number = ?1

-- name: end_wait
-- A wait ends without its signal.  ?1 number  ?2 now  ?3 value
UPDATE penstock_step SET at = ?2, value = ?3, signal = NULL, key = NULL WHERE number = ?1

-- name: all
-- The steps of a job, in any order.  ?1 qid  ?2 id
SELECT s.number, s.name, s.at, s.value, s.signal, s.key FROM penstock_job AS j JOIN penstock_step AS s ON s.job = j.seq
WHERE j.queue = ?1 AND j.id = ?2

-- name: part
-- The same, without values of more than ?3 bytes.
SELECT s.number, s.name, s.at, CASE WHEN length(s.value) > ?3 THEN x'' ELSE s.value END, s.signal, s.key, length(s.value)
FROM penstock_job AS j JOIN penstock_step AS s ON s.job = j.seq
WHERE j.queue = ?1 AND j.id = ?2

-- name: named
-- One of them.  ?4 name
SELECT s.number, s.name, s.at, CASE WHEN length(s.value) > ?3 THEN x'' ELSE s.value END, s.signal, s.key, length(s.value)
FROM penstock_job AS j JOIN penstock_step AS s ON s.job = j.seq
WHERE j.queue = ?1 AND j.id = ?2 AND s.name = ?4

-- name: waiting
-- The first job that waits for a signal.  ?1 namespace  ?2 signal  ?3 key
SELECT s.number, s.name, j.seq, j.state, q.name
FROM penstock_step AS s INDEXED BY penstock_step_wait
CROSS JOIN penstock_job AS j ON j.seq = s.job CROSS JOIN penstock_queue AS q ON q.qid = j.queue
WHERE s.namespace = ?1 AND s.signal = ?2 AND s.key = ?3 AND s.value IS NULL AND (j.state <= {running} OR j.state > {dead})
ORDER BY s.number LIMIT 1

-- name: waiting_one
-- The step of a job that waits for a signal.  ?1 namespace  ?2 signal  ?3 key  ?4 id of the job
SELECT s.number, s.name, j.seq, j.state, q.name
FROM penstock_queue AS q CROSS JOIN penstock_job AS j ON j.queue = q.qid AND j.id = ?4
CROSS JOIN penstock_step AS s INDEXED BY penstock_step_name ON s.job = j.seq
WHERE q.namespace = ?1 AND s.signal = ?2 AND s.key = ?3 AND s.value IS NULL AND (j.state <= {running} OR j.state > {dead})
ORDER BY s.number LIMIT 1

-- name: wake
-- ?1 seq
UPDATE penstock_memory SET woken = 1 WHERE job = ?1

-- name: woken
-- Forget that a signal has come; a row if one has.  ?1 seq
UPDATE penstock_memory SET woken = 0 WHERE job = ?1 AND woken = 1 RETURNING 1

-- name: never_expires
-- A job that was suspended, or has steps to undo, does not expire any more.  ?1 seq
UPDATE penstock_job SET expires_at = NULL WHERE seq = ?1 AND expires_at IS NOT NULL

-- name: resume
-- Make a suspended job due.  ?1 seq  ?2 now
UPDATE penstock_job SET due = ?2 WHERE seq = ?1

-- name: forget
-- Remove the steps of removed jobs.  ?1 JSON list of seq
DELETE FROM penstock_step WHERE job IN (SELECT value FROM json_each(?1))

-- name: forget_memory
-- ?1 JSON list of seq
DELETE FROM penstock_memory WHERE job IN (SELECT value FROM json_each(?1))

-- name: take_signal
-- Consume a stored signal.  ?1 namespace  ?2 name  ?3 key  ?4 flow  ?5 the earliest time of sending  ?6 now
DELETE FROM penstock_stored_signal WHERE namespace = ?1 AND name = ?2 AND key = ?3 AND flow = ?4
  AND sent_at >= ?5 AND keep_until > ?6
RETURNING data

-- name: signal
-- ?1 namespace  ?2 name  ?3 key  ?4 flow
SELECT keep_until FROM penstock_stored_signal WHERE namespace = ?1 AND name = ?2 AND key = ?3 AND flow = ?4

-- name: store_signal
-- ?1 namespace  ?2 name  ?3 key  ?4 flow  ?5 now  ?6 keep until  ?7 data
INSERT OR REPLACE INTO penstock_stored_signal (namespace, name, key, flow, sent_at, keep_until, data)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)

-- name: drop_signals
-- Remove signals that have been kept long enough.  ?1 namespace  ?2 now
DELETE FROM penstock_stored_signal WHERE namespace = ?1 AND keep_until <= ?2

-- name: signals
-- The number of stored signals.  ?1 namespace
SELECT count(*) FROM penstock_stored_signal INDEXED BY penstock_stored_signal_over WHERE namespace = ?1

-- name: has_steps
-- ?1 seq
UPDATE penstock_job SET has_steps = 1 WHERE seq = ?1 AND has_steps IS NULL

-- name: kept
-- Stored signals.  ?1 namespace  ?2 now  ?3 name (NULL: any)  ?4 key (NULL: any)  ?5, ?6, ?7 name, key and flow of the last
-- one before  ?8 limit
SELECT name, key, flow, data, sent_at, keep_until FROM penstock_stored_signal
WHERE namespace = ?1 AND keep_until > ?2 AND (?3 IS NULL OR name = ?3) AND (?4 IS NULL OR key = ?4)
  AND (name, key, flow) > (?5, ?6, ?7)
ORDER BY name, key, flow LIMIT ?8

-- name: waiters
-- Jobs that wait for a signal.  ?1 namespace  ?2 signal  ?3 key  ?4 limit
SELECT q.name, j.id, s.name,
  (SELECT o.value FROM penstock_step AS o WHERE o.job = s.job AND o.name = s.name || '!of')
FROM penstock_step AS s INDEXED BY penstock_step_wait
CROSS JOIN penstock_job AS j ON j.seq = s.job CROSS JOIN penstock_queue AS q ON q.qid = j.queue
WHERE s.namespace = ?1 AND s.signal = ?2 AND s.key = ?3 AND s.value IS NULL AND (j.state <= {running} OR j.state > {dead})
LIMIT ?4
