-- Make due jobs available.

-- name: due
-- The due jobs of a queue, earliest first.  ?1 qid  ?2 now  ?3 limit
SELECT due, seq, queue, state, expires_at, spec, batch_key, NULL FROM penstock_job INDEXED BY penstock_due
WHERE queue = ?1 AND {is_due_later} AND due <= ?2 ORDER BY due, seq LIMIT ?3

-- name: move
-- Move jobs to the tail of their queue, in this order.  ?1 the tail  ?2 JSON list of seq
UPDATE penstock_job SET state = {available}, place = ?1 + 1 + j.key
FROM json_each(?2) AS j WHERE penstock_job.seq = j.value

-- name: next
-- When the next job is due.  ?1 qid
SELECT min(due) FROM penstock_job INDEXED BY penstock_due WHERE queue = ?1 AND {is_due_later}
