-- Store new jobs. The verb reads the queue first, assigns generation and place, and updates the counts.

-- name: insert
-- A job without a unique key; changes nothing if its id is taken.
INSERT INTO penstock_job (seq, queue, id, state, priority, place, due, task, enqueued_at, expires_at, spec)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (queue, id) DO NOTHING

-- name: insert_with_key
-- A job with a unique key (last parameter: its phases, or NULL), a partition, a fair share or a batch key.
INSERT INTO penstock_job
    (seq, queue, id, state, priority, place, due, task, enqueued_at, expires_at, spec, unique_phases)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (queue, id) DO NOTHING

-- name: exists
-- ?1 qid  ?2 id
SELECT 1 FROM penstock_job WHERE queue = ?1 AND id = ?2
