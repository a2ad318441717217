-- Prolongs leases; whoever is not in the answer has lost its lease.

-- name: lease
-- One lease, and what its attempt says of itself (NULL: nothing new).
-- ?1 seq  ?2 qid  ?3 id  ?4 token  ?5 lease until  ?6 started  ?7 progress  ?8 checkpoint
UPDATE penstock_job
SET lease_until = ?5, started = max(started, ?6), progress = coalesce(?7, progress),
    checkpoint = coalesce(?8, checkpoint)
WHERE seq = ?1 AND queue = ?2 AND id = ?3 AND token = ?4 AND state = {running}
RETURNING cancel_asked
