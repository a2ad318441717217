-- Flows and their nodes.

-- name: flow
-- ?1 namespace  ?2 queue  ?3 id
SELECT fid, head FROM penstock_flow WHERE namespace = ?1 AND queue = ?2 AND id = ?3

-- name: flow_of
-- The flow of a node that a job names, and the node's number.  ?1 nid
SELECT f.fid, f.head, n.node FROM penstock_flow_node n JOIN penstock_flow f ON f.fid = n.flow WHERE n.nid = ?1

-- name: nodes_of
-- The flows of nodes, their numbers, and the columns of `node`.  ?1 JSON list of nid
SELECT flow, node, nid, state, pending, failures, swept, fixed, job, uses FROM penstock_flow_node
WHERE nid IN (SELECT value FROM json_each(?1))

-- name: new_flow
-- ?1 namespace  ?2 queue  ?3 id  ?4 now  ?5 over at  ?6 head
INSERT INTO penstock_flow (namespace, queue, id, created_at, busy, over_at, head) VALUES (?1, ?2, ?3, ?4, 0, ?5, ?6)

-- name: save_flow
-- ?1 fid  ?2 busy  ?3 over at (NULL: not ended)  ?4 head
UPDATE penstock_flow SET busy = ?2 OR ifnull(parent <= 0, 0), over_at = ?3, head = ?4 WHERE fid = ?1

-- name: new_node
-- ?1 fid  ?2 node  ?3 state  ?4 pending  ?5 fixed  ?6 job  ?7 inputs  ?8 uses
INSERT INTO penstock_flow_node (flow, node, state, pending, fixed, job, inputs, uses)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)

-- name: node
-- Without its result, and without the inputs of a join, which may be large.  ?1 fid  ?2 node
SELECT nid, state, pending, failures, swept, fixed, job, uses FROM penstock_flow_node WHERE flow = ?1 AND node = ?2

-- name: inputs
-- ?1 nid
SELECT inputs FROM penstock_flow_node WHERE nid = ?1

-- name: set_inputs
-- ?1 nid  ?2 inputs
UPDATE penstock_flow_node SET inputs = ?2 WHERE nid = ?1

-- name: save_counts
-- ?1 nid  ?2 pending  ?3 failures  ?4 swept
UPDATE penstock_flow_node SET pending = ?2, failures = ?3, swept = ?4 WHERE nid = ?1

-- name: save_node
-- A node that runs again keeps its result until it ends.
-- ?1 nid  ?2 pending  ?3 failures  ?4 swept  ?5 state  ?6 job  ?7 result
UPDATE penstock_flow_node
SET pending = ?2, failures = ?3, swept = ?4, state = ?5, job = ?6,
    result = CASE WHEN ?5 IN ('waiting', 'active') THEN result ELSE ?7 END WHERE nid = ?1

-- name: set_uses
-- The result of a job that no node needs any longer is removed; an empty one stands in its place.
-- ?1 nid  ?2 uses  ?3 whether it has a job
UPDATE penstock_flow_node SET uses = ?2, result = iif(?2 = 0 AND ?3, x'', result) WHERE nid = ?1

-- name: shown
-- ?1 fid  ?2 JSON list of nodes  ?3 whether with their results
SELECT node, state, fixed, inputs, CASE WHEN ?3 THEN result END, uses FROM penstock_flow_node
WHERE flow = ?1 AND node IN (SELECT value FROM json_each(?2))

-- name: drop_nodes
-- ?1 fid  ?2 first node
DELETE FROM penstock_flow_node WHERE flow = ?1 AND node >= ?2

-- name: set_parent
-- ?1 fid  ?2 the job that waits for the flow (NULL: none)
UPDATE penstock_flow SET parent = ?2 WHERE fid = ?1

-- name: parent_ended
-- Let `advance_flows` see to the open flows that a job waits for.  ?1 seq  ?2 0, or -1 if the job has completed
UPDATE penstock_flow SET parent = ?2, busy = 1 WHERE parent = ?1

-- name: add_key
-- Note the key of a call that adds members; changes nothing if it was noted before.  ?1 fid  ?2 key
INSERT OR IGNORE INTO penstock_flow_addition (flow, key) VALUES (?1, ?2)

-- name: drop_key
-- ?1 fid  ?2 key
DELETE FROM penstock_flow_addition WHERE flow = ?1 AND key = ?2

-- name: drop_keys
-- ?1 fid
DELETE FROM penstock_flow_addition WHERE flow = ?1

-- name: own
-- Make a job that was just enqueued the job of a node.  ?1 qid  ?2 id  ?3 nid
UPDATE penstock_job SET flow = ?3, unique_phases = coalesce(unique_phases, 0) WHERE queue = ?1 AND id = ?2

-- name: named_by
-- The node of a job.  ?1 seq
SELECT flow FROM penstock_job WHERE seq = ?1

-- name: page
-- ?1 namespace  ?2 created at  ?3 queue  ?4 id (of the last one of the previous page)  ?5 limit
SELECT head FROM penstock_flow
WHERE namespace = ?1 AND (created_at, queue, id) < (?2, ?3, ?4) AND instr(id, '/') = 0
ORDER BY created_at DESC, queue DESC, id DESC LIMIT ?5

-- name: any_busy
-- ?1 namespace  ?2 now
SELECT EXISTS (SELECT 1 FROM penstock_flow WHERE namespace = ?1 AND busy = 1)
    OR EXISTS (SELECT 1 FROM penstock_flow WHERE namespace = ?1 AND over_at <= ?2 AND over_at IS NOT NULL)

-- name: busy
-- ?1 namespace  ?2 limit
SELECT fid, head, parent FROM penstock_flow WHERE namespace = ?1 AND busy = 1 LIMIT ?2

-- name: over
-- ?1 namespace  ?2 now
SELECT fid, head FROM penstock_flow WHERE namespace = ?1 AND over_at <= ?2 AND over_at IS NOT NULL LIMIT 1

-- name: drop_some_nodes
-- ?1 fid  ?2 limit
DELETE FROM penstock_flow_node WHERE nid IN (SELECT nid FROM penstock_flow_node WHERE flow = ?1 LIMIT ?2)

-- name: hide_flow
-- Let nobody find a flow that is being removed in steps.  ?1 fid  ?2 head
UPDATE penstock_flow SET id = id || '/' || fid, over_at = 0, head = ?2 WHERE fid = ?1

-- name: drop_flow
-- ?1 fid
DELETE FROM penstock_flow WHERE fid = ?1
