-- Stores new jobs. The verb looks at the queue first, draws generation and place, and adds to the counts.

-- name: insert
-- One job without a unique key; changes nothing if its id is taken.
INSERT INTO penstock_job (seq, queue, id, state, priority, place, due, task, enqueued_at, expires_at, spec)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (queue, id) DO NOTHING

-- name: insert_with_key
-- One job with the phases in which it holds a unique key, or NULL; for all that have an option of their own.
INSERT INTO penstock_job
    (seq, queue, id, state, priority, place, due, task, enqueued_at, expires_at, spec, tied)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (queue, id) DO NOTHING

-- name: exists
-- ?1 qid  ?2 id
SELECT 1 FROM penstock_job WHERE queue = ?1 AND id = ?2
