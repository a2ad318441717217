-- Partitions (columns and tables: partition_key): update the other jobs of a key when one job changes.

-- name: look
-- Read a job before a change.  ?1 seq
SELECT seq, state, priority, place, partition_key, admitted, spec FROM penstock_job WHERE seq = ?1

-- name: begin
-- Mark that a queue has partitions.  ?1 qid
UPDATE penstock_queue SET partitioned = 1 WHERE qid = ?1

-- name: join
-- Store the partition of a job.  ?1 seq  ?2 key  ?3 rank
UPDATE penstock_job SET partition_key = ?2, rank = ?3 WHERE seq = ?1

-- name: admit
-- ?1 seq  ?2 NULL, ADMITTED or ADMITTED_UNSTARTED (statements.py)
UPDATE penstock_job SET admitted = ?2 WHERE seq = ?1

-- name: available
-- Make a waiting job available.  ?1 seq  ?2 admitted
UPDATE penstock_job SET state = {available}, admitted = ?2 WHERE seq = ?1

-- name: wait
-- Make a job waiting, because its partition is full.  ?1 seq
UPDATE penstock_job SET state = {waiting} WHERE seq = ?1

-- name: to_place
-- ?1 seq  ?2 place
UPDATE penstock_job SET place = ?2 WHERE seq = ?1

-- name: promote
-- ?1 seq  ?2 place
UPDATE penstock_job SET state = {available}, place = ?2 WHERE seq = ?1

-- name: first
-- The first waiting job.  ?1 qid  ?2 key
SELECT seq, state, priority, place, partition_key, admitted, spec, rank FROM penstock_job INDEXED BY penstock_waiting
WHERE queue = ?1 AND partition_key = ?2 AND state = {waiting} ORDER BY rank, place LIMIT 1

-- name: count
-- The number of admitted jobs.  ?1 qid  ?2 key
SELECT count(*) FROM penstock_job INDEXED BY penstock_admitted
WHERE queue = ?1 AND partition_key = ?2 AND admitted IS NOT NULL

-- name: unstarted
-- The number of admitted jobs that have not started.  ?1 qid  ?2 key
SELECT count(*) FROM penstock_job INDEXED BY penstock_admitted
WHERE queue = ?1 AND partition_key = ?2 AND admitted = {admitted_unstarted} AND admitted IS NOT NULL

-- name: rates
-- The jobs of a list whose start counts against a rate.  ?1 JSON list of seq
SELECT seq, partition_key, spec FROM penstock_job
WHERE seq IN (SELECT value FROM json_each(?1)) AND partition_key IS NOT NULL AND admitted = {admitted_unstarted}

-- name: key
-- ?1 qid  ?2 key
SELECT spent, throttled_until, due FROM penstock_partition WHERE queue = ?1 AND key = ?2

-- name: remember
-- ?1 qid  ?2 key  ?3 spent  ?4 throttled_until  ?5 when both have passed
INSERT INTO penstock_partition (queue, key, spent, throttled_until, over) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (queue, key) DO UPDATE SET spent = ?3, throttled_until = ?4, over = ?5

-- name: due
-- ?1 qid  ?2 key  ?3 instant
INSERT INTO penstock_partition (queue, key, due) VALUES (?1, ?2, ?3)
ON CONFLICT (queue, key) DO UPDATE SET due = ?3

-- name: not_due
-- ?1 qid  ?2 key
UPDATE penstock_partition SET due = NULL WHERE queue = ?1 AND key = ?2 AND due IS NOT NULL

-- name: all_due
-- ?1 qid  ?2 now  ?3 limit
SELECT due, key FROM penstock_partition INDEXED BY penstock_partition_due
WHERE queue = ?1 AND due <= ?2 AND due IS NOT NULL ORDER BY due, key LIMIT ?3

-- name: next_due
-- ?1 qid
SELECT min(due) FROM penstock_partition INDEXED BY penstock_partition_due WHERE queue = ?1 AND due IS NOT NULL

-- name: over
-- Whether there is an unused key.  ?1 qid  ?2 now
SELECT 1 FROM penstock_partition INDEXED BY penstock_partition_over WHERE queue = ?1 AND over <= ?2 AND due IS NULL LIMIT 1

-- name: forget
-- ?1 qid  ?2 now
DELETE FROM penstock_partition WHERE queue = ?1 AND over <= ?2 AND due IS NULL

-- name: before
-- The number of waiting jobs ahead of a job.  ?1 qid  ?2 key  ?3 rank  ?4 place
SELECT count(*) FROM penstock_job INDEXED BY penstock_waiting
WHERE queue = ?1 AND partition_key = ?2 AND state = {waiting} AND (rank, place) < (?3, ?4)

-- name: in_line
-- The number of waiting jobs.  ?1 qid  ?2 key
SELECT count(*) FROM penstock_job INDEXED BY penstock_waiting WHERE queue = ?1 AND partition_key = ?2 AND state = {waiting}

-- name: admitted
-- The generations of the admitted jobs.  ?1 qid  ?2 key
SELECT seq FROM penstock_job INDEXED BY penstock_admitted
WHERE queue = ?1 AND partition_key = ?2 AND admitted IS NOT NULL

-- name: drop
-- ?1 qid
DELETE FROM penstock_partition WHERE queue = ?1
