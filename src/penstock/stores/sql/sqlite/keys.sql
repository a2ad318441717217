-- Unique keys: the job that holds each key, and until when.

-- name: holder
-- ?1 qid  ?2 key
SELECT id, until, seq FROM penstock_key WHERE queue = ?1 AND key = ?2

-- name: take
-- Take a free key.  ?1 qid  ?2 key  ?3 seq  ?4 id  ?5 until
INSERT INTO penstock_key (queue, key, seq, id, until) VALUES (?1, ?2, ?3, ?4, ?5)

-- name: free
-- Free the keys of these jobs.  ?1 JSON list of seq
DELETE FROM penstock_key WHERE seq IN (SELECT value FROM json_each(?1))

-- name: free_endless
-- Free the key of a job, unless the key has a period.  ?1 seq
DELETE FROM penstock_key WHERE seq = ?1 AND until IS NULL

-- name: over
-- Whether the period of a key is over.  ?1 qid  ?2 now
SELECT 1 FROM penstock_key INDEXED BY penstock_key_over WHERE queue = ?1 AND until <= ?2 AND until IS NOT NULL LIMIT 1

-- name: prune
-- Delete keys whose period is over.  ?1 qid  ?2 now  ?3 limit
DELETE FROM penstock_key WHERE queue = ?1 AND key IN (
    SELECT key FROM penstock_key INDEXED BY penstock_key_over
    WHERE queue = ?1 AND until <= ?2 AND until IS NOT NULL ORDER BY until LIMIT ?3
)

-- name: drop
-- Delete all keys of a queue.  ?1 qid
DELETE FROM penstock_key WHERE queue = ?1

-- name: job
-- A job with a unique key that changes its phase.  ?1 seq
SELECT id, spec, enqueued_at FROM penstock_job WHERE seq = ?1

-- name: look
-- The holder of a key, with the columns of `get.one`.  ?1 seq
SELECT {job_columns}
FROM penstock_job WHERE seq = ?1

-- name: replace
-- ?1 seq  ?2 state  ?3 due  ?4 expires at  ?5 spec  ?6 place (NULL: keep)
UPDATE penstock_job
SET state = ?2, due = ?3, expires_at = ?4, spec = ?5, place = coalesce(?6, place) WHERE seq = ?1
