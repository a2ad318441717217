-- Searches: jobs after a cursor, in order of enqueue or of a time, down or up, or in ready order. The verb reads no more rows
-- than it needs.
-- `+queue`: SQLite would else read the index of ids, and sort.

-- name: down
-- Jobs in a range of generations.  ?1 from  ?2 to  ?3 JSON list of qids  ?4 JSON list of states or NULL  ?5 task or NULL
-- ?6 enqueued since  ?7 enqueued until
SELECT {job_columns} FROM penstock_job
WHERE seq BETWEEN ?1 AND ?2 AND +queue IN (SELECT value FROM json_each(?3))
  AND (?4 IS NULL OR state IN (SELECT value FROM json_each(?4))) AND (?5 IS NULL OR task = ?5)
  AND enqueued_at >= ?6 AND enqueued_at < ?7
ORDER BY seq DESC

-- name: up
-- As `down`, oldest first.
SELECT {job_columns} FROM penstock_job
WHERE seq BETWEEN ?1 AND ?2 AND +queue IN (SELECT value FROM json_each(?3))
  AND (?4 IS NULL OR state IN (SELECT value FROM json_each(?4))) AND (?5 IS NULL OR task = ?5)
  AND enqueued_at >= ?6 AND enqueued_at < ?7
ORDER BY seq

-- name: passed
-- The number of jobs of these queues and states in a range of generations.
-- ?1 from  ?2 to  ?3 JSON list of qids  ?4 JSON list of states or NULL
SELECT count(*) FROM penstock_job
WHERE seq BETWEEN ?1 AND ?2 AND +queue IN (SELECT value FROM json_each(?3))
  AND (?4 IS NULL OR state IN (SELECT value FROM json_each(?4)))

-- name: before
-- The newest job of the file before a generation.  ?1 seq
SELECT max(seq) FROM penstock_job WHERE seq < ?1

-- name: behind
-- The oldest job of the file after a generation.  ?1 seq
SELECT min(seq) FROM penstock_job WHERE seq > ?1

-- name: one
-- ?1 seq
SELECT {job_columns} FROM penstock_job WHERE seq = ?1

-- name: due_up
-- Jobs that are due later. The states are left to the verb, which counts each row: the index has none, so a condition would pass any number.
-- ?1 qid  ?2 due  ?3 seq
SELECT {job_columns} FROM penstock_job INDEXED BY penstock_due
WHERE queue = ?1 AND {is_due_later} AND (due, seq) > (?2, ?3)
ORDER BY due, seq

-- name: due_down
-- As `due_up`, latest first.
SELECT {job_columns} FROM penstock_job INDEXED BY penstock_due
WHERE queue = ?1 AND {is_due_later} AND (due, seq) < (?2, ?3)
ORDER BY due DESC, seq DESC

-- name: ended_up
-- Jobs that ended in one state.  ?1 qid  ?2 state  ?3 ended at  ?4 seq
SELECT {job_columns} FROM penstock_job INDEXED BY penstock_ended
WHERE queue = ?1 AND state = ?2 AND ended_at IS NOT NULL AND (ended_at, seq) > (?3, ?4)
ORDER BY ended_at, seq

-- name: ended_down
-- As `ended_up`, latest first.
SELECT {job_columns} FROM penstock_job INDEXED BY penstock_ended
WHERE queue = ?1 AND state = ?2 AND ended_at IS NOT NULL AND (ended_at, seq) < (?3, ?4)
ORDER BY ended_at DESC, seq DESC

-- name: of_priority
-- Available jobs of one priority behind a place, as a fetch takes them.  ?1 qid  ?2 priority  ?3 place  ?4 due  ?5 seq  ?6 limit
SELECT {job_columns}, priority, place FROM penstock_job INDEXED BY penstock_ready
WHERE queue = ?1 AND state = {available} AND priority = ?2 AND (place, due, seq) > (?3, ?4, ?5)
ORDER BY place, due, seq LIMIT ?6

-- name: below_priority
-- Available jobs of all lower priorities.  ?1 qid  ?2 priority  ?3 limit
SELECT {job_columns}, priority, place FROM penstock_job INDEXED BY penstock_ready
WHERE queue = ?1 AND state = {available} AND priority < ?2
ORDER BY priority DESC, place, due, seq LIMIT ?3
