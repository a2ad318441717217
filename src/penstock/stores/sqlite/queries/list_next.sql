-- The jobs of a queue in one state, in the order in which they leave it: pages that begin after a cursor.

-- name: of_priority
-- Available jobs of one priority.  ?1 qid  ?2 priority  ?3 place  ?4 due  ?5 seq  ?6 limit
SELECT {job_columns}, priority, place FROM penstock_job INDEXED BY penstock_ready
WHERE queue = ?1 AND state = {available} AND priority = ?2 AND (place, due, seq) > (?3, ?4, ?5)
ORDER BY place, due, seq LIMIT ?6

-- name: below_priority
-- Available jobs of all lower priorities.  ?1 qid  ?2 priority  ?3 limit
SELECT {job_columns}, priority, place FROM penstock_job INDEXED BY penstock_ready
WHERE queue = ?1 AND state = {available} AND priority < ?2
ORDER BY priority DESC, place, due, seq LIMIT ?3

-- name: due
-- Scheduled or retryable jobs.  ?1 qid  ?2 state  ?3 due  ?4 seq  ?5 limit
SELECT {job_columns} FROM penstock_job INDEXED BY penstock_due
WHERE queue = ?1 AND {is_due_later} AND state = ?2 AND (due, seq) > (?3, ?4)
ORDER BY due, seq LIMIT ?5

-- name: ended
-- Jobs that ended in one state.  ?1 qid  ?2 state  ?3 ended at  ?4 seq  ?5 limit
SELECT {job_columns} FROM penstock_job INDEXED BY penstock_ended
WHERE queue = ?1 AND state = ?2 AND ended_at IS NOT NULL AND (ended_at, seq) > (?3, ?4)
ORDER BY ended_at, seq LIMIT ?5
