-- Fair share (tables: tenant): the places of each tenant's jobs in a queue with a fair share.

-- name: begin
-- Give a queue a fair share.  ?1 qid  ?2 the place after which the places of the fair share begin
UPDATE penstock_queue SET fair = ?2 WHERE qid = ?1

-- name: round
-- ?1 qid  ?2 priority
SELECT now, tail FROM penstock_fair_share WHERE queue = ?1 AND priority = ?2

-- name: next
-- ?1 qid  ?2 priority  ?3 key
SELECT next FROM penstock_tenant WHERE queue = ?1 AND priority = ?2 AND key = ?3

-- name: set_tail
-- ?1 qid  ?2 priority  ?3 now (for a new row)  ?4 tail
INSERT INTO penstock_fair_share (queue, priority, now, tail) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (queue, priority) DO UPDATE SET tail = ?4

-- name: set_next
-- ?1 qid  ?2 priority  ?3 key  ?4 place
INSERT INTO penstock_tenant (queue, priority, key, next) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (queue, priority, key) DO UPDATE SET next = ?4

-- name: drop_key
-- ?1 qid  ?2 priority  ?3 key
DELETE FROM penstock_tenant WHERE queue = ?1 AND priority = ?2 AND key = ?3

-- name: fetched
-- Advance the round to a fetched place.  ?1 qid  ?2 priority  ?3 place
UPDATE penstock_fair_share SET now = ?3 WHERE queue = ?1 AND priority = ?2 AND now < ?3

-- name: drop_past
-- Delete tenants' places that have been passed.  ?1 qid  ?2 priority  ?3 place  ?4 limit
DELETE FROM penstock_tenant WHERE (queue, priority, key) IN (
    SELECT queue, priority, key FROM penstock_tenant INDEXED BY penstock_tenant_next
    WHERE queue = ?1 AND priority = ?2 AND next <= ?3 LIMIT ?4
)

-- name: any_key
-- ?1 qid
SELECT 1 FROM penstock_tenant WHERE queue = ?1 LIMIT 1

-- name: restart
-- Start all tenants equal again.  ?1 qid
UPDATE penstock_fair_share SET now = max(now, coalesce(
    (SELECT max(next) FROM penstock_tenant AS t WHERE t.queue = ?1 AND t.priority = penstock_fair_share.priority), now))
WHERE queue = ?1

-- name: drop_keys
-- ?1 qid
DELETE FROM penstock_tenant WHERE queue = ?1

-- name: drop_rounds
-- ?1 qid
DELETE FROM penstock_fair_share WHERE queue = ?1
