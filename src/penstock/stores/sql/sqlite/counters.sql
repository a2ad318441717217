-- The row of a queue with its counts, and the daily counts; used by every verb.

-- name: queue
-- A queue's switches, last places, the generation of the newest job, limits, partitions and fair share.
-- ?1 namespace  ?2 name
SELECT qid, paused, closed, tail, head, (SELECT enqueued FROM penstock_queue WHERE qid = 0),
       limits, throttled_until, next_start, drained, drained_at, drained_since, partitioned, fair
FROM penstock_queue WHERE namespace = ?1 AND name = ?2

-- name: counts
-- A queue's counts by state.  ?1 qid
SELECT scheduled, retryable, parked, available, running, completed, cancelled, dead, waiting, collecting, suspended
FROM penstock_queue WHERE qid = ?1

-- name: open_queue
-- A new queue.  ?1 namespace  ?2 name
INSERT INTO penstock_queue (namespace, name) VALUES (?1, ?2)

-- name: tally
-- Add to the counts of one queue.  ?1…?11 states  ?12…?14 totals  ?15 tail  ?16 head  ?17 qid
UPDATE penstock_queue SET
    scheduled = scheduled + ?1, retryable = retryable + ?2, parked = parked + ?3, available = available + ?4,
    running = running + ?5, completed = completed + ?6, cancelled = cancelled + ?7, dead = dead + ?8,
    waiting = waiting + ?9, collecting = collecting + ?10, suspended = suspended + ?11,
    enqueued = enqueued + ?12, processed = processed + ?13, failed = failed + ?14,
    tail = tail + ?15, head = head + ?16
WHERE qid = ?17

-- name: recount
-- Correct a queue's counts by counting its jobs.  ?1 qid
UPDATE penstock_queue SET (
    scheduled, retryable, parked, available, running, completed, cancelled, dead, waiting, collecting, suspended
) = (
    SELECT count(*) FILTER (WHERE state = {scheduled}), count(*) FILTER (WHERE state = {retryable}), count(*) FILTER (WHERE state = {parked}),
           count(*) FILTER (WHERE state = {available}), count(*) FILTER (WHERE state = {running}), count(*) FILTER (WHERE state = {completed}),
           count(*) FILTER (WHERE state = {cancelled}), count(*) FILTER (WHERE state = {dead}), count(*) FILTER (WHERE state = {waiting}),
           count(*) FILTER (WHERE state = {collecting}), count(*) FILTER (WHERE state = {suspended})
    FROM penstock_job WHERE queue = ?1
)
WHERE qid = ?1

-- name: miscounted
-- Whether a state with the count 0 has jobs, which no verb would find; of running jobs this is `with_running`.  ?1 qid
SELECT 1 FROM penstock_queue WHERE qid = ?1 AND (
    (available <= 0 AND EXISTS (SELECT 1 FROM penstock_job INDEXED BY penstock_ready WHERE queue = ?1 AND state = {available}))
    OR (scheduled <= 0 AND retryable <= 0 AND suspended <= 0
        AND EXISTS (SELECT 1 FROM penstock_job INDEXED BY penstock_due WHERE queue = ?1 AND {is_due_later}))
    OR (parked <= 0 AND EXISTS (SELECT 1 FROM penstock_job INDEXED BY penstock_parked WHERE queue = ?1 AND state = {parked}))
    OR (waiting <= 0 AND EXISTS (SELECT 1 FROM penstock_job INDEXED BY penstock_waiting WHERE queue = ?1 AND state = {waiting}))
)

-- name: with_running
-- The queues with running jobs: one walk over all running jobs, whatever the number of queues.
SELECT DISTINCT queue FROM penstock_job INDEXED BY penstock_running WHERE state = {running}

-- name: new
-- As tally, for the enqueue of new jobs, which is all that most transactions of a producer do.
-- ?1 scheduled  ?2 available  ?3 both  ?4 qid
UPDATE penstock_queue SET
    scheduled = scheduled + ?1, available = available + ?2, enqueued = enqueued + ?3, tail = tail + ?3
WHERE qid = ?4

-- name: generation
-- Count new jobs of the whole file.  ?1 number of jobs
UPDATE penstock_queue SET enqueued = enqueued + ?1 WHERE qid = 0

-- name: day
-- Add to the daily counts.  ?1 qid  ?2 day  ?3 processed  ?4 failed
INSERT INTO penstock_day (queue, day, processed, failed) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (queue, day) DO UPDATE SET processed = processed + ?3, failed = failed + ?4

-- name: signal
-- Count requests to stop and changes of settings.  ?1 namespace  ?2 requests  ?3 changes
INSERT INTO penstock_signal (namespace, cancels, changes) VALUES (?1, ?2, ?3)
ON CONFLICT (namespace) DO UPDATE SET cancels = cancels + ?2, changes = changes + ?3

-- name: wake_counts
-- The counts of signal.  ?1 namespace
SELECT cancels, changes FROM penstock_signal WHERE namespace = ?1

-- name: boot
-- The boot of the machine whose clock the leases use.
SELECT value FROM penstock_meta WHERE key = 'boot'

-- name: new_boot
-- ?1 boot id
INSERT INTO penstock_meta (key, value) VALUES ('boot', ?1) ON CONFLICT (key) DO UPDATE SET value = ?1

-- name: void
-- Void all leases: they are on the clock of an earlier boot.
UPDATE penstock_job SET lease_until = -1 WHERE state = {running}
