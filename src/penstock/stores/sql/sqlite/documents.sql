-- Documents by kind and name, and logs.

-- name: version
-- ?1 namespace  ?2 kind
SELECT version FROM penstock_document_kind WHERE namespace = ?1 AND kind = ?2

-- name: set_version
-- ?1 namespace  ?2 kind  ?3 version
INSERT INTO penstock_document_kind (namespace, kind, version) VALUES (?1, ?2, ?3)
ON CONFLICT (namespace, kind) DO UPDATE SET version = ?3

-- name: page
-- ?1 namespace  ?2 kind  ?3 after this name  ?4 now  ?5 limit
SELECT name, body, revision, updated_at, expires_at FROM penstock_document
WHERE namespace = ?1 AND kind = ?2 AND name > ?3 AND (expires_at IS NULL OR expires_at > ?4)
ORDER BY name LIMIT ?5

-- name: one
-- ?1 namespace  ?2 kind  ?3 name
SELECT revision, expires_at FROM penstock_document WHERE namespace = ?1 AND kind = ?2 AND name = ?3

-- name: count
-- ?1 namespace  ?2 kind
SELECT count(*) FROM penstock_document WHERE namespace = ?1 AND kind = ?2

-- name: put
-- ?1 namespace  ?2 kind  ?3 name  ?4 revision  ?5 now  ?6 expires at  ?7 body
INSERT INTO penstock_document (namespace, kind, name, revision, updated_at, expires_at, body)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (namespace, kind, name) DO UPDATE SET revision = ?4, updated_at = ?5, expires_at = ?6, body = ?7

-- name: remove
-- ?1 namespace  ?2 kind  ?3 name
DELETE FROM penstock_document WHERE namespace = ?1 AND kind = ?2 AND name = ?3

-- name: remove_expired
-- ?1 namespace  ?2 kind  ?3 now  ?4 limit
DELETE FROM penstock_document WHERE rowid IN (
    SELECT rowid FROM penstock_document WHERE namespace = ?1 AND kind = ?2 AND expires_at <= ?3 LIMIT ?4
)

-- name: quota
-- ?1 namespace  ?2 name
SELECT taken, ends FROM penstock_quota WHERE namespace = ?1 AND name = ?2

-- name: set_quota
-- ?1 namespace  ?2 name  ?3 taken  ?4 ends
INSERT INTO penstock_quota (namespace, name, taken, ends) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (namespace, name) DO UPDATE SET taken = ?3, ends = ?4

-- name: remove_quotas
-- Those whose windows are over.  ?1 now
DELETE FROM penstock_quota WHERE ends <= ?1

-- name: last
-- The number of the newest entry.  ?1 namespace  ?2 log
SELECT number FROM penstock_log WHERE namespace = ?1 AND log = ?2 ORDER BY number DESC LIMIT 1

-- name: append
-- ?1 namespace  ?2 log  ?3 number  ?4 now  ?5 body
INSERT INTO penstock_log (namespace, log, number, at, body) VALUES (?1, ?2, ?3, ?4, ?5)

-- name: trim
-- ?1 namespace  ?2 log  ?3 the newest number to remove
DELETE FROM penstock_log WHERE namespace = ?1 AND log = ?2 AND number <= ?3

-- name: log
-- ?1 namespace  ?2 log  ?3 below this number  ?4 limit
SELECT number, at, body FROM penstock_log WHERE namespace = ?1 AND log = ?2 AND number < ?3
ORDER BY number DESC LIMIT ?4
