-- Extend leases. No row in the answer means that the lease is lost.

-- name: lease
-- Extend one lease, and store the attempt's started flag, progress and checkpoint (NULL: keep the stored one).
-- ?1 seq  ?2 qid  ?3 id  ?4 token  ?5 lease until  ?6 started  ?7 progress  ?8 checkpoint
UPDATE penstock_job
SET lease_until = ?5, started = max(started, ?6), progress = coalesce(?7, progress),
    checkpoint = coalesce(?8, checkpoint)
WHERE seq = ?1 AND queue = ?2 AND id = ?3 AND token = ?4 AND state = {running}
RETURNING cancel_asked
