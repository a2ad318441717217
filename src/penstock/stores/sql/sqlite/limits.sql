-- Limits of queues and the state of their rate limiters.

-- name: set
-- ?1 qid  ?2 limits (NULL: none)  ?3 throttled until  ?4 next_start  ?5 layers (NULL: none)
UPDATE penstock_queue SET limits = ?2, throttled_until = ?3, next_start = ?4, limit_layers = ?5 WHERE qid = ?1

-- name: layers
-- ?1 qid
SELECT limit_layers FROM penstock_queue WHERE qid = ?1

-- name: throttle
-- ?1 qid  ?2 until
UPDATE penstock_queue SET throttled_until = ?2 WHERE qid = ?1

-- name: count_starts
-- ?1 qid  ?2 next_start  ?3 drained  ?4 at  ?5 since
UPDATE penstock_queue SET next_start = ?2, drained = ?3, drained_at = ?4, drained_since = ?5 WHERE qid = ?1

-- name: starts
-- A leased job that must not start before an instant.  ?1 instant  ?2 seq
UPDATE penstock_job SET fetched_at = ?1 WHERE seq = ?2

-- name: aged
-- Ended jobs of one state that ended long ago, the oldest end first.  ?1 qid  ?2 state  ?3 until  ?4 limit
SELECT seq FROM penstock_job INDEXED BY penstock_ended
WHERE queue = ?1 AND state = ?2 AND ended_at <= ?3 AND ended_at IS NOT NULL ORDER BY ended_at, seq LIMIT ?4
