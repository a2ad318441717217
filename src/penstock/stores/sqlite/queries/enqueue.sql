-- Stores new jobs. The verb looks at the queue first, draws generation and place, and adds to the counts.

-- name: insert
-- One job without a unique key; changes nothing if its id is taken.
INSERT INTO penstock_job (seq, queue, id, state, priority, place, due, task, enqueued_at, expires_at, spec)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (queue, id) DO NOTHING

-- name: insert_holder
-- One job that holds its unique key, which must be free.
INSERT INTO penstock_job
    (seq, queue, id, state, priority, place, due, task, enqueued_at, expires_at, spec, ukey, ukey_until)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (queue, id) DO NOTHING

-- name: exists
-- ?1 qid  ?2 id
SELECT 1 FROM penstock_job WHERE queue = ?1 AND id = ?2

-- name: holder
-- Who holds a unique key, and until when.  ?1 qid  ?2 key
SELECT seq, id, ukey_until FROM penstock_job WHERE queue = ?1 AND ukey = ?2

-- name: free
-- Takes the key from a job whose period is over.  ?1 seq
UPDATE penstock_job SET ukey = NULL, ukey_until = NULL WHERE seq = ?1
